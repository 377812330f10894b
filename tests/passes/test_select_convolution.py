"""select-convolution: the measuring is replaced, what it decides is not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.kernels.convolutions.marked import (
    COLUMNS,
    MARK,
    MXNET,
    PAIRED_WINOGRAD4,
    WINOGRAD4,
    Ways,
)
from graphopt.kernels.convolutions.single import Layer
from graphopt.kernels.convolutions.spec import DIRECT, PAIRED
from graphopt.kernels.products import IN_PAIRS
from graphopt.passes.select_convolution import SelectConvolution
from graphopt.testing import assert_equivalent, run_pass


class Clock(MXNetTarget):
    """A target on which MXNet takes 1 ms for everything, and others in a direction what is told."""

    def __init__(
        self,
        forward: float = 0.5,
        data: float = 0.5,
        weight: float = 0.5,
        *,
        pairs: float | None = None,
    ) -> None:
        """``pairs``: what they take of that; without it the processor has none."""
        self.told = {"forward": forward, "data": data, "weight": weight}
        self.pairs = pairs
        self.timed: list[Layer] = []

    def block_lanes(self) -> int:
        return 16

    def dense_means(self) -> str | None:
        return None if self.pairs is None else IN_PAIRS

    def measured_once(self, parts, measure, place=()):
        return measure()

    def direction_times_ms(self, layer: Layer, ways: Ways) -> Mapping[str, Mapping[str, float]]:
        self.timed.append(layer)
        pairs = self.pairs or 1.0
        share = {WINOGRAD4: 1.0, PAIRED_WINOGRAD4: pairs, PAIRED: pairs, DIRECT: 1.0, COLUMNS: 1.0}
        return {
            direction: {MXNET: 1.0} | {name: self.told[direction] * share[name] for name in names}
            for direction, names in ways.items()
            if names
        }


def net(
    attrs: str = "pad=(1, 1)", x: str = "f32[2,32,8,8]", filters: int = 32, kernel: int = 3
) -> Graph:
    options = f"{{kernel=({kernel}, {kernel}), no_bias=True, num_filter={filters}, {attrs}}}"
    return with_types(
        parse(f"graph g(%x: {x}, param %w: ?) {{ %c = Convolution(%x, %w) {options} return %c }}")
    )


def along_axis(attrs: str = "", x: str = "f32[2,32,9]", filters: int = 20) -> Graph:
    """A net of one convolution along one axis."""
    options = f"{{kernel=(3,), no_bias=True, num_filter={filters}, {attrs}}}"
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
        "forward by Winograd's algorithm 0.50 ms (MXNet 1.00), gradient of images by Winograd's"
        " algorithm 0.50 ms (MXNet 1.00), gradient of filters by Winograd's algorithm 0.50 ms"
        " (MXNet 1.00)"
    )


@pytest.mark.parametrize(
    "attrs", ["pad=(1, 1)", "pad=(0, 0)", "pad=(2, 1)", "dilate=(2, 3), pad=(2, 6)"]
)
def test_outputs_and_gradients_stay(attrs: str) -> None:
    before = net(attrs)
    result = run_pass(before, "select-convolution", target=Clock(), mode="training")
    assert result.receipts[0].stats == {
        "convolutions": 1,
        "directions": 3,
        "by Winograd": 3,
        "in pairs": 0,
        "by columns": 0,
    }
    assert_equivalent(before, result.graph, training=True, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("attrs", "chosen"),
    [
        ("stride=(1, 1)", "forward:paired data:paired weight:paired"),
        ("stride=(2, 2)", "forward:paired weight:paired"),
    ],
)
def test_pointwise_outputs_and_gradients_stay(attrs: str, chosen: str) -> None:
    before = net(attrs, kernel=1)
    clock = Clock(pairs=0.8)
    result = run_pass(before, "select-convolution", target=clock, mode="training")
    assert marks(result.graph) == [chosen]
    directions = chosen.count(":")
    assert result.receipts[0].stats == {
        "convolutions": 1,
        "directions": directions,
        "by Winograd": 0,
        "in pairs": directions,
        "by columns": 0,
    }
    assert_equivalent(before, result.graph, training=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("attrs", "chosen"),
    [
        ("num_group=8, pad=(1, 1)", "forward:direct data:direct weight:direct"),
        ("num_group=16, stride=(2, 2)", "forward:direct weight:direct"),
        ("num_group=32, pad=(1, 1)", "weight:direct"),
    ],
)
def test_groups_outputs_and_gradients_stay(attrs: str, chosen: str) -> None:
    before = net(attrs)
    result = run_pass(before, "select-convolution", target=Clock(), mode="training")
    assert marks(result.graph) == [chosen]
    assert_equivalent(before, result.graph, training=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "before",
    [
        net(x="f32[2,3,8,8]", filters=10),
        net("stride=(2, 2)", filters=10),
        net("pad=(2, 2), dilate=(2, 1)", filters=50, kernel=5),
        along_axis(),
        along_axis("stride=(2,), pad=(1,), dilate=(2,)"),
        along_axis(x="f32[2,16,9]", filters=32),
    ],
)
def test_columns_outputs_and_gradients_stay(before: Graph) -> None:
    result = run_pass(before, "select-convolution", target=Clock(), mode="training")
    assert marks(result.graph) == ["forward:columns data:columns weight:columns"]
    assert result.receipts[0].stats["by columns"] == 3
    assert_equivalent(before, result.graph, training=True, rtol=1e-4, atol=1e-5)
    again = run_pass(result.graph, "select-convolution", target=Clock(), mode="training")
    assert again.graph.is_unchanged_from(result.graph)
    result = run_pass(before, "select-convolution", target=Clock(), mode="inference")
    assert marks(result.graph) == ["forward:columns"]
    assert_equivalent(before, result.graph, rtol=1e-4, atol=1e-5)
    result = run_pass(before, "select-convolution{columns=False}", target=Clock(), mode="training")
    assert not marks(result.graph)


def test_outputs_of_few_channels_stay() -> None:
    before = net(x="f32[2,3,8,8]")
    result = run_pass(before, "select-convolution", target=Clock(), mode="training")
    assert marks(result.graph) == ["data:columns weight:columns"]
    result = run_pass(before, "select-convolution", target=Clock(), mode="inference")
    assert not marks(result.graph)


def test_the_fastest_way_is_taken() -> None:
    def chosen(pipeline: str, clock: Clock) -> list[object]:
        return marks(run_pass(net(), pipeline, target=clock, mode="training").graph)

    by_pairs = "forward:paired-winograd4 data:paired-winograd4 weight:winograd4"
    as_they_are = "forward:winograd4 data:winograd4 weight:winograd4"
    assert chosen("select-convolution", Clock(pairs=0.8)) == [by_pairs]
    assert chosen("select-convolution", Clock(pairs=1.2)) == [as_they_are]
    assert chosen("select-convolution{paired=False}", Clock(pairs=0.8)) == [as_they_are]
    assert not chosen("select-convolution{winograd=False}", Clock(pairs=0.8))


def test_each_direction_is_chosen_by_itself() -> None:
    result = run_pass(net(), "select-convolution", target=Clock(0.97, 0.7, 1.3), mode="training")
    assert marks(result.graph) == ["data:winograd4"]
    result = run_pass(
        net(), "select-convolution{min_gain=1.0}", target=Clock(0.97, 0.7, 1.3), mode="training"
    )
    assert marks(result.graph) == ["forward:winograd4 data:winograd4"]


def test_what_is_no_faster_stays_and_is_told() -> None:
    result = run_pass(net(), "select-convolution", target=Clock(1.0, 1.0, 1.0), mode="training")
    assert result.receipts[0].status == "unchanged"
    assert result.remarks[0].message == (
        "no algorithm is faster than MXNet's: forward by MXNet 1.00 ms (Winograd's algorithm"
        " 1.00 ms), gradient of images by MXNet 1.00 ms (Winograd's algorithm 1.00 ms), gradient of"
        " filters by MXNet 1.00 ms (Winograd's algorithm 1.00 ms)"
    )


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (net("stride=(2, 2)"), "it leaves out pixels"),
        (net("dilate=(2, 2), num_group=8"), "its pixels lie apart"),
        (net("dilate=(2, 2)", kernel=1), "its pixels lie apart"),
        (net("dilate=(2, 1), pad=(4, 3)"), "its padding is large"),
        (net("pad=(0, 0)", kernel=5), "it is neither of 3x3 pixels nor of one"),
        (net("pad=(1, 1)", kernel=1), "its padding is large"),
        (net("pad=(0, 0)", kernel=1), "there is no other way for it here"),
        (net("num_group=2"), "it has 2 groups of 16 channels"),
        (net("num_group=32, pad=(2, 2)", kernel=9), "it is neither of 3x3 pixels nor of one"),
        (net("num_group=32", filters=64), "it has 32 groups of 1 channels"),
        (net("pad=(3, 3)"), "its padding is large"),
        (
            net("num_group=16", filters=48, x="f32[2,32,8,8]"),
            "it has 16 groups of 2 channels",
        ),
        (along_axis("num_group=2"), "it goes along one axis"),
        (
            net("pad=(0, 0)", kernel=1, filters=10),
            "its 32 channels and 10 filters are no whole blocks of 16",
        ),
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
