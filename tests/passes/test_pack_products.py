"""pack-products: the measuring is replaced, what it decides is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.node import PRODUCT, Node
from graphopt.ir.parser import parse
from graphopt.passes.pack_products import PackProducts
from graphopt.testing import assert_equivalent, run_pass

PASS = "pack-products"


class Clock(MXNetTarget):
    """A target on which products over packed weights take as long as told, MXNet's 1 ms."""

    def __init__(self, packed_ms: float = 0.5) -> None:
        self.packed_ms = packed_ms
        self.timed: list[list[str]] = []

    def measured_once(self, parts, measure, place=()):
        return measure()

    def times_ms(self, graphs: Sequence[Graph], *, training: bool = False) -> list[float]:
        operators = [graph[graph.outputs[0].node].op for graph in graphs]
        self.timed.append(operators)
        return [self.packed_ms if op == PRODUCT else 1.0 for op in operators]


FC = "%c = FullyConnected(%x, %w, %b) {flatten=False, num_hidden=5}"


def net(body: str, x: str = "f32[2,3,4]", params: str = "param %w: ?, param %b: ?") -> Graph:
    return with_types(parse(f"graph g(%x: {x}, {params}) {{ {body} }}"))


def products(graph: Graph) -> list[Node]:
    return [node for node in graph if node.op == PRODUCT]


def test_example(example):
    before, after = example(PackProducts)
    result = run_pass(before, PASS, frozen=True)
    assert result.graph == after
    assert_equivalent(before, result.graph, seeds=(0,))


@pytest.mark.parametrize("x", ["f32[2,3,4]", "f32[6,4]"])
@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize(
    ("tail", "activation"),
    [
        ("return %c", "none"),
        ("%y = relu(%c) return %y", "relu"),
        ('%y = Activation(%c) {act_type="relu"} return %y', "relu"),
        ('%y = LeakyReLU(%c) {act_type="gelu"} return %y', "gelu"),
        ("%y = tanh(%c) return %y", "none"),
        ("%y = relu(%c) return %y, %c", "none"),
        ("%y = relu(%c) %z = elemwise_add(%y, %c) return %z", "none"),
    ],
)
def test_equivalent(tail: str, activation: str, x: str, flatten: bool) -> None:
    before = net(f"{FC.replace('False', str(flatten))} {tail}", x)
    result = run_pass(before, PASS, target=Clock(), frozen=True)
    (made,) = products(result.graph)
    assert made.attrs["activation"] == activation
    assert_equivalent(before, result.graph)


def test_without_bias() -> None:
    body = "%c = FullyConnected(%x, %w) {no_bias=True, num_hidden=5} return %c"
    before = net(body, "f32[6,4]", "param %w: ?")
    after = run_pass(before, PASS, target=Clock(), frozen=True).graph
    assert products(after)[0].attrs["no_bias"] is True
    assert_equivalent(before, after)


def test_what_is_chosen_is_told() -> None:
    clock = Clock(0.5)
    result = run_pass(net(f"{FC} return %c"), PASS, target=clock, frozen=True)
    assert [r.message for r in result.remarks] == ["over packed weights 0.5 ms, by MXNet 1 ms"]
    assert clock.timed == [[PRODUCT, "FullyConnected"]]


def test_large_products_are_also_compared_with_dot() -> None:
    clock = Clock(0.5)
    body = "%c = FullyConnected(%x, %w, %b) {num_hidden=1000} return %c"
    run_pass(net(body, "f32[1000,100]"), PASS, target=clock, frozen=True)
    assert clock.timed == [[PRODUCT, "FullyConnected", "broadcast_add"]]


def test_a_gain_too_small_is_not_taken_and_told() -> None:
    result = run_pass(net(f"{FC} return %c"), PASS, target=Clock(0.99), frozen=True)
    assert result.receipts[0].status == "unchanged"
    assert [r.message for r in result.remarks] == [
        "its weights are not packed: that takes 0.99 ms, MXNet's product 1 ms"
    ]


