"""Ways to run a Symbol: MXNet's CachedOp and its executor, with and without oneDNN subgraphs.

An engine takes NDArrays in the order of its ``inputs`` and returns fresh NDArrays: nothing it
returned earlier is overwritten by a later call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from graphopt.backend.onednn import ONEDNN
from graphopt.compat import import_mxnet

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPARE = "graphopt_spare"


class Engine(Protocol):
    """Something that runs a graph for one set of input types."""

    name: str
    inputs: Sequence[str]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on arrays in the order of ``inputs``."""


class CachedOpEngine:
    """MXNet's CachedOp: asynchronous, differentiable, statically planned."""

    def __init__(self, symbol: Any, data: Collection[str], name: str = "CachedOp") -> None:
        """Plan ``symbol``; ``data`` names the inputs that change from call to call."""
        mx = import_mxnet()
        self.name = name
        self.inputs: Sequence[str] = symbol.list_inputs()
        self._spare: list[Any] = []
        if not symbol.list_arguments():
            # MXNet wants something to differentiate by, even here.
            symbol = mx.sym.Group([symbol, mx.sym.identity(mx.sym.var(_SPARE))])
            self._spare = [mx.nd.zeros((1,))]
        # MXNet plans once around the arrays of the others, and again whenever one is replaced.
        is_data = [name in data for name in symbol.list_inputs()]
        flags = [
            ("data_indices", [i for i, yes in enumerate(is_data) if yes]),
            ("param_indices", [i for i, yes in enumerate(is_data) if not yes]),
            ("static_alloc", True),
            ("static_shape", True),
        ]
        self._op = mx.nd.CachedOp(symbol, flags)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run; recorded by autograd when it records."""
        found = self._op(*arrays, *self._spare)
        outputs = found if isinstance(found, list) else [found]
        return outputs[: len(outputs) - len(self._spare)]


class ExecutorEngine:
    """MXNet's executor with its oneDNN subgraphs, inference only.

    oneDNN keeps reordered copies of the parameters, so a write to them later may or may not show.
    Data is copied into buffers of the engine, which one call at a time may use.
    """

    def __init__(
        self, symbol: Any, arrays: Sequence[Any], data: Collection[str], ctx: Any, name: str
    ) -> None:
        """Bind ``symbol`` to ``arrays``, given in the order of its inputs."""
        self.name = name
        self.inputs: Sequence[str] = symbol.list_inputs()
        self._bound = [
            array.copy() if name in data else array
            for name, array in zip(self.inputs, arrays, strict=True)
        ]
        by_name = dict(zip(self.inputs, self._bound, strict=True))
        with quiet_binding():
            self._executor = symbol.bind(
                ctx,
                {n: by_name[n] for n in symbol.list_arguments()},
                grad_req="null",
                aux_states={n: by_name[n] for n in symbol.list_auxiliary_states()},
            )
        self._lock = threading.Lock()

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run; the outputs are copies, since the executor writes to the same arrays again."""
        with self._lock:
            for array, bound in zip(arrays, self._bound, strict=True):
                if array is not bound:
                    array.copyto(bound)
            return [output.copy() for output in self._executor.forward(is_train=False)]


@contextmanager
def quiet_binding() -> Iterator[None]:
    """Inside the block MXNet's executor picks its oneDNN subgraphs without announcing it."""
    wanted = {"MXNET_SUBGRAPH_BACKEND": ONEDNN, "MXNET_SUBGRAPH_VERBOSE": "0"}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
