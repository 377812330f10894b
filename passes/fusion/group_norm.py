"""GroupNorm as InstanceNorm of groups, which are axes of their own then."""

from __future__ import annotations

import math
from collections.abc import Collection

from graphopt.analysis.effects import held_nodes
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.region import origin_of

#: Pointwise operators that look at the shape of what they read.
_SHAPED = frozenset(
    {"broadcast_axis", "broadcast_to", "_npi_broadcast_to", "_contrib_div_sqrt_dim"}
)


def with_groups_as_axes(graph: Graph) -> Graph:
    """A copy in which every GroupNorm is an InstanceNorm of ``(n, groups, rest)``.

    MXNet 1.9.1 has one gamma and beta for each group, so that is all there is to it. Those whose
    shape is not known, whose means or deviations somebody reads, or that others wait for, stay. The
    graph itself where there are none.
    """
    found = [node for node in graph if canonical(node.op) == "GroupNorm"]
    held = held_nodes(graph) if found else frozenset()
    found = [node for node in found if _is_plain(graph, node) and node.id not in held]
    if not found:
        return graph
    made = graph.copy()
    for node in found:
        _replace(made, made[node.id], held)
    return made


def _is_plain(graph: Graph, node: Node) -> bool:
    if not node.type.is_static or (node.type.rank or 0) < 3 or not node.type.size:
        return False
    unread = not any(graph.users(v) or graph.is_output(v) for v in node.values[1:])
    return unread and not node.after


def _replace(graph: Graph, node: Node, held: Collection[NodeId]) -> None:
    shape = [extent or 0 for extent in node.type.shape or ()]
    groups = int(node.attrs.get("num_groups") or 1)
    data, gamma, beta = node.inputs
    by_groups = TensorType(node.type.dtype, (shape[0], groups, math.prod(shape[1:]) // groups))
    behind = _behind(graph, node, held)
    steps = [
        ("Reshape", (), Attrs({"shape": (0, groups, -1)}), by_groups, node),
        ("InstanceNorm", (gamma, beta), _norm_attrs(node), by_groups, node),
        *((other.op, (), other.attrs, by_groups, other) for other in behind),
        ("reshape_like", (data,), Attrs(), node.type, node),  # for images of any size
    ]
    value = data
    for op, inputs, attrs, type_, origin in steps:
        name = graph.unique_name(f"{origin.name or origin.op}_by_groups")
        read = (value, *inputs)
        value = graph.add(op, read, attrs, (type_,), name, origin=origin_of([origin])).out()
    last = behind[-1] if behind else node
    graph.replace_uses(last.out(), value)
    for other in (*reversed(behind), node):
        graph.erase(other.id)


def _norm_attrs(node: Node) -> Attrs:
    return Attrs({"eps": node.attrs.get("eps", 1e-5)})


def _behind(graph: Graph, node: Node, held: Collection[NodeId]) -> list[Node]:
    """Operators of one operand behind a node that nobody else reads, to be in its kernel."""
    found: list[Node] = []
    value = node.out()
    while not graph.is_output(value):
        users = graph.users(value)
        if len(users) != 1:
            break
        (user,) = (graph[use.node] for use in users)
        op = canonical(user.op)
        same = user.type == node.type and len(user.values) == 1 and len(user.inputs) == 1
        if op not in POINTWISE or op in _SHAPED or not same or user.after or user.id in held:
            break
        found.append(user)
        value = user.out()
    return found
