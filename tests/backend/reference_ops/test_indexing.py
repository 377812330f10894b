"""Operators that make or choose values against MXNet."""

import numpy as np
import pytest

from graphopt.backend.reference_ops import creation, indexing

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


AT = array(-1, 9, 1.7, 0)
CASES = [
    case("_zeros", shape=(2, 3)),
    case("_zeros_without_dtype", shape=(2, 3), dtype=4),
    case("_ones", shape=(2, 3), dtype=I32),
    case("_full", shape=(2,), value=1.5, dtype=F64),
    case("_arange", start=1, stop=7.5, step=2, repeat=2),
    case("_arange", start=4, stop=None),
    case("_arange", start=5, stop=0, step=-1.5, dtype=F64),
    case("_linspace", start=0, stop=5, num=4),
    case("_linspace", start=0, stop=5, num=4, endpoint=False),
    case("_eye", N=3, M=4, k=1),
    case("_eye", N=3, dtype=I32),
    case("zeros_like", x(2, 3, dtype=I32)),
    case("ones_like", x(2, 3)),
    case("_contrib_arange_like", x(2, 3)),
    case("_contrib_arange_like", x(2, 6), axis=1, start=2, step=0.5),
    case("_contrib_arange_like", x(2, 6), axis=-1, repeat=2),
    case("diag", x(3)),
    case("diag", x(3), k=-1),
    case("diag", x(3, 4), k=1),
    case("diag", x(2, 3, 4), axis1=-1, axis2=0),
    case("Embedding", AT.reshape(2, 2), x(4, 3), input_dim=4, output_dim=3),
    case("_contrib_SparseEmbedding", array(1, 0), x(4, 3), input_dim=4, output_dim=3),
    case("take", x(4, 5), AT),
    case("take", x(4, 5, 3), AT.reshape(2, 2), axis=1, mode="wrap"),
    case("take", x(4, 5), x(3, dtype=I32, low=0, high=3), axis=-1),
    case("pick", x(4, 3), AT),
    case("pick", x(4, 3), AT, mode="wrap", keepdims=True),
    case("pick", x(2, 4, 3), x(2, 3, low=0, high=3.9), axis=1),
    case("pick", x(4, 3), AT.reshape(4, 1), keepdims=True),
    case("batch_take", x(4, 3), array(0, 2, 1, 1, dtype=I32)),
    case("gather_nd", x(3, 4, 2), array([0, 2, 1], [3, 0, -1])),
    case("gather_nd", x(3, 4), array([[0, 2], [1, 1]])),
    case("scatter_nd", x(3, 2), array([0, 2, 1], [3, 0, 1]), shape=(3, 4, 2)),
    case("one_hot", AT, depth=3),
    case("one_hot", AT, depth=3, on_value=2, off_value=-1, dtype=I32),
    case("where", x(3, 4, dtype=I32, low=0, high=1), x(3, 4), x(3, 4)),
    case("where", array(0, 1, 2), x(3, 4), x(3, 4)),
    case("_contrib_boolean_mask", x(4, 3), array(0, 1, 1, 0)),
    case("_contrib_index_copy", x(4, 3), array(3, 1, dtype=I64), x(2, 3)),
    case("_ravel_multi_index", array([0, 2, 1], [3, 0, 1]), shape=(3, 4)),
    case("_unravel_index", array(3, 8, 5), shape=(3, 4)),
]

ALIASES = {
    "choose_element_0index": "pick",
    "ravel_multi_index": "_ravel_multi_index",
    "unravel_index": "_unravel_index",
}


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_value(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs)


@pytest.mark.parametrize("alias", ALIASES)
def test_alias(agrees, alias):
    _, inputs, attrs = next(one for one in CASES if one[0] == ALIASES[alias])
    agrees(alias, inputs, attrs)


def test_every_name_has_a_case():
    assert set(creation.TABLE) | set(indexing.TABLE) == {op for op, _, _ in CASES} | set(ALIASES)
