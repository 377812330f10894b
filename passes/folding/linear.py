"""Where a factor may move: through operators whose output scales with one of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.folding.build import Refused
from graphopt.passes.folding.weights import ANCHORS

_VIEWS: Final = frozenset({"Reshape", "Flatten", "expand_dims", "squeeze", "transpose", "SwapAxis"})
_PRODUCTS: Final = frozenset({"dot", "batch_dot"})

#: How many nodes are looked at: an attention has six between the scores and the projections.
_REACH: Final = 16


def layer_above(graph: Graph, value: Value, check: Callable[[Node], object]) -> Node | None:
    """A layer from which views and products alone lead to ``value``.

    ``check`` raises `Refused` where a node's value must not change.
    """
    pending = [value]
    for _ in range(_REACH):
        if not pending:
            return None
        node = graph[pending.pop().node]
        op = canonical(node.op)
        try:
            check(node)
        except Refused:
            continue
        if op in ANCHORS:
            return node
        if op in _VIEWS:
            pending.append(node.inputs[0])
        elif op in _PRODUCTS:
            pending += reversed(node.inputs)
    return None
