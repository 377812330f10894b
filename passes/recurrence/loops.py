"""Loops over values of any shape, made recurrences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.passes.recurrence.body import translate
from graphopt.passes.recurrence.build import Chain, Operands, add_recurrence
from graphopt.passes.recurrence.invariants import hoist
from graphopt.passes.recurrence.layout import Layout
from graphopt.passes.recurrence.loop_step import LoopStep, make_step
from graphopt.passes.recurrence.sequences import extents


@dataclass(frozen=True)
class Loop:
    """A body, and what it is applied to.

    Attributes:
        body: with types; returns what it emits, then the next states.
        layout: of the arrays around it.
        data: its inputs that are another in each step, and arrays of all steps for them.
        states: those that are what the step before returned, and what they are at first.
        rest: those that are the same in all steps.
        reverse: from the last step to the first.
    """

    body: Graph
    layout: Layout
    data: Mapping[Value, Value]
    states: Mapping[Value, Value]
    rest: Mapping[Value, Value]
    reverse: bool = False


def add_loop(
    graph: Graph, loop: Loop, name: str, origin: Sequence[str], most: float = math.inf
) -> list[Value]:
    """Add a recurrence that computes what a loop does.

    Args:
        graph: to which it is added.
        loop: what it does.
        name: of the recurrence.
        origin: names of what it replaces.
        most: how many operators its step may have.

    Returns:
        For each output of the body what it emits in all steps, or the last state.

    Raises:
        GraphoptError: kernels cannot compute it; the message says why.
    """
    layout, data, states = loop.layout, list(loop.data), list(loop.states)
    step = make_step(loop.body, data, states, layout.batch, batched=layout.batched)
    if len(step.graph) > most:
        raise GraphoptError(f"its step is {len(step.graph)} operators on rows, of {most} at most")
    sequences = [layout.sequence(graph, loop.data[value], name) for value in step.data]
    first = [
        part
        for value, widths in zip(states, step.widths, strict=True)
        for part in layout.state(graph, loop.states[value], name, widths)
    ]
    for value in step.rows:
        width = math.prod(extents(graph, loop.rest[value])) // layout.batch
        first += layout.state(graph, loop.rest[value], name, [width])
    places = _learned(graph, loop, step, len(sequences) + len(first))
    made = add_recurrence(
        graph,
        step.graph,
        translate(step.graph, len(sequences), len(first)),
        Chain(layout.steps, layout.batch, loop.reverse),
        sequences,
        [Operands(first, places)],
        name=graph.unique_name(name),
        origin=origin,
    )
    return _leaving(graph, loop, step, made, f"{name}_joined")


def _learned(graph: Graph, loop: Loop, step: LoopStep, fed: int) -> dict[int, Value]:
    """What the step reads besides rows and states, by the number of its input."""
    inputs = step.graph.inputs[fed:]
    captured = {
        node.out(): loop.rest[value] for node, value in zip(inputs, step.learned, strict=True)
    }
    captured |= hoist(graph, step.graph, captured, training=True)
    inputs = step.graph.inputs[fed:]
    return {fed + n: captured[node.out()] for n, node in enumerate(inputs)}


def _leaving(graph: Graph, loop: Loop, step: LoopStep, made: Node, name: str) -> list[Value]:
    """What the loop returns, put together of what the recurrence does."""
    shapes = [extents(loop.body, value) for value in loop.body.outputs]
    layout, leaving = loop.layout, iter(made.values)
    found = []
    for shape, copies in zip(shapes, step.emitted, strict=False):
        parts = list(islice(leaving, len(copies)))
        found.append(layout.emitted(graph, parts, copies, shape, name))
    for shape, widths in zip(shapes[len(found) :], step.widths, strict=True):
        parts = list(islice(leaving, len(widths)))
        found.append(layout.final(graph, parts, shape, name))
    return found
