from __future__ import annotations

import itertools

import numpy as np
import pytest

import graphopt
from graphopt.api.lifting import lift
from graphopt.backend.infer import with_types
from graphopt.backend.symbol import to_symbol
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import ATTENTION
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass
from tests.tiers import one_of

mx = import_mxnet()
TARGET = MXNetTarget()
PASSES = (
    "parallelize-batch-dot{min_batch=1},parallelize-interleaved{min_batch=1},"
    "fuse-reduction,fuse-pointwise"
)

SELF = """graph g(%qkv: f32[{m},{b},{w3}]{more}) {{
  %s = _contrib_interleaved_matmul_selfatt_qk(%qkv) {{heads={h}}}
  {middle}
  %o = _contrib_interleaved_matmul_selfatt_valatt(%qkv, %p) {{heads={h}}}
  return %o
}}"""
CROSS = """graph g(%q: f32[{m},{b},{w}], %kv: f32[{n},{b},{w2}]{more}) {{
  %s = _contrib_interleaved_matmul_encdec_qk(%q, %kv) {{heads={h}}}
  {middle}
  %o = _contrib_interleaved_matmul_encdec_valatt(%kv, %p) {{heads={h}}}
  return %o
}}"""
STACKS = """graph g(%q: f32[{p},{m},{d}], %k: f32[{p},{n},{d}], %v: f32[{p},{n},{e}]{more}) {{
  %s = batch_dot(%q, %k) {{transpose_b=True}}
  {middle}
  %o = batch_dot(%p, %v)
  return %o
}}"""
HEADS = """graph g(%q: f32[{b},{m},{w}], %k: f32[{b},{n},{w}], %v: f32[{b},{n},{he}]{more}) {{
  %q4 = Reshape(%q) {{shape=(0, 0, {h}, -1)}} %qt = transpose(%q4) {{axes=(0, 2, 1, 3)}}
  %q3 = Reshape(%qt) {{shape=(-3, 0, 0)}}
  %k4 = Reshape(%k) {{shape=(0, 0, {h}, -1)}} %kt = transpose(%k4) {{axes=(0, 2, 1, 3)}}
  %k3 = Reshape(%kt) {{shape=(-3, 0, 0)}}
  %v4 = Reshape(%v) {{shape=(0, 0, {h}, -1)}} %vt = transpose(%v4) {{axes=(0, 2, 1, 3)}}
  %v3 = Reshape(%vt) {{shape=(-3, 0, 0)}}
  %s = batch_dot(%q3, %k3) {{transpose_b=True}}
  {middle}
  %x3 = batch_dot(%p, %v3)
  %x4 = Reshape(%x3) {{shape=(-4, -1, {h}, 0, 0)}} %xt = transpose(%x4) {{axes=(0, 2, 1, 3)}}
  %o = Reshape(%xt) {{shape=(0, 0, -3)}}
  return %o
}}"""
FORMS = {"self": SELF, "cross": CROSS, "stacks": STACKS, "heads": HEADS}

#: (batch, rows, keys, heads, columns, columns of values); self-attention has as many keys as rows.
SIZES = [
    (2, 5, 7, 4, 3, 3),
    (3, 17, 33, 3, 16, 40),
    (4, 1, 9, 2, 8, 4),
    (1, 4, 1, 3, 5, 2),
    (2, 300, 140, 2, 40, 24),  # several blocks of rows
    (1, 19, 4100, 2, 3, 5),  # the fewest rows in a block
]


def attention(
    form: str,
    b: int,
    m: int,
    n: int,
    h: int,
    d: int,
    e: int,
    middle: str = "%p = softmax(%s)",
    more: str = "",
) -> Graph:
    """Attention whose scores become weights in the ``middle``, which may read ``more`` inputs."""
    sizes = {"b": b, "m": m, "n": n, "h": h, "d": d, "e": e, "p": b * h, "w": h * d, "he": h * e}
    if form == "self":
        sizes["n"] = m
    sizes |= {"w2": 2 * h * d, "w3": 3 * h * d}
    text = FORMS[form].format(middle=middle.format(**sizes), more=more.format(**sizes), **sizes)
    return with_types(parse(text))


def apart(graph: Graph, **settings: object) -> Graph:
    """As it is in front of the pass."""
    return run_pass(graph, PASSES, target=TARGET, **settings).graph


def fuse(graph: Graph, **settings: object) -> Result:
    return run_pass(apart(graph, **settings), "fuse-attention", target=TARGET, **settings)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if not node.is_input]


