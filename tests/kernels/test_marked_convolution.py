"""MXNet's convolutions and their gradients by algorithms of ours, where a node is marked."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge
from graphopt.kernels.convolutions import native
from graphopt.kernels.convolutions.marked import (
    COLUMNS,
    DIRECTIONS,
    MARK,
    MXNET,
    PAIRED_WINOGRAD4,
    WINOGRAD4,
    direction_times_ms,
    mark,
    ways,
)
from graphopt.kernels.convolutions.single import Layer
from graphopt.kernels.convolutions.spec import DIRECT, PAIRED
from graphopt.kernels.convolutions.windows import Window

mx = import_mxnet()

#: Images, filters, padding, whether there is a bias.
CASES = [
    ((2, 32, 13, 15), 48, (1, 1), True),
    ((3, 16, 12, 12), 32, (0, 0), False),
    ((1, 48, 7, 9), 16, (2, 1), True),
    ((5, 16, 4, 4), 16, (1, 1), False),
    ((1, 16, 3, 3), 16, (0, 0), True),
    ((2, 64, 40, 52), 64, (1, 1), False),
    ((1, 160, 21, 22), 112, (1, 2), True),
    ((9, 16, 9, 8), 256, (1, 1), False),
    ((2, 336, 5, 5), 16, (1, 1), True),
    ((3, 208, 30, 31), 176, (0, 1), False),
]
#: Images, filters, strides, whether there is a bias, of filters of one pixel.
POINTWISE = [
    ((2, 32, 13, 15), 48, (1, 1), True),
    ((1, 16, 1, 1), 16, (1, 1), False),
    ((3, 48, 9, 8), 80, (2, 2), True),
    ((2, 16, 7, 9), 32, (1, 2), False),
    ((4, 64, 23, 17), 16, (1, 1), False),
    ((2, 320, 11, 12), 288, (1, 1), True),
    ((1, 272, 40, 41), 304, (2, 3), False),
]
#: Images, groups, strides, padding, whether there is a bias.
GROUPED = [
    ((2, 32, 9, 10), 8, (1, 1), (1, 1), True),
    ((3, 64, 10, 7), 8, (2, 2), (1, 1), False),
    ((1, 48, 7, 9), 24, (1, 1), (0, 2), True),
    ((2, 16, 12, 3), 2, (2, 1), (2, 0), False),
    ((4, 32, 1, 1), 4, (1, 1), (1, 1), True),
    ((1, 16, 2, 5), 4, (3, 3), (2, 2), False),
]
#: Images, filters, what the window is, whether there is a bias, for columns.
COLUMN_CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], bool]] = [
    ((3, 5, 12, 13), (7, 5, 5, 5), {"pad": (2, 2)}, True),
    ((2, 20, 12, 12), (50, 20, 5, 5), {}, True),
    ((9, 1, 28, 28), (20, 1, 5, 5), {}, False),
    ((2, 3, 23, 22), (64, 3, 7, 7), {"stride": (2, 2), "pad": (3, 3)}, True),
    ((2, 4, 17, 9), (6, 4, 3, 2), {"stride": (3, 2), "pad": (0, 4), "dilate": (2, 3)}, False),
    ((70, 2, 4, 3), (5, 2, 3, 3), {"pad": (1, 1)}, True),
    ((1, 2, 40, 40), (3, 2, 1, 1), {"stride": (3, 3)}, True),
    ((5, 1, 56, 30), (100, 1, 3, 30), {}, True),  # what a filter sees is adjacent numbers
    ((2, 1, 20, 8), (9, 1, 4, 8), {"stride": (2, 5)}, False),
    ((5, 2, 20, 8), (9, 2, 4, 8), {}, False),
    ((4, 30, 56), (100, 30, 3), {"pad": (1,)}, True),
    ((2, 16, 90), (32, 16, 5), {"dilate": (4,)}, False),
    ((3, 1, 1000), (64, 1, 80), {"stride": (4,)}, True),
    ((1, 7, 6), (3, 7, 6), {}, True),
    ((2, 900, 20), (70, 900, 1), {}, False),
    (
        (7, 700, 12),
        (500, 700, 3),
        {"pad": (1,)},
        True,
    ),  # sums of fewer parts, columns of fewer places
]
#: Of the largest number: Winograd's algorithm, pairs, and what rounds as any sum does.
TOLERANCE, PAIRED_TOLERANCE, USUAL_TOLERANCE = 6e-5, 3e-6, 2e-6


def all_by(name: str) -> dict[str, str]:
    """A mark for all directions."""
    return {MARK: mark(dict.fromkeys(DIRECTIONS, name))}


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


def numbers(shape: tuple[int, ...], scale: float = 1.0, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).standard_normal(shape) * scale
    return made.astype("float32")


def arguments(shape: tuple[int, ...], filters: int, bias: bool, size: int = 3) -> list[np.ndarray]:
    weight = (filters, shape[1], size, size)
    found = [numbers(shape), numbers(weight, (size * size * shape[1]) ** -0.5, 1)]
    return [*found, numbers((filters,), seed=2)] if bias else found


def step(
    given: list[np.ndarray],
    pad: Any,
    dtype: str,
    requests: Any = "write",
    stride: Any = (1, 1),
    groups: int = 1,
    dilate: Any = (1, 1),
    **more: str,
) -> list[np.ndarray]:
    """The output and all gradients."""
    arrays = [mx.nd.array(each, dtype=dtype) for each in given]
    wanted = [requests] * len(arrays) if isinstance(requests, str) else requests
    for array, request in zip(arrays, wanted, strict=True):
        array.attach_grad(request)
    options = {
        "kernel": given[1].shape[2:],
        "pad": pad,
        "stride": stride,
        "num_filter": given[1].shape[0],
        "num_group": groups,
        "dilate": dilate,
    }
    with mx.autograd.record():
        y = mx.nd.Convolution(*arrays, **options, no_bias=len(given) == 2, **more)
    y.backward(mx.nd.array(numbers(y.shape, seed=3), dtype=dtype))
    read = [a.grad for a, request in zip(arrays, wanted, strict=True) if request != "null"]
    return [y.asnumpy(), *(gradient.asnumpy() for gradient in read)]


def check(
    found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = TOLERANCE
) -> None:
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("name", [WINOGRAD4, PAIRED_WINOGRAD4])
@pytest.mark.parametrize(("shape", "filters", "pad", "bias"), CASES)
def test_values_and_gradients(
    shape: tuple[int, ...], filters: int, pad: tuple[int, int], bias: bool, name: str
) -> None:
    given = arguments(shape, filters, bias)
    before = calls()
    found = step(given, pad, "float32", **all_by(name))
    assert calls() == before + 2
    check(found, step(given, pad, "float64"))


@pytest.mark.parametrize(("shape", "filters", "stride", "bias"), POINTWISE)
def test_pointwise_values_and_gradients(
    shape: tuple[int, ...], filters: int, stride: tuple[int, int], bias: bool
) -> None:
    given = arguments(shape, filters, bias, size=1)
    before = calls()
    found = step(given, (0, 0), "float32", stride=stride, **all_by(PAIRED))
    assert calls() == before + 2
    check(found, step(given, (0, 0), "float64", stride=stride), PAIRED_TOLERANCE)


@pytest.mark.parametrize(("shape", "groups", "stride", "pad", "bias"), GROUPED)
def test_grouped_values_and_gradients(
    shape: tuple[int, ...],
    groups: int,
    stride: tuple[int, int],
    pad: tuple[int, int],
    bias: bool,
) -> None:
    given = arguments(shape, shape[1], bias)
    given[1] = np.ascontiguousarray(given[1][:, : shape[1] // groups])
    before = calls()
    found = step(given, pad, "float32", stride=stride, groups=groups, **all_by(DIRECT))
    fits = shape[1] // groups < native.lanes(mx)
    assert calls() == before + 2 * fits
    expected = step(given, pad, "float64", stride=stride, groups=groups)
    check(found, expected, USUAL_TOLERANCE)


def column_arguments(
    shape: tuple[int, ...], weights: tuple[int, ...], bias: bool
) -> list[np.ndarray]:
    given = [numbers(shape), numbers(weights, 0.2, seed=1)]
    return [*given, numbers(weights[:1], seed=2)] if bias else given


@pytest.mark.parametrize(("shape", "weights", "window", "bias"), COLUMN_CASES)
def test_columns_values_and_gradients(
    shape: tuple[int, ...], weights: tuple[int, ...], window: dict[str, Any], bias: bool
) -> None:
    given = column_arguments(shape, weights, bias)
    none, one = (0,) * (len(shape) - 2), (1,) * (len(shape) - 2)
    window = {"pad": none, "stride": one, "dilate": one} | window
    before = calls()
    found = step(given, dtype="float32", **window, **all_by(COLUMNS))
    assert calls() == before + 2
    if len(shape) == 3:  # MXNet has no float64 for these
        given = [g[:, :, None] if g.ndim == 3 else g for g in given]
        window = {name: ((0,) if name == "pad" else (1,)) + value for name, value in window.items()}
    expected = step(given, dtype="float64", **window)
    assert found[0].size == expected[0].size
    check(found, [e.reshape(f.shape) for e, f in zip(expected, found, strict=True)], 5e-6)


@pytest.mark.parametrize(
    ("shape", "weights", "window"),
    [
        ((3, 4, 50), (7, 4, 5), {"pad": 1, "stride": (4,), "dilate": (1,)}),  # as many as without
        ((3, 4, 50), (7, 4, 5), {"pad": 2, "stride": 3, "dilate": 2}),
        ((3, 4, 50), (7, 4, 5), {"pad": "[2]", "stride": "()", "dilate": " 2"}),
        ((3, 5, 12, 13), (7, 5, 3, 3), {"pad": "[2, 1]", "stride": "[2,3]", "dilate": "( 1 , 2 )"}),
    ],
)
def test_columns_of_windows_that_are_written_otherwise(
    shape: tuple[int, ...], weights: tuple[int, ...], window: dict[str, Any]
) -> None:
    given = column_arguments(shape, weights, bias=True)
    before = calls()
    found = step(given, dtype="float32", **window, **all_by(COLUMNS))
    assert calls() == before + 2
    check(found, step(given, dtype="float32", **window), 5e-6)


@pytest.mark.parametrize("pad", ["[1, 1]", "(1,1)", "( 1 , 1 )"])
def test_winograd_of_padding_that_is_written_otherwise(pad: Any) -> None:
    given = arguments((2, 16, 9, 8), 32, bias=True)
    before = calls()
    found = step(given, pad, "float32", **all_by(WINOGRAD4))
    assert calls() == before + 2
    check(found, step(given, (1, 1), "float64"))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_columns_of_a_direction_by_itself(direction: str) -> None:
    shape, weights, _, bias = COLUMN_CASES[1]
    given = column_arguments(shape, weights, bias)
    mark_ = {MARK: mark({direction: COLUMNS})}
    before = calls()
    found = step(given, (0, 0), "float32", **mark_)
    assert calls() == before + 1
    check(found, step(given, (0, 0), "float64"), 5e-6)


def test_columns_of_gradients_that_are_not_wanted_or_added() -> None:
    shape, weights, _, bias = COLUMN_CASES[1]
    given = column_arguments(shape, weights, bias)
    for requests in (["null", "write", "null"], ["add", "write", "write"], ["write", "add", "add"]):
        found = step(given, (0, 0), "float32", requests, **all_by(COLUMNS))
        check(found, step(given, (0, 0), "float64", requests), 5e-6)


@pytest.mark.parametrize("op", ["Convolution", "Deconvolution"])
@pytest.mark.parametrize("bias", [False, True])
def test_filters_along_one_axis_can_be_written_after_inference(op: str, bias: bool) -> None:
    """MXNet leaves them in oneDNN's layout, into which it cannot copy arrays of three axes."""
    bridge.load(mx)
    x, w = mx.nd.array(numbers((2, 16, 20))), mx.nd.array(numbers((16, 16, 3), seed=1))
    rest = (mx.nd.ones(16),) if bias else ()
    options = {"kernel": (3,), "num_filter": 16, "no_bias": not bias}
    names = ["x", "w", "b"][: 2 + bias]
    symbol = getattr(mx.sym, op)(*map(mx.sym.var, names), **options)
    bound = symbol.bind(mx.cpu(), dict(zip(names, (x, w, *rest), strict=True)))
    for _ in range(3):
        bound.forward(is_train=False)
    mx.nd.waitall()
    w[:] = mx.nd.ones(w.shape)
    np.testing.assert_array_equal(w.asnumpy(), 1)
    found = bound.forward(is_train=False)[0].asnumpy()
    wide = found.shape[2] if op == "Convolution" else 20
    assert found.shape == (2, 16, 18 if op == "Convolution" else 22)
    middle = found[:, :, 5 : wide - 5]
    seen = x.asnumpy().sum(axis=1)
    expected = np.stack([seen[:, i : i + 3].sum(axis=1) for i in range(18)], axis=1) + bias
    expected = expected[:, 5 : wide - 5] if op == "Convolution" else expected[:, 3 : wide - 7]
    np.testing.assert_allclose(middle, expected[:, None].repeat(16, axis=1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "groups", "stride", "pad", "bias"), GROUPED)
