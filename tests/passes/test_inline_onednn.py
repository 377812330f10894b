"""inline-onednn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.infer import with_types
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.ops import canonical
from graphopt.ir.parser import parse
from graphopt.passes.inline_onednn import InlineOnednn
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()

PASS = "inline-onednn"
IMAGE = (2, 3, 8, 8)


def residual() -> Any:
    """Convolutions with all that oneDNN fuses: BatchNorm, functions, sums from either side."""
    act = mx.sym.Activation
    x = mx.sym.var("data")
    x = act(mx.sym.BatchNorm(conv(x, "a"), fix_gamma=False, name="norm"), act_type="relu")
    x = act(conv(x, "b") + x, act_type="relu")
    x = mx.sym.clip(mx.sym.elemwise_add(x, conv(x, "c")), 0, 6)
    x = mx.sym.LeakyReLU(conv(x, "d"), act_type="gelu")
    x = mx.sym.FullyConnected(x, num_hidden=5, name="e")
    return mx.sym.FullyConnected(act(x, act_type="sigmoid"), num_hidden=3, name="f")


def conv(x: Any, name: str) -> Any:
    return mx.sym.Convolution(x, kernel=(3, 3), pad=(1, 1), num_filter=4, name=name)


def partitioned(symbol: Any) -> Any:
    return symbol.get_backend_symbol("MKLDNN")


def lifted(symbol: Any) -> Graph:
    return lift_symbol(symbol, shapes={"data": IMAGE})


def ops(graph: Graph) -> list[str]:
    return [canonical(node.op) for node in graph if not node.is_input]


def test_example(example):
    before, after = example(InlineOnednn)
    result = run_pass(before, PASS)
    assert result.graph == after
    assert_equivalent(before, with_types(result.graph))
    again = run_pass(result.graph, PASS)
    assert again.receipts[0].status == "unchanged"


def test_what_mxnet_put_together() -> None:
    before = lifted(partitioned(residual()))
    assert set(ops(before)) == {"_sg_mkldnn_conv", "_sg_mkldnn_fully_connected"}
    result = run_pass(before, PASS)
    assert result.receipts[0].stats == {"inlined": len(ops(before))}
    assert sorted(ops(result.graph)) == sorted(ops(lifted(residual())))
    assert [node.name for node in result.graph.inputs] == [node.name for node in before.inputs]
    assert [node.op for node in result.graph.inputs] == [node.op for node in before.inputs]
    assert_equivalent(before, with_types(result.graph))


def test_attention() -> None:
    x = mx.sym.var("data")
    scores = mx.sym.contrib.interleaved_matmul_selfatt_qk(x, heads=2)
    y = mx.sym.contrib.interleaved_matmul_selfatt_valatt(x, mx.sym.softmax(scores), heads=2)
    symbol = partitioned(y)
    before = lift_symbol(symbol, shapes={"data": (5, 2, 24)})
    assert "_sg_mkldnn_selfatt_qk" in ops(before)
    result = run_pass(before, PASS)
    assert not any(op.startswith("_sg") for op in ops(result.graph))
    plain = with_types(result.graph)
    assert_equivalent(lift_symbol(y, shapes={"data": (5, 2, 24)}), plain)


@pytest.mark.parametrize(
    ("attrs", "tail", "reason"),
    [
        ('quantized="true"', "", "it computes in 8 bits"),
        ("", "%z = relu(%x) after(%y)", "other nodes are ordered around it"),
    ],
)
def test_refusals(attrs: str, tail: str, reason: str) -> None:
    text = f"""graph g(%x: f32[1,3,8,8], param %w: f32[4,3,3,3], param %b: f32[4]) {{
        %y = _sg_mkldnn_conv(%x, %w, %b) {{{attrs}}} : f32[1,4,6,6] [
          graph body(%d: ?, %e: ?, %f: ?) {{
          %c = Convolution(%d, %e, %f) {{kernel=(3, 3), num_filter=4}}
          return %c
        }} ]
        {tail}
        return %y{", %z" if tail else ""}
    }}"""
    result = run_pass(parse(text), PASS)
    assert result.receipts[0].status == "unchanged"
    assert [r.message for r in result.remarks] == [f"oneDNN's subgraph stays: {reason}"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "it does not hold its operators"),
        (
            "[ graph body(%d: ?, %e: ?) { %c = dot(%d, %e) return %c } ]",
            "its operators have other inputs or outputs",
        ),
    ],
)
def test_bodies_that_do_not_fit(body: str, reason: str) -> None:
    call = f"%y = _sg_mkldnn_conv(%x, %w, %b) {body}"
    result = run_pass(parse(f"graph g(%x: ?, %w: ?, %b: ?) {{ {call} return %y }}"), PASS)
    assert [r.message for r in result.remarks] == [f"oneDNN's subgraph stays: {reason}"]


def test_training_keeps_them() -> None:
    result = run_pass(lifted(partitioned(residual())), PASS, mode="training")
    assert result.receipts[0].status == "refused"
    assert "it would change what training computes" in result.receipts[0].reason


def test_an_exported_model_is_optimized(tmp_path) -> None:
    plain = residual()
    args, _, aux = plain.infer_shape(data=IMAGE)
    rng = np.random.default_rng(0)

    def numbers(shape: tuple[int, ...]) -> Any:
        return mx.nd.array(rng.uniform(0.1, 0.5, shape))

    params = {
        f"arg:{name}": numbers(shape)
        for name, shape in zip(plain.list_arguments(), args, strict=True)
        if name != "data"
    } | {
        f"aux:{name}": numbers(shape)
        for name, shape in zip(plain.list_auxiliary_states(), aux, strict=True)
    }
    partitioned(plain).save(str(tmp_path / "net-symbol.json"))
    mx.nd.save(str(tmp_path / "net-0000.params"), params)
    plain.save(str(tmp_path / "plain-symbol.json"))
    net = graphopt.load(tmp_path / "net-symbol.json", tmp_path / "net-0000.params")
    expected = graphopt.load(
        tmp_path / "plain-symbol.json", tmp_path / "net-0000.params", passes="none"
    )
    x = numbers(IMAGE)
    np.testing.assert_allclose(net(x).asnumpy(), expected(x).asnumpy(), rtol=1e-5, atol=1e-6)
    assert not any(op.startswith("_sg") for op in ops(net.graph()))
