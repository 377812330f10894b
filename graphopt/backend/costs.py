"""How long operators take, each measured alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from graphopt.backend.invoke import invoke
from graphopt.backend.measured import once
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, WITH_SPEC, Node

#: Operators that take longer run once only.
_LONG_S = 0.02
#: A guess at bytes a second, for what cannot run alone.
_BANDWIDTH = 5e9


def measure_costs(graph: Graph, ctx: Any) -> dict[str, float]:
    """Seconds of each operator's forward in training, by name of its node.

    Equal operators on equal types are measured once, and not again on this machine
    (``GRAPHOPT_REMEMBER``). One that cannot run alone counts by its bytes.
    """
    seconds: dict[tuple[str, ...], float] = {}
    found: dict[str, float] = {}
    for node in graph:
        if node.is_input or node.op == CONSTANT:
            continue
        types = [graph.type_of(value) for value in node.inputs]
        key = (node.op, str(node.attrs), *map(str, types), str(ctx))
        if key not in seconds:
            seconds[key] = float(once(("operator", *key), _alone(graph, node, ctx)))
        found[node.name] = seconds[key]
    return found


def _alone(graph: Graph, node: Node, ctx: Any) -> Callable[[], float]:
    def measure() -> float:
        try:
            return _run(graph, node, ctx)
        except (import_mxnet().MXNetError, GraphoptError, TypeError, ValueError):
            return sum(t.nbytes or 0 for t in node.types) / _BANDWIDTH

    return measure


def _run(graph: Graph, node: Node, ctx: Any) -> float:
    mx = import_mxnet()

    def array(value: Any) -> Any:
        kind = graph.type_of(value)
        if kind.shape is None or kind.dtype is None:
            raise ValueError("no static type")
        # Ones are indices, too, and no operator here is faster for them.
        return mx.nd.ones(kind.shape, ctx=ctx, dtype=kind.dtype)

    if node.graphs and node.op not in WITH_SPEC:
        raise ValueError("has nested graphs")
    arrays = [array(value) for value in node.inputs]
    mx.nd.waitall()

    def run() -> float:
        start = time.perf_counter()
        invoke(node.op, arrays, dict(node.attrs))
        mx.nd.waitall()
        return time.perf_counter() - start

    with mx.autograd.pause(train_mode=True):
        first = run()
        return first if first > _LONG_S else min(run(), run())
