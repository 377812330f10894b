"""Nodes that count the steps of an unrolled recurrence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, Node, NodeId, Value
from graphopt.ir.ops import info

#: Fewer steps than this are not worth a loop, and do not tell a template from its ends.
MIN_STEPS: Final = 4


def anchor_classes(graph: Graph) -> list[list[NodeId]]:
    """Nodes that apply one operator to the same weights, as far as there are enough of them.

    In the order of their first members; linear.
    """
    found: dict[tuple[object, ...], list[NodeId]] = defaultdict(list)
    weights: set[Value] = set()
    for node in graph:
        if node.op == PARAM or _is_view_of(node, weights):
            weights.add(node.out())
        elif not node.is_input and not node.graphs and not node.after:
            read = tuple(value if value in weights else None for value in node.inputs)
            if any(read) and not all(read):
                found[node.op, node.attrs, read].append(node.id)
    return [members for members in found.values() if len(members) >= MIN_STEPS]


def apart(graph: Graph, anchors: Sequence[NodeId]) -> list[Sequence[NodeId]]:
    """Anchors of several chains that share their weights, as an encoder of two sentences has them.

    Each follows the last that it depends on; of several that follow the same, which may be one step
    of zeros for all, the first goes on with its chain. All stay in one where an anchor follows two.
    Chains that are too short are left out. Linear.
    """
    wanted = set(anchors)
    chain_of: dict[NodeId, list[NodeId]] = {}
    chains: list[list[NodeId]] = []
    last: dict[NodeId, tuple[int, frozenset[NodeId]]] = {}  # how many, and the last of them
    for node in graph:
        read = [last[value.node] for value in node.inputs if value.node in last]
        if not read and node.id not in wanted:
            continue  # most nodes depend on no anchor
        count, found = max(read, key=_count, default=_NONE)
        for other, more in read:
            if other == count:
                found |= more
        if node.id in wanted:
            if len(found) > 1:
                return [anchors]
            before = next(iter(found), None)
            chain = chain_of[before] if before is not None else []
            if before is None or chain[-1] != before:
                chains.append(chain := [])
            chain.append(node.id)
            chain_of[node.id] = chain
            count, found = count + 1, frozenset({node.id})
        last[node.id] = count, found
    return [chain for chain in chains if len(chain) >= MIN_STEPS]


#: Before all anchors.
_NONE: tuple[int, frozenset[NodeId]] = 0, frozenset()


def _count(last: tuple[int, frozenset[NodeId]]) -> int:
    return last[0]


def _is_view_of(node: Node, values: set[Value]) -> bool:
    return (
        len(node.inputs) == 1 and node.inputs[0] in values and bool(info(node.op, node.attrs).view)
    )


def count_steps(graph: Graph, anchors: Sequence[NodeId]) -> dict[NodeId, int]:
    """For every node, how many anchors in a row it depends on, itself included, less one."""
    counted = set(anchors)
    step_of: dict[NodeId, int] = {}
    for node in graph:
        step = max((step_of[value.node] for value in node.inputs), default=-1)
        step_of[node.id] = step + (node.id in counted)
    return step_of
