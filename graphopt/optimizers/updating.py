"""Updates of weights by one call of a kernel, for weights of one dtype."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.types import dtype_name
from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import why_unfit
from graphopt.kernels.library import prepare
from graphopt.optimizers.rule import Rule
from graphopt.optimizers.rules import own_numbers, shared_number

#: Dtypes of weights that have kernels.
DTYPES = ("float32", "float64")


@dataclass(frozen=True)
class Weight:
    """A weight that an optimizer updates.

    Attributes:
        name: of the parameter.
        index: what the optimizer knows it by.
        data: the weight.
        grad: its gradient.
        states: what the optimizer keeps for it.
    """

    name: str
    index: int
    data: Any
    grad: Any
    states: tuple[Any, ...]

    def why_not(self, rule: Rule) -> str | None:
        """Why no kernel updates it with such states, or ``None`` if one does."""
        if len(self.states) != len(rule.states):
            return f"the optimizer keeps {len(self.states)} arrays for it, not {len(rule.states)}"
        return _why_not_dense(self.states) or _why_not_alike(self.data, self.states)


def why_not(data: Any, grad: Any) -> str | None:
    """Why no kernel updates a weight with such a gradient, whatever the optimizer keeps for it."""
    sparse = _why_not_dense((data, grad))
    if sparse is not None:
        return sparse
    dtype = dtype_name(data.dtype)
    return f"it is {dtype}" if dtype not in DTYPES else _why_not_alike(data, (grad,))


def _why_not_dense(arrays: Sequence[Any]) -> str | None:
    sparse = next((array for array in arrays if array.stype != "default"), None)
    return None if sparse is None else f"an array of it is {sparse.stype}"


def _why_not_alike(data: Any, arrays: Sequence[Any]) -> str | None:
    if all(a.dtype == data.dtype and a.shape == data.shape for a in arrays):
        return None
    return "its gradient or its states have another dtype or shape"


def why_no_kernels() -> str | None:
    """Why no kernel can write to arrays of this MXNet, or ``None``."""
    return why_unfit(import_mxnet())


class Update:
    """Updates some weights at once, all of one dtype."""

    def __init__(self, weights: Sequence[Weight], rule: Rule, *, precise: bool) -> None:
        """Compile the kernel.

        Raises:
            GraphoptError: it cannot be compiled.
            MissingDependencyError: kernels cannot run here.
        """
        self.weights, self._rule = weights, rule
        self.indices = [weight.index for weight in weights]
        dtype = dtype_name(weights[0].data.dtype)
        texts = [None if s is None else str(s) for s in rule.specs(dtype, precise=precise)]
        self._library = _functions()
        prepare([text for text in texts if text is not None], gradients=False)
        given = [None if text is None else text.encode() for text in texts]
        self._specs = (ctypes.c_char_p * len(given))(*given)
        arrays = [a for w in weights for a in (w.data, w.grad, *w.states)]
        self._handles = (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))
        count = len(rule.shared) + len(rule.own) * len(weights)
        self._numbers = ctypes.c_double * count
        self._rounds = rule.rounds and dtype == "float64"

    def told(self, optimizer: Any) -> tuple[Any, ...]:
        """What the bridge has to know of an update now; counts it as one of each weight."""
        numbers = [shared_number(optimizer, name) for name in self._rule.shared]
        optimizer._update_count(self.indices)
        for own in own_numbers(optimizer, self.indices):
            numbers += own
        if self._rounds:
            numbers = [float(np.float32(number)) for number in numbers]
        sizes = len(self._rule.shared), len(self._rule.own)
        arrays = self._handles, len(self.weights), self._rule.arrays
        return self._specs, *arrays, self._numbers(*numbers), *sizes

    def __call__(self, optimizer: Any) -> None:
        """Have MXNet's engine do it.

        Raises:
            GraphoptError: MXNet refuses.
        """
        if self._library.graphopt_update(*self.told(optimizer)):
            raise GraphoptError(self._library.graphopt_error().decode())


class Freshness:
    """Whether weights have got gradients since they were updated last."""

    def __init__(self, arrays: Sequence[Any]) -> None:
        """``arrays``: the weights."""
        self._library, self._count = _functions(), len(arrays)
        self._handles = (ctypes.c_void_p * len(arrays))(*(array.handle for array in arrays))

    def of_all(self) -> bool:
        """Whether each of them has."""
        found = self._library.graphopt_are_fresh(self._handles, self._count)
        if found < 0:
            raise GraphoptError(self._library.graphopt_error().decode())
        return bool(found)


@cache
def _functions() -> ctypes.CDLL:
    library = bridge.load(import_mxnet())
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.graphopt_are_fresh.argtypes = [pointer, number]
    library.graphopt_update.argtypes = [
        *(pointer, pointer, number, number),
        *(pointer, number, number),
    ]
    return library
