"""MXNet's random numbers, in front of a call and around what is run to compare it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from graphopt.analysis.effects import may_draw
from graphopt.compat import import_mxnet
from graphopt.ir.attrs import to_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node

#: Seeds are below.
_MOST_SEED: Final = 1 << 31


def same_draws(*graphs: Graph, training: bool) -> AbstractContextManager[None]:
    """Inside the block graphs draw the same numbers; a stream that none reads stays as it is."""
    return _seeded() if any(may_draw(g, training=training) for g in graphs) else nullcontext()


@contextmanager
def _seeded() -> Iterator[None]:
    """Inside the block the CPUs' generator is seeded alike; behind it, as the user's seed has it.

    MXNet does not tell where its stream is. So a number is taken from it, which seeds the rest.
    """
    mx = import_mxnet()
    with mx.autograd.pause():
        after = int(mx.nd.random.randint(0, _MOST_SEED - 1, ctx=mx.cpu()).asscalar())
    mx.random.seed(0, ctx=mx.cpu())
    try:
        yield
    finally:
        mx.random.seed(after, ctx=mx.cpu())


class Draws:
    """Calls one of MXNet's operators that reads nothing, as ``mx.random.seed`` has it."""

    def __init__(self, node: Node) -> None:
        """``node``: the operator and its attributes."""
        base = self._base = import_mxnet().base
        self._class = import_mxnet().nd.NDArray
        self._operator = ctypes.c_void_p()
        name = node.op.encode()
        base.check_call(base._LIB.NNGetOpHandle(name, ctypes.byref(self._operator)))
        self._attrs = {key: to_mxnet(value) for key, value in node.attrs.items()}
        self._known: dict[str, tuple[Any, Any]] = {}

    def __call__(self, ctx: Any) -> Any:
        """New numbers, an array there that autograd knows nothing of."""
        library, check_call = self._base._LIB, self._base.check_call
        keys, values = self._texts(str(ctx))
        count, outputs = ctypes.c_int(0), ctypes.POINTER(ctypes.c_void_p)()
        kinds, was_recording = ctypes.POINTER(ctypes.c_int)(), ctypes.c_int(0)
        check_call(library.MXAutogradSetIsRecording(0, ctypes.byref(was_recording)))
        try:
            check_call(
                library.MXImperativeInvokeEx(
                    *(self._operator, 0, None, ctypes.byref(count), ctypes.byref(outputs)),
                    *(len(keys), keys, values, ctypes.byref(kinds)),
                )
            )
        finally:
            check_call(
                library.MXAutogradSetIsRecording(was_recording, ctypes.byref(ctypes.c_int(0)))
            )
        return self._class(self._base.NDArrayHandle(outputs[0]))

    def _texts(self, ctx: str) -> tuple[Any, Any]:
        if ctx not in self._known:
            given = self._attrs | {"ctx": ctx}
            array = ctypes.c_char_p * len(given)
            keys = array(*(key.encode() for key in given))
            self._known[ctx] = keys, array(*(text.encode() for text in given.values()))
        return self._known[ctx]
