"""Arrays that an executor gives out, for others in the same memory in all of its calls."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

from graphopt.backend.arrays import address_of
from graphopt.compat import import_mxnet
from graphopt.kernels.bridge.memory import have_one_memory, is_shared

mx = import_mxnet()

#: Ranks of arrays that MXNet copies into where oneDNN has laid them out.
_COPIED: Final = frozenset({1, 2, 4})


class Outputs:
    """The outputs of one executor."""

    def __init__(
        self, symbol: Any, ctx: Any, arguments: Mapping[str, Any], states: Sequence[Any]
    ) -> None:
        """None are there yet; none will lie in memory of arguments or states."""
        self._symbol, self._ctx, self._arguments, self._states = symbol, ctx, arguments, states
        self._arrays: list[Any] | None = None
        self._predecessor: tuple[weakref.ref[Any], list[Any]] | None = None

    @property
    def arrays(self) -> list[Any]:
        """What is given out, made where nothing was computed yet."""
        self._succeed()
        if self._arrays is None:
            self._arrays = self._zeros()
        return self._arrays

    def take_over(self, executor: Any) -> None:
        """Go on with the outputs of another, for what is bound on them, once that one is gone.

        If it is still there at the first use of outputs, they stay its own.
        """
        self._predecessor = weakref.ref(executor), list(executor.outputs)

    def give(self, found: Sequence[Any]) -> None:
        """Put what was computed into the arrays that were given out.

        Others may have their memory: views, and executors that are bound on them. Where nobody has,
        it is exchanged, which takes no time.
        """
        self._succeed()
        if self._arrays is None:
            self._arrays = list(found)
            return
        for output, array in zip(self._arrays, found, strict=True):
            if have_one_memory(mx, output, array):
                continue
            if is_shared(mx, output):
                copy_into(output, array)
            else:
                output.handle, array.handle = array.handle, output.handle

    def _succeed(self) -> None:
        """Settle whose the outputs are."""
        if self._predecessor is None:
            return
        (executor, outputs), self._predecessor = self._predecessor, None
        if executor() is None and self._arrays is None:
            self._arrays = _apart(outputs, [*self._arguments.values(), *self._states])

    def _zeros(self) -> list[Any]:
        given = self._arguments.items()
        _, shapes, _ = self._symbol.infer_shape(**{name: array.shape for name, array in given})
        _, dtypes, _ = self._symbol.infer_type(**{name: array.dtype for name, array in given})
        return [
            mx.nd.zeros(shape, self._ctx, dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]


def copy_into(output: Any, array: Any) -> None:
    """Put an array's numbers into another one, past autograd."""
    if output.ndim not in _COPIED and output.ctx.device_type == "cpu":
        output.wait_to_read()
        address_of(output)  # which brings what oneDNN has laid out into MXNet's order
    with mx.autograd.pause():
        array.copyto(output)


def _apart(arrays: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The arrays; instead of those that lie in memory of one before or of others, new ones."""
    found: list[Any] = []
    for array in arrays:
        is_taken = any(have_one_memory(mx, array, other) for other in (*others, *found))
        found.append(array.copy() if is_taken else array)
    return found