@pytest.mark.parametrize(("size", "form"), one_of(3, itertools.product(SIZES, FORMS)))
def test_values_and_gradients(form: str, size: tuple[int, int, int, int, int, int]) -> None:
    graph = attention(form, *size)
    result = fuse(graph, mode="training")
    assert ops(result.graph).count(ATTENTION) == 1
    assert set(ops(result.graph)) <= {ATTENTION, "Reshape"}
    assert result.receipts[0].stats["attentions"] == 1
    assert_equivalent(graph, result.graph, training=True)
    plain = unfuse(result.graph)
    assert ATTENTION not in ops(plain)
    assert_equivalent(graph, plain, training=True)


#: What may lie between the products, and the inputs it has.
MIDDLES = {
    "scale": ("%t = _mul_scalar(%s) {{scalar=0.3}} %p = softmax(%t)", ""),
    "temperature": ("%p = softmax(%s) {{temperature=2.0}}", ""),
    "integers": (
        "%c = _not_equal_scalar(%i) {{scalar=0}} %z = zeros_like(%s) %f = _minus_scalar(%z)"
        " {{scalar=1e9}} %t = where(%j, %s, %f) %p = softmax(%t)",
        ", %i: i32[{p},1,{n}], %j: i32[{p},{m},{n}]",
    ),
    "log": ("%t = log_softmax(%s) %p = exp(%t)", ""),
    "tail": ("%t = softmax(%s) %u = square(%t) %p = _mul_scalar(%u) {{scalar=1.5}}", ""),
    "split": (
        "%r = Reshape(%s) {{shape=(-4, {b}, {h}, 0, 0)}} %t = softmax(%r)"
        " %p = Reshape(%t) {{shape=(-3, 0, 0)}}",
        "",
    ),
}


@pytest.mark.parametrize(("middle", "form"), one_of(3, itertools.product(MIDDLES, FORMS)))
def test_kernels_between(form: str, middle: str) -> None:
    text, more = MIDDLES[middle]
    graph = attention(form, 2, 21, 13, 3, 8, 8, text, more)
    result = fuse(graph, mode="training")
    assert ops(result.graph).count(ATTENTION) == 1
    assert_equivalent(graph, result.graph, training=True)
    assert_equivalent(graph, unfuse(result.graph), training=True)


#: Masks and biases that are added to scores, which may learn.
BIASES = ["{p},1,{n}", "{p},{m},1", "1,{m},{n}", "{p},{m},{n}", "1,1,{n}", "{p},1,1", "1,1,1"]


@pytest.mark.parametrize(("shape", "size"), one_of(5, itertools.product(BIASES, SIZES)))
def test_a_bias_that_learns(shape: str, size: tuple[int, int, int, int, int, int]) -> None:
    middle = "%t = broadcast_add(%s, %bias) %p = softmax(%t)"
    graph = attention("heads", *size, middle, f", %bias: f32[{shape}]")
    result = fuse(graph, mode="training")
    assert ops(result.graph).count(ATTENTION) == 1
    assert_equivalent(graph, result.graph, training=True)
    assert_equivalent(graph, unfuse(result.graph), training=True)


@pytest.mark.parametrize("shape", [(1, 6, 9), (12, 6, 9), (12, 1, 9), (12, 6, 1), (1, 6, 1)])
@pytest.mark.parametrize("how", ["write", "add", "null"])
def test_gradients_of_a_bias_as_they_are_asked_for(shape: tuple[int, ...], how: str) -> None:
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, q, kv, bias):
            scores = F.broadcast_add(F.contrib.interleaved_matmul_encdec_qk(q, kv, heads=4), bias)
            return F.contrib.interleaved_matmul_encdec_valatt(kv, F.softmax(scores), heads=4)

    found = []
    for net in (Net(), graphopt.optimize(Net(), strict=True)):
        rng = np.random.default_rng(0)
        shapes = ((6, 3, 16), (9, 3, 32), shape)
        q, kv, bias = arrays = [mx.nd.array(rng.normal(size=s)) for s in shapes]
        for array in (q, kv, *([bias] if how != "null" else [])):
            array.attach_grad(how if array is bias else "write")
        for _ in range(2):
            with mx.autograd.record():
                out = net(*arrays)
            out.backward(mx.nd.array(rng.normal(size=out.shape)))
        found.append([out, *(a.grad for a in arrays if a.grad is not None)])
    assert len(found[0]) == (3 if how == "null" else 4)
    for ours, plain in zip(*found[::-1], strict=True):
        np.testing.assert_allclose(ours.asnumpy(), plain.asnumpy(), rtol=1e-4, atol=1e-5)


