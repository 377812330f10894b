"""How MXNet operators become kernel instructions, and a region of them a kernel.

Values and gradients are MXNet's, also where these are a matter of taste: which operand of a maximum
gets the gradient of a tie, what slope a function has at its kink. Where an operator's derivative in
MXNet is not the derivative of the instructions, ``scale_gradient`` and ``stop`` make it so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.kernels.spec import STORAGE_DTYPES, Arg, Builder, KernelSpec, Operand

Emit = Builder
Build = Callable[[Builder, Sequence[Arg], Attrs], Arg]
Check = Callable[[Node, Graph], str | None]
Axes = tuple[int | None, ...]

FLOATS: Final = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Pointwise:
    """An operator that computes every element from the elements at the same place.

    Attributes:
        build: emits the instructions; its attributes are those of :func:`prepared`.
        check: why a node cannot be translated, or ``None``.
    """

    build: Build
    check: Check


class Span(NamedTuple):
    """Axes that reductions run over: how many, and how many come behind them."""

    inner: int
    columns: int

    def dropped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What is left of a shape, or of its axes, without these."""
        end = len(shape) - self.columns
        return shape[: end - self.inner] + shape[end:]


#: Of regions without reductions.
NO_SPAN: Final = Span(0, 0)


@dataclass(frozen=True)
class Row:
    """An operator that runs over neighbouring axes of its first input.

    Attributes:
        build: emits the instructions; its attributes are those of :func:`prepared`.
        check: why a node cannot be translated, or ``None``.
        axes: the axes it runs over, given their number, ascending.
        reduces: whether it leaves one value per row.
    """

    build: Build
    check: Check
    axes: Callable[[Attrs, int], tuple[int, ...]]
    reduces: bool = False

    def span(self, node: Node, graph: Graph) -> Span:
        """The axes of the first input that it runs over."""
        rank = graph.type_of(node.inputs[0]).rank or 0
        axes = self.axes(node.attrs, rank)
        return Span(len(axes), rank - 1 - axes[-1])


# -- attributes ----------------------------------------------------------------------------------


def prepared(node: Node, graph: Graph) -> Attrs:
    """The attributes of a node, and what else the instructions depend on."""
    name, attrs = canonical(node.op), node.attrs
    if name in _CASTS:
        return attrs.set(dtype=node.type.dtype)
    if name == "_contrib_div_sqrt_dim":
        shape = graph.type_of(node.inputs[0]).shape or (1,)
        return attrs.set(scalar=math.sqrt(shape[-1] or 1))
    if node.type.dtype == "float16":
        # MXNet rounds a scalar, or what it fills with, to the dtype of the array.
        for given in ("scalar", "value"):
            if attrs.get(given) is not None:
                with np.errstate(over="ignore"):
                    attrs = attrs.set(**{given: float(np.float16(_number(attrs, given, 1.0)))})
    return attrs


def _number(attrs: Attrs, name: str, default: float) -> float:
    found = attrs.get(name)
    return default if found is None else float(found)


def _single(attrs: Attrs, name: str, default: float) -> float:
    """A parameter that MXNet holds in float32, whatever the dtype of the arrays."""
    with np.errstate(over="ignore"):
        return float(np.float32(_number(attrs, name, default)))


def _flag(attrs: Attrs, name: str) -> bool:
    found = attrs.get(name)
    return found not in ("False", "false", "0", "None") if isinstance(found, str) else bool(found)


def _scalar(attrs: Attrs) -> float:
    return _number(attrs, "scalar", 1.0)


# -- checks --------------------------------------------------------------------------------------


def _types(node: Node, graph: Graph) -> str | None:
    """All inputs and the output have one floating dtype."""
    return _same_dtype(node, [graph.type_of(value) for value in node.inputs])


def _same_dtype(node: Node, types: Iterable[TensorType]) -> str | None:
    dtypes = {type_.dtype for type_ in (*types, node.type)}
    if len(dtypes) == 1 and dtypes <= set(FLOATS):
        return None
    return f"its operands are {', '.join(sorted(map(str, dtypes)))}, not of one floating dtype"


def _all(*checks: Check) -> Check:
    """The first objection of several checks."""

    def check(node: Node, graph: Graph) -> str | None:
        return next(filter(None, (found(node, graph) for found in checks)), None)

    return check


