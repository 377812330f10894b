"""Cells of random wiring whose states meet no matrix."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, Value
from graphopt.ir.types import TensorType
from graphopt.testing import assert_equivalent, run_pass

PASSES = (
    "eliminate-dead-code,eliminate-common-subexpressions,"
    "reroll-recurrence{leave_to_fusion=False},eliminate-dead-code"
)
BATCH = 3
_UNARY = ("tanh", "sigmoid", "relu", "negative", "square")
_BINARY = ("elemwise_add", "elemwise_mul", "elemwise_sub", "broadcast_maximum")
_BY_NUMBER = ("_mul_scalar", "_plus_scalar", "_rminus_scalar")


@dataclass
class _Cell:
    """What a step does: each operation reads places of a list, on which its result is put.

    Attributes:
        width: columns of all values.
        rows: how many sequences a step reads a row of; they come first.
        states: how many states there are; they come next.
        plan: operations, as their kind, what they read, and a choice.
        after: the places of the next states.
        emit: the place of what is emitted.
        projected: whether rows are multiplied with a weight in each step.
    """

    width: int
    rows: int
    states: int
    projected: bool
    plan: list[tuple[str, tuple[int, int], int]] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    emit: int = 0


@st.composite
def _cells(draw: st.DrawFn) -> _Cell:
    rows, states = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    cell = _Cell(draw(st.integers(1, 4)), rows, states, draw(st.booleans()))
    first = rows + states
    # The first state meets a row, so that there is something to find.
    cell.plan = [("binary", (rows, 0), draw(st.integers(0, 1)))]
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("unary", "number", "binary", "binary", "binary", "vector")))
        places = tuple(draw(st.integers(0, first + len(cell.plan) - 1)) for _ in range(2))
        cell.plan.append((kind, (places[0], places[1]), draw(st.integers(0, 11))))
    last = first + len(cell.plan) - 1
    cell.after = [draw(st.integers(first, last)) for _ in range(states)]
    cell.emit = draw(st.integers(first, last))
    return cell


class _Unroller:
    """A graph of a cell, applied to one row of every sequence after the other."""

    def __init__(self, cell: _Cell, steps: int) -> None:
        self.cell, self.steps = cell, steps
        self.graph = Graph("net")
        self.wide = TensorType("float32", (BATCH, cell.width))
        weight = TensorType("float32", (cell.width, cell.width))
        self.weight = self.graph.add_input("w", "param", weight).out()
        vector = TensorType("float32", (cell.width,))
        self.vector = self.graph.add_input("v", "param", vector).out()

    def add(self, op: str, inputs: list[Value], **attrs: object) -> Value:
        return self.graph.add(op, inputs, attrs, [self.wide], self.graph.unique_name("n")).out()

    def sequence(self, number: int) -> list[Value]:
        whole = TensorType("float32", (self.steps, BATCH, self.cell.width))
        x = self.graph.add_input(f"x{number}", "data", whole)
        attrs = {"num_outputs": self.steps, "axis": 0, "squeeze_axis": True}
        cut = self.graph.add("SliceChannel", [x], attrs, [self.wide] * self.steps, f"cut{number}")
        if not self.cell.projected:
            return list(cut.values)
        dense = {"num_hidden": self.cell.width, "no_bias": True}
        return [self.add("FullyConnected", [row, self.weight], **dense) for row in cut.values]

    def step(self, rows: list[Value], states: list[Value]) -> list[Value]:
        known = [*rows, *states]
        for kind, (a, b), choice in self.cell.plan:
            if kind == "unary":
                known.append(self.add(_UNARY[choice % len(_UNARY)], [known[a]]))
            elif kind == "number":
                op = _BY_NUMBER[choice % len(_BY_NUMBER)]
                known.append(self.add(op, [known[a]], scalar=0.5 + choice % 2))
            elif kind == "vector":
                known.append(self.add("broadcast_mul", [known[a], self.vector]))
            else:
                made = self.add(_BINARY[choice % len(_BINARY)], [known[a], known[b]])
                known.append(self.add("tanh", [made]))
        return known

    def unroll(self, *, zeros: bool, reverse: bool, outputs: str) -> Graph:
        """The graph: it returns all outputs in one array, or each second one, or none of them."""
        cell, graph = self.cell, self.graph
        rows = [self.sequence(number) for number in range(cell.rows)]
        shape = {"shape": (BATCH, cell.width), "dtype": "float32"}
        states = [
            self.add("_zeros", [], **shape)
            if zeros
            else graph.add_input(f"s{n}", "data", self.wide).out()
            for n in range(cell.states)
        ]
        found = []
        order = range(self.steps)
        for at in reversed(order) if reverse else order:
            known = self.step([sequence[at] for sequence in rows], states)
            states = [known[place] for place in cell.after]
            found.append(known[cell.emit])
        if outputs == "all":
            whole = TensorType("float32", (BATCH, self.steps, cell.width))
            attrs = {"axis": 1, "num_args": self.steps}
            states.append(graph.add("stack", found, attrs, [whole], "joined").out())
        elif outputs == "some":
            states += found[1::2]
        graph.set_outputs(states)
        return graph


_rolled: list[bool] = []


@settings(max_examples=40)
@given(
    _cells(), st.integers(4, 7), st.booleans(), st.booleans(), st.sampled_from(("all", "some", ""))
)
def test_random_cells(cell: _Cell, steps: int, zeros: bool, reverse: bool, outputs: str) -> None:
    graph = _Unroller(cell, steps).unroll(zeros=zeros, reverse=reverse, outputs=outputs)
    result = run_pass(graph, PASSES, target=MXNetTarget(), mode="training")
    assert_equivalent(graph, result.graph, training=True, seeds=(0,))
    _rolled.append(any(node.op == RECURRENCE for node in result.graph))


def test_many_random_cells_were_rolled() -> None:
    """Else the test above would say nothing."""
    if _rolled:
        assert sum(_rolled) > len(_rolled) / 4
