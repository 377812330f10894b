"""fuse-convolutions: which regions there are, and that they compute what MXNet computes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, CONVOLUTIONS, DATA, PARAM, Node, Value
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.kernels.convolutions.plan import plan
from graphopt.kernels.convolutions.single import Layer
from graphopt.kernels.convolutions.spec import ALGORITHMS, spec_of
from graphopt.kernels.convolutions.steps import Kind
from graphopt.kernels.products import IN_PAIRS
from graphopt.passes.fuse_convolutions import FuseConvolutions
from graphopt.testing import assert_equivalent, run_pass

PASS = "fuse-convolutions"
TOLERANCE = {"rtol": 1e-3, "atol": 2e-4}


class Clock(MXNetTarget):
    """Makes one algorithm the fastest wherever it is possible."""

    def __init__(self, favourite: str = "direct") -> None:
        self.favourite = favourite
        self.asked: list[Layer] = []

    def dense_means(self) -> str:
        return IN_PAIRS  # on any processor

    def layer_times_ms(self, layer: Layer, algorithms: Sequence[str]) -> dict[str, float]:
        self.asked.append(layer)
        return {name: 1.0 if name == self.favourite else 2.0 for name in algorithms}


def fused(graph: Graph, favourite: str = "direct") -> Graph:
    return run_pass(graph, PASS, target=Clock(favourite), frozen=True).graph


def regions(graph: Graph) -> list[Node]:
    return [node for node in graph if node.op == CONVOLUTIONS]


def net(body: str, x: str = "f32[2,20,9,11]", params: str = "param %w: ?, param %b: ?") -> Graph:
    return with_types(parse(f"graph g(%x: {x}, {params}) {{ {body} }}"))


CONV = "%c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=36, pad=(1, 1)}"


def test_example(example):
    before, after = example(FuseConvolutions)
    assert run_pass(before, PASS, frozen=True).graph == after


@pytest.mark.parametrize(
    ("channels", "ms", "chosen"),
    [(512, 0.88, "winograd2"), (512, 0.8, "winograd4"), (128, 0.88, "winograd4")],
)
def test_memory_has_to_be_worth_it(channels: int, ms: float, chosen: str) -> None:
    """Of 512 channels and filters Winograd's larger tiles take 20 MiB more."""
    graph = with_types(
        parse(
            f"graph g(%x: f32[1,{channels},14,14], param %w: ?) {{ %c = Convolution(%x, %w)"
            f" {{kernel=(3, 3), no_bias=True, num_filter={channels}, pad=(1, 1)}} return %c }}"
        )
    )

    class Times(Clock):
        def layer_times_ms(self, layer: Layer, algorithms: Sequence[str]) -> dict[str, float]:
            return {name: {"winograd2": 1.0, "winograd4": ms}.get(name, 2.0) for name in algorithms}

    (region,) = regions(run_pass(graph, PASS, target=Times(), frozen=True).graph)
    assert region.attrs["algorithms"] == (chosen,)