def test_a_mask_that_is_a_constant_of_the_net() -> None:
    """As decoders have them; its gradient is not asked for, and not computed."""

    class Net(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            causal = np.triu(np.full((7, 7), -1e9, "float32"), 1)[None]
            self.mask = self.params.get_constant("mask", mx.nd.array(causal))

        def hybrid_forward(self, F, x, mask):
            scores = F.broadcast_add(F.contrib.interleaved_matmul_selfatt_qk(x, heads=4), mask)
            return F.contrib.interleaved_matmul_selfatt_valatt(x, F.softmax(scores), heads=4)

    found = []
    for optimized in (False, True):
        net = Net()
        net.initialize()
        net = graphopt.optimize(net, strict=True) if optimized else net
        x = mx.nd.array(np.random.default_rng(0).normal(size=(7, 3, 24)))
        x.attach_grad()
        with mx.autograd.record():
            out = net(x)
        out.backward()
        found.append((out.asnumpy(), x.grad.asnumpy()))
    assert ATTENTION in ops(net.graph("training"))
    for plain, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


DROPPED = "%t = softmax(%s) %p = graphopt_dropout(%t, %seed) {{p=0.3, salt=5}}"


@pytest.mark.parametrize(
    ("size", "training", "form"), one_of(5, itertools.product(SIZES, [False, True], FORMS))
)
def test_dropout_has_the_masks_it_has_by_itself(
    form: str, size: tuple[int, int, int, int, int, int], training: bool
) -> None:
    graph = attention(form, *size, DROPPED, ", %seed: i32[2]")
    before = apart(graph, mode="training")
    result = run_pass(before, "fuse-attention", target=TARGET, mode="training")
    assert ops(result.graph).count(ATTENTION) == 1
    rng = np.random.default_rng(0)
    feeds = {node.name: rng.normal(size=node.type.shape).astype("float32") for node in graph.inputs}
    feeds["seed"] = np.array([123456789, 2**31 - 5], "int32")
    expected, found = (
        TARGET.evaluate(each, feeds, training=training, gradients=training)
        for each in (before, result.graph)
    )
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)
    if training:
        dry = TARGET.evaluate(result.graph, feeds)["output0"]
        assert np.abs(dry - found["output0"]).max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_read_from_a_file(form: str) -> None:
    graph = attention(form, 2, 5, 7, 4, 3, 3)
    made = fuse(graph).graph
    read = with_types(lift(to_symbol(made), {n.name: n.type.shape for n in graph.inputs}))
    assert ops(read) == ops(made)
    assert_equivalent(made, read)


