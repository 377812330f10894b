"""The memory plan of a training step as an executor runs it: marks, order, all that is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.backend.environment import environment
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node
from graphopt.memory.memory_plan import MemoryPlan, plan
from graphopt.memory.training import Type


def plan_step(
    graph: Graph,
    symbol: Any,
    types: Mapping[str, Type],
    wanted: Mapping[str, bool],
    *,
    match: int,
    ctx: Any = None,
    compare: bool = True,
) -> MemoryPlan:
    """Plan a training step that was made of a graph; nothing is run.

    Args:
        graph: what it was made of: its nodes know the user's Blocks.
        symbol: what runs: values to be computed again are marked, an order is in the control
            dependencies.
        types: of all that the symbol reads.
        wanted: of each of its arguments, whether it gets a gradient.
        match: a value may get the memory of one that is this many times larger or smaller.
        ctx: MXNet context; default ``mx.cpu()``.
        compare: fill the rows of other layouts.
    """
    shapes = {name: type_.shape for name, type_ in types.items()}
    dtypes = {name: type_.dtype for name, type_ in types.items()}
    step = lift_symbol(symbol, shapes, dtypes, name=graph.name)
    gradients = [name for name, is_wanted in wanted.items() if is_wanted]
    # A step that nobody differentiates is bound with a gradient all the same.
    requests = dict.fromkeys(gradients or list(wanted)[-1:], "write")
    with environment(NNVM_EXEC_MATCH_RANGE=str(match)):
        return plan(
            _with_origins(step, graph), training=True, grad_req=requests, ctx=ctx, compare=compare
        )


def _with_origins(step: Graph, graph: Graph) -> Graph:
    """The step, its nodes with the origins of those they were made of."""
    known = {node.name: _origin(node) for node in graph if not node.is_input}
    for node in step.topological():
        if node.is_input or node.op == CONSTANT:
            continue
        found = known.get(node.name)
        if found is None and node.inputs:  # an identity behind a node that is kept
            found = known.get(step[node.inputs[0].node].name)
        if found is not None:
            known[node.name] = found
            step.update(node.but(origin=found))
    return step


def _origin(node: Node) -> tuple[str, ...]:
    return node.origin or (node.name,)