@pytest.mark.parametrize("favourite", ALGORITHMS)
@pytest.mark.parametrize(
    "body",
    [
        f"{CONV} return %c",
        f'{CONV} %r = Activation(%c) {{act_type="relu"}} return %r',
        f'{CONV} %r = LeakyReLU(%c) {{act_type="leaky", slope=0.1}} return %r',
        f"{CONV} %r = clip(%c) {{a_min=-0.5, a_max=6.0}} return %r",
        f"{CONV} %r = relu(%c) return %r, %c",
        f"{CONV} %p = Pooling(%c) {{kernel=(3, 3), stride=(2, 2)}} %s = elemwise_add(%p, %p) "
        "return %s",
        f"{CONV} %r = relu(%c) %k = Concat(%r, %x) {{dim=1, num_args=2}} return %c, %r",
    ],
)
def test_equivalent(body: str, favourite: str) -> None:
    before = net(body)
    after = fused(before, favourite)
    assert [region.attrs["algorithms"] for region in regions(after)] == [(favourite,)]
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    "attrs",
    [
        "kernel=(1, 1), num_filter=7",
        "kernel=(1, 1), stride=(2, 2), num_filter=32",
        "kernel=(3, 3), stride=(2, 2), pad=(1, 1), num_filter=33",
        "kernel=(3, 3), dilate=(2, 2), pad=(2, 2), num_filter=16",
        "kernel=(5, 3), pad=(2, 0), num_filter=50",
        "kernel=(1, 7), pad=(0, 3), num_filter=48",
        "kernel=(2, 4), stride=(1, 3), num_filter=5",
        "kernel=(3, 3), pad=(1, 1), num_filter=20, num_group=20",
        "kernel=(3, 3), stride=(2, 2), num_filter=20, num_group=20",
        "kernel=(1, 1), num_filter=20, num_group=20",
        "kernel=(9, 11), num_filter=3",
    ],
)
@pytest.mark.parametrize("x", ["f32[2,20,9,11]", "f32[1,3,9,11]"])
def test_windows(attrs: str, x: str) -> None:
    if "num_group" in attrs and "[1,3" in x:
        attrs = attrs.replace("20", "3")
    before = net(f"%c = Convolution(%x, %w, %b) {{{attrs}}} %r = relu(%c) return %r", x)
    after = fused(before)
    assert len(regions(after)) == 1
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    "attrs",
    [
        "kernel=(2, 2), stride=(2, 2)",
        "kernel=(3, 3), stride=(2, 2), pad=(1, 1)",
        'kernel=(3, 3), stride=(2, 2), pooling_convention="full"',
        'kernel=(3, 3), pad=(1, 1), pool_type="avg"',
        'kernel=(3, 3), pad=(1, 1), pool_type="avg", count_include_pad=False',
        'kernel=(2, 3), stride=(2, 3), pool_type="avg"',
        'kernel=(1, 1), global_pool=True, pool_type="avg"',
        'kernel=(7, 7), global_pool=True, pool_type="max", stride=(2, 2), pad=(1, 1)',
    ],
)
def test_pooling(attrs: str) -> None:
    before = net(f"{CONV} %r = relu(%c) %p = Pooling(%r) {{{attrs}}} return %p")
    after = fused(before)
    assert len(regions(after)) == 1
    assert sum(node.op == "Pooling" for node in after) == 0
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize("favourite", ["direct", "winograd2", "winograd4", "paired-winograd4"])
def test_pixels_of_windows_that_lie_apart(favourite: str) -> None:
    """With a sum and a function, behind a convolution and before one that reads a halo."""
    params = ", ".join(f"param %{name}: ?" for name in "wbveu")
    body = (
        "%c = Convolution(%x, %w, %b) {kernel=(1, 1), num_filter=36}"
        " %d = Convolution(%c, %v, %e) {kernel=(3, 3), dilate=(2, 3), pad=(2, 3), num_filter=36}"
        " %s = elemwise_add(%d, %c) %r = relu(%s)"
        " %f = Convolution(%r, %u) {kernel=(5, 5), pad=(2, 2), num_filter=8, no_bias=True}"
        " return %f"
    )
    before = net(body, "f32[2,20,19,14]", params=params)
    after = fused(before, favourite)
    assert len(regions(after)) == 1
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ('%u = UpSampling(%c) {scale=2, sample_type="nearest", num_args=1} return %u', 1),
        (
            '%u = UpSampling(%c) {scale=3, sample_type="nearest", num_args=1} %r = relu(%u)'
            " return %r, %c",
            1,
        ),
        ("%r = repeat(%c) {repeats=2, axis=-1} %u = repeat(%r) {repeats=3, axis=-2} return %u", 1),
        (
            "%r = repeat(%c) {repeats=2, axis=3} %u = repeat(%r) {repeats=3, axis=2} return %u, %r",
            2,
        ),
        # What is stretched has its place in the whole, and a halo for the convolution behind it.
        (
            '%u = UpSampling(%c) {scale=2, sample_type="nearest", num_args=1}'
            " %k = Concat(%u, %u) {num_args=2}"
            " %d = Convolution(%k, %v, %e) {kernel=(3, 3), num_filter=32, pad=(1, 1)} return %d",
            1,
        ),
    ],
)
@pytest.mark.parametrize("favourite", ["direct", "winograd4", "paired-winograd2"])
def test_stretching(body: str, steps: int, favourite: str) -> None:
    params = ", ".join(f"param %{name}: ?" for name in "wbve")
    before = net(f"{CONV.replace('36', '32')} {body}", params=params)
    after = fused(before, favourite)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    kinds = [step.kind for step in plan(spec_of(region)).steps]
    assert kinds.count(Kind.STRETCH) == steps
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("%s = sigmoid(%c) return %s", 0),
        ('%s = Activation(%c) {act_type="sigmoid"} return %s', 0),
        ("%s = hard_sigmoid(%c) {alpha=0.3, beta=0.4} return %s", 0),
        ("%s = sigmoid(%c) %m = elemwise_mul(%c, %s) return %m", 0),
        ("%h = hard_sigmoid(%c) %m = broadcast_mul(%h, %c) return %m", 0),
        (
            "%p = _plus_scalar(%c) {scalar=3.0} %k = clip(%p) {a_min=0.0, a_max=6.0}"
            "%d = _div_scalar(%k) {scalar=6.0} %m = elemwise_mul(%c, %d) return %m",
            0,
        ),
        ("%p = _mul_scalar(%c) {scalar=-2.0} %k = clip(%p) {a_min=-1.0, a_max=3.0} return %k", 0),
        ("%n = _rminus_scalar(%c) {scalar=1.0} %r = relu(%n) return %r", 0),
        (
            "%q = _mul_scalar(%c) {scalar=1.7} %s = sigmoid(%q)%m = elemwise_mul(%c, %s) return %m",
            0,
        ),
        ("%s = tanh(%c) return %s", 0),
        ('%s = Activation(%c) {act_type="tanh"} return %s', 0),
        ('%s = Activation(%c) {act_type="softrelu"} return %s', 0),
        ('%s = LeakyReLU(%c) {act_type="gelu"} return %s', 0),
        ('%s = LeakyReLU(%c) {act_type="elu", slope=0.7} return %s', 0),
        ('%s = LeakyReLU(%c) {act_type="selu"} return %s', 0),
        ('%s = Activation(%c) {act_type="softrelu"} %t = tanh(%s) return %t', 0),
        # Mish, also of what was scaled
        (
            '%s = Activation(%c) {act_type="softrelu"} %t = tanh(%s)'
            "%m = elemwise_mul(%c, %t) return %m",
            0,
        ),
        (
            '%q = _mul_scalar(%c) {scalar=-1.3} %s = Activation(%q) {act_type="softrelu"}'
            '%t = Activation(%s) {act_type="tanh"} %m = broadcast_mul(%t, %c) return %m',
            0,
        ),
        (
            "%q = _mul_scalar(%c) {scalar=0.5} %p = _plus_scalar(%q) {scalar=0.3}"
            "%t = tanh(%p) return %t",
            0,
        ),
        # What comes behind is no one function with what is before it.
        ("%t = tanh(%c) %p = _mul_scalar(%t) {scalar=2.0} return %p", 1),
        ('%g = LeakyReLU(%c) {act_type="gelu"} %m = elemwise_mul(%c, %g) return %m', 2),
        (
            '%s = Activation(%c) {act_type="softrelu"} %m = elemwise_mul(%c, %s)'
            "%t = tanh(%m) return %t",
            1,
        ),
        ("%s = sigmoid(%c) %p = _plus_scalar(%s) {scalar=1.0} return %p", 1),
        ("%s = sigmoid(%c) %r = relu(%s) return %r", 1),
        ('%r = LeakyReLU(%c) {act_type="leaky"} %s = sigmoid(%r) return %s', 1),
        # A product of two functions is neither.
        ("%s = sigmoid(%c) %r = relu(%c) %m = elemwise_mul(%r, %s) return %m", 3),
        ("%s = sigmoid(%c) %m = elemwise_mul(%c, %s) return %m, %s", 2),
        ("%m = elemwise_mul(%c, %c) return %m", 1),
    ],
)
@pytest.mark.parametrize("favourite", ["direct", "winograd2", "paired"])
def test_functions_of_each_number(body: str, steps: int, favourite: str) -> None:
    """Steps take along what is one function behind them; the others are steps of their own."""
    before = net(f"{CONV} {body}")
    after = fused(before, favourite)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert [s.kind for s in plan(spec_of(region)).steps].count(Kind.COMBINE) == steps
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize("slopes", [36, 1])
@pytest.mark.parametrize("favourite", ["direct", "winograd4", "paired"])
@pytest.mark.parametrize("given", ["%c", "%p", "%s"])
def test_slopes_of_channels(slopes: int, favourite: str, given: str) -> None:
    """Behind a convolution, pooling, and by itself."""
    before = net(
        f"{CONV} %p = Pooling(%c) {{kernel=(2, 2)}} %s = sigmoid(%c)"
        f'%r = LeakyReLU({given}, %g) {{act_type="prelu"}} return %r, %p, %s',
        params=f"param %w: ?, param %b: ?, param %g: f32[{slopes}]",
    )
    after = fused(before, favourite)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert_equivalent(before, after, **TOLERANCE)


