"""What a spec means, in numpy: slow and obvious, the oracle that kernels are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.errors import InputError
from graphopt.kernels.spec import Instruction, KernelSpec, Operand, Result

Array = npt.NDArray[Any]


def evaluate(
    spec: KernelSpec,
    inputs: Sequence[Array],
    extents: Sequence[int] | None = None,
    dtype: npt.DTypeLike | None = None,
) -> list[Array]:
    """The outputs of a kernel.

    Every value is spread over the whole iteration space, whether it varies there or not.

    Args:
        spec: the kernel.
        inputs: one array per input of it.
        extents: of the iteration space; those that inputs run along may be found from them.
        dtype: what to compute in instead of the spec's own.

    Raises:
        InputError: an input has the wrong shape, or the extent of an axis is not known.
    """
    if len(inputs) != len(spec.inputs):
        raise InputError(f"the kernel reads {len(spec.inputs)} inputs, not {len(inputs)}")
    space = _extents(spec, inputs, extents)
    kind = np.dtype(spec.dtype if dtype is None else dtype)
    values = [
        _spread(array.astype(kind), operand, space)
        for array, operand in zip(inputs, spec.inputs, strict=True)
    ]
    with np.errstate(all="ignore"):
        for step in spec.body:
            values.append(_step(spec, step, values, space, kind))
        return [_written(spec, result, values[result.value]) for result in spec.outputs]


def _extents(
    spec: KernelSpec, inputs: Sequence[Array], given: Sequence[int] | None
) -> tuple[int, ...]:
    found: dict[int, int] = {} if given is None else dict(enumerate(given))
    if given is not None and len(given) != spec.rank:
        raise InputError(f"{len(given)} extents for a space of {spec.rank} axes")
    for number, (array, operand) in enumerate(zip(inputs, spec.inputs, strict=True)):
        if array.ndim != len(operand.axes):
            raise InputError(f"input {number} has shape {array.shape}, which is not {operand}")
        for extent, axis in zip(array.shape, operand.axes, strict=True):
            want = 1 if axis is None else found.setdefault(axis, extent)
            if extent != want:
                raise InputError(
                    f"input {number} ({operand}) has shape {array.shape}: {extent} is not {want}"
                )
    missing = [axis for axis in range(spec.rank) if axis not in found]
    if missing:
        raise InputError(f"no input tells the extents of axes {missing}; give them")
    return tuple(found[axis] for axis in range(spec.rank))


def _spread(array: Array, operand: Operand, space: tuple[int, ...]) -> Array:
    """The array over the whole space: axes of an operand come in ascending order."""
    kept = tuple(e if a in operand.covers else 1 for a, e in enumerate(space))
    return np.broadcast_to(array.reshape(kept), space)


def _step(
    spec: KernelSpec,
    step: Instruction,
    values: Sequence[Array],
    space: tuple[int, ...],
    kind: np.dtype[Any],
) -> Array:
    args = [values[a] if isinstance(a, int) else np.full(space, a, kind) for a in step.args]
    inner = tuple(sorted(spec.inner_axes))
    if step.op == "extent":
        result = np.array(math.prod(space[axis] for axis in inner))
    elif step.op in _ROWS:
        result = _ROWS[step.op](inner, *args)
    else:
        result = np.asarray(_MAPS[step.op](*args))
    return np.broadcast_to(result.astype(kind), space)


def _written(spec: KernelSpec, result: Result, value: Array) -> Array:
    """The value summed over the axes that the output lacks, in the output's shape and dtype."""
    summed = spec.summed(result)
    # A sum over no axes would turn -0.0 into 0.0.
    total = value.sum(tuple(sorted(summed)), keepdims=True) if summed else value
    # What is neither covered nor summed does not vary: one element stands for all.
    covered = result.operand.covers
    one = tuple(slice(None) if axis in covered | summed else slice(1) for axis in range(spec.rank))
    total = total[one]
    shape = [1 if axis is None else total.shape[axis] for axis in result.operand.axes]
    return np.array(total.reshape(shape).astype(result.operand.dtype))


