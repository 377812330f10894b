"""Operators of two arrays, or of an array and a number: arithmetic, comparison, logic.

Three families share one table of functions: `elemwise_*` (equal shapes), `broadcast_*` (numpy's
rules) and `_*_scalar`. Both operands have the same dtype and the result has it too, comparisons
included: their truth values are 0 and 1 in the dtype of the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Operator, Outputs, Table, narrow, wide

Binary: TypeAlias = Callable[[Array, Array], Array]


def _divide(a: Array, b: Array) -> Array:
    """True division of floats; integers are cut towards zero, as in C."""
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    return narrow(np.trunc(wide(a) / wide(b)), a.dtype)


def _modulo(a: Array, b: Array) -> Array:
    """The remainder with the divisor's sign; zero for a zero divisor."""
    zero = b == 0
    remainder = np.mod(wide(a), np.where(zero, 1, wide(b)))
    return np.where(zero, 0, remainder)


def _power(a: Array, b: Array) -> Array:
    return np.power(wide(a), wide(b))


def _hypot(a: Array, b: Array) -> Array:
    return np.hypot(wide(a), wide(b))


_FUNCTIONS: dict[str, Binary] = {
    "plus": np.add,
    "minus": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "mod": _modulo,
    "power": _power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "hypot": _hypot,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "lesser": np.less,
    "lesser_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}


def _same_dtype(call: Call) -> np.dtype[np.generic]:
    """The dtype of all inputs.

    Raises:
        TypeError: they differ; MXNet refuses that too.
    """
    dtypes = {x.dtype for x in call.inputs}
    if len(dtypes) != 1:
        found = ", ".join(str(x.dtype) for x in call.inputs)
        raise TypeError(f"{call.op} needs inputs of one dtype, but was given {found}.")
    return dtypes.pop()


def _broadcast(name: str) -> Operator:
    """`broadcast_<name>`: shapes are stretched as in numpy."""

    def run(call: Call) -> Outputs:
        dtype = _same_dtype(call)
        with np.errstate(all="ignore"):
            return [narrow(_FUNCTIONS[name](call.inputs[0], call.inputs[1]), dtype)]

    return run


def _elementwise(name: str) -> Operator:
    """`elemwise_<name>`: both inputs have the same shape."""
    broadcast = _broadcast(name)

    def run(call: Call) -> Outputs:
        a, b = call.inputs
        if a.shape != b.shape:
            raise ValueError(
                f"{call.op} needs equal shapes, but was given {a.shape} and {b.shape}."
            )
        return broadcast(call)

    return run


def _scalar(name: str, reverse: bool = False) -> Operator:
    """`_<name>_scalar`, `_r<name>_scalar`.

    The number is first rounded to the dtype of the array, so 1.5 added to an int32 array adds 1.
    With is_int=False, which MXNet's Python front end never writes, an integer array is first made
    float64.
    """

    def run(call: Call) -> Outputs:
        promote = call.x.dtype.kind in "iub" and not call.flag("is_int", True)
        x = wide(call.x) if promote else call.x
        number = narrow(np.array(call.number("scalar", 1.0)), x.dtype)
        operands = (number, x) if reverse else (x, number)
        with np.errstate(all="ignore"):
            return [narrow(_FUNCTIONS[name](*operands), x.dtype)]

    return run


def _add_n(call: Call) -> Outputs:
    """The sum of any number of arrays of one shape, from left to right in their own dtype."""
    total = call.inputs[0]
    for x in call.inputs[1:]:
        total = total + x
    return [total]


_REVERSED = ("minus", "div", "mod", "power")

_SCALAR_TABLE: Table = {
    **{f"_{name}_scalar": _scalar(name) for name in _FUNCTIONS},
    **{f"_r{name}_scalar": _scalar(name, reverse=True) for name in _REVERSED},
    "_scatter_plus_scalar": _scalar("plus"),
    "_scatter_minus_scalar": _scalar("minus"),
}

_BROADCAST_TABLE: Table = {
    **{f"broadcast_{name}": _broadcast(name) for name in _FUNCTIONS},
    "broadcast_add": _broadcast("plus"),
    "broadcast_sub": _broadcast("minus"),
}

_ELEMENTWISE_TABLE: Table = {
    **{f"_{name}": _elementwise(name) for name in _FUNCTIONS},
    "elemwise_add": _elementwise("plus"),
    "elemwise_sub": _elementwise("minus"),
    "elemwise_mul": _elementwise("mul"),
    "elemwise_div": _elementwise("div"),
    "_add": _elementwise("plus"),
    "_sub": _elementwise("minus"),
    "_grad_add": _elementwise("plus"),
    "_scatter_elemwise_div": _elementwise("div"),
}


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


# Old model files carry the spellings of MXNet's first releases: _Plus, _Not_Equal, _RDivScalar.
_OLD_SPELLINGS: Table = {
    **{"_" + "_".join(p.capitalize() for p in n.split("_")): _elementwise(n) for n in _FUNCTIONS},
    **{f"_{_camel(name)}Scalar": _scalar(name) for name in _FUNCTIONS},
    **{f"_R{_camel(name)}Scalar": _scalar(name, reverse=True) for name in _REVERSED},
}

TABLE: Table = {
    **_SCALAR_TABLE,
    **_BROADCAST_TABLE,
    **_ELEMENTWISE_TABLE,
    **_OLD_SPELLINGS,
    "add_n": _add_n,
    "ElementWiseSum": _add_n,
}