def test_slopes_from_data_stay_outside() -> None:
    before = net(
        f'{CONV} %r = LeakyReLU(%c, %g) {{act_type="prelu"}} return %r',
        params="param %w: ?, param %b: ?, %g: f32[36]",
    )
    after = fused(before)
    assert [node.op for node in after if not node.is_input] == [CONVOLUTIONS, "LeakyReLU"]


@pytest.mark.parametrize("order", ["%c, %g", "%g, %c"])
def test_gates(order: str) -> None:
    """A number for each channel, as in squeeze and excitation."""
    before = net(
        f'{CONV} %p = Pooling(%c) {{global_pool=True, pool_type="avg", kernel=(1, 1)}}'
        "%e = Convolution(%p, %v) {kernel=(1, 1), num_filter=36, no_bias=True}"
        f"%g = sigmoid(%e) %m = broadcast_mul({order}) %r = relu(%m)"
        "%k = Convolution(%r, %u) {kernel=(1, 1), num_filter=36, no_bias=True} return %k, %m",
        params="param %w: ?, param %b: ?, param %v: ?, param %u: ?",
    )
    after = fused(before)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    "pool",
    [
        '%p = Pooling(%c) {global_pool=True, pool_type="avg", kernel=(1, 1)}',
        "%p = _contrib_AdaptiveAvgPooling2D(%c) {output_size=(1,)}",
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_gates_through_rows(pool: str, batch: int) -> None:
    """Squeezed to rows for FullyConnected, and back."""
    before = net(
        f"{CONV} {pool} %f = Flatten(%p) %e = FullyConnected(%f, %v) {{num_hidden=9, no_bias=True}}"
        "%r = relu(%e) %h = FullyConnected(%r, %u) {num_hidden=36, no_bias=True} %g = sigmoid(%h)"
        "%q = Reshape(%g) {shape=(-1, 36, 1, 1)} %m = broadcast_mul(%c, %q)"
        "%k = Convolution(%m, %t) {kernel=(1, 1), num_filter=7, no_bias=True} return %k",
        x=f"f32[{batch},20,9,11]",
        params="param %w: ?, param %b: ?, param %v: f32[9,36], param %u: ?, param %t: ?",
    )
    after = fused(before)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert_equivalent(before, after, **TOLERANCE)


def test_infinity_and_not_a_number_pass_functions() -> None:
    before = net(
        "%c = Convolution(%x, %w, %b) {kernel=(1, 1), num_filter=20, num_group=20}"
        "%s = sigmoid(%c) %h = hard_sigmoid(%c) %m = elemwise_mul(%c, %s) return %s, %h, %m, %c"
    )
    after = fused(before)
    x = np.zeros((2, 20, 9, 11), np.float32)
    x[0, :, 0, :4] = np.inf, -np.inf, np.nan, 200.0
    values = {"x": x, "w": np.ones((20, 1, 1, 1), np.float32), "b": np.zeros(20, np.float32)}
    want, found = (MXNetTarget().evaluate(graph, values) for graph in (before, after))
    for name, array in want.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-37, err_msg=name)


