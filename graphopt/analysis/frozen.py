"""Which nodes depend on parameters and constants only.

In a frozen graph these are computed once, when it is lowered, and cost nothing per call.
"""

from __future__ import annotations

from graphopt.analysis.sparse import makes_sparse
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, CONSTANT, PARAM, WITH_SPEC, NodeId
from graphopt.ir.ops import info


def frozen_nodes(graph: Graph) -> frozenset[NodeId]:
    """Ids of pure nodes, inputs included, that no data input reaches. Linear.

    Random, mutating and unknown operators are never frozen, nor are those that make sparse arrays,
    nor is what reads them.
    """
    return graph.derived("frozen nodes", _find)


def _find(graph: Graph) -> frozenset[NodeId]:
    frozen: set[NodeId] = set()
    for node in graph.topological():
        if node.is_input:
            if node.op in (PARAM, AUX):
                frozen.add(node.id)
        elif node.op == CONSTANT or (
            info(node.op, node.attrs).pure
            and (not node.graphs or node.op in WITH_SPEC)
            and not node.after
            and not makes_sparse(node.op, node.attrs)
            and all(value.node in frozen for value in node.inputs)
        ):
            frozen.add(node.id)
    return frozenset(frozen)
