"""Split a graph into what depends on parameters only and what runs on every call."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, PARAM, NodeId, Value
from graphopt.ir.sizes import FILLS


@dataclass(frozen=True)
class Frozen:
    """A graph in two parts.

    ``once`` computes, from the parameters, the values named in ``names``; ``per_call`` reads them
    as parameters of those names. ``once`` is ``None`` when there is nothing to compute.
    """

    once: Graph | None
    names: tuple[str, ...]
    per_call: Graph


def freeze(graph: Graph, taken: Container[str] = ()) -> Frozen:
    """Split off the part that no data reaches; see :func:`graphopt.analysis.frozen.frozen_nodes`.

    What comes out of the frozen part and is still read becomes a parameter of the rest, named after
    the node that made it, by none of the names that are ``taken``. Linear.
    """
    frozen = frozen_nodes(graph)
    computed = {n for n in frozen if not graph[n].is_input and graph[n].op != CONSTANT}
    frontier = _frontier(graph, computed)
    if not frontier:
        return Frozen(None, (), graph)
    once = graph.copy(f"{graph.name}_once")
    once.set_outputs(frontier)
    rest = graph.copy()
    names, new = list[str](), dict[Value, Value]()
    for value in frontier:
        made = graph[value.node]
        name = _free(f"{made.name or made.op}_frozen{value.index or ''}", rest, taken)
        names.append(name)
        new[value] = rest.add_input(name, PARAM, graph.type_of(value)).out()
    rest.replace_all(new)
    return Frozen(once, tuple(names), rest)


def with_fills(graph: Graph, splits: Iterable[Frozen]) -> Graph:
    """A graph that reads what was frozen, with the fills among that as operators again.

    In the process a frozen one saves an operator a call. A file is for data of other sizes, too,
    which its shape may follow.
    """
    made = graph.copy()
    inputs = {node.name: node for node in made.inputs}
    for split in splits:
        once = split.once or made
        for name, value in zip(split.names, once.outputs if split.names else (), strict=True):
            fill = once[value.node]
            if fill.op in FILLS and name in inputs:
                named = made.unique_name(fill.name)
                node = made.add(fill.op, (), fill.attrs, fill.types, named, origin=fill.origin)
                made.replace_uses(inputs[name].out(), node.out())
    return made


def _free(name: str, graph: Graph, taken: Container[str]) -> str:
    found = graph.unique_name(name)
    count = 2
    while found in taken:
        found = graph.unique_name(f"{name}_{count}")
        count += 1
    return found


def _frontier(graph: Graph, computed: set[NodeId]) -> list[Value]:
    """Frozen values that something unfrozen, or the caller, reads; in topological order."""
    read: dict[Value, None] = {}
    for node in graph:
        if node.id not in computed:
            read.update(dict.fromkeys(value for value in node.inputs if value.node in computed))
    read.update(dict.fromkeys(value for value in graph.outputs if value.node in computed))
    return list(read)