def test_functions_of_inputs_stay_outside() -> None:
    """Images are loaded as they are, planes if there are few channels."""
    before = net(
        "%d = _div_scalar(%x) {scalar=255.0} %p = _minus_scalar(%d) {scalar=0.5}"
        "%c = Convolution(%p, %w, %b) {kernel=(3, 3), num_filter=8} return %c",
        x="f32[1,3,9,9]",
    )
    after = fused(before)
    ops = [node.op for node in after if not node.is_input]
    assert ops == ["_div_scalar", "_minus_scalar", CONVOLUTIONS]
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    ("channels", "filters", "groups"),
    [
        (32, 32, 8),
        (48, 48, 6),
        (20, 20, 10),
        (36, 36, 9),
        (64, 64, 2),
        (96, 32, 2),
        (32, 128, 2),
        (64, 128, 16),  # two blocks of channels and four of filters are bundled
        (32, 64, 32),
        (96, 32, 4),
    ],
)
@pytest.mark.parametrize(
    "window", ["kernel=(3, 3), pad=(1, 1)", "kernel=(1, 1)", "kernel=(3, 3), stride=(2, 2)"]
)
def test_groups(channels: int, filters: int, groups: int, window: str) -> None:
    """Of some channels of a block, of whole blocks, or such as make whole blocks together."""
    before = net(
        f"%c = Convolution(%x, %w, %b) {{{window}, num_filter={filters}, num_group={groups}}}"
        "%r = relu(%c) %d = Convolution(%r, %v) {kernel=(1, 1), num_filter=5, no_bias=True}"
        "return %c, %d",
        x=f"f32[2,{channels},9,11]",
        params="param %w: ?, param %b: ?, param %v: ?",
    )
    after = fused(before)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    "window",
    [
        "kernel=(4, 4), stride=(2, 2), pad=(1, 1)",
        "kernel=(2, 2), stride=(2, 2)",
        "kernel=(3, 3), stride=(2, 2), pad=(1, 1)",
        "kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 1)",
        "kernel=(3, 3), pad=(1, 1)",
        "kernel=(5, 4), stride=(3, 2), pad=(2, 0), adj=(1, 0)",
        "kernel=(4, 2), stride=(1, 2), pad=(3, 1)",
        "kernel=(1, 1)",
    ],
)
@pytest.mark.parametrize("filters", [32, 21])
@pytest.mark.parametrize("favourite", ALGORITHMS)
def test_deconvolutions(window: str, filters: int, favourite: str) -> None:
    before = net(
        f"{CONV} %d = Deconvolution(%c, %v, %e) {{{window}, num_filter={filters}, no_bias=False}}"
        "%r = relu(%d) return %r",
        params="param %w: ?, param %b: ?, param %v: ?, param %e: ?",
    )
    after = fused(before, favourite)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    kinds = [step.kind for step in plan(spec_of(region)).steps]
    assert kinds.count(Kind.SHUFFLE) == 1
    assert Kind.COMBINE not in kinds  # the activation is taken along
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [
        ("kernel=(2, 2), num_filter=20, num_group=20", "it has 20 groups"),
        ("kernel=(2, 2), dilate=(2, 2), num_filter=20", "it is dilated"),
        (
            "kernel=(4, 4), stride=(2, 2), target_shape=(17, 21), num_filter=20",
            "its padding follows from target_shape",
        ),
        (
            "kernel=(16, 16), stride=(8, 8), pad=(4, 4), num_filter=20",
            "its stride is 8, its kernel 16 and its padding 4",
        ),
        (
            "kernel=(2, 2), stride=(3, 3), num_filter=20",
            "its stride is 3, its kernel 2 and its padding 0",
        ),
        ("kernel=(2, 2), num_filter=3", "it has few channels"),
    ],
)
def test_deconvolutions_that_stay(attrs: str, reason: str) -> None:
    before = net(f"%d = Deconvolution(%x, %w) {{{attrs}}} return %d", params="param %w: ?")
    result = run_pass(before, PASS, target=Clock(), frozen=True)
    assert [remark.message for remark in result.remarks] == [f"stays outside of regions: {reason}"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            '%u = UpSampling(%c, %s) {scale=6, sample_type="bilinear", num_filter=36, num_args=2}',
            "UpSampling",
        ),
        ("%u = repeat(%c) {repeats=2, axis=1}", "repeat"),
        ("%u = repeat(%c) {repeats=2}", "repeat"),
        ('%u = UpSampling(%c, %c) {scale=2, sample_type="nearest", num_args=2}', "UpSampling"),
    ],
)
def test_stretching_that_stays_outside(body: str, reason: str) -> None:
    before = net(f"{CONV} {body} return %u", params="param %w: ?, param %b: ?, param %s: ?")
    after = fused(before)
    assert [node.op for node in after if not node.is_input] == ["graphopt_convolutions", reason]
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize("bias", ["%s = Convolution(%x, %a, %d)", "%s = Convolution(%x, %a)"])
@pytest.mark.parametrize(
    ("behind", "is_taken"),
    [
        ("return %c", True),
        ("%r = relu(%c) return %r", True),
        ("return %c, %s", False),
        ("%t = Convolution(%s, %w, %b) {kernel=(3, 3), num_filter=36} return %c, %t", False),
    ],
)
def test_scaled_images_are_scaled_as_they_are_loaded(
    bias: str, behind: str, is_taken: bool
) -> None:
    """As by the BatchNorm that many nets begin with; what is padded is zero all the same."""
    more = ", no_bias=True" if "%d" not in bias else ""
    before = net(
        f"{bias} {{kernel=(1, 1), num_filter=3, num_group=3{more}}}"
        "%c = Convolution(%s, %w, %b) {kernel=(3, 3), num_filter=36, pad=(1, 1)}" + behind,
        "f32[2,3,9,11]",
        ", ".join(f"param %{name}: ?" for name in ("wba" if more else "wbad")),
    )
    after = fused(before)
    (region,) = regions(after)
    kinds = [step.kind for step in plan(spec_of(region)).steps]
    assert (Kind.DEPTHWISE not in kinds) == is_taken
    assert (kinds[0] == Kind.LOAD_PLANAR) == is_taken
    assert_equivalent(before, after, **TOLERANCE)


