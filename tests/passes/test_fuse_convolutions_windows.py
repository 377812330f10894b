"""fuse-convolutions: convolutions, deconvolutions and pooling of any window and groups."""

from __future__ import annotations

import itertools

import pytest

from graphopt.kernels.convolutions.plan import plan
from graphopt.kernels.convolutions.spec import ALGORITHMS, spec_of
from graphopt.kernels.convolutions.steps import Kind
from graphopt.testing import assert_equivalent
from tests.passes.fuse_convolutions_support import CONV, TOLERANCE, fused, net, regions
from tests.tiers import one_of


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


WINDOWS = [
    "kernel=(4, 4), stride=(2, 2), pad=(1, 1)",
    "kernel=(2, 2), stride=(2, 2)",
    "kernel=(3, 3), stride=(2, 2), pad=(1, 1)",
    "kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 1)",
    "kernel=(3, 3), pad=(1, 1)",
    "kernel=(5, 4), stride=(3, 2), pad=(2, 0), adj=(1, 0)",
    "kernel=(4, 2), stride=(1, 2), pad=(3, 1)",
    "kernel=(1, 1)",
]


@pytest.mark.parametrize(
    ("window", "filters", "favourite"), one_of(7, itertools.product(WINDOWS, [32, 21], ALGORITHMS))
)
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