def _refuse(condition: Callable[[Attrs], bool], reason: str) -> Check:
    return lambda node, _graph: reason if condition(node.attrs) else None


def _check_cast(node: Node, graph: Graph) -> str | None:
    source, target = graph.type_of(node.inputs[0]).dtype, node.type.dtype
    if target not in FLOATS or source not in STORAGE_DTYPES:
        return f"it casts {source} to {target}"
    if source in FLOATS and (source == "float64") != (target == "float64"):
        return f"it casts {source} to {target}, and a kernel computes in one of them"
    return None


def _check_where(node: Node, graph: Graph) -> str | None:
    condition, *chosen = (graph.type_of(value) for value in node.inputs)
    if condition.dtype not in STORAGE_DTYPES:
        return f"its condition is {condition.dtype}"
    if canonical(node.op) == "where" and (
        condition.shape is None or condition.shape != chosen[0].shape
    ):
        return "its condition chooses rows"
    return _same_dtype(node, chosen)


def _check_like(node: Node, graph: Graph) -> str | None:
    """The second input is only looked at."""
    return _same_dtype(node, [graph.type_of(node.inputs[0])])


def _check_dim(node: Node, graph: Graph) -> str | None:
    shape = graph.type_of(node.inputs[0]).shape
    return None if shape and shape[-1] else "the extent of the last axis is not known"


def _check_leaky(node: Node, graph: Graph) -> str | None:
    kind = node.attrs.get("act_type") or "leaky"
    if kind not in _LEAKY:
        return f"act_type={kind!r} has no translation"
    if kind in ("leaky", "elu") and _single(node.attrs, "slope", 0.25) < 0:
        return "with a negative slope its gradient depends on how MXNet was built"
    if kind == "prelu" and prelu_axes(node, graph) is None:
        return "its slopes run along other axes than the channels"
    return None


def prelu_axes(node: Node, graph: Graph) -> Axes | None:
    """For the slopes of prelu, the axes of the data that they run along."""
    data, gamma = (graph.type_of(value).shape for value in node.inputs[:2])
    if data is None or gamma is None or len(gamma) > min(len(data), 2):
        return None
    first = min(len(data), 2) - len(gamma)
    pairs = list(enumerate(gamma, first))
    if any(extent not in (1, data[axis]) for axis, extent in pairs):
        return None
    return tuple(axis if extent == data[axis] else None for axis, extent in pairs)


# -- pointwise operators -------------------------------------------------------------------------


def _op(name: str) -> Build:
    """The instruction of that name on all operands."""
    return lambda emit, args, attrs: emit(name, *args)


