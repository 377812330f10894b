"""MXNet's ROIAlign, computed by the bridge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()


def boxes(count: int, images: int, extent: float, seed: int = 0) -> np.ndarray:
    """(image, corners) each, some of them beyond the border or without any size."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(-0.3, 1.0, (count, 2)) * extent
    last = first + rng.uniform(-0.05, 0.7, (count, 2)) * extent
    return np.hstack([rng.integers(0, images, (count, 1)), first, last]).astype("float32")


def computed(x: np.ndarray, rois: np.ndarray, dtype: str, **options: Any) -> np.ndarray:
    arrays = (mx.nd.array(array, dtype=dtype) for array in (x, rois))
    return mx.nd.contrib.ROIAlign(*arrays, **options).asnumpy()


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


def check(x: np.ndarray, rois: np.ndarray, **options: Any) -> None:
    """MXNet's own code computes the same; it still does for float64."""
    before = calls()
    found = computed(x, rois, "float32", **options)
    assert calls() == before + 1
    expected = computed(x, rois, "float64", **options)
    assert calls() == before + 1
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("samples", [-1, 1, 2, 3])
@pytest.mark.parametrize("channels", [1, 7, 40])
@pytest.mark.parametrize("size", [(7, 7), (3, 5), (1, 1)])
def test_boxes(samples: int, channels: int, size: tuple[int, int]) -> None:
    x = np.random.default_rng(1).standard_normal((2, channels, 17, 23)).astype("float32")
    check(x, boxes(30, 2, 16 * 17), pooled_size=size, spatial_scale=1 / 16, sample_ratio=samples)


def test_aligned_boxes() -> None:
    x = np.random.default_rng(1).standard_normal((1, 20, 17, 23)).astype("float32")
    rois = boxes(30, 1, 100)
    rois[:, 3:] = rois[:, 1:3] + np.abs(rois[:, 3:] - rois[:, 1:3]) + 1
    check(x, rois, pooled_size=(4, 4), spatial_scale=0.25, aligned=True)


def test_boxes_of_no_image_are_zeros() -> None:
    """MXNet leaves them as memory was, and reads beyond the last image."""
    x = np.ones((2, 3, 9, 9), "float32")
    rois = np.array([[-1, 0, 0, 8, 8], [0, 0, 0, 8, 8], [2, 0, 0, 8, 8]], "float32")
    found = computed(x, rois, "float32", pooled_size=(2, 2), spatial_scale=1)
    np.testing.assert_array_equal(found[[0, 2]], 0)
    np.testing.assert_allclose(found[1], 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "channels"),
    [({"position_sensitive": True}, 12), ({"position_sensitive": False}, 3)],
)
def test_what_is_left_to_mxnet(options: dict[str, Any], channels: int) -> None:
    """Position-sensitive pooling, other dtypes, and sums."""
    x = mx.nd.random.normal(shape=(1, channels, 9, 9))
    rois = mx.nd.array(boxes(5, 1, 9))
    options |= {"pooled_size": (2, 2), "spatial_scale": 1.0}
    before = calls()
    if options["position_sensitive"]:
        mx.nd.contrib.ROIAlign(x, rois, **options).wait_to_read()
    else:
        mx.nd.contrib.ROIAlign(x.astype("float64"), rois.astype("float64"), **options).asnumpy()
    assert calls() == before


def test_gradients_are_those_of_mxnet() -> None:
    rng = np.random.default_rng(0)
    values, rois = rng.standard_normal((1, 4, 9, 9)), boxes(6, 1, 9)
    found = []
    for dtype in ("float32", "float64"):
        x = mx.nd.array(values, dtype=dtype)
        x.attach_grad()
        with mx.autograd.record():
            y = mx.nd.contrib.ROIAlign(
                x, mx.nd.array(rois, dtype=dtype), pooled_size=(3, 3), spatial_scale=1.0
            )
        y.backward()
        found.append(x.grad.asnumpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)
