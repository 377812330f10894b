from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.symbol import to_symbol
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse
from graphopt.kernels import bridge
from graphopt.passes.fusion.translate import region_spec
from graphopt.passes.fusion.worth import why_not_worth
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass
from tests.places import REPOSITORY
from tests.symbols import one_operator


def net(body: str, inputs: str = "%x: f32[8,4], %y: f32[8,4], %w: f32[4], %z: f32[1,4]") -> Graph:
    return with_types(parse(f"graph g({inputs}) {{ {body} }}"))


def fuse(graph: Graph, **settings: object) -> Result:
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget(), **settings)
    assert_equivalent(graph, result.graph, training=settings.get("mode") == "training")
    return result


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if not node.is_input]


def remarks(result: Result) -> str:
    return "\n".join(str(remark) for remark in result.remarks)


CHAIN = """%a = broadcast_mul(%x, %w)
           %b = tanh(%a)
           %c = elemwise_add(%b, %y)
           return %c"""


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_chain_is_one_kernel(mode: str) -> None:
    result = fuse(net(CHAIN), mode=mode)
    assert ops(result.graph) == [FUSED]
    (node,) = [n for n in result.graph if n.op == FUSED]
    assert node.attrs["spec"] == (
        "f32[a,b] (f32[a,b], f32[b], f32[a,b])"
        " { %3 = mul %0 %1; %4 = tanh %3; %5 = add %4 %2; return %5:f32[a,b] }"
    )
    assert "became one kernel, 0.000256 MB are no longer written" in remarks(result)


def test_values_that_others_read_are_outputs() -> None:
    result = fuse(net("%a = tanh(%x) %b = relu(%a) %d = dot(%b, %w) return %a, %d"))
    (node,) = [n for n in result.graph if n.op == FUSED]
    assert len(node.types) == 2
    assert ops(result.graph) == [FUSED, "dot"]


def test_no_cycle_is_made() -> None:
    # `reverse` lies on a path between what reads it and what it reads.
    graph = net("%a = tanh(%x) %s = reverse(%a) {axis=(0,)} %b = elemwise_mul(%a, %s) return %b")
    assert ops(fuse(graph).graph) == [FUSED, "reverse", "elemwise_mul"]


def test_no_cycle_is_made_of_two_regions() -> None:
    graph = net(
        """%a = tanh(%x) %b = exp(%y)
           %sa = reverse(%a) {axis=(0,)} %sb = reverse(%b) {axis=(0,)}
           %c = elemwise_mul(%a, %sb) %d = elemwise_mul(%b, %sa)
           return %c, %d"""
    )
    fuse(graph)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('%d = Dropout(%x) {mode="always"} %a = tanh(%d) return %a', None),
        ("%a = _plus_scalar(%x) {scalar=1} return %a", None),
        ("%a = broadcast_to(%z) {shape=(8, 4)} %b = exp(%a) return %b", "in none of the inputs"),
    ],
)
def test_refusals(body: str, why: str | None) -> None:
    graph = net(body)
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget())
    if why is not None:
        assert why in remarks(result)
    assert "Dropout" not in str([n.graphs for n in result.graph])


def test_what_has_no_derivative_stays() -> None:
    graph = net("%a = gamma(%x) %b = tanh(%a) %c = elemwise_mul(%b, %y) return %c")
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget())
    assert ops(result.graph) == ["gamma", FUSED]
    assert "gamma is not fused: kernels have no derivative of it" in remarks(result)
    feeds = {name: np.full((8, 4), 1.5, "float32") for name in "xy"}
    for before, after in zip(
        *(MXNetTarget().evaluate(g, feeds, gradients=True).values() for g in (graph, result.graph)),
        strict=True,
    ):
        np.testing.assert_allclose(after, before, rtol=1e-5)


def test_gradients_through_integers_stay_truncated() -> None:
    graph = net("""%i = Cast(%x) {dtype="int32"}
                   %f = Cast(%i) {dtype="float32"}
                   %h = _mul_scalar(%f) {scalar=0.5}
                   %t = tanh(%h)
                   return %t""")
    assert ops(fuse(graph).graph) == ["Cast", FUSED]
    result = fuse(graph, mode="training")
    assert ops(result.graph) == ["Cast", "Cast", FUSED]
    assert "Cast is not fused: MXNet truncates its gradient to integers" in remarks(result)