def _with_scalar(name: str, reverse: bool = False) -> Build:
    def build(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
        number = _scalar(attrs)
        return emit(name, number, args[0]) if reverse else emit(name, args[0], number)

    return build


def _identity(_emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    return args[0]


def _constant(value: float) -> Build:
    return lambda emit, args, attrs: value


def _scaled(factor: float) -> Build:
    return lambda emit, args, attrs: emit("mul", args[0], factor)


def _power_scalar(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    x, power = args[0], _scalar(attrs)
    if power == 2:
        return emit("square", x)
    if abs(power) == 0.5:
        # pow(-0.0, 0.5) is 0.0, the root of -0.0 is -0.0. The two differ at -inf only.
        return emit("sqrt" if power > 0 else "rsqrt", emit("add", x, 0.0))
    return emit("pow", x, power)


def _rint(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    """MXNet's ties go down."""
    low, high = emit("floor", args[0]), emit("ceil", args[0])
    below, above = emit("sub", args[0], low), emit("sub", high, args[0])
    return emit("where", emit("le", below, above), low, high)


def _softsign(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    # The quotient rule would take the difference of two nearly equal numbers for large x.
    below = emit("stop", emit("add", emit("abs", args[0]), 1.0))
    return emit("div", emit("scale_gradient", args[0], emit("recip", below)), below)


def _hard_sigmoid(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    line = emit("mul", args[0], _single(attrs, "alpha", 0.2))
    line = emit("add", line, _single(attrs, "beta", 0.5))
    inside = emit("and", emit("gt", line, 0.0), emit("lt", line, 1.0))
    return emit("where", inside, line, emit("stop", emit("min", emit("max", line, 0.0), 1.0)))


def _smooth_l1(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    square = _scalar(attrs) ** 2
    size = emit("abs", args[0])
    curve = emit("mul", emit("square", args[0]), 0.5 * square)
    return emit("where", emit("gt", size, 1 / square), emit("sub", size, 0.5 / square), curve)


def _clip(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    # Bounds on the right: where x equals one, x gets the gradient.
    raised = emit("max", args[0], _single(attrs, "a_min", 0.0))
    return emit("min", raised, _single(attrs, "a_max", 0.0))


def _quadratic(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    a, b, c = (_single(attrs, name, 0.0) for name in "abc")
    inner = emit("add", emit("mul", args[0], a), b)
    return emit("add", emit("mul", inner, args[0]), c)


def _add_n(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    total = args[0]
    for arg in args[1:]:
        total = emit("add", total, arg)
    return total


def _cast(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    return emit("half", args[0]) if attrs["dtype"] == "float16" else args[0]


def _activation(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    return _ACTIVATIONS[str(attrs.get("act_type"))](emit, args, attrs)


def _leaky_relu(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    return _LEAKY[str(attrs.get("act_type") or "leaky")](emit, args, attrs)


def _leaky(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    slope = _single(attrs, "slope", 0.25)
    if slope == 0:
        return emit("relu", args[0])
    below = emit("mul", args[0], slope)
    return emit("where", emit("gt", args[0], 0.0), args[0], below)


def _prelu(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    # The minimum keeps an infinite x out of the gradient of the slopes.
    below = emit("mul", emit("min", args[0], 0.0), args[1])
    return emit("where", emit("gt", args[0], 0.0), args[0], below)


def _elu(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    # Of the minimum, since an infinite exponential times a gradient of zero is NaN.
    below = emit("expm1", emit("min", args[0], 0.0))
    below = emit("mul", below, _single(attrs, "slope", 0.25))
    return emit("where", emit("gt", args[0], 0.0), args[0], below)


# MXNet holds both in float32.
_SELU_ALPHA: Final = float(np.float32(1.6732632423543772))
_SELU_LAMBDA: Final = float(np.float32(1.0507009873554805))


def _selu(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    # Below 0 MXNet's slope is lambda * alpha * (1 + lambda * expm1(x)), with one lambda too many.
    # That is the slope of lambda * alpha * (lambda * expm1(x) + (1 - lambda) * x); its second
    # summand is given the value of the first one's rest. The bound keeps -inf - -inf out.
    low = emit("max", emit("min", args[0], 0.0), -1e30)
    curve = emit("expm1", emit("scale_gradient", low, _SELU_LAMBDA))
    zero = emit("sub", emit("scale_gradient", low, 1 - _SELU_LAMBDA), emit("stop", low))
    below = emit("mul", emit("add", curve, zero), _SELU_ALPHA)
    chosen = emit("where", emit("gt", args[0], 0.0), args[0], below)
    return emit("mul", chosen, _SELU_LAMBDA)


def _gelu(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    tail = emit("add", emit("erf", emit("mul", args[0], math.sqrt(0.5))), 1.0)
    return emit("mul", emit("mul", args[0], 0.5), tail)


_ACTIVATIONS: Final[dict[str, Build]] = {
    "relu": _op("relu"),
    "sigmoid": _op("sigmoid"),
    "tanh": _op("tanh"),
    "softrelu": _op("softplus"),
    "softsign": _softsign,
}
_LEAKY: Final[dict[str, Build]] = {
    "leaky": _leaky,
    "elu": _elu,
    "selu": _selu,
    "gelu": _gelu,
    "prelu": _prelu,
}
_CASTS: Final = ("Cast", "amp_cast")

# MXNet converts angles with factors in float32, for arrays of every dtype.
_DEGREES: Final = float(np.float32(180) / np.float32(np.pi))
_RADIANS: Final = float(np.float32(np.pi) / np.float32(180))

# Operators that have the name of their instruction, in mx.np and mx.nd, and in mx.nd only.
_BOTH: Final = """
    arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh exp expm1 floor log log10 log1p
    log2 sign sin sinh sqrt square tan tanh trunc
"""
_ONLY_ND: Final = "abs erf gamma gammaln rcbrt relu round rsqrt sigmoid"

#: Instruction by operator, where it is one instruction.
_UNARY: Final = {
    **{name: name for name in (*_BOTH.split(), *_ONLY_ND.split())},
    **{f"_npi_{name}": name for name in _BOTH.split()},
    "fix": "trunc",
    "logical_not": "not",
    "negative": "neg",
    "reciprocal": "recip",
    "BlockGrad": "stop",
    "_npi_absolute": "abs",
    "_npi_fix": "trunc",
    "_npi_negative": "neg",
    "_npi_reciprocal": "recip",
    "_npx_relu": "relu",
    "_npx_sigmoid": "sigmoid",
}
_ARITHMETIC: Final = {
    "maximum": "max",
    "minimum": "min",
    "power": "pow",
    "mod": "mod",
    "hypot": "hypot",
    "equal": "eq",
    "not_equal": "ne",
    "greater": "gt",
    "greater_equal": "ge",
    "lesser": "lt",
    "lesser_equal": "le",
    "logical_and": "and",
    "logical_or": "or",
    "logical_xor": "xor",
}
_BINARY: Final = {
    **{f"elemwise_{name}": name for name in ("add", "sub", "mul", "div")},
    **{f"broadcast_{name}": name for name in ("add", "sub", "mul", "div")},
    **{f"_{name}": op for name, op in _ARITHMETIC.items()},
    **{f"broadcast_{name}": op for name, op in _ARITHMETIC.items()},
    "_npi_add": "add",
    "_npi_subtract": "sub",
    "_npi_multiply": "mul",
    "_npi_true_divide": "div",
    "_npi_mod": "mod",
    "_npi_power": "pow",
    "_npi_hypot": "hypot",
}
_SCALAR: Final = {
    "_plus_scalar": "add",
    "_minus_scalar": "sub",
    "_mul_scalar": "mul",
    "_div_scalar": "div",
    **{f"_{name}_scalar": op for name, op in _ARITHMETIC.items() if name != "power"},
    "_npi_add_scalar": "add",
    "_npi_subtract_scalar": "sub",
    "_npi_multiply_scalar": "mul",
    "_npi_true_divide_scalar": "div",
    "_npi_mod_scalar": "mod",
}
_REVERSED: Final = {
    "_rminus_scalar": "sub",
    "_rdiv_scalar": "div",
    "_rmod_scalar": "mod",
    "_rpower_scalar": "pow",
    "_npi_rsubtract_scalar": "sub",
    "_npi_rtrue_divide_scalar": "div",
    "_npi_rmod_scalar": "mod",
    "_npi_rpower_scalar": "pow",
}

POINTWISE: Final[dict[str, Pointwise]] = {
    **{name: Pointwise(_op(op), _types) for name, op in (*_UNARY.items(), *_BINARY.items())},
    **{name: Pointwise(_with_scalar(op), _types) for name, op in _SCALAR.items()},
    **{name: Pointwise(_with_scalar(op, reverse=True), _types) for name, op in _REVERSED.items()},
    **{
        name: Pointwise(_identity, _types)
        for name in ("_copy", "_np_copy", "broadcast_to", "broadcast_axis", "_npi_broadcast_to")
    },
    **{name: Pointwise(_power_scalar, _types) for name in ("_power_scalar", "_npi_power_scalar")},
    **{name: Pointwise(_scaled(_DEGREES), _types) for name in ("degrees", "_npi_degrees")},
    **{name: Pointwise(_scaled(_RADIANS), _types) for name in ("radians", "_npi_radians")},
    **{name: Pointwise(_rint, _types) for name in ("rint", "_npi_rint")},
    **{name: Pointwise(_cast, _check_cast) for name in _CASTS},
    **{name: Pointwise(_op("where"), _check_where) for name in ("where", "_npi_where")},
    # Not _npi_where_lscalar and _npi_where_rscalar: MXNet sends their gradient to the elements that
    # were not chosen.
    "_full": Pointwise(lambda emit, args, attrs: _number(attrs, "value", 0.0), _types),
    "_ones": Pointwise(_constant(1.0), _types),
    "_zeros": Pointwise(_constant(0.0), _types),
    "ones_like": Pointwise(_constant(1.0), _types),
    "zeros_like": Pointwise(_constant(0.0), _types),
    "softsign": Pointwise(_softsign, _types),
    "hard_sigmoid": Pointwise(_hard_sigmoid, _types),
    "smooth_l1": Pointwise(
        _smooth_l1,
        _all(_types, _refuse(lambda attrs: _scalar(attrs) == 0, "its scalar is 0")),
    ),
    "clip": Pointwise(
        _clip,
        _all(
            _types,
            _refuse(
                lambda a: not _single(a, "a_min", math.nan) <= _single(a, "a_max", math.nan),
                "its bounds are in the wrong order",
            ),
        ),
    ),
    "_contrib_quadratic": Pointwise(_quadratic, _types),
    "_contrib_div_sqrt_dim": Pointwise(_with_scalar("div"), _all(_types, _check_dim)),
    "_contrib_gradientmultiplier": Pointwise(_with_scalar("scale_gradient"), _types),
    "Activation": Pointwise(
        _activation,
        _all(
            _types,
            _refuse(lambda a: a.get("act_type") not in _ACTIVATIONS, "its act_type is unknown"),
        ),
    ),
    "LeakyReLU": Pointwise(_leaky_relu, _all(_types, _check_leaky)),
    "add_n": Pointwise(_add_n, _types),
    "broadcast_like": Pointwise(
        _identity,
        _all(
            _check_like,
            _refuse(
                lambda a: a.get("lhs_axes") is not None or a.get("rhs_axes") is not None,
                "it stretches chosen axes",
            ),
        ),
    ),
    "_identity_with_attr_like_rhs": Pointwise(_identity, _check_like),
}

# -- operators over rows -------------------------------------------------------------------------


def _axes_attr(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes of a reduction: all without ``axis``; ``exclude`` takes the others."""
    given = attrs.get("axis")
    if given is None or given == ():
        return tuple(range(rank))
    axes = given if isinstance(given, tuple) else (given,)
    chosen = {int(axis) % rank if rank else int(axis) for axis in axes}
    if _flag(attrs, "exclude"):
        chosen = set(range(rank)) - chosen
    return tuple(sorted(chosen))


def _one_axis(default: int) -> Callable[[Attrs, int], tuple[int, ...]]:
    return lambda attrs, rank: (int(_number(attrs, "axis", default)) % max(rank, 1),)


def _last_axis(_attrs: Attrs, rank: int) -> tuple[int, ...]:
    return (rank - 1,)


def _spatial(_attrs: Attrs, rank: int) -> tuple[int, ...]:
    return tuple(range(2, rank))


def _by_mode(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """Of L2Normalization: samples, places or channels."""
    bounds = {"channel": (1, 2), "spatial": (2, rank)}
    return tuple(range(*bounds.get(_mode(attrs), (1, rank))))


def _check_row(axes: Callable[[Attrs, int], tuple[int, ...]], *more: Check) -> Check:
    def check(node: Node, graph: Graph) -> str | None:
        rank = graph.type_of(node.inputs[0]).rank
        if rank is None:
            return "the rank of its input is not known"
        found = axes(node.attrs, rank)
        if not found:
            return "it reduces no axes"
        if found[-1] - found[0] >= len(found):
            return f"it reduces axes {found}, which are no neighbours"
        return None

    return _all(_types, check, *more)


def _is_given(*names: str) -> Check:
    """Refuses attributes that have a value; ``dtype`` may repeat the dtype of the output."""

    def check(node: Node, _graph: Graph) -> str | None:
        for name in names:
            found = node.attrs.get(name)
            if found not in (None, -1, "None") and not (
                name.endswith("dtype") and found == node.type.dtype
            ):
                return f"it has {name}={found}"
        return None

    return check


def _check_temperature(node: Node, _graph: Graph) -> str | None:
    temperature = _number(node.attrs, "temperature", 1.0)
    return None if temperature > 0 else f"its temperature is {temperature}"


def _check_length(node: Node, _graph: Graph) -> str | None:
    if _flag(node.attrs, "use_length") or len(node.inputs) > 1:
        return "its rows have lengths of their own"
    return None


def _check_unused(node: Node, graph: Graph) -> str | None:
    """Outputs but the first are not computed."""
    for value in node.values[1:]:
        if graph.users(value) or graph.is_output(value):
            return f"output {value.index} is used"
    return None


def _check_norm(node: Node, _graph: Graph) -> str | None:
    order = int(_number(node.attrs, "ord", 2))
    return None if order in (1, 2) else f"it is the norm of order {order}"


def _mode(attrs: Attrs) -> str:
    return str(attrs.get("mode") or "instance")


def _check_mode(*known: str) -> Check:
    return _refuse(lambda attrs: _mode(attrs) not in known, "its mode has no translation")


def _check_matrix(node: Node, graph: Graph) -> str | None:
    """Of more axes MXNet takes the softmax along the last, and its gradient along axis 1."""
    rank = graph.type_of(node.inputs[0]).rank
    return None if rank == 2 else f"its input has {rank} axes, not 2"


def _mean(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    return emit("div", emit("reduce_sum", args[0]), emit("extent"))


def _norm(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    if int(_number(attrs, "ord", 2)) == 1:
        return emit("reduce_sum", emit("abs", args[0]))
    return emit("sqrt", emit("reduce_sum", emit("square", args[0])))


def _softmax(name: str, negate: bool = False) -> Build:
    def build(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
        x = emit("neg", args[0]) if negate else args[0]
        return emit(name, emit("div", x, _number(attrs, "temperature", 1.0)))

    return build


def _norm_layer(epsilon: float) -> Build:
    def build(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
        even = emit("normalize", args[0], _single(attrs, "eps", epsilon))
        return emit("add", emit("mul", even, args[1]), args[2])

    return build


def _l2_normalization(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    squares = emit("reduce_sum", emit("square", args[0]))
    return emit("mul", args[0], emit("rsqrt", emit("add", squares, _single(attrs, "eps", 1e-10))))


def _reduction(build: Build, *more: Check) -> Row:
    check = _check_row(_axes_attr, _is_given("dtype", "out_dtype", "initial"), *more)
    return Row(build, check, _axes_attr, reduces=True)


def _softmax_row(build: Build) -> Row:
    axis = _one_axis(-1)
    more = (_is_given("dtype"), _check_temperature, _check_length)
    return Row(build, _check_row(axis, *more), axis)


ROWS: Final[dict[str, Row]] = {
    **{name: _reduction(_op("reduce_sum")) for name in ("sum", "_np_sum")},
    **{name: _reduction(_mean) for name in ("mean", "_npi_mean")},
    **{name: _reduction(_op("reduce_max")) for name in ("max", "_np_max")},
    **{name: _reduction(_op("reduce_min")) for name in ("min", "_np_min")},
    **{name: _reduction(_op("reduce_prod")) for name in ("prod", "_np_prod")},
    "norm": _reduction(_norm, _check_norm),
    "softmax": _softmax_row(_softmax("softmax")),
    "log_softmax": _softmax_row(_softmax("log_softmax")),
    "softmin": _softmax_row(_softmax("softmax", negate=True)),
    "SoftmaxActivation": Row(
        _op("softmax"), _check_row(_last_axis, _check_mode("instance"), _check_matrix), _last_axis
    ),
    "LayerNorm": Row(_norm_layer(1e-5), _check_row(_one_axis(-1), _check_unused), _one_axis(-1)),
    "InstanceNorm": Row(_norm_layer(1e-3), _check_row(_spatial, _check_unused), _spatial),
    "L2Normalization": Row(
        _l2_normalization,
        _check_row(_by_mode, _check_mode("instance", "channel", "spatial"), _check_unused),
        _by_mode,
    ),
}

# -- axes ----------------------------------------------------------------------------------------


def output_axes(node: Node, shape: tuple[int, ...], span: Span = NO_SPAN) -> Axes:
    """The axes of the iteration space that each dimension of a node's first output runs along.

    Args:
        node: of an operator in :data:`POINTWISE` or :data:`ROWS`.
        shape: extents of the iteration space.
        span: the axes that are reduced in the region of the node.

    Raises:
        GraphoptError: the output does not lie in the space.
    """
    out, rank = node.type.shape, len(shape)
    row = ROWS.get(canonical(node.op))
    if row is not None and row.reduces:
        reduced = row.axes(node.attrs, rank)
        kept = tuple(axis for axis in range(rank) if axis not in reduced)
        if out is not None and len(out) == rank:
            return tuple(None if axis in reduced else axis for axis in range(rank))
        if out is not None and len(out) == len(kept):
            return kept
        if out == (1,) and not kept:
            return (None,)
    elif out == shape:
        return tuple(range(rank))
    elif out is not None and len(out) == rank and _stretches(out, shape):
        return tuple(a if e == shape[a] else None for a, e in enumerate(out))
    elif span.columns and out == span.dropped(shape):
        return span.dropped(tuple(range(rank)))
    elif not span.columns and out is not None and out == shape[: len(out)]:
        return tuple(range(len(out)))
    elif out == (1,):
        return (None,)
    raise GraphoptError(f"{node.label}: its output {node.type} does not lie in {shape}")


def _stretches(shape: Sequence[int | None], space: Sequence[int]) -> bool:
    return all(extent in (1, full) for extent, full in zip(shape, space, strict=True))


def broadcast_axes(
    node: Node, position: int, graph: Graph, shape: tuple[int, ...], span: Span = NO_SPAN
) -> tuple[int | None, ...] | None:
    """The axes of the iteration space that each dimension of an input runs along.

    Args:
        node: of an operator in :data:`POINTWISE` or :data:`ROWS`.
        position: which of its inputs.
        graph: that the node belongs to.
        shape: extents of the iteration space.
        span: the axes that are reduced in the region of the node.

    Returns:
        ``None`` for a dimension that is stretched, ``None`` for all if the input does not fit.
    """
    given = graph.type_of(node.inputs[position]).shape
    if given is None:
        return None
    name = canonical(node.op)
    frame: Axes | None
    axes: Axes
    if name in ROWS:
        if position == 0:
            return tuple(range(len(shape))) if given == shape else None
        frame, axes = shape, tuple(range(len(shape)))
    else:
        try:
            frame, axes = node.type.shape, output_axes(node, shape, span)
        except GraphoptError:
            return None
    if frame is None or len(given) > len(frame):
        return None
    places: Axes | None = tuple(range(len(frame) - len(given), len(frame)))
    if name == "LeakyReLU" and position == 1:
        places = prelu_axes(node, graph)
    if name == "InstanceNorm" and position:
        places = (1,)
    if name == "LayerNorm" and position:
        places = ROWS[name].axes(node.attrs, len(shape))
    if places is None:
        return None
    found: list[int | None] = []
    for extent, place in zip(given, places, strict=True):
        if place is None or extent != frame[place]:
            if extent != 1:
                return None
            found.append(None)
        else:
            found.append(axes[place])
    return tuple(found)


# -- regions -------------------------------------------------------------------------------------


def region_spec(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> KernelSpec:
    """The kernel that computes a region of a graph.

    Args:
        graph: with all types static in the region.
        nodes: the region in topological order, of operators in :data:`POINTWISE` or :data:`ROWS`.
        inputs: what the nodes read from outside, each value once; the inputs of the kernel.
        outputs: first outputs of nodes; the outputs of the kernel.

    Raises:
        GraphoptError: the region is no kernel; the message names the node and the reason.
    """
    region = _Region(graph, nodes)
    inner, columns = region.span
    emit = Builder(region.dtype, len(region.shape), inner, columns=columns)
    values: dict[Value, Arg] = {}
    for value in inputs:
        values[value] = emit.input(_operand(graph, value, region.reads.get(value)))
    for node in nodes:
        name = canonical(node.op)
        build = POINTWISE[name].build if name in POINTWISE else ROWS[name].build
        for value in node.inputs:
            if value not in values:
                raise GraphoptError(f"{node.label}: the region has no input for {value}")
        args = [values[value] for value in node.inputs]
        values[node.out()] = build(emit, args, prepared(node, graph))
    for value in outputs:
        if value not in region.writes:
            raise GraphoptError(f"{value} is no first output of a node of the region")
        if is_number(graph[value.node]) and region.extents(value) != region.shape:
            raise GraphoptError(f"{value} is a number, which others read as well")
    return emit.build(
        [(values[value], _operand(graph, value, region.writes[value])) for value in outputs]
    )


def is_number(node: Node) -> bool:
    """Whether a node is one number that is known beforehand: a literal of kernels."""
    return not node.inputs and node.type.size == 1 and canonical(node.op) in POINTWISE


def _operand(graph: Graph, value: Value, axes: Axes | None) -> Operand:
    node, type_ = graph[value.node], graph.type_of(value)
    if axes is None:
        raise GraphoptError(f"{node.label}: no node of the region reads it")
    if type_.dtype not in STORAGE_DTYPES:
        raise GraphoptError(f"{node.label}: kernels cannot read {type_.dtype}")
    return Operand(type_.dtype, axes)


class _Region:
    """What the nodes of a region have in common, and the axes of every value they touch."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.graph = graph
        for node in nodes:
            self._check(node)
        touched = [v for n in nodes for v in (*n.inputs, n.out())]
        shapes = {self.extents(value) for value in touched}
        self.shape = max(shapes, key=lambda shape: (math.prod(shape), len(shape)))
        self.dtype = self._compute_dtype(touched)
        self.span = self._span(nodes)
        #: Axes of what nodes read and of what they write.
        self.reads: dict[Value, Axes] = {}
        self.writes: dict[Value, Axes] = {}
        for node in nodes:
            for position in range(len(node.inputs)):
                self._read(node, position)
            self.writes[node.out()] = self._written(node)

    def _check(self, node: Node) -> None:
        name = canonical(node.op)
        if name not in POINTWISE and name not in ROWS:
            raise GraphoptError(f"{node.label}: kernels have no such operator")
        for type_ in (*map(self.graph.type_of, node.inputs), node.type):
            if not type_.is_static or type_.size == 0:
                raise GraphoptError(f"{node.label}: an operand has type {type_}")
        check = POINTWISE[name].check if name in POINTWISE else ROWS[name].check
        reason = check(node, self.graph)
        if reason is not None:
            raise GraphoptError(f"{node.label}: {reason}")

    def extents(self, value: Value) -> tuple[int, ...]:
        return tuple(e for e in self.graph.type_of(value).shape or () if e is not None)

    def _compute_dtype(self, touched: Iterable[Value]) -> str:
        dtypes = {self.graph.type_of(value).dtype for value in touched} & set(FLOATS)
        if dtypes == {"float64"}:
            return "float64"
        if "float64" in dtypes:
            raise GraphoptError("the region mixes float64 with narrower floating dtypes")
        return "float32"

    def _span(self, nodes: Sequence[Node]) -> Span:
        found = {
            ROWS[canonical(node.op)].span(node, self.graph): node
            for node in nodes
            if canonical(node.op) in ROWS
        }
        if len(found) > 1:
            told = " and ".join(node.label for node in found.values())
            raise GraphoptError(f"{told} run over different axes")
        return next(iter(found), NO_SPAN)

    def _read(self, node: Node, position: int) -> None:
        value = node.inputs[position]
        axes = broadcast_axes(node, position, self.graph, self.shape, self.span)
        if axes is None:
            raise GraphoptError(
                f"{node.label}: input {position} ({self.graph.type_of(value)}) does not fit"
                f" the region's {self.shape}"
            )
        known = self.writes.get(value, self.reads.get(value))
        if known is None:
            self.reads[value] = axes
            return
        # A dimension of extent 1 runs along whatever it likes.
        for extent, new, old in zip(self.extents(value), axes, known, strict=True):
            if extent != 1 and new != old:
                raise GraphoptError(f"{node.label}: input {position} is read along other axes")

    def _written(self, node: Node) -> Axes:
        if node.type.shape != self.shape and is_number(node):
            return (None,) * (node.type.rank or 0)
        axes = output_axes(node, self.shape, self.span)
        if node.type.shape == self.shape:
            return axes
        # One value per row: inner axes, if any, are there with extent 1.
        rows = self.span.dropped(tuple(range(len(self.shape))))
        axes = tuple(a if a in rows else None for a in axes)
        missing = [a for a in rows if a not in axes and self.shape[a] != 1]
        size = math.prod(self.shape[a] for a in rows)
        if not self.span.inner or missing or node.type.size != size:
            raise GraphoptError(
                f"{node.label}: its output {node.type} is neither all of {self.shape}"
                " nor one value per row"
            )
        return axes
