"""``graphopt.lower``: a graph to something callable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
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
        InputError: ``graph`` is no Graph, there is no such ``ctx``, or parameters are missing or
            misshapen.
        GraphError: MXNet does not accept the graph.
    """
    from graphopt.api.running import require_graph
    from graphopt.backend.lower import lower as lower_

    require_graph(graph, "lower")
    if params is not None and not isinstance(params, Mapping):
        raise InputError(f"lower() takes values by name, not a {type(params).__name__}")
    _require_context(ctx)
    return lower_(graph, params, ctx, training=training)


def _require_context(ctx: Any) -> None:
    mx = import_mxnet()
    if ctx is None:
        return
    if not isinstance(ctx, mx.Context):
        raise InputError(f"ctx {ctx!r} is no context: give mx.cpu() or mx.gpu()")
    if ctx.device_type != "gpu":
        return
    try:
        count = mx.context.num_gpus()
    except mx.MXNetError:  # there is no driver
        count = 0
    if ctx.device_id >= count:
        raise InputError(f"there is no {ctx} here: MXNet finds {count} GPUs")
