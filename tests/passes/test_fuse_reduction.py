from __future__ import annotations

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass


def net(body: str, inputs: str = "%x: f32[8,4,6], %y: f32[8,4,6], %g: f32[6], %b: f32[6]") -> Graph:
    return with_types(parse(f"graph g({inputs}) {{ {body} }}"))


def fuse(graph: Graph, pipeline: str = "fuse-reduction", **settings: object) -> Result:
    result = run_pass(graph, pipeline, target=MXNetTarget(), **settings)
    assert_equivalent(graph, result.graph, training=settings.get("mode") == "training")
    return result


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if not node.is_input]


def remarks(result: Result) -> str:
    return "\n".join(str(remark) for remark in result.remarks)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    "body",
    [
        "%s = elemwise_add(%x, %y) %n = LayerNorm(%s, %g, %b) return %n",
        "%s = _mul_scalar(%x) {scalar=0.125} %p = softmax(%s) %q = elemwise_mul(%p, %y) return %q",
        "%p = log_softmax(%x) %q = elemwise_mul(%p, %y) %r = sum(%q) {axis=-1} return %r",
        """%m = mean(%x) {axis=-1, keepdims=True} %c = broadcast_sub(%x, %m) %s = square(%c)
           %v = mean(%s) {axis=-1, keepdims=True} %e = _plus_scalar(%v) {scalar=1e-5}
           %r = rsqrt(%e) %n = broadcast_mul(%c, %r) %k = broadcast_mul(%n, %g) return %k""",
        "%s = square(%x) %r = sum(%s) {axis=(1, 2)} return %r",
        "%n = L2Normalization(%x) return %n",
        "%t = tanh(%x) %m = max(%t) {axis=(0, 1, 2)} return %m, %t",
    ],
)
def test_one_kernel(body: str, mode: str) -> None:
    assert ops(fuse(net(body), mode=mode).graph) == [FUSED]


COLUMNS = "%x: f32[3,8,8], %y: f32[3,8,8], %g: f32[8], %b: f32[8], %r: f32[3,8]"


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    ("body", "space"),
    [
        ("%s = softmax(%x) {axis=1} return %s", "[a|b|c]"),
        (
            "%t = tanh(%x) %s = log_softmax(%t) {axis=0} %q = elemwise_mul(%s, %y) return %q",
            "[|a|b,c]",
        ),
        ("%n = LayerNorm(%x, %g, %b) {axis=1} %t = tanh(%n) return %t", "[a|b|c]"),
        ("%n = L2Normalization(%x) {mode='channel'} return %n", "[a|b|c]"),
        ("%p = elemwise_mul(%x, %y) %s = mean(%p) {axis=1} return %s", "[a|b|c]"),
        ("%s = sum(%x) {axis=1} %t = tanh(%s) %q = elemwise_mul(%t, %r) return %q", "[a|b|c]"),
        (
            "%s = max(%x) {axis=1, keepdims=True} %q = broadcast_sub(%x, %s) return %q, %s",
            "[a|b|c]",
        ),
        ("%s = norm(%x) {axis=(0, 1)} %q = elemwise_mul(%s, %g) return %q", "[|a,b|c]"),
    ],
)
def test_axes_that_are_not_the_last(body: str, space: str, mode: str) -> None:
    graph = net(body.replace("'", '"'), COLUMNS)
    made = fuse(graph, mode=mode).graph
    assert ops(made) == [FUSED]
    assert f"f32{space}" in str(next(node for node in made if node.op == FUSED).attrs["spec"])


def test_a_small_axis_behind_the_reduced_one_is_left_to_mxnet() -> None:
    graph = net("%s = softmax(%x) {axis=1} return %s", "%x: f32[3,8,7]")
    assert ops(fuse(graph).graph) == ["softmax"]


def test_on_gpus_a_small_axis_behind_the_reduced_one_is_enough() -> None:
    graph = net("%s = softmax(%x) {axis=1} return %s", "%x: f32[3,8,7]")
    assert ops(run_pass(graph, "fuse-reduction", device="gpu").graph) == [FUSED]


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("shape", ["2,6,5", "3,6,4,2"])
def test_group_norm_is_a_kernel_over_groups(shape: str, mode: str) -> None:
    graph = net(
        """%n = GroupNorm(%x, %g, %b) {num_groups=3, eps=0.001} %t = tanh(%n)
           %s = _mul_scalar(%t) {scalar=0.5} %r = elemwise_add(%s, %t) return %r""",
        f"%x: f32[{shape}], %g: f32[3], %b: f32[3]",
    )
    made = fuse(graph, mode=mode).graph
    assert ops(made) == ["Reshape", FUSED, "reshape_like", "_mul_scalar", "elemwise_add"]
    (kernel,) = (node for node in made if node.op == FUSED)
    assert "tanh" in str(kernel.attrs["spec"])


def test_what_looks_at_its_shape_stays_behind_group_norm() -> None:
    graph = net(
        """%n = GroupNorm(%x, %g, %b) {num_groups=3} %d = _contrib_div_sqrt_dim(%n)
           %w = broadcast_to(%d) {shape=(2, 6, 5)} return %w""",
        "%x: f32[2,6,5], %g: f32[3], %b: f32[3]",
    )
    assert ops(fuse(graph).graph)[:3] == ["Reshape", FUSED, "reshape_like"]