def test_shortcuts_and_what_is_joined() -> None:
    """A sum is taken along by the later convolution; nested joins are written in place."""
    two = "kernel=(1, 1), num_filter=32"
    before = net(
        f"%a = Convolution(%x, %w, %b) {{{two}}} %c = Convolution(%x, %v, %d) {{{two}}}"
        "%s = elemwise_add(%c, %a) %r = relu(%s)"
        "%k = Concat(%r, %a) {dim=1, num_args=2} %m = Concat(%k, %r, %x) {dim=1, num_args=3}"
        "%e = Convolution(%m, %u, %d) {kernel=(1, 1), num_filter=32} return %e, %k",
        params=", ".join(f"param %{name}: ?" for name in "wbvdu"),
    )
    after = fused(before)
    assert len(regions(after)) == 1
    assert len(after.topological()) - len(after.inputs) == 1
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize("x", ["f32[1,20,9,11]", "f32[3,20,9,11]", "f32[2,5,1,1]"])
@pytest.mark.parametrize("flatten", ["%f = Flatten(%c)", "%f = relu(%c)"])
def test_layers_behind_convolutions(x: str, flatten: str) -> None:
    before = net(
        f"%c = Convolution(%x, %w, %b) {{kernel=(1, 1), num_filter=36}} {flatten}"
        "%d = FullyConnected(%f, %v, %e) {num_hidden=32} %r = relu(%d)"
        "%g = FullyConnected(%r, %u) {num_hidden=32, no_bias=True} %s = elemwise_add(%g, %r)"
        "%k = Concat(%s, %r, %s) {dim=-1, num_args=3}"
        "%h = FullyConnected(%k, %t, %o) {num_hidden=7, flatten=False} return %h, %d",
        x,
        params=", ".join(f"param %{name}: ?" for name in "wbveuto"),
    )
    before = run_pass(before, "cancel-layout", target=MXNetTarget()).graph
    after = fused(before)
    (region,) = regions(after)
    assert sum(node.op == "FullyConnected" for node in region.graphs[0]) == 3
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    "body",
    [
        "%j = Concat(%x) {num_args=1} %c = Convolution(%j, %w, %b) {kernel=(1, 1), num_filter=32}"
        "return %c, %j",
        "%c = Convolution(%x, %w, %b) {kernel=(1, 1), num_filter=32} %r = relu(%c)"
        "%j = Concat(%c, %r) {num_args=2} %k = Concat(%c, %c) {num_args=2} return %j, %k",
    ],
)
def test_joins_of_one_size_are_not_one(body: str) -> None:
    before = net(body, "f32[2,32,5,5]")
    assert_equivalent(before, fused(before), **TOLERANCE)


