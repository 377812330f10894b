"""Split a graph into what depends on parameters only and what runs on every call."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, PARAM, NodeId, Value
from graphopt.ir.ops import info
from graphopt.ir.sizes import FILLS

#: What MXNet's ``quantize_model`` and initializers know parameters by: the end of their names.
_NAMED: Final = ("weight", "bias")


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
    the node that made it and what layers read it as (``..._frozen_weight``), by none of the names
    that are ``taken``. Linear.
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
        name = _free(*_name(graph, value), rest, taken)
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


def _name(graph: Graph, value: Value) -> tuple[str, str]:
    """What a value is called as a parameter; the end of it by itself."""
    made, end = graph[value.node], _role(graph, value)
    name = (made.name or made.op).removesuffix(end)
    return f"{name}_frozen{value.index or ''}", end


def _role(graph: Graph, value: Value) -> str:
    """``_weight`` or ``_bias`` if a layer reads the value as that."""
    for node, position in graph.users(value):
        reader = graph[node]
        called = info(reader.op, reader.attrs).arguments[position : position + 1]
        if called and called[0] in _NAMED:
            return f"_{called[0]}"
        for body in reader.graphs:  # the region in MXNet's operators
            if position < len(body.inputs):
                found = _role(body, body.inputs[position].out())
                if found:
                    return found
    return ""


def _free(name: str, end: str, graph: Graph, taken: Container[str]) -> str:
    numbered = (f"{name}_{number}{end}" for number in count(2))
    free = (n for n in chain([name + end], numbered) if n not in taken)
    return next(n for n in free if graph.unique_name(n) == n)


def _frontier(graph: Graph, computed: set[NodeId]) -> list[Value]:
    """Frozen values that something unfrozen, or the caller, reads; in topological order."""
    read: dict[Value, None] = {}
    for node in graph:
        if node.id not in computed:
            read.update(dict.fromkeys(value for value in node.inputs if value.node in computed))
    read.update(dict.fromkeys(value for value in graph.outputs if value.node in computed))
    return list(read)
