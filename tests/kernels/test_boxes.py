"""MXNet's box_nms, computed by the bridge: the same to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()

FORMATS = ("corner", "center")


def boxes(shape: tuple[int, ...], seed: int = 0, decimals: int = 7) -> np.ndarray:
    """(class, score, box, and more) each; the fewer decimals, the more scores are equal."""
    rng = np.random.default_rng(seed)
    made = rng.random(shape).astype("float32")
    made[..., 0] = rng.integers(0, 3, shape[:-1])
    made[..., 1] = made[..., 1].round(decimals)
    made[..., 4:6] += made[..., 2:4] - 0.2
    return made


def computed(values: np.ndarray, dtype: str, options: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """The output, and the gradient of the boxes for some gradient of the output."""
    x = mx.nd.array(values, dtype=dtype)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.contrib.box_nms(x, **options)
    y.backward(mx.nd.array(np.random.default_rng(1).random(values.shape), dtype=dtype))
    return y.asnumpy(), x.grad.asnumpy()


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


def check(values: np.ndarray, **options: Any) -> None:
    """MXNet's own code computes the same; it still does for float64."""
    defaults = {"overlap_thresh": 0.4, "valid_thresh": 0.125, "coord_start": 2, "score_index": 1}
    before = calls()
    found = computed(values, "float32", defaults | options)
    assert calls() == before + 1
    expected = computed(values, "float64", defaults | options)
    assert calls() == before + 1
    for want, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(300, 6), (2, 70, 6), (2, 3, 150, 7)])
@pytest.mark.parametrize("topk", [-1, 1, 50, 1000])
@pytest.mark.parametrize("force", [False, True])
def test_the_best_boxes_suppress_others(shape: tuple[int, ...], topk: int, force: bool) -> None:
    check(boxes(shape), topk=topk, force_suppress=force, id_index=0, background_id=1)
    check(boxes(shape), topk=topk, force_suppress=force)


@pytest.mark.parametrize("given", FORMATS)
@pytest.mark.parametrize("wanted", FORMATS)
def test_boxes_are_corners_or_centres(given: str, wanted: str) -> None:
    check(boxes((2, 200, 6)), in_format=given, out_format=wanted, id_index=0)


def test_boxes_of_equal_scores_keep_their_order() -> None:
    check(boxes((500, 6), decimals=1), id_index=0, topk=100)
    check(boxes((500, 6), decimals=0), topk=7, overlap_thresh=1.0)


def test_many_boxes_are_looked_at_by_all_threads() -> None:
    check(boxes((3, 40_000, 6)), id_index=0, topk=400)


def test_nothing_comes_out_where_all_is_below_the_threshold() -> None:
    values = boxes((2, 30, 6))
    check(values, valid_thresh=2.0)
    values[0, :, 1] = np.nan
    check(values, id_index=0)


def test_what_is_no_matter_of_speed_is_left_to_mxnet() -> None:
    before = calls()
    values = mx.nd.array(boxes((40, 6)))
    assert np.array_equal(mx.nd.contrib.box_nms(values, topk=0).asnumpy(), values.asnumpy())
    assert calls() == before
    with pytest.raises(mx.MXNetError, match="at least 5 elements"):
        mx.nd.contrib.box_nms(mx.nd.zeros((40, 4)))
