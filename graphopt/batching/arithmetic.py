"""``+ - * / % **`` of Lazy values, without NDArray's detours, which take three times as long."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.batching.lazy import Lazy
from graphopt.batching.operators import handle
from graphopt.batching.sums import PendingSum, add, begin, settled
from graphopt.compat import import_mxnet

mx = import_mxnet()
_register = mx.ndarray.register
_NUMBERS: Any = (float, int, np.generic)
#: Arithmetic: name, operator for two arrays, for an array and a number, for a number and an array.
_BINARY = {
    "add": ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    "sub": ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    "mul": ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    "truediv": ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    "mod": ("broadcast_mod", "_mod_scalar", "_rmod_scalar"),
    "pow": ("broadcast_power", "_power_scalar", "_rpower_scalar"),
}


def _in_place(name: str) -> Any:
    def method(self: Lazy, other: Any) -> Any:
        return getattr(self.after_call("changing in place (+= and the like)"), name)(other)

    return method


def _install_arithmetic() -> None:
    """Python's operators without the detours of NDArray's, which take three times as long."""
    for name, (pair, number, turned) in _BINARY.items():
        setattr(Lazy, f"__{name}__", _forward(handle(pair), handle(number), name))
        setattr(Lazy, f"__r{name}__", _backward(handle(pair), handle(turned), name))
        setattr(Lazy, f"__i{name}__", _in_place(f"__i{name}__"))


def _forward(pair: int, number: int, name: str) -> Any:
    general = getattr(mx.nd.NDArray, f"__{name}__")

    def method(self: Lazy, other: Any) -> Any:
        if type(self) is PendingSum:
            found = add(self, other) if name == "add" else None
            if found is not None:
                return found
            self = settled(self)
        if type(other) is Lazy:
            return _register._imperative_invoke(pair, (self, other), (), (), None, False, False)
        if isinstance(other, _NUMBERS):
            return _register._imperative_invoke(
                number, (self,), ("scalar",), (float(other),), None, False, False
            )
        return general(self, other)

    return method


def _backward(pair: int, number: int, name: str) -> Any:
    general = getattr(mx.nd.NDArray, f"__r{name}__")

    def method(self: Lazy, other: Any) -> Any:
        if isinstance(other, _NUMBERS):
            found = begin(other, self) if name == "add" else None
            if found is not None:
                return found
            return _register._imperative_invoke(
                number, (self,), ("scalar",), (float(other),), None, False, False
            )
        return general(self, other)

    return method


_install_arithmetic()
