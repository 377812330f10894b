"""replace-numpy: operators of mx.np and mx.npx become those of mx.nd that compute the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import graphopt
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.frontend.gluon import lift_block
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.passes.classic import pointwise, shapes, sums
from graphopt.testing import assert_equivalent, assert_ir, run_pass

PASS = "replace-numpy"
INPUTS = "%a: f32[2,3,4], %b: f32[2,3,4], %row: f32[4], %m: f32[4,5], %s: f32[2,4,3]"
DEEP = "%a: f32[2,3,4,5], %b: f32[2,3,5,6]"


def typed(body: str, inputs: str = INPUTS) -> Graph:
    text = f"graph g({inputs}) {{\n{body}\nreturn %r\n}}"
    return run_pass(parse(text), "infer-types", target=MXNetTarget()).graph


def ops(graph: Graph) -> list[str]:
    return [f"{n.op}{n.attrs.text if n.attrs else ''}" for n in graph if not n.is_input]


def test_golden() -> None:
    result = run_pass(
        """
        graph g(%x: f32[8,16], %w: f32[16]) {
          %1 = _npi_multiply(%x, %w) : f32[8,16]
          %2 = _npx_relu(%1) : f32[8,16]
          %y = _npx_reshape(%2) {newshape=(-2, -6, 4, -1)} : f32[8,4,4]
          return %y
        }
        """,
        PASS,
    )
    assert_ir(
        result.graph,
        """
        graph g(%x: f32[8,16], %w: f32[16]) {
          %"1" = broadcast_mul(%x, %w) : f32[8,16]
          %"2" = relu(%"1") : f32[8,16]
          %y = Reshape(%"2") {shape=(0, -4, 4, -1)} : f32[8,4,4]
          return %y
        }
        """.replace('%"1"', "%1").replace('%"2"', "%2"),
    )
    assert result.receipts[0].stats == {"pointwise": 2, "shape": 1}


CASES = {
    "relu": ("%r = _npx_relu(%a)", ["relu"]),
    "sigmoid": ("%r = _npx_sigmoid(%a)", ["sigmoid"]),
    "copy": ("%x = _npi_tanh(%a)\n%r = _np_copy(%x)", ["tanh", "_copy"]),
    "add": ("%r = _npi_add(%a, %b)", ["broadcast_add"]),
    "subtract a row": ("%r = _npi_subtract(%a, %row)", ["broadcast_sub"]),
    "subtract from a row": ("%r = _npi_subtract(%row, %a)", ["broadcast_sub"]),
    "divide": ("%r = _npi_true_divide(%a, %row)", ["broadcast_div"]),
    "negative factor": (
        "%r = _npi_multiply_scalar(%a) {scalar=-1.0, is_int=False}",
        ["_mul_scalar{scalar=-1.0}"],
    ),
    "whole number": (
        "%r = _npi_rsubtract_scalar(%a) {scalar=1.0, is_int=True}",
        ["_rminus_scalar{scalar=1.0}"],
    ),
    "square": ("%r = _npi_power_scalar(%a) {scalar=2.0}", ["_power_scalar{scalar=2.0}"]),
    "ones": ("%r = _npi_full_like(%a) {fill_value=1.0}", ["ones_like"]),
    "zeros": ("%r = _npi_full_like(%a) {fill_value=0}", ["zeros_like"]),
    "reshape": ("%r = _np_reshape(%a) {newshape=(2, -1)}", ["Reshape{shape=(2, -1)}"]),
    "joined axes": (
        "%r = _npx_reshape(%a) {newshape=(-2, -5)}",
        ["Reshape{shape=(0, -3)}"],
    ),
    "heads": (
        "%r = _npx_reshape(%a) {newshape=(-2, -2, -6, 2, -1)}",
        ["Reshape{shape=(0, 0, -4, 2, -1)}"],
    ),
    "from the right": (
        "%r = _npx_reshape(%a) {newshape=(-1, -5), reverse=True}",
        ["Reshape{shape=(0, 12)}"],
    ),
    "left out": (
        "%x = expand_dims(%a) {axis=1}\n%r = _npx_reshape(%x) {newshape=(-2, -3, -4)}",
        ["expand_dims{axis=1}", "Reshape{shape=(0, 3, 4)}"],
    ),
    "transpose": ("%r = _np_transpose(%a)", ["transpose{axes=(2, 1, 0)}"]),
    "transpose from the right": (
        "%r = _np_transpose(%a) {axes=(0, -1, 1)}",
        ["transpose{axes=(0, 2, 1)}"],
    ),
    "moveaxis": (
        "%r = _np_moveaxis(%a) {source=0, destination=-1}",
        ["transpose{axes=(1, 2, 0)}"],
    ),
    "moveaxis of two": (
        "%r = _np_moveaxis(%a) {source=(0, 1), destination=(-1, 0)}",
        ["transpose{axes=(1, 2, 0)}"],
    ),
    "squeeze": (
        "%x = expand_dims(%a) {axis=1}\n%r = _np_squeeze(%x) {axis=1}",
        ["expand_dims{axis=1}", "squeeze{axis=(1,)}"],
    ),
    "squeeze all": (
        "%x = expand_dims(%a) {axis=1}\n%r = _np_squeeze(%x)",
        ["expand_dims{axis=1}", "squeeze"],
    ),
    "squeeze nothing": (
        "%x = expand_dims(%a) {axis=1}\n%r = _np_squeeze(%x) {axis=()}",
        ["expand_dims{axis=1}", "squeeze{axis=()}"],
    ),
    "concatenate": (
        "%r = _npi_concatenate(%a, %b) {axis=-1, num_args=2}",
        ["Concat{dim=2, num_args=2}"],
    ),
    "stack": (
        "%r = _npi_stack(%a, %b) {axis=-1, num_args=2}",
        ["stack{axis=3, num_args=2}"],
    ),
    "broadcast": (
        "%x = expand_dims(%row) {axis=0}\n%r = _npi_broadcast_to(%x) {shape=(3, 4)}",
        ["expand_dims{axis=0}", "broadcast_to{shape=(3, 4)}"],
    ),
    "sum": ("%r = _np_sum(%a) {axis=1}", ["sum{axis=(1,), keepdims=False}"]),
    "mean": (
        "%r = _npi_mean(%a) {axis=(0, -1), keepdims=True}",
        ["mean{axis=(0, -1), keepdims=True}"],
    ),
    "max": ("%r = _np_max(%a) {axis=-1}", ["max{axis=(-1,), keepdims=False}"]),
    "prod": ("%r = _np_prod(%a) {axis=0}", ["prod{axis=(0,), keepdims=False}"]),
    "dot": ("%r = _np_dot(%a, %m)", ["dot"]),
    "matmul with a matrix": ("%r = _npi_matmul(%a, %m)", ["dot"]),
    "matmul of stacks": ("%r = _npi_matmul(%a, %s)", ["batch_dot"]),
    "chosen": (
        "%c = _npi_greater(%a, %b)\n%r = _npi_where(%c, %a, %b)",
        ["broadcast_greater", "where"],
    ),
    "chosen by a number": (
        "%c = _npi_less_scalar(%a) {scalar=0.0}\n%r = _npi_where(%c, %a, %b)",
        ["_lesser_scalar{scalar=0.0}", "where"],
    ),
    "masked": (
        "%c = _npi_greater_equal(%a, %row)\n%r = _npi_multiply(%c, %b)",
        ["broadcast_greater_equal", "broadcast_mul"],
    ),
    "cast": (
        '%c = _npi_not_equal(%a, %b)\n%r = Cast(%c) {dtype="float32"}',
        ["broadcast_not_equal"],
    ),
    "cast to another": (
        '%c = _npi_equal(%a, %b)\n%r = Cast(%c) {dtype="float64"}',
        ["broadcast_equal", 'Cast{dtype="float64"}'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_replaced(name: str) -> None:
    body, left = CASES[name]
    before = typed(body)
    after = run_pass(before, PASS).graph
    assert ops(after) == left
    assert_equivalent(before, after, training=True)


STACKS = {
    "hstack of vectors": (
        "%x = _npi_tanh(%row)\n%r = _npi_hstack(%x, %row) {num_args=2}",
        ["tanh", "Concat{dim=0, num_args=2}"],
    ),
    "hstack": ("%r = _npi_hstack(%a, %b) {num_args=2}", ["Concat{dim=1, num_args=2}"]),
    "dstack of vectors": (
        "%r = _npi_dstack(%row, %row) {num_args=2}",
        ["Reshape{shape=(1, -1, 1)}", "Reshape{shape=(1, -1, 1)}", "Concat{dim=2, num_args=2}"],
    ),
    "dstack of matrices": (
        "%r = _npi_dstack(%m, %m) {num_args=2}",
        ["Reshape{shape=(0, 0, 1)}", "Reshape{shape=(0, 0, 1)}", "Concat{dim=2, num_args=2}"],
    ),
    "dstack": ("%r = _npi_dstack(%a, %b) {num_args=2}", ["Concat{dim=2, num_args=2}"]),
    "laid flat": (
        "%r = _npi_concatenate(%row, %m) {axis=None, num_args=2}",
        ["Reshape{shape=(-1,)}", "Concat{dim=0, num_args=2}"],
    ),
    "columns": (
        "%r = _npi_column_stack(%row, %m) {num_args=2}",
        ["Reshape{shape=(-1, 1)}", "Concat{dim=1, num_args=2}"],
    ),
}


#: Joins of arrays that mx.nd lacks.
BESIDE_NONE = {
    "laid flat": (
        "%r = _npi_concatenate(%n, %a) {axis=None, num_args=2} : f32[25]",
        ["_npx_reshape{newshape=(-1,)}", "Reshape{shape=(-1,)}", "Concat{dim=0, num_args=2}"],
    ),
    "hstack": (
        "%r = _npi_hstack(%n, %row) {num_args=2} : f32[5]",
        ["_npx_reshape{newshape=(1,)}", "Concat{dim=0, num_args=2}"],
    ),
    "dstack": (
        "%r = _npi_dstack(%e, %e) {num_args=2} : f32[0,2,2]",
        [
            "_npx_reshape{newshape=(-2, -2, 1)}",
            "_npx_reshape{newshape=(-2, -2, 1)}",
            "_npi_concatenate{axis=2, num_args=2}",
        ],
    ),
}


@pytest.mark.parametrize("name", BESIDE_NONE)
def test_joins_reshape_nothing(name: str) -> None:
    body, left = BESIDE_NONE[name]
    text = f"graph g({INPUTS}, %n: f32[], %e: f32[0,2]) {{\n{body}\nreturn %r\n}}"
    assert ops(run_pass(text, PASS).graph) == left


@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_joins(name: str) -> None:
    """Which MXNet's executor cannot run as they were; what they compute is looked at below."""
    body, left = STACKS[name]
    assert ops(run_pass(typed(body), PASS).graph) == left


