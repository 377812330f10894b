"""Operators of two operands against MXNet."""

import numpy as np
import pytest

from graphopt.backend.reference_ops import arithmetic

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


NAMES = "plus minus mul div mod power maximum minimum hypot equal not_equal greater greater_equal"
NAMES = [*NAMES.split(), *["lesser", "lesser_equal", "logical_and", "logical_or", "logical_xor"]]
REVERSED = ["minus", "div", "mod", "power"]
STEPS = x(4, 6, dtype=I32, low=-2, high=2).astype(F32)  # whole numbers, so that many are equal
PLAIN = {"add": "plus", "sub": "minus"}
OLD = ["_".join(part.capitalize() for part in name.split("_")) for name in NAMES]
WITH_INTEGERS = [n for n in NAMES if n not in ("power", "hypot")]

CASES = [
    *(case(f"broadcast_{n}", x(2, 1, 4, low=0.1), x(3, 1, low=0.1)) for n in NAMES),
    *(case(f"broadcast_{n}", x(2, 1, 4), STEPS[:2, None, :4]) for n in PLAIN),
    *(case(f"_{n}", STEPS, STEPS[::-1] + 0) for n in NAMES if n not in ("power", "plus", "div")),
    *(case(f"_{n}", STEPS, STEPS[::-1] + 0) for n in ("add", "sub", "plus", "minus", "mul")),
    *(case(f"elemwise_{n}", x(4, 3), x(4, 3, low=1)) for n in ("add", "sub", "mul", "div")),
    *(case(f"_{n}", x(4, 3, low=0.1), x(4, 3, low=1)) for n in ("power", "div", "_grad_add"[1:])),
    *(case(f"_{n}", x(4, 3, low=0.1), x(4, 3, low=1)) for n in OLD),
    case("_scatter_elemwise_div", x(4, 3), x(4, 3, low=1)),
    *(
        case(
            f"broadcast_{n}", x(9, dtype=t, low=1 if t == U8 else -5, high=5), x(9, dtype=t, low=1)
        )
        for n in WITH_INTEGERS
        for t in (I32, U8)
    ),
    case("broadcast_mod", array(5, -5, 5, -5, 5.5, 0), array(3, 3, -3, -3, 0, 2)),
    case("broadcast_maximum", array(1, np.nan, 2), array(2, 1, np.nan)),
    case("broadcast_minimum", array(1, np.nan, 2), array(2, 1, np.nan)),
    *(case(f"_{n}_scalar", STEPS, scalar=2.0) for n in NAMES),
    *(case(f"_{n}_scalar", x(3, 4, low=0.1), scalar=0.3) for n in NAMES),
    *(case(f"_r{n}_scalar", x(3, 4, low=0.1), scalar=1.5) for n in REVERSED),
    *(case(f"_{n}_scalar", x(3, 4, dtype=I32), scalar=1.5) for n in WITH_INTEGERS),
    *(case(f"_{n}_scalar", x(3, 4, dtype=F16), scalar=1.5) for n in WITH_INTEGERS),
    *(case(f"_{n.replace('_', '')}Scalar", x(3, 4, low=0.1), scalar=0.7) for n in OLD),
    *(case(f"_R{n.capitalize()}Scalar", x(3, 4, low=0.1), scalar=0.7) for n in REVERSED),
    case("_plus_scalar", x(3, 4, dtype=I32), scalar=1.5, is_int=False),
    case("_greater_scalar", np.full(3, 0.1, F32), scalar=0.1),
    case("_minus_scalar", x(5, dtype=U8, low=0), scalar=3),
    case("_scatter_plus_scalar", x(4), scalar=2),
    case("_scatter_minus_scalar", x(4), scalar=2),
    case("add_n", x(3, 4), x(3, 4), x(3, 4), num_args=3),
    case("ElementWiseSum", x(3, 4), num_args=1),
]


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_value(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs)


def test_every_name_has_a_case():
    assert set(arithmetic.TABLE) == {op for op, _, _ in CASES}