def _by_element(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of the standard library for arrays; it takes and gives float64."""

    def apply(x: Array) -> Array:
        return np.array([function(float(v)) for v in x.ravel()], np.float64).reshape(x.shape)

    return apply


def _gamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    if x < 0 and (math.isinf(x) or x.is_integer()):
        return math.nan
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf


def _gammaln(x: float) -> float:
    return math.inf if x <= 0 and x.is_integer() else math.lgamma(x)


def _modulo(a: Array, b: Array) -> Array:
    """The remainder with the divisor's sign, as Python's; zero for a zero divisor.

    Where both are negative a remainder of zero is too, as in MXNet.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    rest = np.fmod(a, np.where(b == 0, 1.0, b))
    shifted = np.where(rest == 0, 0.0, rest + b)
    return np.where(b == 0, 0.0, np.where((a < 0) ^ (b < 0), shifted, rest))


def _round(x: Array) -> Array:
    """To the nearest integer, halves away from zero."""
    whole = np.trunc(x)
    # The difference is exact; adding a half before cutting would round 0.49999997 up.
    return np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole)


def _sign(x: Array) -> Array:
    return np.where(np.isnan(x), 0, np.sign(x))


def _softmax(inner: tuple[int, ...], x: Array) -> Array:
    raised = np.exp(x - x.max(inner, keepdims=True))
    return np.asarray(raised / raised.sum(inner, keepdims=True))


def _log_softmax(inner: tuple[int, ...], x: Array) -> Array:
    shifted = x - x.max(inner, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(inner, keepdims=True)))


def _normalize(inner: tuple[int, ...], x: Array, epsilon: Array) -> Array:
    centred = x - x.mean(inner, keepdims=True)
    variance = np.square(centred).mean(inner, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + epsilon))


_ROWS: dict[str, Callable[..., Array]] = {
    "reduce_sum": lambda inner, x: x.sum(inner, keepdims=True),
    "reduce_max_number": lambda inner, x: np.fmax.reduce(x, inner, keepdims=True),
    "reduce_max": lambda inner, x: x.max(inner, keepdims=True),
    "reduce_min": lambda inner, x: x.min(inner, keepdims=True),
    "reduce_prod": lambda inner, x: x.prod(inner, keepdims=True),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "normalize": _normalize,
}

_MAPS: dict[str, Callable[..., Array]] = {
    "literal": lambda x: x,
    "neg": np.negative,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "mod": _modulo,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "hypot": np.hypot,
    "square": np.square,
    "recip": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt,
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "abs": np.abs,
    "sign": _sign,
    "rint": np.rint,
    "round": _round,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "half": lambda x: x.astype(np.float16),
    "exp": np.exp,
    "exp_nonpositive": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "erf": _by_element(math.erf),
    "sigmoid_times_tanh": lambda x, y: np.tanh(y) / (1 + np.exp(-x)),
    "one_plus_erf_by": lambda x, _power: _by_element(lambda v: math.erfc(-v))(x),
    "one_plus_erf": _by_element(lambda x: math.erfc(-x)),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "gamma": _by_element(_gamma),
    "gammaln": _by_element(_gammaln),
    "relu": lambda x: np.maximum(x, 0),
    "relu_nan": lambda x: np.maximum(x, 0),
    "where": lambda c, x, y: np.where(c != 0, x, y),
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": lambda x, y: (x != 0) & (y != 0),
    "or": lambda x, y: (x != 0) | (y != 0),
    "xor": lambda x, y: (x != 0) ^ (y != 0),
    "not": lambda x: x == 0,
    "stop": lambda x: x,
    "scale_gradient": lambda x, _scale: x,
    "with_slope": lambda y, _x, _slope: y,
    "loss_of": lambda y, _x, _gradient: y,
}
