"""fuse-convolutions: what a region holds of a network, computed as MXNet does."""

from __future__ import annotations

import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.kernels.convolutions.plan import plan
from graphopt.kernels.convolutions.spec import ALGORITHMS, spec_of
from graphopt.kernels.convolutions.steps import Kind
from graphopt.passes.fuse_convolutions import FuseConvolutions
from graphopt.testing import assert_equivalent, run_pass
from tests.passes.fuse_convolutions_support import CONV, PASS, TOLERANCE, fused, net, regions


def test_example(example):
    before, after = example(FuseConvolutions)
    assert run_pass(before, PASS, frozen=True).graph == after


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


def test_text_round_trip() -> None:
    after = fused(net(f"{CONV} %r = relu(%c) return %r"))
    assert parse(str(after)) == after


def test_statistics_of_batch_norm_are_no_images() -> None:
    """An auxiliary state may be a weight, as it is frozen."""
    graph = Graph("g")
    x = graph.add_input("x", DATA, TensorType("float32", (1, 4, 5, 5)))
    w = graph.add_input("w", AUX, TensorType("float32", (4, 4, 1, 1)))
    attrs = {"kernel": (1, 1), "num_filter": 4, "no_bias": True}
    y = graph.add("Convolution", [x, w], attrs, [TensorType("float32", (1, 4, 5, 5))], "c")
    graph.set_outputs([y.out()])
    assert_equivalent(graph, fused(graph), **TOLERANCE)
