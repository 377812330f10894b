"""Values of all steps as one array, and back.

Unrolling cuts an array into steps and joins outputs again, with ``SliceChannel``, ``slice_axis``,
``stack`` or ``Concat`` of values with one more axis. Rolling up undoes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical, info
from graphopt.ir.types import TensorType


@dataclass(frozen=True)
class Cut:
    """One step of an array."""

    source: Value
    axis: int
    index: int


@dataclass(frozen=True)
class Sequence3:
    """Steps as they lie in one array, mostly of three axes.

    Attributes:
        source: the array.
        axis: of the steps.
        first: the index of the first step.
        count: how many steps.
        reverse: whether the indices fall.
    """

    source: Value
    axis: int
    first: int
    count: int
    reverse: bool


def cut_of(graph: Graph, value: Value) -> Cut | None:
    """If a value is one step of an array with one more axis: which."""
    node = graph[value.node]
    op = canonical(node.op)
    if op == "SliceChannel" and node.attrs.flag("squeeze_axis"):
        return Cut(node.inputs[0], int(node.attrs.get("axis", 1)), value.index)
    if not node.inputs or not info(node.op, node.attrs).view:
        return None
    inner = graph[node.inputs[0].node]
    before, after = graph.type_of(node.inputs[0]).shape, graph.type_of(value).shape
    if before is None or after is None:
        return None
    op = canonical(inner.op)
    if op == "SliceChannel" and not inner.attrs.flag("squeeze_axis"):
        axis, index = int(inner.attrs.get("axis", 1)), node.inputs[0].index
    elif op == "slice_axis" and inner.attrs.get("end") is not None:
        axis, index = int(inner.attrs["axis"]), int(inner.attrs["begin"])
    else:
        return None
    axis %= len(before)
    if before[axis] != 1 or (*before[:axis], *before[axis + 1 :]) != after:
        return None
    length = (graph.type_of(inner.inputs[0]).shape or (0,) * len(before))[axis] or 1
    return Cut(inner.inputs[0], axis, index % length)


def as_sequence(graph: Graph, values: Sequence[Value]) -> Sequence3 | None:
    """If values are adjacent steps of one array: which array, and how they lie in it."""
    cuts = [cut_of(graph, value) for value in values]
    first = cuts[0]
    if first is None or first.axis not in (0, 1):
        return None
    if any(c is None or (c.source, c.axis) != (first.source, first.axis) for c in cuts):
        return None
    indices = [c.index for c in cuts if c is not None]
    for reverse in (False, True):
        sign = -1 if reverse else 1
        if indices == [first.index + sign * k for k in range(len(values))]:
            return Sequence3(first.source, first.axis, first.index, len(values), reverse)
    return None


def joined(graph: Graph, node: Node) -> tuple[list[Value], int] | None:
    """If a node joins values along a new axis: the values, and the axis."""
    op = canonical(node.op)
    if op == "stack":
        axis = int(node.attrs.get("axis") or 0)
        return list(node.inputs), axis % (node.type.rank or 1)
    if op != "Concat":
        return None
    axis = int(node.attrs.get("dim", 1)) % (node.type.rank or 1)
    values = []
    for value in node.inputs:
        inner = graph[value.node]
        before, after = graph.type_of(value).shape, None
        if inner.inputs and info(inner.op, inner.attrs).view:
            after = graph.type_of(inner.inputs[0]).shape
        if before is None or after is None or before[axis] != 1:
            return None
        if (*before[:axis], *before[axis + 1 :]) != after:
            return None
        values.append(inner.inputs[0])
    return values, axis


def extents(graph: Graph, value: Value) -> tuple[int, ...]:
    """The static shape of a value."""
    return tuple(extent or 0 for extent in graph.type_of(value).shape or ())


def add(
    graph: Graph,
    op: str,
    inputs: Sequence[Value],
    result: Sequence[int],
    name: str,
    count: int = 1,
    **attrs: object,
) -> Node:
    """Add a node whose ``count`` outputs have the shape ``result``, and its first input's dtype."""
    type_ = TensorType(graph.type_of(inputs[0]).dtype, tuple(result))
    return graph.add(op, inputs, attrs, [type_] * count, graph.unique_name(name))


def swapped(graph: Graph, value: Value, name: str) -> Value:
    """A sequence with steps and batch exchanged."""
    a, b, *rest = extents(graph, value)
    return add(graph, "SwapAxis", [value], (b, a, *rest), name, dim1=0, dim2=1).out()


def step_of(graph: Graph, sequence: Value, axis: int, index: int, name: str) -> Value:
    """One step of a sequence whose steps lie along ``axis``."""
    shape = extents(graph, sequence)
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    span = {"axis": axis, "begin": index, "end": index + 1}
    cut = add(graph, "slice_axis", [sequence], one, f"{name}_cut", **span)
    rest = (*shape[:axis], *shape[axis + 1 :])
    return add(graph, "squeeze", [cut.out()], rest, name, axis=axis).out()


def rejoin(graph: Graph, parts: Sequence[Value], sequence: Value, axis: int) -> int:
    """Give whoever joins all ``parts`` again the sequence itself; returns how many did.

    Args:
        graph: to edit.
        parts: the steps of ``sequence``, all of them.
        sequence: an array with the steps along ``axis``.
        axis: 0 or 1.
    """
    done = 0
    for reader in _joining(graph, parts[0]):
        found = joined(graph, reader)
        if found is None or found[1] > 1:
            continue
        values, other = found
        name = reader.name or "joined"
        if values == list(parts):
            whole = sequence
        elif values == list(parts)[::-1]:
            shape = extents(graph, sequence)
            whole = add(graph, "reverse", [sequence], shape, f"{name}_reverse", axis=(axis,)).out()
        else:
            continue
        if other != axis:
            whole = swapped(graph, whole, f"{name}_swap")
        if graph.is_output(reader.out()) and (graph[whole.node].is_input or graph.is_output(whole)):
            continue  # the caller's own array, or one array twice
        graph.replace_uses(reader.out(), whole)
        erase_unused(graph, [reader.id])
        done += 1
    return done


def _joining(graph: Graph, value: Value) -> list[Node]:
    """Nodes that may join a value with others: its readers, and theirs where they add an axis."""
    found: dict[int, Node] = {}
    for use in graph.users(value):
        reader = graph[use.node]
        if canonical(reader.op) == "stack":
            found[reader.id] = reader
        elif info(reader.op, reader.attrs).view:
            for further in graph.users(reader.out()):
                if canonical(graph[further.node].op) == "Concat":
                    found[further.node] = graph[further.node]
    return list(found.values())


def erase_unused(graph: Graph, nodes: Sequence[int]) -> None:
    """Erase pure nodes that nothing reads, and what only they read."""
    pending = list(nodes)
    while pending:
        number = pending.pop()
        if number not in graph or graph[number].is_input or graph.node_users(number):
            continue
        node = graph[number]
        if (
            any(graph.is_output(value) for value in node.values)
            or not info(node.op, node.attrs).pure
        ):
            continue
        graph.erase(number)
        pending += [value.node for value in node.inputs]
