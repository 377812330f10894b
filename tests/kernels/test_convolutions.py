"""Regions of convolutions in the bridge: their text, programs, packed parameters and results."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.analysis.metrics import measure
from graphopt.backend import reference
from graphopt.errors import GraphoptError, ParseError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONVOLUTIONS
from graphopt.ir.parser import parse as parse_graph
from graphopt.kernels.convolutions import native
from graphopt.kernels.convolutions.plan import plan
from graphopt.kernels.convolutions.program import Program
from graphopt.kernels.convolutions.single import Layer, algorithms, single
from graphopt.kernels.convolutions.spec import ALGORITHMS, ConvolutionsSpec, parse
from graphopt.kernels.convolutions.steps import Kind
from graphopt.kernels.convolutions.windows import Window
from graphopt.memory import forward_schedule

TEXT = """convolutions 16 direct winograd4
graph region(%in0: f32[1,3,8,8], param %in1: f32[32,3,3,3], param %in2: f32[16,32,3,3]) {
  %a = Convolution(%in0, %in1) {kernel=(3, 3), no_bias=True, num_filter=32, pad=(1, 1)}
       : f32[1,32,8,8]
  %r = relu(%a) : f32[1,32,8,8]
  %b = Convolution(%r, %in2) {kernel=(3, 3), no_bias=True, num_filter=16} : f32[1,16,6,6]
  return %b
}"""


def layer(
    shape: tuple[int, int, int, int],
    filters: int,
    window: Window,
    *,
    groups: int = 1,
) -> Layer:
    sizes = zip(shape[2:], window.kernel, window.stride, window.dilation, window.pad, strict=True)
    y, x = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, d, p in sizes)
    return Layer(shape, (shape[0], filters, y, x), window, groups)


def values(spec: ConvolutionsSpec, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.standard_normal(tuple(e or 0 for e in node.type.shape or ())).astype(np.float32)
        for node in spec.body.inputs
    ]


def expected(spec: ConvolutionsSpec, inputs: list[np.ndarray]) -> list[np.ndarray]:
    names = [node.name for node in spec.body.inputs]
    return reference.run(
        spec.body, {n: x.astype(np.float64) for n, x in zip(names, inputs, strict=True)}
    )


def test_text_round_trip() -> None:
    spec = parse(TEXT)
    assert spec.lanes == 16
    assert spec.algorithms == ("direct", "winograd4")
    assert str(parse(str(spec))) == str(spec)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("convolution 16 direct\n", "not a region of convolutions"),
        ("convolutions\n", "not a region of convolutions"),
        ("convolutions x direct\n", "not a region of convolutions"),
        ("convolutions 16 fft\n", "convolutions are not computed by 'fft'"),
        ("convolutions 16 direct\ngraph", "expected"),
    ],
)
def test_malformed_text(text: str, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        parse(text)


def test_program_takes_along_what_only_it_needs() -> None:
    program = plan(parse(TEXT))
    kinds = [step.kind for step in program.steps]
    assert kinds == [Kind.LOAD_PLANAR, Kind.DIRECT, Kind.WINOGRAD, Kind.STORE]
    assert program.steps[1].activation.kind == "relu"
    assert program.steps[0].into.halo == 1  # for the convolution that pads


def test_what_a_region_writes_is_counted() -> None:
    """Not what only one step has, nor what is returned; the same for blocks of any width."""
    spec = parse(TEXT)
    assert plan(spec).written == 32 * 8 * 8
    assert plan(ConvolutionsSpec(spec.body, 4, spec.algorithms)).written == 32 * 8 * 8
    region = Graph("g")
    inputs = [region.add_input(n.name, n.op, n.type) for n in spec.body.inputs]
    types = [spec.body.type_of(value) for value in spec.body.outputs]
    attrs = {"lanes": 16, "algorithms": spec.algorithms}
    node = region.add(CONVOLUTIONS, inputs, attrs, types, "r", graphs=[spec.body])
    region.set_outputs([node.out()])
    assert measure(region).intermediate_bytes == 4 * 32 * 8 * 8
    (operation,) = forward_schedule(region).operations
    assert len(operation.writes) == 2  # its result, and the images it works on


def test_images_share_the_arena_by_their_lifetimes() -> None:
    steps = "".join(
        f"%c{i} = Convolution(%{'in0' if i == 0 else f'c{i - 1}'}, %w{i})"
        "{kernel=(1, 1), no_bias=True, num_filter=64} : f32[1,64,16,16]\n"
        for i in range(8)
    )
    params = ", ".join(f"param %w{i}: f32[64,64,1,1]" for i in range(8))
    graph = parse_graph(f"graph region(%in0: f32[1,64,16,16], {params}) {{ {steps} return %c7 }}")
    program = plan(ConvolutionsSpec(graph, 16, ("direct",) * 8))
    assert program.arena == 2 * 64 * 16 * 16


LAYERS = [
    layer((1, 3, 23, 17), 24, Window((7, 7), (2, 2), pad=(3, 3))),
    layer((2, 40, 9, 30), 50, Window((3, 3), pad=(1, 1))),
    layer((1, 16, 14, 14), 128, Window((1, 1))),
    layer((3, 70, 5, 7), 33, Window((1, 1), (2, 2))),
    layer((1, 32, 7, 7), 96, Window((3, 3), pad=(1, 1))),
    layer((1, 64, 31, 1), 64, Window((3, 1), pad=(1, 0))),
    layer((1, 24, 13, 13), 24, Window((5, 5), (2, 2), pad=(2, 2)), groups=24),
    layer((1, 2, 9, 9), 3, Window((3, 3), dilation=(3, 2), pad=(3, 2))),
    layer((1, 300, 4, 4), 20, Window((3, 3), pad=(2, 2))),
    layer((2, 36, 17, 22), 40, Window((3, 3), dilation=(2, 4), pad=(2, 4))),
    layer((1, 16, 9, 8), 16, Window((3, 3), dilation=(6, 3), pad=(4, 0))),
]


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_algorithms_agree_with_numpy(mx, number: int) -> None:
    each = LAYERS[number]
    for algorithm in algorithms(each):
        spec = single(each, native.lanes(mx), algorithm)
        inputs = values(spec)
        (want,) = expected(spec, inputs)
        results = [native.run(mx, spec, inputs, threads=threads)[0][0] for threads in (1, 2, 3)]
        scale = np.abs(want).max()
        np.testing.assert_allclose(results[0], want, atol=scale * 2e-5, rtol=1e-4)
        # Who computes a tile makes no difference.
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


def test_winograd_is_offered_where_it_can_be() -> None:
    three = Window((3, 3), pad=(1, 1))
    assert algorithms(layer((1, 64, 14, 14), 64, three)) == ALGORITHMS
    assert algorithms(layer((1, 64, 4, 4), 64, three)) == ALGORITHMS[:4]
    assert algorithms(layer((1, 8, 14, 14), 64, three)) == ("direct", "winograd2", "winograd4")
    assert algorithms(layer((1, 3, 64, 64), 64, three)) == ("direct",)
    apart = Window((3, 3), dilation=(2, 2), pad=(2, 2))
    assert algorithms(layer((1, 64, 14, 14), 64, apart)) == ALGORITHMS
    assert algorithms(layer((1, 64, 14, 14), 64, Window((3, 3), (2, 2)))) == ("direct", "paired")
    assert algorithms(layer((1, 64, 14, 14), 64, three, groups=64)) == ("direct",)


def test_algorithms_far_behind_are_not_timed_again(mx, monkeypatch: pytest.MonkeyPatch) -> None:
    each = layer((1, 16, 12, 12), 16, Window((3, 3), pad=(1, 1)))
    seconds = {"direct": 3e-3, "winograd2": 1.2e-3, "winograd4": 1e-3}
    texts = {str(single(each, native.lanes(mx), name)): name for name in seconds}
    calls: list[str] = []

    def run(library: object, text: str, program: Program, *_: object) -> list[float]:
        calls.append(texts[text])
        # One that is disturbed at first is timed on.
        slow = 2.0 if calls[-1] == "winograd2" and calls.count("winograd2") < 3 else 1.0
        wanted = [step.kind in (Kind.DIRECT, Kind.WINOGRAD) for step in program.steps]
        return [seconds[calls[-1]] * slow / sum(wanted) * is_wanted for is_wanted in wanted]

    monkeypatch.setattr(native, "_run", run)
    times = native.layer_times_ms(mx, each, list(seconds))
    assert times == pytest.approx({name: 1e3 * took for name, took in seconds.items()})
    assert [calls.count(name) for name in seconds] == [3, 12, 12]
    calls.clear()
    seconds["winograd2"] = 2e-3
    assert native.layer_times_ms(mx, each, list(seconds)).keys() == seconds.keys()
    assert [calls.count(name) for name in seconds] == [3, 3, 3]  # one is clearly ahead


def test_rounding_of_winograd_is_bounded(mx) -> None:
    """Relative to the largest output, on weights as they are initialized."""
    each = layer((1, 256, 28, 28), 32, Window((3, 3), pad=(1, 1)))
    for algorithm in ALGORITHMS:
        bound = 2e-5 if "winograd4" in algorithm else 3e-6
        spec = single(each, native.lanes(mx), algorithm)
        inputs = values(spec, seed=1)
        (want,) = expected(spec, inputs)
        ((found,), _) = native.run(mx, spec, inputs)
        assert np.abs(found - want).max() <= bound * np.abs(want).max()


@pytest.mark.parametrize("algorithm", ["direct", "paired"])
def test_rounding_does_not_grow_with_the_depth_of_positive_numbers(mx, algorithm: str) -> None:
    """Products of pairs are taken from sums part by part."""
    spec = single(layer((1, 1024, 4, 4), 32, Window((3, 3))), native.lanes(mx), algorithm)
    x, w, b = values(spec)
    (want,) = expected(spec, inputs := [np.abs(x), w, b])
    ((found,), _) = native.run(mx, spec, inputs)
    errors = np.sqrt(np.mean((found - want) ** 2) / np.mean(want**2))
    assert errors < 2e-6


@pytest.mark.parametrize("algorithm", ["paired", "paired-winograd2", "paired-winograd4"])
def test_numbers_of_different_sizes_are_paired(mx, algorithm: str) -> None:
    """Channels far from one, which meet weights that are as far; images and filters."""
    spec = single(layer((3, 40, 9, 9), 50, Window((3, 3), pad=(1, 1))), native.lanes(mx), algorithm)
    x, w, b = values(spec)
    sizes = 10.0 ** np.linspace(-7, 7, 40)
    x *= sizes[:, None, None].astype(np.float32)
    w /= sizes[:, None, None].astype(np.float32)
    for scale, image in zip((1e-15, 1.0, 1e12), x, strict=True):
        image *= scale
    w *= (10.0 ** np.linspace(-3, 1, 50))[:, None, None, None].astype(np.float32)
    (want,) = expected(spec, [x, w, 0 * b])
    ((found,), _) = native.run(mx, spec, [x, w, 0 * b])
    largest = np.abs(want).max(axis=(2, 3), keepdims=True)
    assert (np.abs(found - want) <= 2e-5 * largest).all()


@pytest.mark.parametrize("algorithm", ["paired", "paired-winograd2", "paired-winograd4"])
def test_a_lone_large_weight_leaves_other_filters_alone(mx, algorithm: str) -> None:
    """Nor does it matter to its own where it meets zeros."""
    spec = single(layer((2, 40, 9, 9), 50, Window((3, 3), pad=(1, 1))), native.lanes(mx), algorithm)
    x, w, b = values(spec)
    w[3, 5, 1, 1], x[1, 5] = 1e6, 0
    (want,) = expected(spec, [x, w, b])
    ((found,), _) = native.run(mx, spec, [x, w, b])
    largest = np.abs(want).max(axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(found / largest, want / largest, rtol=0, atol=2e-5)


@pytest.mark.parametrize("algorithm", ["direct", "paired", "paired-winograd2", "paired-winograd4"])
def test_zeros_stay_zeros(mx, algorithm: str) -> None:
    """Of images and of filters, whatever is beside them."""
    spec = single(layer((2, 32, 8, 8), 40, Window((3, 3), pad=(1, 1))), native.lanes(mx), algorithm)
    x, w, b = values(spec)
    x[1], w[7] = 0, 0
    ((found,), _) = native.run(mx, spec, [x, w, 0 * b])
    assert (found[1] == 0).all()
    assert np.abs(found[0, 7]).max() <= 1e-12


@pytest.mark.parametrize("algorithm", ["paired", "paired-winograd2", "paired-winograd4"])
@pytest.mark.parametrize("size", [1e-25, 1e-37, 1e21])
def test_images_too_small_or_large_to_be_paired(mx, algorithm: str, size: float) -> None:
    spec = single(layer((3, 32, 8, 8), 40, Window((3, 3), pad=(1, 1))), native.lanes(mx), algorithm)
    x, w, b = values(spec)
    x[1] *= np.float32(size)
    w[3] *= np.float32(1e-16)
    (want,) = expected(spec, [x, w, 0 * b])
    ((found,), _) = native.run(mx, spec, [x, w, 0 * b])
    largest = np.abs(want).max(axis=(2, 3), keepdims=True)
    assert (np.abs(found - want) <= 2e-5 * largest + 1e-37).all()


@pytest.mark.parametrize("algorithm", ["paired", "paired-winograd2", "paired-winograd4"])
def test_filters_that_cannot_be_paired(mx, algorithm: str) -> None:
    spec = single(layer((1, 32, 8, 8), 70, Window((3, 3), pad=(1, 1))), native.lanes(mx), algorithm)
    x, w, b = values(spec)
    w[3], w[40, 5], w[69] = np.inf, np.nan, 1e-30
    ((found,), _) = native.run(mx, spec, [x, w, 0 * b])
    (want,) = expected(spec, [x, np.nan_to_num(w, posinf=0), 0 * b])
    assert not np.isfinite(found[0, [3, 40]]).any()
    rest = [f for f in range(70) if f not in (3, 40)]
    largest = np.abs(want).max(axis=(2, 3), keepdims=True)
    assert (np.abs(found - want) <= 2e-5 * largest)[0, rest].all()


@pytest.mark.parametrize("algorithm", ["direct", "paired"])
def test_not_a_number_and_infinity_get_through(mx, algorithm: str) -> None:
    each = layer((1, 16, 6, 6), 16, Window((1, 1)))
    spec = single(each, native.lanes(mx), algorithm)
    x, w, b = values(spec)
    w = np.abs(w)
    x[0, :, 2, 3] = np.nan
    x[0, :, 4, 4] = np.inf
    ((found,), _) = native.run(mx, spec, [x, w, b])
    assert np.isnan(found[0, :, 2, 3]).all()
    assert np.isposinf(found[0, :, 4, 4]).all()
    assert np.isfinite(np.delete(found.reshape(16, 36), [15, 28], axis=1)).all()


def test_infinity_leaves_nothing_where_filters_fill_no_block(mx) -> None:
    """The next convolution would make NaN of it."""
    graph = parse_graph(
        "graph region(%in0: f32[1,5,3,3], param %in1: f32[3,5,1,1], param %in2: f32[2,3,1,1]) {"
        "%a = Convolution(%in0, %in1) {kernel=(1, 1), no_bias=True, num_filter=3} : f32[1,3,3,3]"
        "%b = Convolution(%a, %in2) {kernel=(1, 1), no_bias=True, num_filter=2} : f32[1,2,3,3]"
        "return %b }"
    )
    spec = ConvolutionsSpec(graph, native.lanes(mx), ("direct", "direct"))
    inputs = [np.abs(x) for x in values(spec)]
    inputs[0][0, 2, 1, 1] = np.inf
    ((found,), _) = native.run(mx, spec, inputs)
    (want,) = expected(spec, inputs)
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_averages_of_no_pixels_are_zero(mx) -> None:
    graph = parse_graph(
        "graph region(%in0: f32[1,16,4,4], param %in1: f32[16,16,1,1]) {"
        "%c = Convolution(%in0, %in1) {kernel=(1, 1), no_bias=True, num_filter=16} : f32[1,16,4,4]"
        '%p = Pooling(%c) {kernel=(1, 1), pool_type="avg", pooling_convention="full",'
        "stride=(2, 2)} : f32[1,16,3,3] return %p }"
    )
    spec = ConvolutionsSpec(graph, native.lanes(mx), ("direct",))
    ((found,), _) = native.run(mx, spec, values(spec))
    assert np.isfinite(found).all()
    assert not found[:, :, 2].any()
    assert not found[:, :, :, 2].any()
    assert found[:, :, :2, :2].all()


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("%y = sigmoid(%c)", 3e-7),
        ("%y = tanh(%c)", 3e-7),
        ('%y = Activation(%c) {act_type="softrelu"}', 3e-7),
        ('%s = Activation(%c) {act_type="softrelu"} : f32[1,1,1,4020] %y = tanh(%s)', 5e-7),
        ('%y = LeakyReLU(%c) {act_type="elu", slope=0.4}', 5e-7),
        ('%y = LeakyReLU(%c) {act_type="selu"}', 5e-7),
        ('%y = LeakyReLU(%c) {act_type="gelu"}', 5e-7),
    ],
)
def test_curves(mx, function: str, error: float) -> None:
    graph = parse_graph(
        "graph region(%in0: f32[1,1,1,4020], param %in1: f32[1,1,1,1]) {"
        "%c = Convolution(%in0, %in1) {kernel=(1, 1), no_bias=True, num_filter=1} : f32[1,1,1,4020]"
        f"{function} : f32[1,1,1,4020] return %y }}"
    )
    spec = ConvolutionsSpec(graph, native.lanes(mx), ("direct",))
    assert [step.kind for step in plan(spec).steps].count(Kind.COMBINE) == 0
    ends = [0.0, -0.0, 1e-30, -1e-30, 86.9, 87.1, 88.9, -86.9, -87.1, -88.9]
    ends += [1e5, -1e5, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 0.5]
    x = np.concatenate([np.linspace(-12, 12, 3000), np.linspace(-90, 90, 1000), ends])
    x = x.astype(np.float32).reshape(1, 1, 1, -1)
    inputs = [x, np.ones((1, 1, 1, 1), np.float32)]
    ((found,), _) = native.run(mx, spec, inputs)
    with np.errstate(all="ignore"):
        (want,) = expected(spec, inputs)
    is_number = np.isfinite(x) & np.isfinite(want)
    off = np.abs(found[is_number] - want[is_number])
    # GELU has the absolute error of erf, times x.
    size = np.abs(x if "gelu" in function else want)[is_number]
    assert (off <= error * size + 1e-37).all()
    assert np.isnan(found[np.isnan(x)]).all()
    odd = np.isinf(x) & ~np.isnan(want)
    np.testing.assert_array_equal(found[odd], want[odd].astype(np.float32))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stale_memory_is_not_read(mx, algorithm: str) -> None:
    """A second call finds what the first one left in the arena."""
    each = layer((1, 24, 9, 9), 40, Window((3, 3), pad=(1, 1)))
    spec = single(each, native.lanes(mx), algorithm)
    inputs = values(spec)
    (once,), _ = native.run(mx, spec, inputs)
    (again,), _ = native.run(mx, spec, inputs, times=3)
    np.testing.assert_array_equal(once, again)


def test_region_for_another_processor(mx) -> None:
    lanes = 4 if native.lanes(mx) != 4 else 8
    spec = single(LAYERS[2], lanes, "direct")
    with pytest.raises(GraphoptError, match="another processor"):
        native.run(mx, spec, values(spec))