def test_shared_weights_are_packed_for_each_use() -> None:
    before = net(
        "%c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=20, pad=(1, 1)}"
        "%d = Convolution(%c, %w, %b) {kernel=(3, 3), num_filter=20, pad=(1, 1)}"
        "%s = elemwise_add(%d, %x) return %s"
    )
    after = fused(before, "winograd2")
    assert_equivalent(before, after, **TOLERANCE)


def test_what_lies_between_two_regions_makes_two() -> None:
    before = net(
        f"{CONV} %t = sin(%c) %d = Convolution(%t, %v, %b)"
        "{kernel=(1, 1), num_filter=36} return %d",
        params="param %w: ?, param %b: ?, param %v: ?",
    )
    after = fused(before)
    assert len(regions(after)) == 2
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    ("body", "x", "reason"),
    [
        (
            "%c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=20, num_group=2} return %c",
            "f32[2,20,9,11]",
            "it has 2 groups of 10 channels and 10 filters",
        ),
        (
            "%c = Convolution(%x, %w, %b) {kernel=(3,), num_filter=4} return %c",
            "f32[2,20,9]",
            "it does not work on float32 images of known size",
        ),
        (
            "%c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=4} return %c",
            "f64[2,20,9,11]",
            "it does not work on float32 images of known size",
        ),
        (
            "%c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=4, pad=(17, 0)} return %c",
            "f32[2,20,9,11]",
            "its padding is large",
        ),
    ],
)
def test_convolutions_that_stay(body: str, x: str, reason: str) -> None:
    result = run_pass(net(body, x), PASS, target=Clock(), frozen=True)
    assert result.receipts[0].status == "unchanged"
    assert [remark.message for remark in result.remarks] == [f"stays outside of regions: {reason}"]


def test_joins_at_no_whole_block_stay() -> None:
    """Blocks of 8 could be joined at 24; but what a region holds is not up to the processor."""
    attrs = "kernel=(1, 1), num_filter=24"
    before = net(
        f"%c = Convolution(%x, %w, %b) {{{attrs}}} %d = Convolution(%x, %v, %b) {{{attrs}}}"
        "%k = Concat(%c, %d) {dim=1, num_args=2} return %k",
        params="param %w: ?, param %b: ?, param %v: ?",
    )
    after = fused(before)
    assert [node.op for node in after if node.op == "Concat"] == ["Concat"]
    assert len(regions(after)) == 2
    assert_equivalent(before, after, **TOLERANCE)


def test_weights_computed_from_data_stay() -> None:
    before = net("%c = Convolution(%x, %y) {kernel=(1, 1), num_filter=4, no_bias=True} return %c",
                 params="%y: f32[4,20,1,1]")  # fmt: skip
    result = run_pass(before, PASS, target=Clock(), frozen=True)
    assert "its weights are computed from data" in result.remarks[0].message


@pytest.mark.parametrize(
    ("settings_", "reason"),
    [
        ({"mode": "training"}, "it would change what training computes"),
        ({"frozen": False}, "it needs frozen parameters: use mode='inference'"),
        ({"precise": True}, "sums are rounded in another order"),
        ({"device": "gpu"}, "kernels run on CPUs only so far, not on the gpu"),
    ],
)
def test_refusals(settings_: dict[str, object], reason: str) -> None:
    result = run_pass(net(f"{CONV} return %c"), PASS, **{"frozen": True, **settings_})
    assert result.receipts[0].status == "refused"
    assert reason in result.receipts[0].reason