@pytest.mark.parametrize("size", [3, 5, 7])
def test_depthwise_gradients_of_filters(
    shape: tuple[int, ...],
    groups: int,
    stride: tuple[int, int],
    pad: tuple[int, int],
    bias: bool,
    size: int,
) -> None:
    """Outputs and gradients of images stay MXNet's, whatever is marked."""
    pad = (pad[0] + size // 2, pad[1] + size // 2)
    given = arguments(shape, shape[1], bias, size=size)
    given[1] = np.ascontiguousarray(given[1][:, :1])
    before = calls()
    fits = all(each <= size - 1 for each in pad)
    found = step(given, pad, "float32", stride=stride, groups=shape[1], **all_by(DIRECT))
    assert calls() == before + fits
    expected = step(given, pad, "float64", stride=stride, groups=shape[1])
    check(found, expected, USUAL_TOLERANCE)


@pytest.mark.parametrize("shape", [(2, 32, 12, 12), (2, 320, 12, 12)])
def test_pairs_of_uneven_numbers(shape: tuple[int, ...]) -> None:
    """Images, channels and filters of sizes that differ by up to 2^20, and some that are zero."""
    rng, filters = np.random.default_rng(5), 288
    x, w = arguments(shape, filters, bias=False, size=1)
    x *= np.exp2(rng.integers(-10, 11, (shape[0], shape[1], 1, 1))).astype("float32")
    w *= np.exp2(rng.integers(-10, 11, (filters, 1, 1, 1))).astype("float32")
    x[0, :, 3], w[7], w[:, 5] = 0, 0, 0
    results = [
        step([x, w], (0, 0), dtype, **more)
        for dtype, more in (("float32", all_by(PAIRED)), ("float64", {}), ("float32", {}))
    ]
    for got, want, plain in zip(*results, strict=True):
        # Against what each number is made of: its error by sums of plain products.
        error = np.abs(got - want).max(axis=(-2, -1)) / np.abs(want).max(axis=(-2, -1)).clip(1e-30)
        usual = np.abs(plain - want).max(axis=(-2, -1)) / np.abs(want).max(axis=(-2, -1)).clip(
            1e-30
        )
        assert np.quantile(error, 0.9) <= 8 * np.quantile(usual, 0.9) + 1e-6
        assert (np.abs(got[want == 0]) <= 2.0**-40 * np.abs(want).max()).all()


def test_no_numbers_in_pairs() -> None:
    """What is infinite or no number stays with its pixel, and with its filter."""
    given = arguments((2, 32, 9, 9), 48, bias=False, size=1)
    given[0][0, 3, 2, 2], given[0][1, 4, 5, 6] = np.nan, np.inf
    given[1][11, 7] = np.inf
    y, _, _ = step(given, (0, 0), "float32", **all_by(PAIRED))
    want, *_ = step(given, (0, 0), "float64")
    assert np.array_equal(np.isfinite(y), np.isfinite(want))
    assert np.array_equal(np.isnan(y), np.isnan(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(y[finite], want[finite], rtol=0, atol=1e-5)


def test_gradients_of_filters_of_huge_and_no_numbers() -> None:
    given = arguments((2, 32, 9, 9), 48, bias=False, size=1)
    given[0][:, 3] *= 2.0**90
    given[0][0, 20, 2, 2] = np.nan
    *_, found = step(given, (0, 0), "float32", **all_by(PAIRED))
    *_, want = step(given, (0, 0), "float64")
    assert np.array_equal(np.isnan(found), np.isnan(want))
    assert np.isnan(found[:, 20]).all()
    for channel in (0, 3, 31):
        bound = 1e-5 * np.abs(want[:, channel]).max()
        np.testing.assert_allclose(found[:, channel], want[:, channel], rtol=0, atol=bound)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_direction_by_itself(direction: str) -> None:
    given = arguments((2, 32, 14, 14), 16, bias=True)
    before = calls()
    found = step(given, (1, 1), "float32", **{MARK: mark({direction: WINOGRAD4})})
    assert calls() == before + 1
    check(found, step(given, (1, 1), "float64"))


def test_gradients_that_are_not_wanted_or_added() -> None:
    given, marked = arguments((2, 32, 9, 9), 32, bias=True), all_by(WINOGRAD4)
    for requests in (("write", "null", "null"), ("null", "write", "write")):
        before = calls()
        found = step(given, (1, 1), "float32", requests, **marked)
        assert calls() == before + 2
        check(found, step(given, (1, 1), "float64", requests))
    check(step(given, (1, 1), "float32", "add", **marked), step(given, (1, 1), "float64", "add"))


@pytest.mark.parametrize("before", [0, 8, 16, 24, 64])
def test_images_in_any_layout(before: int) -> None:
    """As a convolution of so many filters left them: in blocks, or channels last."""
    channels = before or 32
    x, pointwise = numbers((2, 32, 10, 10)), numbers((channels, 32, 1, 1), 0.2, 4)
    weight, head = numbers((32, channels, 3, 3), 0.1, 1), numbers((2, 32, 10, 10), seed=3)
    results = []
    for dtype, extra in (("float64", {}), ("float32", all_by(WINOGRAD4))):
        arrays = [mx.nd.array(each, dtype=dtype) for each in (x, pointwise, weight)]
        for array in arrays:
            array.attach_grad()
        with mx.autograd.record():
            y = arrays[0]
            if before:
                options = {"kernel": (1, 1), "num_filter": channels, "no_bias": True}
                y = mx.nd.Convolution(y, arrays[1], **options)
            options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 32, "no_bias": True}
            z = mx.nd.Convolution(y, arrays[2], **options, **extra)
        z.backward(mx.nd.array(head, dtype=dtype))
        results.append([z.asnumpy(), arrays[0].grad.asnumpy(), arrays[2].grad.asnumpy()])
    check(results[1], results[0])


@pytest.mark.parametrize(("groups", "name"), [(1, WINOGRAD4), (4, DIRECT)])
def test_parts_of_arrays_in_any_layout(groups: int, name: str) -> None:
    """Images and a gradient that share the memory of what a convolution left."""
    weight = mx.nd.array(numbers((16, 16 // groups, 3, 3), 0.1, 1))
    weight.attach_grad()
    pointwise = mx.nd.array(numbers((16, 16, 1, 1), 0.2, 4))
    results = []
    for taken in (lambda part: part, lambda part: mx.nd.array(part.asnumpy())):
        left = mx.nd.array(numbers((4, 16, 10, 10)))
        left = mx.nd.Convolution(left, pointwise, kernel=(1, 1), num_filter=16, no_bias=True)
        options = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 16, "num_group": groups}
        before = calls()
        with mx.autograd.record():
            y = mx.nd.Convolution(taken(left[1:3]), weight, no_bias=True, **options, **all_by(name))
        y.backward(taken(left[2:4]))
        assert calls() == before + 2
        results.append([y.asnumpy(), weight.grad.asnumpy()])
    check(*results, USUAL_TOLERANCE)


@pytest.mark.parametrize(
    ("shape", "filters", "options"),
    [
        ((2, 13, 8, 8), 16, {}),
        ((2, 16, 8, 8), 21, {}),
        ((2, 16, 8, 8), 16, {"kernel": (1, 1)}),
        ((2, 16, 9, 9), 16, {"stride": (2, 2)}),
        ((2, 32, 8, 8), 32, {"num_group": 2}),
        ((2, 16, 9), 16, {"kernel": (3,), "pad": (1,)}),
    ],
)
def test_what_a_mark_does_not_fit_is_left_to_mxnet(
    shape: tuple[int, ...], filters: int, options: dict[str, Any]
) -> None:
    given = {"kernel": (3, 3), "pad": (1, 1), "num_filter": filters, "no_bias": True} | options
    weight = (filters, shape[1] // given.get("num_group", 1), *given["kernel"])
    x, w = mx.nd.array(numbers(shape)), mx.nd.array(numbers(weight, 0.1))
    before = calls()
    found = mx.nd.Convolution(x, w, **given, **all_by(WINOGRAD4)).asnumpy()
    assert np.array_equal(found, mx.nd.Convolution(x, w, **given).asnumpy())
    assert calls() == before


@pytest.mark.parametrize("name", [WINOGRAD4, PAIRED_WINOGRAD4])
@pytest.mark.parametrize(
    ("shape", "filters", "dilate", "pad"),
    [
        ((2, 32, 13, 15), 48, (2, 2), (2, 2)),
        ((1, 48, 30, 21), 32, (3, 4), (3, 2)),
        ((2, 272, 9, 11), 32, (4, 1), (4, 1)),
        ((1, 16, 9, 13), 256, (4, 6), (0, 12)),
    ],
)
def test_pixels_that_lie_apart(
    shape: tuple[int, ...], filters: int, dilate: tuple[int, int], pad: tuple[int, int], name: str
) -> None:
    given = arguments(shape, filters, bias=True)
    before = calls()
    found = step(given, pad, "float32", dilate=dilate, **all_by(name))
    assert calls() == before + 2
    check(found, step(given, pad, "float64", dilate=dilate))


def test_groups_whose_pixels_lie_apart_are_left_to_mxnet() -> None:
    x, w = mx.nd.array(numbers((1, 16, 12, 12))), mx.nd.array(numbers((16, 4, 3, 3), 0.1))
    given = {"kernel": (3, 3), "dilate": (2, 2), "num_group": 4, "num_filter": 16, "no_bias": True}
    before = calls()
    found = mx.nd.Convolution(x, w, **given, **all_by(DIRECT)).asnumpy()
    assert np.array_equal(found, mx.nd.Convolution(x, w, **given).asnumpy())
    assert calls() == before


def test_no_number_stays_within_its_tiles() -> None:
    given = arguments((1, 16, 24, 24), 16, bias=False)
    given[0][0, 3, 2, 2] = np.nan
    found = step(given, (1, 1), "float32", **all_by(WINOGRAD4))
    assert np.isnan(found[0][0, :, 1:4, 1:4]).all()
    assert not np.isnan(found[0][0, :, 8:, 8:]).any()


def test_a_mark_is_kept_in_files() -> None:
    x, w = mx.sym.var("x"), mx.sym.var("w")
    options = {"kernel": (3, 3), "num_filter": 16, "no_bias": True, "name": "c"}
    symbol = mx.sym.Convolution(x, w, **options, **{MARK: mark({"forward": WINOGRAD4})})
    again = mx.sym.load_json(symbol.tojson())
    (node,) = (n for n in json.loads(again.tojson())["nodes"] if n["name"] == "c")
    assert node["attrs"][MARK] == "forward:winograd4"


@pytest.mark.parametrize(
    ("window", "made"),
    [
        (Window((3, 3), pad=(1, 1)), 8),
        (Window((1, 1)), 8),
        (Window((1, 1), stride=(2, 2)), 4),
        (Window((3, 3), stride=(2, 2), pad=(1, 1)), 4),
    ],
)
def test_directions_are_timed(window: Window, made: int) -> None:
    groups = 8 if window.kernel == (3, 3) and made == 4 else 1
    layer = Layer((2, 32, 8, 8), (2, 32, made, made), window, groups)
    possible = ways(layer, has_pairs=True)
    before = calls()
    drawn = []
    for times in ({}, possible):  # of the user's random numbers none is taken
        mx.random.seed(2)
        found = direction_times_ms(mx, layer, times)
        drawn.append(mx.nd.random.normal(shape=(2,)).asnumpy())
    np.testing.assert_array_equal(*drawn)
    assert calls() > before
    assert {direction for direction, names in possible.items() if names} == set(found)
    for direction, times in found.items():
        assert list(times) == [MXNET, *possible[direction]]
        assert all(0 < took < 1e4 for took in times.values())
