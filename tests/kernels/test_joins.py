"""MXNet's concatenation and its gradient, computed by the bridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()

#: As MXNet has it.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
CASES = [
    ([(5, 1, 7, 1), (5, 1, 7, 1), (5, 1, 7, 4)], -1),
    ([(1, 60, 6)] * 20, -2),
    ([(3, 12, 25), (3, 12, 1), (3, 12, 64)], 2),
    ([(1000, 3), (1000, 5), (1000, 2), (1000, 6), (1000, 8), (1000, 16)], 1),
    ([(64, 50, 300), (64, 50, 100)], 2),
    ([(2, 3), (1, 3)], 0),
    ([(300_000,), (100_000,)], 0),
    ([(4, 7)], 1),
]


def arrays(shapes: Sequence[tuple[int, ...]], dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(0)
    return [mx.nd.array(rng.integers(-99, 99, shape), dtype=dtype) for shape in shapes]


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


def step(parts: list[Any], axis: int) -> tuple[Any, np.ndarray]:
    """The whole, and the gradient it was given."""
    with mx.autograd.record():
        whole = mx.nd.concat(*parts, dim=axis)
    head = np.random.default_rng(1).integers(-99, 99, whole.shape)
    whole.backward(mx.nd.array(head, dtype=whole.dtype))
    return whole, head


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
@pytest.mark.parametrize(("shapes", "axis"), CASES)
def test_parts_are_joined_and_gradients_parted(
    shapes: list[tuple[int, ...]], axis: int, dtype: str
) -> None:
    parts, before = arrays(shapes, dtype), calls()
    for part in parts:
        part.attach_grad()
    whole, head = step(parts, axis)
    expected = np.concatenate([part.asnumpy() for part in parts], axis)
    assert np.array_equal(whole.asnumpy(), expected)
    ends = np.cumsum([part.shape[axis] for part in parts])[:-1]
    for part, gradient in zip(parts, np.split(head, ends, axis), strict=True):
        assert np.array_equal(part.grad.asnumpy(), gradient.astype(dtype))
    assert calls() == before + 2


def test_gradients_that_are_added_or_not_wanted() -> None:
    parts = arrays([(6, 5, 3), (6, 5, 2), (6, 5, 1)])
    for part, request in zip(parts, ("write", "null", "write"), strict=True):
        part.attach_grad(request)
    before = calls()
    _, head = step(parts, 2)
    assert calls() == before + 2
    assert np.array_equal(parts[0].grad.asnumpy(), head[..., :3])
    assert np.array_equal(parts[2].grad.asnumpy(), head[..., 5:])
    parts[0].attach_grad("add")
    for _ in range(2):
        _, head = step(parts, 2)
    assert np.array_equal(parts[0].grad.asnumpy(), 2 * head[..., :3])


def test_images_are_left_to_onednn() -> None:
    parts, before = arrays([(2, 16, 5, 5), (2, 16, 5, 5)]), calls()
    whole = mx.nd.concat(*parts, dim=1)
    assert np.array_equal(whole.asnumpy(), np.concatenate([p.asnumpy() for p in parts], 1))
    assert calls() == before


def test_blocks_of_channels_come_out_right() -> None:
    x = mx.nd.random.normal(shape=(2, 32, 6, 6))
    weight = mx.nd.random.normal(shape=(32, 32, 1, 1))
    options = {"kernel": (1, 1), "num_filter": 32, "no_bias": True}
    parts = [mx.nd.Convolution(x, weight, **options) for _ in range(2)]
    for axis in (1, 2, 3, -1):
        found = mx.nd.concat(*parts, dim=axis).asnumpy()
        assert np.array_equal(found, np.concatenate([p.asnumpy() for p in parts], axis))


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(mx.MXNetError):
        mx.nd.concat(*arrays([(2, 3), (2, 4)]), dim=0).wait_to_read()


def test_empty_parts_take_no_room() -> None:
    with mx.util.np_shape(True):
        parts = [mx.nd.zeros((4, 0)), mx.nd.ones((4, 3))]
        assert mx.nd.concat(*parts, dim=1).shape == (4, 3)
        assert (mx.nd.concat(*parts, dim=1).asnumpy() == 1).all()


def test_bfloat16() -> None:
    parts = [mx.nd.amp_cast(part, dtype=BFLOAT16) for part in arrays([(6, 5), (6, 3)])]
    before = calls()
    found = mx.nd.amp_cast(mx.nd.concat(*parts, dim=1), dtype="float32").asnumpy()
    whole = [mx.nd.amp_cast(part, dtype="float32").asnumpy() for part in parts]
    assert np.array_equal(found, np.concatenate(whole, 1))
    assert calls() == before + 1
