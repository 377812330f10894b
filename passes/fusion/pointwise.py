"""MXNet's operators of single elements as kernel instructions.

Values and gradients are MXNet's, also where these are a matter of taste: which operand of a maximum
gets the gradient of a tie, what slope a function has at its kink. Where an operator's derivative in
MXNet is not the derivative of the instructions, ``scale_gradient``, ``with_slope`` and ``stop``
make it so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.ops import canonical
from graphopt.kernels.spec import STORAGE_DTYPES, Arg
from graphopt.passes.fusion.activations import (
    ACTIVATIONS,
    activation,
    check_leaky_relu,
    leaky_relu,
    softsign,
)
from graphopt.passes.fusion.operators import (
    FLOATS,
    Build,
    Emit,
    Pointwise,
    all_of,
    instruction,
    number,
    of_one_dtype,
    refuse,
    same_dtype,
    scalar,
    single,
)


def prepared(node: Node, graph: Graph) -> Attrs:
    """The attributes of a node, and what else the instructions depend on."""
    name, attrs = canonical(node.op), node.attrs
    if name in (*CASTS, "Activation", "LeakyReLU"):
        return attrs.set(dtype=node.type.dtype)
    if name == "_contrib_div_sqrt_dim":
        shape = graph.type_of(node.inputs[0]).shape or (1,)
        return attrs.set(scalar=math.sqrt(shape[-1] or 1))
    if node.type.dtype == "float16":
        # MXNet rounds a scalar, or what it fills with, to the dtype of the array.
        for given in ("scalar", "value"):
            if attrs.get(given) is not None:
                with np.errstate(over="ignore"):
                    attrs = attrs.set(**{given: float(np.float16(number(attrs, given, 1.0)))})
    return attrs


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
    return same_dtype(node, chosen)


def _check_like(node: Node, graph: Graph) -> str | None:
    """The second input is only looked at."""
    return same_dtype(node, [graph.type_of(node.inputs[0])])


def _check_dim(node: Node, graph: Graph) -> str | None:
    shape = graph.type_of(node.inputs[0]).shape
    return None if shape and shape[-1] else "the extent of the last axis is not known"


def _with_scalar(name: str, reverse: bool = False) -> Build:
    def build(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
        number = scalar(attrs)
        return emit(name, number, args[0]) if reverse else emit(name, args[0], number)

    return build


def _identity(_emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    return args[0]


def _constant(value: float) -> Build:
    return lambda emit, args, attrs: value


def _scaled(factor: float) -> Build:
    return lambda emit, args, attrs: emit("mul", args[0], factor)


def _power_scalar(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    x, power = args[0], scalar(attrs)
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


def _hard_sigmoid(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    line = emit("mul", args[0], single(attrs, "alpha", 0.2))
    line = emit("add", line, single(attrs, "beta", 0.5))
    inside = emit("and", emit("gt", line, 0.0), emit("lt", line, 1.0))
    return emit("where", inside, line, emit("stop", emit("min", emit("max", line, 0.0), 1.0)))


def _smooth_l1(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    square = scalar(attrs) ** 2
    size = emit("abs", args[0])
    is_far = emit("gt", size, 1 / square)
    # Zero far off, since an infinite slope of the curve times a gradient of zero is NaN.
    near = emit("where", is_far, 0.0, args[0])
    curve = emit("mul", emit("square", near), 0.5 * square)
    return emit("where", is_far, emit("sub", size, 0.5 / square), curve)


def _clip(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    # All but what is beyond a bound gets the gradient, also what equals one or is NaN.
    x, low, high = args[0], single(attrs, "a_min", 0.0), single(attrs, "a_max", 0.0)
    is_beyond = emit("or", emit("gt", x, high), emit("lt", x, low))
    clipped = emit("min", emit("max", x, low), high)
    return emit("with_slope", clipped, emit("where", is_beyond, 0.0, x), 1.0)


def _quadratic(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    a, b, c = (single(attrs, name, 0.0) for name in "abc")
    inner = emit("add", emit("mul", args[0], a), b)
    return emit("add", emit("mul", inner, args[0]), c)


def _add_n(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    total = args[0]
    for arg in args[1:]:
        total = emit("add", total, arg)
    return total


def _cast(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    # A value of its own: the gradient of what is cast is that of what was computed, unrounded, and
    # what reads it is never one with an equal operator of the other dtype.
    value = emit("scale_gradient", args[0], 1.0)
    return emit("half", value) if attrs["dtype"] == "float16" else value


CASTS: Final = ("Cast", "amp_cast")

# MXNet converts angles with factors in float32, for arrays of every dtype.
_DEGREES: Final = float(np.float32(180) / np.float32(np.pi))
_RADIANS: Final = float(np.float32(np.pi) / np.float32(180))

# Operators that have the name of their instruction, in mx.np and mx.nd, and in mx.nd only.
_BOTH: Final = """
    arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh exp expm1 floor log log10 log1p
    log2 sign sin sinh sqrt square tan tanh trunc