@pytest.mark.parametrize("add", [False, True])
def test_each_gradient_alone_and_added(add: bool) -> None:
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, q, kv):
            scores = F.contrib.interleaved_matmul_encdec_qk(q, kv, heads=4)
            return F.contrib.interleaved_matmul_encdec_valatt(kv, F.softmax(scores), heads=4)

    found = []
    for net in (Net(), graphopt.optimize(Net(), strict=True)):
        rng = np.random.default_rng(0)
        q, kv = (mx.nd.array(rng.normal(size=s)) for s in ((6, 3, 16), (9, 3, 32)))
        kv.attach_grad("add" if add else "write")
        if (
            not found
        ):  # MXNet leaves half of the other's gradient as memory was where it is not asked
            q.attach_grad()
        for _ in range(2):
            with mx.autograd.record():
                out = net(q, kv)
            out.backward()
        found.append((out.asnumpy(), kv.grad.asnumpy()))
    for ours, plain in zip(*found[::-1], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


def test_weights_that_others_read_are_written() -> None:
    graph = with_types(
        parse(str(attention("heads", 2, 5, 7, 4, 3, 3)).replace("return %o", "return %o, %p"))
    )
    result = fuse(graph)
    assert result.receipts[0].status == "unchanged"


def test_an_array_with_a_part_that_is_not_read() -> None:
    text = SELF.replace("valatt(%qkv,", "valatt(%other,").replace(
        "{more}", ", %other: f32[{m},{b},{w3}]"
    )
    graph = with_types(parse(text.format(b=2, m=5, h=4, w3=36, middle="%p = softmax(%s)")))
    result = fuse(graph)
    assert result.receipts[0].status == "unchanged"
    assert any("parts that attention does not read" in str(remark) for remark in result.remarks)


def test_kernels_that_do_not_read_rows_of_scores_stay() -> None:
    graph = attention("heads", 2, 5, 7, 4, 3, 3, "%p = sigmoid(%s)")
    result = fuse(graph)
    assert ATTENTION not in ops(result.graph)
    assert any("does not read rows of scores" in str(remark) for remark in result.remarks)
    columns = attention("heads", 2, 7, 7, 4, 3, 3, "%p = softmax(%s) {{axis=1}}")
    assert ATTENTION not in ops(fuse(columns).graph)


@pytest.mark.parametrize("stop", ["BlockGrad", "make_loss"])
def test_gradients_stop_where_they_did(stop: str) -> None:
    middle = DROPPED.replace("%p =", "%d =") + f" %p = {stop}(%d)"
    graph = attention("stacks", 2, 5, 7, 4, 3, 3, middle, ", %seed: i32[2]")
    result = run_pass(apart(graph, mode="training"), "fuse-attention", mode="training")
    assert ATTENTION not in ops(result.graph)


SPEC = "f32[a,b|c] (f32[a,b,c]) { %1 = softmax %0; return %1:f32[a,b,c] }"


@pytest.mark.parametrize(
    ("attrs", "shapes", "why"),
    [
        ({}, [(5, 2, 24)], "where its queries lie"),
        ({"queries": (0, 3, 2, 3, 0)}, [(5, 2, 24)], "impossible numbers"),
        ({"queries": (0, 2, 2, 3, 3)}, [(5, 2, 24)], "impossible numbers"),
        ({"queries": (0, 2, 2, 3, 0)}, [(5, 2, 25)], "cannot have its queries"),
        ({"queries": (0, 2, 2, 3, 0)}, [(5, 24)], "cannot have its queries"),
        ({"queries": (0, 2, 2, 3, 0), "scores": 1}, [(5, 2, 24)], "whole rows of scores"),
        ({"queries": (0, 2, 2, 3, 0), "heads": 3}, [(5, 2, 24)], "no whole number of heads"),
        ({"queries": (1, 2, 2, 1, 0)}, [(5, 2, 24), (5, 3, 8)], "do not fit each other"),
        ({"queries": (1, 2, 2, 1, 0)}, [(5, 2, 24), (5, 2, 6)], "do not fit each other"),
    ],
)
def test_the_operator_refuses(
    attrs: dict[str, object], shapes: list[tuple[int, ...]], why: str
) -> None:
    from graphopt.backend.invoke import invoke

    given = {
        "spec": SPEC,
        "scores": 0,
        "keys": (0, 2, 2, 3, 1),
        "values": (0, 2, 2, 3, 2),
        "mixed": (2, 2, 1, 0),
        "scaled": True,
        "heads": 0,
    } | attrs
    with pytest.raises(mx.MXNetError, match=why):
        invoke(ATTENTION, [mx.nd.ones(s) for s in shapes], given)


@pytest.mark.parametrize("zero", ["b", "m", "n", "d"])
def test_extents_of_zero(zero: str) -> None:
    from graphopt.backend.invoke import invoke

    b, m, n, d = (0 if zero == each else 3 for each in "bmnd")
    attrs = {
        "spec": SPEC,
        "scores": 0,
        "queries": (0, 0, 1, 1, 0),
        "keys": (1, 0, 1, 1, 0),
        "values": (2, 0, 1, 1, 0),
        "mixed": (0, 1, 1, 0),
        "scaled": False,
        "heads": 0,
    }
    with mx.util.np_shape(True):
        arrays = [mx.nd.ones(shape) for shape in ((b, m, d), (b, n, d), (b, n, 2))]
        for array in arrays:
            array.attach_grad()
            array.grad[:] = 3
        with mx.autograd.record():
            made = invoke(ATTENTION, arrays, attrs)
            out = made[0] if isinstance(made, list) else made
        out.backward()
        # Without columns all scores are equal: the mean of all values.
        mean = 1.0 if zero == "d" else 0.0
        np.testing.assert_allclose(out.asnumpy(), np.full((b, m, 2), mean), rtol=1e-6)
        for array, slope in zip(arrays, (0, 0, mean), strict=True):
            expected = np.full(array.shape, slope)
            np.testing.assert_allclose(array.grad.asnumpy(), expected, rtol=1e-6)
