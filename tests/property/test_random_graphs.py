"""Every pass, and every sequence of passes, keeps what random graphs compute.

A failure prints the shrunken graph as text to paste into ``run_pass``.
"""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest
from hypothesis import given, note, reject, settings
from hypothesis import strategies as st

from graphopt.backend import reference
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.reference_ops import UnsupportedOp
from graphopt.backend.symbol import constants, to_symbol
from graphopt.backend.target import MXNetTarget
from graphopt.errors import GraphoptError
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.fingerprint import node_digests
from graphopt.ir.graph import Graph
from graphopt.ir.ops import canonical
from graphopt.ir.parser import parse
from graphopt.ir.verify import verify
from graphopt.passes import PASSES
from graphopt.pipeline.base import Settings
from graphopt.pipeline.instruments import compare
from graphopt.testing import run_pass
from tests.strategies.graphs import graphs

TARGET = MXNetTarget()

#: Examples per test are multiplied by this.
SCALE = int(os.environ.get("GRAPHOPT_EXAMPLES", "1"))
SETTINGS = {
    "inference": Settings("inference"),
    "frozen": Settings("inference", frozen=True),
    "training": Settings("training"),
    "precise": Settings("inference", frozen=True, precise=True),
    "precise training": Settings("training", precise=True),
}


def tries(count: int):
    return settings(max_examples=count * SCALE)


class Original:
    """A graph with what MXNet makes of it, computed when first asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.feeds = random_feeds(graph)

    @functools.cached_property
    def outputs(self) -> dict[str, np.ndarray]:
        return self._run(training=False)

    @functools.cached_property
    def gradients(self) -> dict[str, np.ndarray]:
        return self._run(training=True)

    def _run(self, *, training: bool) -> dict[str, np.ndarray]:
        try:
            return TARGET.evaluate(self.graph, self.feeds, training=training, gradients=training)
        except GraphoptError:  # MXNet fails on some control dependencies, and on some views
            reject()

    def check(self, pipeline: str, how: Settings) -> None:
        """Run the passes, each checked for its contract, and compare."""
        after = run_pass(
            self.graph,
            pipeline,
            target=TARGET,
            mode=how.mode,
            frozen=how.frozen,
            precise=how.precise,
        ).graph
        if after.is_unchanged_from(self.graph):
            return
        note(f"{pipeline} with {how} made\n{after}")
        training = how.mode == "training"
        expected = self.gradients if training else self.outputs
        expected = {name: array for name, array in expected.items() if "label" not in name}
        found = TARGET.evaluate(after, self.feeds, training=training, gradients=training)
        compare(expected, found, where=pipeline)
        if not training and reference.supports(after):
            try:
                values = reference.run(after, self.feeds)
            except UnsupportedOp:
                return
            by_name = {f"output{number}": value for number, value in enumerate(values)}
            compare(expected, by_name, where=f"{pipeline} (by the reference)")


@pytest.mark.parametrize("how", SETTINGS)
@tries(30)
@given(graph=graphs())
def test_each_pass_alone_keeps_values(how: str, graph: Graph) -> None:
    note(str(graph))
    original = Original(graph)
    for name in PASSES:
        original.check(name, SETTINGS[how])


@tries(70)
@given(
    graph=graphs(max_ops=12),
    names=st.lists(st.sampled_from(list(PASSES)), min_size=2, max_size=6),
    how=st.sampled_from(list(SETTINGS)),
)
def test_sequences_of_passes_keep_values(graph: Graph, names: list[str], how: str) -> None:
    note(str(graph))
    Original(graph).check(",".join(names), SETTINGS[how])


@pytest.mark.parametrize(("pipeline", "how"), [("inference", "frozen"), ("training", "training")])
@tries(30)
@given(graph=graphs(max_ops=20))
def test_named_pipelines_keep_values(pipeline: str, how: str, graph: Graph) -> None:
    note(str(graph))
    Original(graph).check(pipeline, SETTINGS[how])


@tries(75)
@given(graph=graphs(max_ops=12))
def test_reference_agrees_with_mxnet(graph: Graph) -> None:
    note(str(graph))
    if reference.supports(graph):
        feeds = random_feeds(graph)
        try:
            values = reference.run(graph, feeds)
        except UnsupportedOp:
            return
        by_name = {f"output{number}": value for number, value in enumerate(values)}
        compare(Original(graph).outputs, by_name, where="the reference")


@tries(75)
@given(graph=graphs(max_ops=12))
def test_text_round_trip(graph: Graph) -> None:
    read = parse(str(graph))
    verify(read)
    assert str(read) == str(graph)


@tries(75)
@given(graph=graphs(max_ops=12))
def test_symbol_round_trip(graph: Graph) -> None:
    for node in graph:  # MXNet writes the names without aliases
        graph.update(node.but(op=canonical(node.op)))
    note(str(graph))
    symbol = to_symbol(graph)
    shapes = {n.name: n.type.shape for n in graph if n.type.shape and n.name in _inputs(symbol)}
    dtypes = {name: graph.find(name).type.dtype for name in shapes}
    data = {node.name for node in graph.role("data")}
    lifted = lift_symbol(symbol, shapes, dtypes, data=data, name=graph.name)
    verify(lifted, "captured")
    assert [lifted.type_of(value) for value in lifted.outputs] == [
        graph.type_of(value) for value in graph.outputs
    ]
    # A constant comes back as an input.
    if not constants(graph):
        assert _outputs(lifted) == _outputs(graph)
    kept = {node.name: node for node in graph.inputs}
    for node in lifted.inputs:
        if node.name in kept:
            assert (node.op, node.type) == (kept[node.name].op, kept[node.name].type)
    again = lift_symbol(to_symbol(lifted), shapes, dtypes, data=data, name=graph.name)
    assert str(again) == str(lifted)


def _inputs(symbol) -> list[str]:
    return symbol.list_inputs()


def _outputs(graph: Graph) -> list[tuple[bytes, int]]:
    digests = node_digests(graph)
    return [(digests[value.node], value.index) for value in graph.outputs]