"""
_ONLY_ND: Final = "abs erf gamma gammaln rcbrt round rsqrt sigmoid"

#: Instruction by operator, where it is one instruction.
_UNARY: Final = {
    **{name: name for name in (*_BOTH.split(), *_ONLY_ND.split())},
    **{f"_npi_{name}": name for name in _BOTH.split()},
    "fix": "trunc",
    "logical_not": "not",
    "negative": "neg",
    "reciprocal": "recip",
    "relu": "relu_nan",
    "BlockGrad": "stop",
    "_npi_absolute": "abs",
    "_npi_fix": "trunc",
    "_npi_negative": "neg",
    "_npi_reciprocal": "recip",
    "_npx_relu": "relu_nan",
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
    **{
        name: Pointwise(instruction(op), of_one_dtype)
        for name, op in (*_UNARY.items(), *_BINARY.items())
    },
    **{name: Pointwise(_with_scalar(op), of_one_dtype) for name, op in _SCALAR.items()},
    **{
        name: Pointwise(_with_scalar(op, reverse=True), of_one_dtype)
        for name, op in _REVERSED.items()
    },
    **{
        name: Pointwise(_identity, of_one_dtype)
        for name in ("_copy", "_np_copy", "broadcast_to", "broadcast_axis", "_npi_broadcast_to")
    },
    **{
        name: Pointwise(_power_scalar, of_one_dtype)
        for name in ("_power_scalar", "_npi_power_scalar")
    },
    **{name: Pointwise(_scaled(_DEGREES), of_one_dtype) for name in ("degrees", "_npi_degrees")},
    **{name: Pointwise(_scaled(_RADIANS), of_one_dtype) for name in ("radians", "_npi_radians")},
    **{name: Pointwise(_rint, of_one_dtype) for name in ("rint", "_npi_rint")},
    **{name: Pointwise(_cast, _check_cast) for name in CASTS},
    **{name: Pointwise(instruction("where"), _check_where) for name in ("where", "_npi_where")},
    # Not _npi_where_lscalar and _npi_where_rscalar: MXNet sends their gradient to the elements that
    # were not chosen.
    "_full": Pointwise(lambda emit, args, attrs: number(attrs, "value", 0.0), of_one_dtype),
    "_ones": Pointwise(_constant(1.0), of_one_dtype),
    "_zeros": Pointwise(_constant(0.0), of_one_dtype),
    "ones_like": Pointwise(_constant(1.0), of_one_dtype),
    "zeros_like": Pointwise(_constant(0.0), of_one_dtype),
    "softsign": Pointwise(softsign, of_one_dtype),
    "hard_sigmoid": Pointwise(_hard_sigmoid, of_one_dtype),
    "smooth_l1": Pointwise(
        _smooth_l1,
        all_of(of_one_dtype, refuse(lambda attrs: scalar(attrs) == 0, "its scalar is 0")),
    ),
    "clip": Pointwise(
        _clip,
        all_of(
            of_one_dtype,
            refuse(
                lambda a: not single(a, "a_min", math.nan) <= single(a, "a_max", math.nan),
                "its bounds are in the wrong order",
            ),
        ),
    ),
    "_contrib_quadratic": Pointwise(_quadratic, of_one_dtype),
    "_contrib_div_sqrt_dim": Pointwise(_with_scalar("div"), all_of(of_one_dtype, _check_dim)),
    "_contrib_gradientmultiplier": Pointwise(_with_scalar("scale_gradient"), of_one_dtype),
    "Activation": Pointwise(
        activation,
        all_of(
            of_one_dtype,
            refuse(lambda a: a.get("act_type") not in ACTIVATIONS, "its act_type is unknown"),
        ),
    ),
    "LeakyReLU": Pointwise(leaky_relu, all_of(of_one_dtype, check_leaky_relu)),
    "add_n": Pointwise(_add_n, of_one_dtype),
    "broadcast_like": Pointwise(
        _identity,
        all_of(
            _check_like,
            refuse(
                lambda a: a.get("lhs_axes") is not None or a.get("rhs_axes") is not None,
                "it stretches chosen axes",
            ),
        ),
    ),
    "_identity_with_attr_like_rhs": Pointwise(_identity, _check_like),
}