def test_with_an_activation_it_need_only_be_as_fast() -> None:
    body = f"{FC} %y = relu(%c) return %y"
    assert (
        run_pass(net(body), PASS, target=Clock(0.99), frozen=True).receipts[0].status == "changed"
    )
    result = run_pass(net(body), PASS, target=Clock(1.01), frozen=True)
    assert result.receipts[0].status == "unchanged"


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (net(f"{FC} return %c", params="%w: f32[5,4], param %b: ?"), "computed from data"),
        (net(f"{FC} return %c", x="f64[2,3,4]", params="param %w: f64[5,4], param %b: f64[5]"),
         "it multiplies float64"),
    ],
)  # fmt: skip
def test_refusals(graph: Graph, why: str) -> None:
    result = run_pass(graph, PASS, target=Clock(), frozen=True)
    assert result.receipts[0].status == "unchanged"
    assert [why in r.message for r in result.remarks] == [True]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"frozen": False}, "frozen parameters"),
        ({"frozen": True, "precise": True}, "precise=True"),
        ({"frozen": True, "device": "gpu"}, "on the gpu"),
    ],
)
def test_settings_that_refuse_it(settings: dict[str, object], why: str) -> None:
    result = run_pass(net(f"{FC} return %c"), PASS, target=Clock(), **settings)
    assert result.receipts[0].status == "refused"
    assert why in result.receipts[0].reason


def test_weights_that_parameters_make_are_packed_too() -> None:
    before = net(
        "%v = elemwise_mul(%w, %w) %c = FullyConnected(%x, %v, %b) {num_hidden=5} return %c",
        "f32[6,4]",
        "param %w: f32[5,4], param %b: f32[5]",
    )
    after = run_pass(before, PASS, target=Clock(), frozen=True).graph
    assert len(products(after)) == 1
    assert_equivalent(before, after)


class FewRows(Clock):
    """A target on which products take as long as told: packed, in place, MXNet's."""

    def __init__(self, packed: float, in_place: float, plain: float = 1.0) -> None:
        super().__init__()
        self.ms = packed, in_place, plain

    def times_ms(self, graphs: Sequence[Graph], *, training: bool = False) -> list[float]:
        packed, in_place, plain = self.ms
        found = []
        for graph in graphs:
            node = graph[graph.outputs[0].node]
            ours = packed if node.attrs.get("packed") else in_place
            found.append(ours if node.op == PRODUCT else plain)
        self.timed.append([graph[graph.outputs[0].node].op for graph in graphs])
        return found


@pytest.mark.parametrize(
    ("ms", "way"),
    [
        ((0.5, 0.5), "in place"),
        ((0.5, 0.54), "in place"),  # a copy has to be worth it
        ((0.5, 0.6), "packed"),
        ((1.2, 1.0), "in place"),
        ((1.5, 1.24), "in place"),
        ((1.5, 1.26), None),
        ((0.99, 1.2), None),
    ],
)
def test_weights_for_few_rows(ms: tuple[float, float], way: str | None) -> None:
    clock = FewRows(*ms)
    before = net(f"{FC} return %c", "f32[4,4]")
    result = run_pass(before, PASS, target=clock, frozen=True)
    assert clock.timed == [[PRODUCT, "FullyConnected", PRODUCT]]
    assert [bool(node.attrs.get("in_place")) for node in products(result.graph)] == (
        [way == "in place"] if way else []
    )
    assert dict(result.receipts[0].stats) == ({way: 1} if way else {})
    assert_equivalent(before, result.graph)


def test_more_rows_have_packed_weights() -> None:
    result = run_pass(net(f"{FC} return %c"), PASS, target=FewRows(0.5, 0.1), frozen=True)
    assert [node.attrs.get("in_place") for node in products(result.graph)] == [None]
