"""Forward and backward of a graph on the same arrays in every call, as executors have them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from graphopt.backend.caller import LearningEngine
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.kernels import bridge

#: MXNet's numbers of what becomes of an array.
_REQUESTS: Final = {"null": 0, "write": 1, "add": 3}


class BoundEngine:
    """Calls of a :class:`LearningEngine` without autograd, each an operation of MXNet's engine."""

    def __init__(
        self,
        engine: LearningEngine,
        arrays: Sequence[Any],
        gradients: Mapping[str, Any],
        grad_req: Mapping[str, str],
    ) -> None:
        """Bind.

        Args:
            engine: whose graph runs.
            arrays: NDArrays in the order of the engine's inputs; every call reads them.
            gradients: NDArrays by name of inputs, where there are any; backward writes them.
            grad_req: "write", "add" or "null" by name.
        """
        self.name = engine.name
        self._library, self._number = _functions(), engine.number
        self._draws, self._ctx = engine.draws, arrays[0].ctx
        self._drawn: list[Any] = []
        self._kept = [engine, *arrays, *gradients.values()]
        given = [(name, gradients.get(name)) for name in engine.inputs]
        requests = [
            0 if gradient is None else _REQUESTS[grad_req.get(name, "null")]
            for name, gradient in given
        ]
        # Where nothing is requested any array will do.
        places = [
            gradient if request else array
            for (_, gradient), request, array in zip(given, requests, arrays, strict=True)
        ]
        # Nobody wants gradients of random numbers.
        behind = [arrays[0]] * len(self._draws)
        self._arrays = _handles([*arrays, *behind])
        self._gradients = _handles([*places, *behind])
        requests += [0] * len(behind)
        self._requests = (ctypes.c_int * len(requests))(*requests)
        self._size = int(self._library.graphopt_graph_stash(self._number))
        self._stash: Any = None  # what forward leaves for backward

    @property
    def is_ready(self) -> bool:
        """Whether backward may be called, also again."""
        return True

    def forward(self, outputs: Sequence[Any], *, is_train: bool) -> None:
        """Compute the outputs, into arrays."""
        if self._draws:
            self._drawn = [draw(self._ctx) for draw in self._draws]  # as backward reads them, too
            first = len(self._arrays) - len(self._drawn)
            for at, array in enumerate(self._drawn):
                self._arrays[first + at] = array.handle
        self._run(outputs, is_train=is_train)

    def backward(self, heads: Sequence[Any], outputs: Sequence[Any], *, is_train: bool) -> None:
        """Compute gradients by those of the outputs, which the last forward made.

        Args:
            heads: gradients of the outputs.
            outputs: arrays.
            is_train: of no effect, as backward has the mode that forward left behind.
        """
        if self._stash is None:
            self._run(outputs, is_train=True)  # by the same random numbers
        made = _handles([*outputs, self._stash])
        self._check(
            self._library.graphopt_graph_backward(
                self._number, _handles(heads), self._arrays, made, self._gradients, self._requests
            )
        )

    def let_go(self) -> None:
        """Keep nothing for backward, which computes it again if it is called."""
        self._stash = None

    def _run(self, outputs: Sequence[Any], *, is_train: bool) -> None:
        if self._stash is None:
            self._stash = import_mxnet().nd.empty((self._size,), self._ctx)
        made = _handles([*outputs, self._stash])
        self._check(
            self._library.graphopt_graph_forward(self._number, self._arrays, made, is_train)
        )

    def _check(self, failed: int) -> None:
        if failed:
            raise GraphoptError(self._library.graphopt_error().decode())


def _handles(arrays: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])


@cache
def _functions() -> ctypes.CDLL:
    library = bridge.load(import_mxnet())
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.graphopt_graph_stash.restype = number
    library.graphopt_graph_stash.argtypes = [number]
    library.graphopt_graph_forward.argtypes = [number, pointer, pointer, ctypes.c_int]
    library.graphopt_graph_backward.argtypes = [number, *[pointer] * 5]
    return library
