"""select-convolution: the measuring is replaced, what it decides is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.kernels.convolutions.marked import MARK
from graphopt.kernels.convolutions.single import Layer
from graphopt.passes.select_convolution import SelectConvolution
from graphopt.testing import assert_equivalent, run_pass


class Clock(MXNetTarget):
    """A target on which MXNet takes 1 ms for everything, and Winograd's algorithm what is told."""

    def __init__(self, forward: float = 0.5, data: float = 0.5, weight: float = 0.5) -> None:
        self.told = {"forward": forward, "data": data, "weight": weight}
        self.timed: list[Layer] = []

    def block_lanes(self) -> int:
        return 16

    def measured_once(self, parts, measure):
        return measure()

    def direction_times_ms(self, layer: Layer) -> Mapping[str, tuple[float, float]]:
        self.timed.append(layer)
        return {direction: (1.0, took) for direction, took in self.told.items()}


def net(attrs: str = "pad=(1, 1)", x: str = "f32[2,32,8,8]", filters: int = 32) -> Graph:
    options = f"{{kernel=(3, 3), no_bias=True, num_filter={filters}, {attrs}}}"
    return with_types(
        parse(f"graph g(%x: {x}, param %w: ?) {{ %c = Convolution(%x, %w) {options} return %c }}")
    )


def marks(graph: Graph) -> list[object]:
    return [node.attrs[MARK] for node in graph if MARK in node.attrs]


def test_example(example):
    before, after = example(SelectConvolution)
    result = run_pass(before, "select-convolution", target=Clock(), mode="training")
    assert result.graph == after
    (remark,) = result.remarks
    assert remark.message == (
        "by Winograd's algorithm: forward 0.50 ms for 1.00 ms, gradient of images 0.50 ms for"
        " 1.00 ms, gradient of filters 0.50 ms for 1.00 ms"
    )


@pytest.mark.parametrize("attrs", ["pad=(1, 1)", "pad=(0, 0)", "pad=(2, 1)"])
def test_outputs_and_gradients_stay(attrs: str) -> None:
    before = net(attrs)
    result = run_pass(before, "select-convolution", target=Clock(), mode="training")
    assert result.receipts[0].stats == {"convolutions": 1, "directions": 3}
    assert_equivalent(before, result.graph, training=True, rtol=1e-3, atol=1e-3)


def test_each_direction_is_chosen_by_itself() -> None:
    result = run_pass(net(), "select-convolution", target=Clock(0.95, 0.7, 1.3), mode="training")
    assert marks(result.graph) == ["data"]
    result = run_pass(
        net(), "select-convolution{min_gain=1.0}", target=Clock(0.95, 0.7, 1.3), mode="training"
    )
    assert marks(result.graph) == ["forward data"]


def test_what_is_no_faster_stays_and_is_told() -> None:
    result = run_pass(net(), "select-convolution", target=Clock(1.0, 1.0, 1.0), mode="training")
    assert result.receipts[0].status == "unchanged"
    assert "Winograd's algorithm is no faster: forward 1.00 ms" in result.remarks[0].message


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (net("stride=(2, 2)"), "it leaves out pixels"),
        (net("dilate=(2, 2)"), "it leaves out pixels"),
        (net("num_group=2"), "it has 2 groups"),
        (net("num_group=32"), "it has 32 groups"),
        (net("pad=(3, 3)"), "its padding is large"),
        (net(x="f32[2,3,8,8]"), "its 3 channels and 32 filters are no whole blocks of 16"),
        (net(filters=10), "its 32 channels and 10 filters are no whole blocks of 16"),
        (net(x="f64[2,32,8,8]"), "it does not work on float32 images of known size"),
    ],
)
def test_refusals(graph: Graph, why: str) -> None:
    clock = Clock()
    result = run_pass(graph, "select-convolution", target=clock, mode="training")
    assert result.receipts[0].status == "unchanged"
    assert [r.message for r in result.remarks] == [f"it is computed directly: {why}"]
    assert not clock.timed


def test_not_in_inference_nor_where_it_has_to_be_precise() -> None:
    for settings in ({"mode": "inference"}, {"mode": "training", "precise": True}):
        result = run_pass(net(), "select-convolution", target=Clock(), **settings)
        assert not marks(result.graph)
