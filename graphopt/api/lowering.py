"""``graphopt.lower``: a graph to something callable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.ir.graph import Graph

if TYPE_CHECKING:
    from graphopt.backend.lower import Lowered


def lower(
    graph: Graph,
    params: Mapping[str, Any] | None = None,
    ctx: Any = None,
    *,
    training: bool = False,
) -> Lowered:
    """Make a graph callable: ``f(**inputs by name) -> list of NDArrays``.

    Args:
        graph: with static types.
        params: value (NDArray or numpy) per parameter and auxiliary state, by name: always those of
            the original graph. What passes made of parameters is computed once, now.
        ctx: MXNet context; default ``mx.cpu()``.
        training: keep parameters live and differentiable through ``mx.autograd``.

    Raises:
        InputError: ``graph`` is no Graph, or parameters are missing or misshapen.
        GraphError: MXNet does not accept the graph.
    """
    from graphopt.api.running import require_graph
    from graphopt.backend.lower import lower as lower_

    require_graph(graph, "lower")
    return lower_(graph, params, ctx, training=training)
