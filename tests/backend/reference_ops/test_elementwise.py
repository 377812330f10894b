"""Operators of one array, value by value, against MXNet."""

import numpy as np
import pytest

from graphopt.backend.reference_ops import elementwise

RNG = np.random.default_rng(7)
F16, F32, F64, I32, I64, U8 = "float16", "float32", "float64", "int32", "int64", "uint8"


def case(op, *inputs, **attrs):
    return op, inputs, attrs


def x(*shape, dtype=F32, low=-2.0, high=2.0):
    """Random numbers in [low, high]."""
    if np.dtype(dtype).kind == "f":
        return RNG.uniform(low, high, shape).astype(dtype)
    return RNG.integers(int(low), int(high) + 1, shape).astype(dtype)


def array(*values, dtype="float32"):
    return np.array(values, dtype)


UNARY = {  # the range to draw from
    **dict.fromkeys(
        ["abs", "ceil", "fix", "floor", "negative", "rint", "round", "sign", "square", "trunc"],
        (-4, 4),
    ),
    **dict.fromkeys(
        ["cbrt", "cos", "cosh", "degrees", "erf", "exp", "expm1", "radians", "sin", "sinh"], (-3, 3)
    ),
    **dict.fromkeys(
        ["relu", "sigmoid", "softsign", "tan", "tanh", "arctan", "arcsinh", "logical_not"], (-3, 3)
    ),
    **dict.fromkeys(
        ["log", "log10", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "rcbrt"], (0.1, 5)
    ),
    **dict.fromkeys(["arccos", "arcsin", "arctanh", "erfinv"], (-0.95, 0.95)),
    **dict.fromkeys(["gamma", "gammaln"], (-1.9, 6)),
    **dict.fromkeys(["_contrib_round_ste", "_contrib_sign_ste"], (-3, 3)),
    **dict.fromkeys(
        [
            "_contrib_gradientmultiplier",
            "_copy",
            "identity",
            "BlockGrad",
            "stop_gradient",
            "make_loss",
            "MakeLoss",
        ],
        (-3, 3),
    ),
    "arccosh": (1.1, 5),
}
EDGES = array(-2.5, -1.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.5, 30.0, np.inf, -np.inf, np.nan)
FLOAT_ONLY = {"erfinv", "make_loss", "MakeLoss"}
NO_EDGES = {"gamma", "gammaln"}  # the C library's answers at the poles differ between systems

CASES = [
    *(case(op, x(3, 5, low=lo, high=hi)) for op, (lo, hi) in UNARY.items()),
    *(case(op, x(7, low=lo, high=hi, dtype=F64)) for op, (lo, hi) in UNARY.items()),
    *(case(op, EDGES) for op in UNARY if op not in NO_EDGES),
    *(case(op, array(1, 2, 5, 9, dtype=I32)) for op in UNARY if op not in FLOAT_ONLY),
    case("gamma", array(0.5, 1, 5, 36)),
    case("Activation", x(2, 3, 4), act_type="relu"),
    case("Activation", x(2, 3, 4), act_type="sigmoid"),
    case("Activation", x(2, 3, 4), act_type="tanh"),
    case("Activation", x(2, 3, 4, high=30), act_type="softrelu"),
    case("Activation", x(2, 3, 4), act_type="softsign"),
    case("LeakyReLU", x(2, 3, 4)),
    case("LeakyReLU", x(2, 3, 4), act_type="leaky", slope=0.1),
    case("LeakyReLU", x(2, 3, 4), act_type="elu", slope=0.7),
    case("LeakyReLU", x(2, 3, 4), act_type="selu"),
    case("LeakyReLU", x(2, 3, 4), act_type="gelu"),
    case("LeakyReLU", x(2, 3, 4, 5), x(3), act_type="prelu"),
    case("LeakyReLU", x(2, 3, 4, 5), x(1), act_type="prelu"),
    case("LeakyReLU", x(4, 3), x(3), act_type="prelu"),
    case("hard_sigmoid", x(4, 5, high=4)),
    case("hard_sigmoid", x(4, 5), alpha=0.5, beta=0.1),
    case("smooth_l1", x(4, 5), scalar=1.0),
    case("smooth_l1", x(4, 5), scalar=2.0),
    case("clip", x(4, 5), a_min=-0.5, a_max=1.0),
    case("clip", x(4, 5), a_min=0.5, a_max=-0.5),
    case("clip", x(4, 5, dtype=I32, low=-9, high=9), a_min=-2.5, a_max=3.5),
    *(
        case("Cast", array(-1.7, 0.5, 2.9, 300.0), dtype=t)
        for t in (F16, F64, I32, I64, U8, "int8")
    ),
    case("Cast", x(5, dtype=I64), dtype=F32),
    case("amp_cast", x(5), dtype=F16),
    case("amp_cast", x(5, dtype=I32), dtype=F16),
    case("amp_multicast", x(4), x(4), num_outputs=2),
    case("amp_multicast", x(4, dtype=I32), x(4), num_outputs=2),
    case("Dropout", x(4, 5), p=0.5),
    case("_contrib_quadratic", x(4, 5), a=2, b=-0.5, c=1),
    case("_identity_with_attr_like_rhs", x(4, 5), x(4, 5)),
]

ALIASES = {
    "cast": "Cast",
}


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_value(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs)


@pytest.mark.parametrize("alias", ALIASES)
def test_alias(agrees, alias):
    _, inputs, attrs = next(one for one in CASES if one[0] == ALIASES[alias])
    agrees(alias, inputs, attrs)


def test_every_name_has_a_case():
    assert set(elementwise.TABLE) == {op for op, _, _ in CASES} | set(ALIASES)