def test_casts_of_integers_that_learn_stay() -> None:
    body = '%f = Cast(%x) {dtype="float32"} %h = tanh(%f) %t = elemwise_mul(%h, %y) return %t'
    graph = net(body, "%x: i32[8,4], %y: f32[8,4]")
    assert ops(fuse(graph, mode="training").graph) == [FUSED]
    result = fuse(graph, mode="training", integers_learn=True)
    assert ops(result.graph) == ["Cast", FUSED]
    assert "Cast is not fused: MXNet truncates its gradient to integers" in remarks(result)


@pytest.mark.parametrize(
    "body",
    [
        "%a = elemwise_add(%x, %y) return %a",
        "%a = _mul_scalar(%x) {scalar=2.5} return %a",
        '%a = LeakyReLU(%x) {act_type="leaky", slope=0.1} return %a',
        '%a = Activation(%x) {act_type="relu"} return %a',
        "%a = BlockGrad(%x) return %a",
    ],
)
def test_a_lone_operator_that_mxnet_computes_as_fast_stays(body: str) -> None:
    graph = net(body)
    assert fuse(graph).graph.is_unchanged_from(graph)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize(
    "body",
    [
        "%a = clip(%x) {a_min=-1, a_max=1} return %a",
        "%a = broadcast_mul(%x, %w) return %a",
        "%a = broadcast_add(%x, %z) return %a",
        '%a = LeakyReLU(%x, %w) {act_type="prelu"} return %a',
        "%a = where(%x, %x, %y) return %a",
        "%a = _div_scalar(%x) {scalar=3} return %a",
        "%a = _power_scalar(%x) {scalar=2} return %a",
        "%a = floor(%x) return %a",
        "%a = smooth_l1(%x) {scalar=1} return %a",
    ],
)
def test_a_lone_operator_that_mxnet_computes_one_by_one_is_a_kernel(body: str, mode: str) -> None:
    assert ops(fuse(net(body), mode=mode).graph) == [FUSED]


def test_of_float16_a_lone_operator_is_a_kernel_but_not_a_copy() -> None:
    graph = net("%a = elemwise_add(%x, %x) return %a", "%x: f16[8,4]")
    assert ops(fuse(graph).graph) == [FUSED]
    graph = net("%a = _copy(%x) return %a", "%x: f16[8,4]")
    assert fuse(graph).graph.is_unchanged_from(graph)


def test_on_gpus_a_lone_cheap_operator_stays() -> None:
    graph = net("%a = clip(%x) {a_min=-1, a_max=1} return %a")
    (node,) = [node for node in graph if not node.is_input]
    spec = region_spec(graph, [node], list(node.inputs), [node.out()])
    assert why_not_worth(graph, [node], spec, device="cpu") is None
    assert why_not_worth(graph, [node], spec, device="gpu") == "MXNet computes it as fast"


def test_shapes_have_to_be_known() -> None:
    graph = parse("graph g(%x: f32[?,4]) { %a = tanh(%x) : f32[?,4] return %a }")
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget())
    assert "its shape or dtype is not known" in remarks(result)
    assert result.graph.is_unchanged_from(graph)


def test_beside_convolutions_sums_and_relus_stay() -> None:
    graph = net(
        """%c = Convolution(%x, %k) {kernel=(1, 1), num_filter=2, no_bias=True}
           %r = Activation(%c) {act_type="relu"} %s = elemwise_add(%r, %x) return %s""",
        "%x: f32[1,2,4,4], param %k: f32[2,2,1,1]",
    )
    result = fuse(graph)
    assert result.graph.is_unchanged_from(graph)
    assert "blocked layout" in remarks(result)


@pytest.mark.parametrize("body", ["relu(%c)", "abs(%c)", "_mul_scalar(%c) {scalar=2}"])
def test_beside_convolutions_what_mxnet_computes_in_rows_is_a_kernel(body: str) -> None:
    graph = net(
        f"%c = Convolution(%x, %k, %b) {{kernel=(1, 1), num_filter=2}} %r = {body} return %r",
        "%x: f32[1,2,4,4], param %k: f32[2,2,1,1], param %b: f32[2]",
    )
    assert ops(fuse(graph).graph) == ["Convolution", FUSED]


