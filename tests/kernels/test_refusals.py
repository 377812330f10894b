"""Shapes and dtypes that kernels do not take are refused, and by name."""

from __future__ import annotations

import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.parser import parse as parse_graph
from graphopt.testing import run_pass
from tests.kernels.gate_support import call, symbol_of

mx = import_mxnet()


def test_shapes_that_do_not_fit_name_the_node() -> None:
    spec = "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a,b] }"
    symbol = symbol_of(spec, ["x", "w"])
    with pytest.raises(mx.MXNetError, match="input 1 of node f has extent 5 on axis 0"):
        call(symbol, mx.nd.ones((3, 4)), mx.nd.ones((5,)))
    with pytest.raises(mx.MXNetError, match="input 0 of node f has 1 axes; its kernel was made"):
        call(symbol, mx.nd.ones((3,)), mx.nd.ones((3,)))
    with pytest.raises(mx.MXNetError, match="input 1 of node f has type code"):
        call(symbol, mx.nd.ones((3, 4)), mx.nd.ones((4,), dtype="float16"))
    assert call(symbol, mx.nd.ones((3, 4)), mx.nd.ones((4,))).shape == (3, 4)


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8", "bf16"])
def test_dtypes_kernels_do_not_compute_in_are_refused(dtype: str) -> None:
    text = f"""graph g(%x: {dtype}[8,4], %y: {dtype}[8,4]) {{
      %a = elemwise_add(%x, %y) : {dtype}[8,4]
      %b = elemwise_mul(%a, %y) : {dtype}[8,4]
      %c = elemwise_sub(%b, %x) : {dtype}[8,4]
      return %c
    }}"""
    graph = parse_graph(text)
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget())
    assert result.graph.is_unchanged_from(graph)
    missed = [str(remark) for remark in result.remarks]
    why = "left to compute in bfloat16" if dtype == "bf16" else "is not fused"
    assert any(why in remark for remark in missed), missed