@pytest.mark.parametrize(
    ("favourite", "option"),
    [
        ("winograd4", "winograd"),
        ("paired-winograd4", "winograd"),
        ("paired-winograd4", "paired"),
        ("paired", "paired"),
    ],
)
def test_algorithms_can_be_left_out(favourite: str, option: str) -> None:
    after = run_pass(
        net(f"{CONV} return %c"),
        f"{PASS}{{{option}=False}}",
        target=Clock(favourite),
        frozen=True,
    ).graph
    assert regions(after)[0].attrs["algorithms"] == ("direct",)


def test_pairs_are_not_measured_where_they_do_not_pay() -> None:
    """On processors whose multiplications keep them busy, or that have a matrix unit."""

    class Other(Clock):
        def dense_means(self) -> str:
            return "by the matrix unit"

    after = run_pass(net(f"{CONV} return %c"), PASS, target=Other("paired"), frozen=True).graph
    assert regions(after)[0].attrs["algorithms"] == ("direct",)


def test_text_round_trip() -> None:
    after = fused(net(f"{CONV} %r = relu(%c) return %r"))
    assert parse(str(after)) == after


@st.composite
def networks(draw) -> Graph:
    """A random network of what regions can hold, and of an operator that they cannot."""
    graph = Graph("g")
    channels = draw(st.sampled_from([1, 3, 16, 20]))
    size = (draw(st.integers(1, 2)), channels, *draw(st.tuples(*[st.integers(3, 12)] * 2)))
    x = graph.add_input("x", DATA, TensorType("float32", size))
    values: list[Value] = [x.out()]
    shape = {x.out(): tuple(x.type.shape or ())}

    def add(op: str, inputs: Sequence[Value], attrs: dict[str, object], made: tuple) -> None:
        node = graph.add(op, inputs, attrs, [TensorType("float32", made)], f"n{len(values)}")
        shape[node.out()] = made
        values.append(node.out())

    def convolve(source: Value) -> None:
        n, c, h, w = shape[source]
        ky, kx = (draw(st.integers(1, min(3, extent))) for extent in (h, w))
        sy, sx = draw(st.integers(1, 2)), draw(st.integers(1, 2))
        py, px = draw(st.integers(0, ky - 1)), draw(st.integers(0, kx - 1))
        grouped = draw(st.integers(0, 3)) == 0
        filters = c if grouped else draw(st.sampled_from([5, 16, 32, 40]))
        width = draw(st.sampled_from([w for w in (1, 2, 4, 8, 16, 20) if c % w == 0]))
        name = f"w{len(values)}"
        weights = (filters, width if grouped else c, ky, kx)
        inputs = [source, graph.add_input(name, PARAM, TensorType("float32", weights)).out()]
        no_bias = draw(st.booleans())
        if not no_bias:
            bias = TensorType("float32", (filters,))
            inputs.append(graph.add_input(f"b{len(values)}", PARAM, bias).out())
        attrs = {"kernel": (ky, kx), "stride": (sy, sx), "pad": (py, px), "num_filter": filters,
                 "num_group": c // width if grouped else 1, "no_bias": no_bias}  # fmt: skip
        add("Convolution", inputs, attrs,
            (n, filters, (h + 2 * py - ky) // sy + 1, (w + 2 * px - kx) // sx + 1))  # fmt: skip

    def deconvolve(source: Value) -> None:
        n, c, *size = shape[source]
        made, attrs = [], {"num_filter": draw(st.sampled_from([8, 16, 21])), "no_bias": True}
        attrs |= {"kernel": (), "stride": (), "pad": ()}
        for extent in size:
            k = draw(st.integers(1, 4))
            s, p = draw(st.integers(1, min(2, k))), draw(st.integers(0, min(1, k - 1)))
            for name, number in (("kernel", k), ("stride", s), ("pad", p)):
                attrs[name] = (*attrs[name], number)
            made.append(s * (extent - 1) + k - 2 * p)
        if min(made) < 1:
            return
        weights = TensorType("float32", (c, attrs["num_filter"], *attrs["kernel"]))
        w = graph.add_input(f"w{len(values)}", PARAM, weights).out()
        add("Deconvolution", [source, w], attrs, (n, attrs["num_filter"], *made))

    def swish(source: Value) -> None:
        """Or some of it, read by others as well."""
        add("_plus_scalar", [source], {"scalar": 3.0}, shape[source])
        add("clip", [values[-1]], {"a_min": 0.0, "a_max": 6.0}, shape[source])
        add("_div_scalar", [values[-1]], {"scalar": 6.0}, shape[source])
        add("elemwise_mul", [source, values[-1]], {}, shape[source])

    def gate(source: Value) -> None:
        n, c, *_ = shape[source]
        attrs = {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"}
        add("Pooling", [source], attrs, (n, c, 1, 1))
        add("sigmoid", [values[-1]], {}, (n, c, 1, 1))
        if draw(st.booleans()):
            add("Flatten", [values[-1]], {}, (n, c))
            add("Reshape", [values[-1]], {"shape": (-1, c, 1, 1)}, (n, c, 1, 1))
        add("broadcast_mul", [source, values[-1]], {}, shape[source])

    def multiply(source: Value) -> None:
        n, *extents = shape[source]
        hidden = draw(st.sampled_from([3, 16, 48]))
        weights = TensorType("float32", (hidden, math.prod(extents)))
        w = graph.add_input(f"w{len(values)}", PARAM, weights).out()
        attrs = {"num_hidden": hidden, "no_bias": True}
        add("FullyConnected", [source, w], attrs, (n, hidden))

    convolve(x.out())
    for _ in range(draw(st.integers(1, 7))):
        source = draw(st.sampled_from(values[-3:]))
        n, c, *size = shape[source]
        kinds = ["conv", "conv", "relu", "add", "concat", "pool", "sin", "tanh", "dense"]
        kinds += ["sigmoid", "prelu", "swish", "gate", "deconv", "negative", "mish", "gelu", "elu"]
        kind = draw(st.sampled_from(kinds))
        alike = [value for value in values if shape[value] == shape[source]]
        if not size and kind in ("conv", "pool", "gate", "deconv"):
            kind = "dense"
        if kind == "conv":
            convolve(source)
        elif kind == "dense":
            multiply(source)
        elif kind == "deconv":
            deconvolve(source)
        elif kind == "gate":
            gate(source)
        elif kind == "swish":
            swish(source)
        elif kind == "prelu":
            slopes = TensorType("float32", (c,))
            g = graph.add_input(f"g{len(values)}", PARAM, slopes).out()
            add("LeakyReLU", [source, g], {"act_type": "prelu"}, shape[source])
        elif kind == "mish":
            add("Activation", [source], {"act_type": "softrelu"}, shape[source])
            add("tanh", [values[-1]], {}, shape[source])
            add("elemwise_mul", [source, values[-1]], {}, shape[source])
        elif kind in ("gelu", "elu"):
            add("LeakyReLU", [source], {"act_type": kind}, shape[source])
        elif kind in ("relu", "sin", "tanh", "sigmoid", "negative"):
            add(kind, [source], {}, shape[source])
        elif kind == "add":
            add("elemwise_add", [source, draw(st.sampled_from(alike))], {}, shape[source])
        elif kind == "concat":
            joined = [v for v in values if shape[v][2:] == tuple(size)]
            others = [source, *draw(st.lists(st.sampled_from(joined), min_size=1, max_size=2))]
            channels = sum(shape[v][1] for v in others)
            add("Concat", others, {"dim": 1, "num_args": len(others)}, (n, channels, *size))
        else:
            h, w = size
            k = draw(st.integers(1, min(2, h, w)))
            kind = draw(st.sampled_from(["max", "avg"]))
            attrs = {"kernel": (k, k), "stride": (k, k), "pool_type": kind}
            add("Pooling", [source], attrs, (n, c, (h - k) // k + 1, (w - k) // k + 1))
    outputs = draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=2, unique=True))
    graph.set_outputs([values[1], *outputs, values[-1]])
    return graph


@settings(max_examples=60)
@given(networks(), st.sampled_from(ALGORITHMS))
def test_random_networks(graph: Graph, favourite: str) -> None:
    after = fused(graph, favourite)
    assert regions(after)
    assert_equivalent(graph, after, seeds=(0,), **TOLERANCE)


def test_statistics_of_batch_norm_are_no_images() -> None:
    """An auxiliary state may be a weight, as it is frozen."""
    graph = Graph("g")
    x = graph.add_input("x", DATA, TensorType("float32", (1, 4, 5, 5)))
    w = graph.add_input("w", AUX, TensorType("float32", (4, 4, 1, 1)))
    attrs = {"kernel": (1, 1), "num_filter": 4, "no_bias": True}
    y = graph.add("Convolution", [x, w], attrs, [TensorType("float32", (1, 4, 5, 5))], "c")
    graph.set_outputs([y.out()])
    assert_equivalent(graph, fused(graph), **TOLERANCE)


@pytest.mark.parametrize(
    ("images", "units", "is_inside"), [(4, 4096, False), (5, 4096, True), (4, 4095, True)]
)
def test_large_weights_are_not_packed_for_few_images(
    images: int, units: int, is_inside: bool
) -> None:
    body = (
        "%c = Convolution(%x, %w) {kernel=(3, 3), no_bias=True, num_filter=64, pad=(1, 1)}"
        f"%f = FullyConnected(%c, %v) {{no_bias=True, num_hidden={units}}} return %f"
    )
    graph = net(body, f"f32[{images},16,8,8]", "param %w: ?, param %v: ?")
    result = run_pass(graph, PASS, target=Clock(), frozen=True)
    (region,) = regions(result.graph)
    assert any(node.op == "FullyConnected" for node in region.graphs[0]) == is_inside
