"""Reductions and orders against MXNet."""

import numpy as np
import pytest

from graphopt.backend.reference_ops import ordering, reduce

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


STEPS = x(4, 6, dtype=I32, low=-2, high=2).astype(F32)  # whole numbers, so that many are equal
INFINITE = array(1, np.inf, np.nan)
REDUCTIONS = ["sum", "mean", "max", "min", "prod", "nansum", "nanprod"]
HOLES = np.where(x(3, 4) > 1, np.nan, x(3, 4)).astype(F32)
CASES = [
    *(case(op, x(2, 3, 4)) for op in REDUCTIONS),
    *(case(op, x(2, 3, 4), axis=(0, -1), keepdims=True) for op in REDUCTIONS),
    *(case(op, x(2, 3, 4), axis=1, exclude=True) for op in REDUCTIONS),
    *(
        case(op, x(2, 3, dtype=t, low=1, high=9), axis=0)
        for op in REDUCTIONS[:5]
        for t in (I32, F64)
    ),
    *(case(op, HOLES, axis=1) for op in REDUCTIONS),
    case("sum", x(3, 200, dtype=U8, low=0, high=9), axis=1),
    case("norm", x(3, 4)),
    case("norm", x(3, 4), axis=1, keepdims=True),
    case("norm", x(3, 4, 5), axis=(0, 2), ord=2),
    case("norm", x(3, 4), axis=0, ord=1),
    case("moments", x(3, 4, 5), axes=(0, 2)),
    case("moments", x(3, 4), axes=1, keepdims=True),
    case("cumsum", x(3, 4), axis=1),
    case("cumsum", x(3, 4)),
    case("cumsum", x(5, dtype=U8, low=0, high=200), dtype=I32),
    case("all_finite", x(3)),
    case("all_finite", INFINITE),
    case("multi_all_finite", x(3), INFINITE, num_arrays=2),
    *(case(op, STEPS) for op in ("argmax", "argmin")),
    *(case(op, STEPS, axis=1) for op in ("argmax", "argmin", "argsort", "sort")),
    *(case(op, x(3, 4), axis=-1, keepdims=True) for op in ("argmax", "argmin")),
    case("argmax", x(5, dtype=I32), axis=0),
    case("argmax_channel", x(3, 4)),
    case("argsort", x(3, 4), is_ascend=False),
    case("argsort", x(3, 4), axis=None, dtype=I32),
    case("sort", x(3, 4), axis=0, is_ascend=False),
    case("sort", x(6, dtype=U8, low=0, high=9), is_ascend=False),
    case("topk", x(3, 6), k=2),
    case("topk", x(3, 6), k=2, axis=0, ret_typ="both", is_ascend=True, dtype=I32),
    case("topk", x(3, 6), k=2, ret_typ="value"),
    case("topk", x(3, 6), k=2, ret_typ="mask"),
    case("topk", x(3, 6), k=0, ret_typ="value"),
    case("topk", x(3, 6), k=4, axis=None),
]

ALIASES = {
    "max_axis": "max",
    "min_axis": "min",
    "sum_axis": "sum",
}


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_value(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs)


@pytest.mark.parametrize("alias", ALIASES)
def test_alias(agrees, alias):
    _, inputs, attrs = next(one for one in CASES if one[0] == ALIASES[alias])
    agrees(alias, inputs, attrs)


def test_every_name_has_a_case():
    assert set(ordering.TABLE) | set(reduce.TABLE) == {op for op, _, _ in CASES} | set(ALIASES)
