"""MXNet's split, stack, slice_axis and repeat with their gradients, computed by the bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()


def array(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return mx.nd.array(rng.integers(-99, 99, shape), dtype=dtype)


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


def step(f: Callable[[], Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What is computed, and the gradients that were given to it."""
    with mx.autograd.record():
        made = f()
    outputs = list(made) if isinstance(made, list) else [made]
    heads = [array(out.shape, out.dtype, seed) for seed, out in enumerate(outputs, 1)]
    mx.autograd.backward(outputs, heads)
    return [out.asnumpy() for out in outputs], [head.asnumpy() for head in heads]


DTYPES = ["float32", "float64", "float16", "int8"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "count", "axis", "squeeze"),
    [
        ((320, 160), 4, 1, False),
        ((3, 8, 5), 2, -2, False),
        ((6, 7), 3, 0, False),
        ((2, 4, 5), 4, 1, True),
        ((5, 3), 3, -1, True),
        ((300_000, 2), 2, 1, True),
    ],
)
def test_split(shape: tuple[int, ...], count: int, axis: int, squeeze: bool, dtype: str) -> None:
    x, before = array(shape, dtype), calls()
    x.attach_grad()
    parts, heads = step(lambda: mx.nd.split(x, count, axis=axis, squeeze_axis=squeeze))
    expected = np.split(x.asnumpy(), count, axis)
    for part, whole in zip(parts, expected, strict=True):
        assert np.array_equal(part, whole.squeeze(axis) if squeeze else whole)
    join = np.stack if squeeze else np.concatenate
    assert np.array_equal(x.grad.asnumpy(), join(heads, axis))
    assert calls() == before + 2


@pytest.mark.parametrize("axis", [0, 1])
def test_split_whose_axis_shapes_do_not_tell(axis: int) -> None:
    x, before = array((3, 3)), calls()
    x.attach_grad()
    parts, heads = step(lambda: mx.nd.split(x, 3, axis=axis, squeeze_axis=True))
    assert np.array_equal(np.stack(parts, axis), x.asnumpy())
    assert np.array_equal(x.grad.asnumpy(), np.stack(heads, axis))
    assert calls() == before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "count", "axis"),
    [((320, 1), 40, 2), ((3, 4), 5, 0), ((2, 3, 4), 2, -2), ((7,), 1, 1)],
)
def test_stack(shape: tuple[int, ...], count: int, axis: int, dtype: str) -> None:
    parts, before = [array(shape, dtype, seed) for seed in range(count)], calls()
    for part in parts:
        part.attach_grad()
    (whole,), (head,) = step(lambda: mx.nd.stack(*parts, axis=axis))
    assert np.array_equal(whole, np.stack([part.asnumpy() for part in parts], axis))
    for i, part in enumerate(parts):
        assert np.array_equal(part.grad.asnumpy(), head.take(i, axis))
    assert calls() == before + 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "begin", "end"),
    [
        ((320, 77), 1, 3, 4),
        ((320, 77), -1, -7, None),
        ((3, 8, 5), 1, 2, -1),
        ((9,), 0, 4, 9),
        ((400_000, 3), 0, 1, 399_999),
    ],
)
def test_slice_axis(
    shape: tuple[int, ...], axis: int, begin: int, end: int | None, dtype: str
) -> None:
    x, before = array(shape, dtype), calls()
    made = mx.nd.slice_axis(x, axis=axis, begin=begin, end=end).asnumpy()
    assert calls() == before + 1
    at = [slice(None)] * len(shape)
    at[axis] = slice(begin, end)
    assert np.array_equal(made, x.asnumpy()[tuple(at)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "times", "axis"),
    [
        ((32, 60), 100, 0),
        ((4, 5, 6), 3, 1),
        ((4, 5, 6), 33, -1),
        ((4, 5), 7, None),
        ((6,), 50_000, 0),
        ((3, 20_000), 5, 0),
        ((2, 3), 1, 1),
    ],
)
def test_repeat(shape: tuple[int, ...], times: int, axis: int | None, dtype: str) -> None:
    x, before = array(shape, dtype), calls()
    made = mx.nd.repeat(x, repeats=times, axis=axis).asnumpy()
    assert calls() == before + 1
    assert np.array_equal(made, np.repeat(x.asnumpy(), times, axis))


@pytest.mark.parametrize(
    ("shape", "times", "axis"),
    [((32, 60), 100, 0), ((4, 5, 6), 3, 1), ((4, 5, 6), 33, -1), ((4, 5), 7, None)],
)
def test_gradients_of_repeat(shape: tuple[int, ...], times: int, axis: int | None) -> None:
    x, before = array(shape), calls()
    x.attach_grad()
    _, (head,) = step(lambda: mx.nd.repeat(x, repeats=times, axis=axis))
    assert calls() == before + 2
    if axis is None:
        expected = head.reshape((*shape, times)).sum(-1)
    else:
        at = axis % len(shape) + 1
        expected = head.reshape((*shape[:at], times, *shape[at:])).sum(at)
    assert np.array_equal(x.grad.asnumpy(), expected)


def test_gradients_that_are_added() -> None:
    x = array((6, 8))
    x.attach_grad("add")
    for f in (
        lambda: mx.nd.split(x, 2, axis=1),
        lambda: mx.nd.stack(x, x, axis=1),
        lambda: mx.nd.repeat(x, repeats=3, axis=1),
    ):
        x.grad[:] = 5
        before = calls()
        with mx.autograd.record():
            made = f()
        outputs = list(made) if isinstance(made, list) else [made]
        mx.autograd.backward(outputs, [mx.nd.ones(out.shape) for out in outputs])
        times = sum(out.size for out in outputs) // x.size
        assert np.array_equal(x.grad.asnumpy(), np.full(x.shape, 5 + times))
        assert calls() >= before + 1  # forward


def test_arrays_without_elements() -> None:
    with mx.util.np_shape(True):
        x = mx.nd.zeros((0, 4))
        assert [part.shape for part in mx.nd.split(x, 2, axis=1)] == [(0, 2)] * 2
        assert mx.nd.stack(x, x, axis=1).shape == (0, 2, 4)
        assert mx.nd.slice_axis(x, axis=1, begin=1, end=2).shape == (0, 1)
        assert mx.nd.repeat(x, repeats=3, axis=1).asnumpy().shape == (0, 12)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: mx.nd.split(x, 2, axis=1)[1],
        lambda x: mx.nd.stack(x, x, axis=1),
        lambda x: mx.nd.slice_axis(x, axis=1, begin=2, end=5),
        lambda x: mx.nd.repeat(x, repeats=3, axis=1),
    ],
    ids=["split", "stack", "slice_axis", "repeat"],
)
def test_bfloat16(function: Callable[[Any], Any]) -> None:
    x, before = array((4, 6)), calls()
    given = mx.nd.amp_cast(x, dtype=np.dtype([("bfloat16", np.uint16)]))
    found = mx.nd.amp_cast(function(given), dtype="float32")
    assert calls() == before + 1
    assert np.array_equal(found.asnumpy(), function(x).asnumpy())
