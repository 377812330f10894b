"""fuse-convolutions: what stays outside of regions, and when there are none."""

from __future__ import annotations

import pytest

from graphopt.ir.node import CONVOLUTIONS
from graphopt.testing import assert_equivalent, run_pass
from tests.passes.fuse_convolutions_support import CONV, PASS, TOLERANCE, Clock, fused, net, regions


def test_slopes_from_data_stay_outside() -> None:
    before = net(
        f'{CONV} %r = LeakyReLU(%c, %g) {{act_type="prelu"}} return %r',
        params="param %w: ?, param %b: ?, %g: f32[36]",
    )
    after = fused(before)
    assert [node.op for node in after if not node.is_input] == [CONVOLUTIONS, "LeakyReLU"]


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


@pytest.mark.parametrize("op", ["broadcast_mul", "broadcast_add"])
@pytest.mark.parametrize("operands", ["%p, %f", "%f, %p"])
def test_rows_that_are_broadcast_over_images_stay(op: str, operands: str) -> None:
    """Of (N, C) and (N, C, 1, 1) there are as many numbers, but (N, C, N, C) comes out."""
    before = net(
        f'{CONV} %p = Pooling(%c) {{global_pool=True, pool_type="avg", kernel=(1, 1)}}'
        f"%f = Flatten(%p) %y = {op}({operands}) return %y",
        x="f32[1,20,9,11]",
    )
    after = fused(before)
    assert [node.op for node in after if not node.is_input] == [CONVOLUTIONS, op]
    assert_equivalent(before, after, **TOLERANCE)


def test_clips_whose_bounds_are_no_interval_stay() -> None:
    before = net(f"{CONV} %y = clip(%c) {{a_min=0.5, a_max=-0.5}} return %y")
    after = fused(before)
    assert [node.op for node in after if not node.is_input] == [CONVOLUTIONS, "clip"]
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