def test_matmul_of_deeper_stacks() -> None:
    before = typed("%r = _npi_matmul(%a, %b)", DEEP)
    after = run_pass(before, PASS).graph
    assert [op.split("{")[0] for op in ops(after)] == ["Reshape", "Reshape", "batch_dot", "Reshape"]
    assert_equivalent(before, after, training=True)


STAYS = {
    "no axes": ("%r = _np_sum(%a)", INPUTS),
    "promoted": ("%r = _npi_add(%a, %i)", "%a: f32[2,3], %i: i32[2,3]"),
    "whole numbers": ("%r = _npi_true_divide(%a, %i)", "%a: i32[2,3], %i: i32[2,3]"),
    "another dtype": ('%r = _np_sum(%a) {axis=1, dtype="float64"}', INPUTS),
    "a start": ("%r = _np_sum(%a) {axis=1, initial=2.0}", INPUTS),
    "no stack": ("%r = _npi_matmul(%a, %row)", INPUTS),
    "of unequal length": ("%r = _npi_matmul(%a, %b)", "%a: f32[1,3,4], %b: f32[2,4,5]"),
    "new axes": ("%r = _npi_broadcast_to(%row) {shape=(3, 4)}", INPUTS),
    "returned as a boolean": ("%r = _npi_greater(%a, %b)", INPUTS),
    "chosen by whole numbers": (
        "%c = _npi_greater(%i, %j)\n%r = _npi_where(%c, %a, %a)",
        "%a: f32[2,3], %i: i32[2,3], %j: i32[2,3]",
    ),
    "any other number": ("%r = _npi_full_like(%a) {fill_value=3.0}", INPUTS),
    "of unknown length": ("%r = _npx_relu(%a)", "%a: f32[?,3]"),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    before = typed(*STAYS[name])
    result = run_pass(before, PASS)
    assert result.receipts[0].status == "unchanged"


def test_moves_of_whole_numbers_are_replaced() -> None:
    before = typed("%r = _np_transpose(%i) {axes=(1, 0)}", "%i: i32[2,3]")
    assert ops(run_pass(before, PASS).graph) == ["transpose{axes=(1, 0)}"]


def test_a_boolean_that_something_else_reads_stays_beside_the_number() -> None:
    before = typed(
        "%c = _npi_greater(%a, %b)\n%n = _npi_logical_not(%c)\n"
        "%w = _npi_where(%c, %a, %b)\n%r = _npi_where(%n, %w, %b)"
    )
    after = run_pass(before, PASS).graph
    assert sorted(op.split("{")[0] for op in ops(after)) == [
        "_npi_greater",
        "_npi_logical_not",
        "_npi_where",
        "broadcast_greater",
        "where",
    ]
    assert_equivalent(before, after, training=True)


def test_every_name_is_an_operator() -> None:
    mx = import_mxnet()
    known = set(mx.operator.get_all_registered_operators())
    tables = (
        pointwise._UNARY,
        pointwise._BINARY,
        pointwise._SCALAR,
        pointwise._COMPARISONS,
        sums._REDUCTIONS,
    )
    named = {name for table in tables for pair in table.items() for name in pair}
    named |= {op for rule in (*pointwise.RULES, *shapes.RULES, *sums.RULES) for op in rule.ops}
    assert not named - known


# -- nets written with mx.np ---------------------------------------------------------------------


@pytest.fixture
def numpy_interface() -> Iterator[None]:
    mx = import_mxnet()
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def residual():
    mx = import_mxnet()
    nn, is_np = mx.gluon.nn, mx.util.is_np_array()

    class Residual(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__(prefix="residual_")
            with self.name_scope():
                self.first, self.second = nn.Conv2D(8, 3, padding=1), nn.Conv2D(8, 3, padding=1)
                self.norm, self.other = nn.BatchNorm(), nn.BatchNorm()

        def hybrid_forward(self, F, x):
            relu = F.npx.relu if is_np else F.relu
            inner = relu(self.norm(self.first(x * 0.5)))
            return relu(self.other(self.second(inner)) + x)

    net = nn.HybridSequential(prefix="net_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, padding=1), Residual(), nn.GlobalAvgPool2D(), nn.Dense(4))
    net.initialize(mx.init.Xavier(rnd_type="gaussian"))
    return net


def attention():
    mx = import_mxnet()
    nn, is_np = mx.gluon.nn, mx.util.is_np_array()

    class Attention(nn.HybridBlock):
        def __init__(self) -> None:
            super().__init__(prefix="attention_")
            with self.name_scope():
                self.q, self.k, self.v = (nn.Dense(16, flatten=False) for _ in range(3))
                self.norm = nn.LayerNorm()

        def heads(self, F, x):
            if is_np:
                x = F.np.transpose(F.npx.reshape(x, (-2, -2, 4, -1)), (0, 2, 1, 3))
                return F.npx.reshape(x, (-5, -4))
            return F.reshape(F.transpose(F.reshape(x, (0, 0, 4, -1)), (0, 2, 1, 3)), (-3, -2))

        def hybrid_forward(self, F, x):
            q, k, v = self.heads(F, self.q(x)), self.heads(F, self.k(x)), self.heads(F, self.v(x))
            ext = F.npx if is_np else F
            weights = ext.softmax(ext.batch_dot(q, k, transpose_b=True) / 2.0)
            y = ext.batch_dot(weights, v)
            if is_np:
                y = F.np.transpose(F.npx.reshape(y, (-6, -1, 4, -4)), (0, 2, 1, 3))
                y = F.npx.reshape(y, (-2, -2, -5))
            else:
                y = F.transpose(F.reshape(y, (-4, -1, 4, -2)), (0, 2, 1, 3))
                y = F.reshape(y, (0, 0, -3))
            return self.norm(x + y)

    net = Attention()
    net.initialize()
    return net


NETS = {"residual": (residual, (2, 3, 16, 16)), "attention": (attention, (2, 5, 16))}


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("name", NETS)
def test_both_interfaces_give_one_graph(name: str, mode: str) -> None:
    mx = import_mxnet()
    build, shape = NETS[name]
    printed = []
    for is_np in (False, True):
        if is_np:
            mx.npx.set_np()
        try:
            net = build()
            net(mx.np.zeros(shape) if is_np else mx.nd.zeros(shape))
            graph = lift_block(net, {"data": shape}, {"data": "float32"})
        finally:
            mx.npx.reset_np()
        result = run_pass(graph, mode, mode=mode, target=MXNetTarget())
        printed.append([node.op for node in result.graph.topological()])
    assert printed[0] == printed[1]


@pytest.mark.parametrize("name", NETS)
def test_optimized_nets_of_the_numpy_interface(name: str, numpy_interface: None) -> None:
    mx = import_mxnet()
    build, shape = NETS[name]
    net, x = build(), mx.np.random.uniform(size=shape)
    wanted = net(x)
    for mode in ("inference", "auto"):
        found = graphopt.optimize(net, mode=mode)(x)
        assert isinstance(found, mx.np.ndarray)
        np.testing.assert_allclose(found.asnumpy(), wanted.asnumpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 0, 4)])
@pytest.mark.parametrize("op", ["hstack", "dstack", "column_stack", "vstack"])
def test_stacks_of_what_is_computed(op: str, shape: tuple[int, ...], numpy_interface: None) -> None:
    """Also of arrays that mx.nd does not have, for which the operator stays."""
    mx = import_mxnet()

    class Stack(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return getattr(F.np, op)([x * 2, y]) + 1

    x, y = mx.np.random.uniform(size=shape), mx.np.random.uniform(size=shape)
    wanted = getattr(np, op)([x.asnumpy() * 2, y.asnumpy()]) + 1
    for mode in ("inference", "auto"):
        found = graphopt.optimize(Stack(), mode=mode)(x, y).asnumpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert found.shape == wanted.shape


def test_gradients_of_the_numpy_interface(numpy_interface: None) -> None:
    mx = import_mxnet()
    net, x = attention(), mx.np.random.uniform(size=(2, 5, 16))
    found = {}
    for name, call in (("plain", net), ("ours", graphopt.optimize(net))):
        with mx.autograd.record():
            loss = (call(x) ** 2).mean()
        loss.backward()
        found[name] = {k: p.grad().asnumpy() for k, p in net.collect_params().items()}
    for key, wanted in found["plain"].items():
        np.testing.assert_allclose(found["ours"][key], wanted, rtol=1e-3, atol=1e-5)
