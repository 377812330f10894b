from __future__ import annotations

import numpy as np
import pytest

from graphopt.api.lifting import lift
from graphopt.backend.heads import INTERLEAVED
from graphopt.backend.infer import with_types
from graphopt.backend.symbol import to_symbol
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.ir.graph import Graph
from graphopt.ir.node import INTERLEAVED_DOT
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass

SELF = """graph g(%qkv: f32[{m},{b},{three}]) {{
  %s = _contrib_interleaved_matmul_selfatt_qk(%qkv) {{heads={h}}}
  %p = softmax(%s)
  %o = _contrib_interleaved_matmul_selfatt_valatt(%qkv, %p) {{heads={h}}}
  return %o
}}"""

CROSS = """graph g(%q: f32[{m},{b},{one}], %kv: f32[{n},{b},{two}]) {{
  %s = _contrib_interleaved_matmul_encdec_qk(%q, %kv) {{heads={h}}}
  %p = softmax(%s)
  %o = _contrib_interleaved_matmul_encdec_valatt(%kv, %p) {{heads={h}}}
  return %o
}}"""


def attention(text: str, b: int, m: int, n: int, h: int, d: int) -> Graph:
    wide = h * d
    return with_types(
        parse(text.format(b=b, m=m, n=n, h=h, one=wide, two=2 * wide, three=3 * wide))
    )


def run(graph: Graph, options: str = "", **settings: object) -> Result:
    return run_pass(graph, f"parallelize-interleaved{options}", target=MXNetTarget(), **settings)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if not node.is_input]


@pytest.mark.parametrize("text", [SELF, CROSS])
@pytest.mark.parametrize(
    "size", [(2, 5, 7, 4, 3), (3, 17, 33, 3, 16), (8, 1, 1, 1, 1), (2, 130, 65, 4, 40)]
)
def test_products_and_gradients(text: str, size: tuple[int, int, int, int, int]) -> None:
    graph = attention(text, *size)
    result = run(graph, mode="training")
    assert ops(result.graph) == [INTERLEAVED_DOT, "softmax", INTERLEAVED_DOT]
    assert result.receipts[0].stats["replaced"] == 2
    assert_equivalent(graph, result.graph, training=True)
    assert unfuse(result.graph) == graph


@pytest.mark.parametrize("text", [SELF, CROSS])
def test_read_from_a_file(text: str) -> None:
    graph = attention(text, 2, 5, 7, 4, 3)
    made = run(graph).graph
    read = with_types(lift(to_symbol(made), {n.name: n.type.shape for n in graph.inputs}))
    assert ops(read) == ops(made)
    assert_equivalent(graph, read)
    assert ops(unfuse(read)) == ops(graph)


@pytest.mark.parametrize("add", [False, True])
def test_each_gradient_alone_and_added(add: bool) -> None:
    """Parts that a product does not read have zeros for gradients, or keep what they have."""
    from graphopt.backend.invoke import invoke
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    rng = np.random.default_rng(0)
    shapes = {
        "selfatt_qk": [(5, 2, 24)],
        "selfatt_valatt": [(5, 2, 24), (4, 5, 5)],
        "encdec_qk": [(3, 2, 8), (5, 2, 16)],
        "encdec_valatt": [(5, 2, 16), (4, 3, 5)],
    }
    for kind, of in shapes.items():
        grads = []
        arrays = [rng.normal(size=shape).astype("float32") for shape in of]
        for op, attrs in (
            (INTERLEAVED_DOT, {"kind": kind, "heads": 2}),
            (f"{INTERLEAVED}{kind}", {"heads": 2}),
        ):
            inputs = [mx.nd.array(a) for a in arrays]
            for each in inputs:
                each.attach_grad("add" if add else "write")
                each.grad[:] = 7
            with mx.autograd.record():
                made = invoke(op, inputs, attrs)
                out = made[0] if isinstance(made, list) else made
            out.backward(mx.nd.array(np.cos(np.arange(out.size)).reshape(out.shape)))
            grads.append([out.asnumpy(), *(each.grad.asnumpy() for each in inputs)])
        for ours, theirs in zip(*grads, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=kind)


@pytest.mark.parametrize("zero", ["m", "n", "d"])
def test_extents_of_zero(zero: str) -> None:
    from graphopt.backend.invoke import invoke
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    m, n, d = (0 if zero == each else 3 for each in "mnd")
    with mx.util.np_shape(True):
        q, kv = mx.nd.ones((m, 2, 2 * d)), mx.nd.ones((n, 2, 4 * d))
        kv.attach_grad()
        kv.grad[:] = 3
        with mx.autograd.record():
            made = invoke(INTERLEAVED_DOT, [q, kv], {"kind": "encdec_qk", "heads": 2})
            out = made[0] if isinstance(made, list) else made
        out.backward()
        np.testing.assert_array_equal(out.asnumpy(), np.zeros((4, m, n)))
        np.testing.assert_array_equal(kv.grad.asnumpy(), np.zeros(kv.shape))


@pytest.mark.parametrize(
    ("kind", "shapes", "heads", "why"),
    [
        ("selfatt", [(5, 2, 24), (4, 5, 5)], 2, "none of its four"),
        ("selfatt_qk", [(5, 2, 25)], 2, "whole number of heads of 3 parts"),
        ("selfatt_qk", [(5, 24)], 2, "3 axes"),
        ("selfatt_qk", [(5, 2, 24)], 0, "whole number of heads"),
        ("selfatt_valatt", [(5, 2, 24), (3, 5, 5)], 2, "do not fit"),
        ("selfatt_valatt", [(5, 2, 24), (4, 5, 6)], 2, "do not fit"),
        ("encdec_qk", [(3, 2, 9), (5, 2, 16)], 2, "do not fit"),
        ("encdec_qk", [(3, 1, 8), (5, 2, 16)], 2, "do not fit"),
        ("encdec_valatt", [(5, 2, 16), (4, 3, 6)], 2, "do not fit"),
    ],
)
def test_the_operator_refuses_other_shapes(
    kind: str, shapes: list[tuple[int, ...]], heads: int, why: str
) -> None:
    from graphopt.backend.invoke import invoke
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    with pytest.raises(mx.MXNetError, match=why):
        invoke(INTERLEAVED_DOT, [mx.nd.ones(s) for s in shapes], {"kind": kind, "heads": heads})


@pytest.mark.parametrize(
    ("size", "options", "settings", "why"),
    [
        ((1, 3, 3, 4, 5), "{min_batch=8}", {}, "4 products are too few"),
        ((3, 3, 3, 4, 5), "{max_mega_macs=0}", {}, "large enough for all threads"),
        ((3, 3, 3, 4, 5), "", {"precise": True}, "another order"),
        ((3, 3, 3, 4, 5), "", {"device": "gpu"}, "CPUs only"),
    ],
)
def test_refusals(
    size: tuple[int, int, int, int, int], options: str, settings: dict[str, object], why: str
) -> None:
    graph = attention(SELF, *size)
    result = run(graph, options, **settings)
    assert result.graph.is_unchanged_from(graph)
    assert any(why in str(remark) for remark in result.remarks)
