"""Several nodes that become one: what others read of them, and the node in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from graphopt.ir.attrs import AttrValue
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.rewrite.edit import MAX_ORIGIN


def results(graph: Graph, nodes: Sequence[Node]) -> list[Value]:
    """What is read of a region from outside."""
    inside = {node.id for node in nodes}
    return [
        node.out()
        for node in nodes
        if graph.is_output(node.out()) or any(u.node not in inside for u in graph.users(node.out()))
    ]


def replace_region(
    edited: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    op: str,
    attrs: Mapping[str, AttrValue],
    body: Graph,
    suffix: str,
) -> None:
    """Make one node of a region.

    Args:
        edited: a copy of the graph of the nodes, other regions of which may be one node by now.
        nodes: in topological order.
        inputs: what the region reads, in the order of the body's inputs.
        outputs: what is read of it, in the order of the body's outputs.
        op: the operator of the node.
        attrs: its attributes.
        body: the region in MXNet's operators.
        suffix: of the node's name.
    """
    # The region may read another one that is fused already: by what its readers read by now.
    now = {
        before: after
        for node in nodes
        for before, after in zip(node.inputs, edited[node.id].inputs, strict=True)
    }
    last = nodes[-1]
    made = edited.add(
        op,
        [now[value] for value in inputs],
        attrs,
        [edited.type_of(value) for value in outputs],
        edited.unique_name(f"{last.name or last.op}_{suffix}"),
        graphs=[body],
        origin=origin_of(nodes),
    )
    for index, value in enumerate(outputs):
        edited.replace_uses(value, made.out(index))
    for node in reversed(nodes):
        edited.erase(node.id)


def origin_of(nodes: Sequence[Node]) -> list[str]:
    """Which nodes of the user's graph several nodes stem from, as many as are kept."""
    names = dict.fromkeys(name for n in nodes for name in (n.origin or (n.name,)) if name)
    return list(names)[:MAX_ORIGIN]


def operators(nodes: Sequence[Node]) -> str:
    """The operators of a region, for messages."""
    counts = Counter(canonical(node.op) for node in nodes)
    return ", ".join(f"{n} {op}" if n > 1 else op for op, n in counts.items())