def test_group_norm_that_others_wait_for_stays() -> None:
    graph = net(
        """%n = GroupNorm(%x, %g, %b) {num_groups=3} %t = tanh(%n)
           %s = sin(%x) after(%n) %r = elemwise_add(%t, %s) return %r""",
        "%x: f32[2,6,5], %g: f32[3], %b: f32[3]",
    )
    assert "GroupNorm" in ops(fuse(graph).graph)


def test_group_norm_whose_means_are_read_stays() -> None:
    graph = net(
        """%n = GroupNorm(%x, %g, %b) {num_groups=3, output_mean_var=True}
           return %n, %n#1""",
        "%x: f32[2,6,5], %g: f32[3], %b: f32[3]",
    )
    assert ops(fuse(graph).graph) == ["GroupNorm"]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_instance_norm_is_fused_with_what_is_around(mode: str) -> None:
    graph = net(
        """%n = InstanceNorm(%x, %g, %b) {eps=0.01} %t = relu(%n)
           %s = elemwise_add(%t, %x) return %s""",
        "%x: f32[2,3,4,5], %g: f32[3], %b: f32[3]",
    )
    assert ops(fuse(graph, mode=mode).graph) == [FUSED]


def test_attention_scores() -> None:
    graph = net(
        """%s = batch_dot(%x, %y) {transpose_b=True} %t = _mul_scalar(%s) {scalar=0.4}
           %m = broadcast_add(%t, %k) %p = softmax(%m) %o = batch_dot(%p, %y) return %o""",
        "%x: f32[8,4,6], %y: f32[8,4,6], %k: f32[8,1,4]",
    )
    assert ops(fuse(graph, mode="training").graph) == ["batch_dot", FUSED, "batch_dot"]


@pytest.mark.parametrize("frozen", [False, True])
def test_constants_are_literals(frozen: bool) -> None:
    graph = net(
        """%f = _full() {shape=(8, 4, 6), value=-1e9, dtype="float32"} %w = where(%y, %x, %f)
           %p = softmax(%w) return %p"""
    )
    result = fuse(graph, frozen=frozen)
    (node,) = [node for node in result.graph if not node.is_input]
    assert "where %0 %1 -1000000000.0" in str(node.attrs["spec"])


@pytest.mark.parametrize("shape", ["1,1,1", "1"])
@pytest.mark.parametrize("frozen", [False, True])
def test_single_numbers_are_literals(frozen: bool, shape: str) -> None:
    graph = net(
        f"""%m = sin(%y) %f = _full() {{shape=({shape},), value=-1e9, dtype="float32"}}
            %w = _npi_where(%m, %x, %f) %p = softmax(%w) return %p"""
    )
    result = fuse(graph, frozen=frozen, mode="inference" if frozen else "training")
    (node,) = [node for node in result.graph if not node.is_input]
    assert "where %2 %1 -1000000000.0" in str(node.attrs["spec"])


def test_numbers_are_rounded_as_the_array_that_they_fill() -> None:
    graph = net(
        """%f = _full() {shape=(1, 1, 1), value=-1e9, dtype="float16"} %m = sin(%x)
           %w = _npi_where(%m, %x, %f) %e = exp(%w) %p = sum(%e) {axis=-1} return %p""",
        "%x: f16[8,4,6]",
    )
    (node,) = [node for node in fuse(graph, mode="training").graph if not node.is_input]
    assert " -inf;" in str(node.attrs["spec"])


def test_numbers_that_several_read_are_operands() -> None:
    graph = net(
        """%f = _full() {shape=(1, 1, 1), value=0.5, dtype="float32"}
           %w = broadcast_add(%x, %f) %p = softmax(%w) %o = broadcast_mul(%y, %f)
           %q = log_softmax(%o) return %p, %q"""
    )
    result = fuse(graph, mode="training")
    assert ops(result.graph) == ["_full", FUSED, FUSED]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("%s = sum(%x) {axis=(0, 2)} return %s", "reduces axes (0, 2), which are no neighbours"),
        ("%s = softmax(%x) {axis=1} return %s", "6 lie side by side, too few for a vector"),
        # To mx.nd no axes are all of them.
        *(
            (f"%s = {op}(%x) {{axis=()}} return %s", "it reduces no axes")
            for op in ("_np_sum", "_npi_mean", "_np_max", "_np_min", "_np_prod")
        ),
    ],
)
def test_refusals(body: str, why: str) -> None:
    graph = net(body)
    result = fuse(graph)
    assert result.graph.is_unchanged_from(graph)
    assert why in remarks(result)


def test_regions_without_a_reduction_are_left() -> None:
    graph = net("%a = tanh(%x) %c = elemwise_mul(%a, %y) return %c")
    assert fuse(graph).graph.is_unchanged_from(graph)
    assert ops(fuse(graph, "fuse-reduction,fuse-pointwise").graph) == [FUSED]


def test_rows_of_different_length_are_two_kernels() -> None:
    graph = net(
        "%p = softmax(%x) %r = sum(%p) {axis=(1, 2), keepdims=True} %c = broadcast_mul(%r, %y)"
        " return %c"
    )
    result = fuse(graph)
    assert [op for op in ops(result.graph) if op == FUSED] == [FUSED, FUSED]


def test_precise_graphs_keep_mxnets_order_of_addition() -> None:
    graph = net("%p = softmax(%x) return %p")
    result = fuse(graph, precise=True)
    assert result.graph.is_unchanged_from(graph)
    assert "another order" in remarks(result)