def test_what_parameters_alone_decide_is_left_to_be_computed_once() -> None:
    graph = net(
        "%a = exp(%w) %b = elemwise_mul(%a, %x) %c = tanh(%b) return %c",
        "%x: f32[4], param %w: f32[4]",
    )
    assert ops(fuse(graph, frozen=True).graph) == ["exp", FUSED]
    assert ops(fuse(graph).graph) == [FUSED]


def test_states_that_are_written_are_not_read_elsewhere() -> None:
    graph = net(
        """%n = BatchNorm(%x, %g, %b, %mm, %mv)
           %t = exp(%mm) return %n, %t""",
        "%x: f32[2,3], param %g: f32[3], param %b: f32[3], aux %mm: f32[3], aux %mv: f32[3]",
    )
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget(), mode="training")
    assert "it reads a state that another operator writes" in remarks(result)


def test_precise_kernels_say_so() -> None:
    (node,) = [n for n in fuse(net(CHAIN), precise=True).graph if n.op == FUSED]
    assert str(node.attrs["spec"]).startswith("precise f32[a,b]")


def test_without_a_compiler_nothing_is_fused() -> None:
    class Bare(MXNetTarget):
        def why_no_kernels(self, device: str) -> str | None:
            return "there is no C++ compiler"

    graph = net(CHAIN)
    result = run_pass(graph, "fuse-pointwise", target=Bare())
    assert result.graph.is_unchanged_from(graph)
    assert "no operator was fused: there is no C++ compiler" in remarks(result)


def test_gpus_are_refused_by_an_mxnet_without_them() -> None:
    graph = net(CHAIN)
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget(), device="gpu")
    assert result.graph.is_unchanged_from(graph)
    assert "this MXNet was built without CUDA" in remarks(result)


def test_gpus_get_kernels_where_mxnet_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "why_not_on_gpu", lambda _mxnet: None)
    result = run_pass(net(CHAIN), "fuse-pointwise", target=MXNetTarget(), device="gpu")
    assert ops(result.graph) == [FUSED]


def test_unfusing_gives_back_the_operators() -> None:
    graph = net(CHAIN)
    assert ops(unfuse(fuse(graph).graph)) == ["broadcast_mul", "tanh", "elemwise_add"]
    assert_equivalent(graph, unfuse(fuse(graph).graph), training=True)


def test_a_saved_symbol_runs_in_another_process(tmp_path: Path) -> None:
    graph = fuse(net(CHAIN)).graph
    symbol = to_symbol(graph)
    symbol.save(str(tmp_path / "net-symbol.json"))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(8, 4)), "y": rng.normal(size=(8, 4)), "w": rng.normal(size=4)}
    feeds = {name: array.astype("float32") for name, array in feeds.items()}
    np.savez(tmp_path / "in.npz", **feeds)
    code = """
import sys, numpy as np
import graphopt
import mxnet as mx
folder = sys.argv[1]
feeds = {k: mx.nd.array(v) for k, v in np.load(folder + "/in.npz").items()}
symbol = mx.sym.load(folder + "/net-symbol.json")
made = symbol.bind(mx.cpu(), feeds).forward()[0].asnumpy()
np.save(folder + "/out.npy", made)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=REPOSITORY)
    (want,) = MXNetTarget().evaluate(net(CHAIN), feeds).values()
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), want, rtol=1e-5, atol=1e-6)


def symbol_of(spec: str, inputs: list[str]) -> Any:
    return one_operator(FUSED, "f", inputs, {"spec": spec})


def test_errors_of_a_kernel_are_mxnets_with_the_node(tmp_path: Path) -> None:
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    spec = "f32[a] (f32[a], f32[a]) { %2 = add %0 %1; return %2:f32[a] }"
    symbol = symbol_of(spec, ["x", "y"])
    with pytest.raises(mx.MXNetError, match="of node f has extent 4 on axis 0"):
        symbol.infer_shape(x=(3,), y=(4,))
    with pytest.raises(mx.MXNetError, match="no kernel spec"):
        symbol_of("nonsense", ["x"]).infer_shape(x=(3,))
    with pytest.raises(mx.MXNetError, match="type code 1"):
        symbol.infer_type(x="float64")
