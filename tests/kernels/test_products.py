"""Products over packed weights, against numpy in float64 and against MXNet."""

from __future__ import annotations

import math

import mxnet as mx
import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels.products import has_matrix_unit, packed, packed_size, usual_factor
from tests.symbols import one_operator

ERF = np.vectorize(math.erf)


def symbol(
    units: int,
    *,
    is_packed: bool,
    bias: bool,
    activation: str,
    flatten: bool = False,
    tiled: bool = False,
):
    attrs = {
        "units": units,
        "activation": activation,
        "flatten": flatten,
        "no_bias": not bias,
        "packed": is_packed,
        "tiled": tiled,
    }
    return one_operator("graphopt_product", "y", "xwb" if bias else "xw", attrs)


def activated(x: np.ndarray, activation: str) -> np.ndarray:
    if activation == "relu":
        return np.maximum(x, 0)
    return 0.5 * x * (1 + ERF(x * math.sqrt(0.5))) if activation == "gelu" else x


def compute(
    x, w, b, activation="none", *, is_packed=True, flatten=False, tiled=False
) -> np.ndarray:
    weights = packed(mx, w, tiled=tiled) if is_packed else w
    feeds = {"x": mx.nd.array(x), "w": mx.nd.array(weights)}
    if b is not None:
        feeds["b"] = mx.nd.array(b)
    made = symbol(
        len(w),
        is_packed=is_packed,
        bias=b is not None,
        activation=activation,
        flatten=flatten,
        tiled=tiled,
    )
    return made.bind(mx.cpu(), feeds, grad_req="null").forward()[0].asnumpy()


#: Whether weights are packed, and whether for the matrix unit.
FORMS = [(True, False), (False, False)]
if has_matrix_unit(import_mxnet()):
    FORMS.append((True, True))

#: Around the extents of tiles, chunks of rows and parts of the depth.
SIZES = [
    (1, 1, 1),
    (1, 768, 768),
    (3, 5, 10),
    (7, 384, 48),
    (8, 385, 49),
    (9, 767, 47),
    (63, 768, 96),
    (65, 769, 95),
    (130, 2000, 97),
    (128, 769, 48),
    (129, 1600, 49),
    (257, 1537, 145),
]


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_as_numpy(size: tuple[int, int, int], activation: str) -> None:
    rows, depth, units = size
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, depth), np.float32)
    w = rng.standard_normal((units, depth), np.float32) / np.float32(math.sqrt(depth))
    b = rng.standard_normal(units, np.float32)
    for bias in (b, None):
        expected = x.astype(float) @ w.T.astype(float) + (0 if bias is None else bias)
        expected = activated(expected, activation)
        for is_packed, tiled in FORMS:
            found = compute(x, w, bias, activation, is_packed=is_packed, tiled=tiled)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("flatten", [True, False])
def test_shapes_are_those_of_mxnet(flatten: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5), np.float32)
    w = rng.standard_normal((7, 20 if flatten else 5), np.float32)
    expected = mx.nd.FullyConnected(
        mx.nd.array(x), mx.nd.array(w), num_hidden=7, no_bias=True, flatten=flatten
    )
    found = compute(x, w, None, flatten=flatten)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected.asnumpy(), rtol=1e-5, atol=1e-5)


def test_gelu_is_as_accurate_as_float32_allows() -> None:
    x = np.linspace(-9, 9, 40_001, dtype=np.float32)[:, None]
    expected = activated(x.astype(float), "gelu")
    for is_packed, tiled in FORMS:
        found = compute(
            x, np.ones((1, 1), np.float32), None, "gelu", is_packed=is_packed, tiled=tiled
        )
        # 1 + erf is rounded to units of 6e-8 where erf is near -1, in MXNet too; and where the unit
        # multiplies float16, 1 times x may differ from x by its last digit.
        near = 5e-7 + (np.spacing(np.abs(x)) if tiled and usual_factor(mx) > 1 else 0)
        assert (np.abs(found - expected) < near).all()


@pytest.mark.parametrize("activation", ["none", "relu", "gelu"])
def test_nan_stays_in_its_row_and_infinity_is_kept(activation: str) -> None:
    x = np.ones((9, 40), np.float32)
    x[2, 3], x[5, 7] = np.nan, np.inf
    for is_packed, tiled in FORMS:
        found = compute(
            x, np.ones((50, 40), np.float32), None, activation, is_packed=is_packed, tiled=tiled
        )
        assert np.isnan(found[2]).all()
        assert np.isposinf(found[5]).all()
        assert np.isfinite(np.delete(found, [2, 5], axis=0)).all()


def test_packed_weights_fill_up_whole_vectors() -> None:
    made = packed(mx, np.ones((3, 4), np.float32))
    assert made.size == packed_size(mx, 4, 3) >= 12
    assert made.sum() == 12


def test_what_does_not_fit_is_refused_by_name() -> None:
    made = symbol(3, is_packed=False, bias=False, activation="none")
    with pytest.raises(mx.MXNetError, match="input 1 of node y has shape"):
        made.infer_shape(x=(2, 4), w=(3, 5))
    with mx.util.np_shape(), pytest.raises(mx.MXNetError, match="has no axis"):
        made.infer_shape(x=())
    wrong = symbol(3, is_packed=False, bias=False, activation="softmax")
    with pytest.raises(mx.MXNetError, match="no activation 'softmax'"):
        wrong.bind(
            mx.cpu(), {"x": mx.nd.ones((2, 4)), "w": mx.nd.ones((3, 4))}, grad_req="null"
        ).forward()[0].asnumpy()
