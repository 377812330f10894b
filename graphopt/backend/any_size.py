"""Engines of a lowered graph for data of other sizes than it was lowered for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from graphopt.backend.candidates import Form, has_packed, is_packed
from graphopt.backend.choice import PRODUCT_KERNELS
from graphopt.backend.convolutions import has_convolutions
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.keeping import forgetting, keeps, runs_keeping
from graphopt.backend.products import with_packed_products
from graphopt.backend.symbol import to_symbol
from graphopt.backend.unfuse import unfuse

#: What they are called.
FUSED_KERNELS: Final = "kernels"
PACKED_PRODUCTS: Final = "kernels and packed products"

#: An engine, and the arrays that it reads: ``None`` in place of data.
Bound = tuple[CachedOpEngine, list[Any]]


def engines_of_any_size(
    form: Form, chosen: Engine | None, value: Callable[[str], Any]
) -> dict[str, Bound]:
    """CachedOps that infer shapes at every call, of the graph as it is, and with packed products.

    Kernels and packed weights have no sizes in them; what recurrences keep from call to call is
    for engines that are static, and kernels for GPUs are compiled for extents.

    Args:
        form: what the graph was lowered to.
        chosen: what it runs on, once that is known.
        value: the array of a parameter or a constant.
    """
    if not form.is_on_cpu or form.pools is not None:
        return {}
    graph = form.graph
    if has_packed(graph) or form.keeps:
        graph = forgetting(unfuse(graph, is_packed))
    symbol = form.symbol if graph is form.graph else to_symbol(graph)
    found = {FUSED_KERNELS: _bound(form, form.typed(symbol), FUSED_KERNELS, value)}
    packed = _packed(form, chosen, value)
    if packed is not None:
        found[PACKED_PRODUCTS] = packed
    return found


def _packed(form: Form, chosen: Engine | None, value: Callable[[str], Any]) -> Bound | None:
    if isinstance(chosen, ExecutorEngine) and chosen.name == PRODUCT_KERNELS:
        if runs_keeping(chosen.symbol):
            return None
        return _bound(form, chosen.symbol, PACKED_PRODUCTS, value)
    graph = form.with_products
    if chosen is not None or graph is None or has_convolutions(graph) or any(map(keeps, graph)):
        return None
    known = {node.name: value(node.name) for node in graph.inputs}
    packed, made, _ = with_packed_products(graph, known, form.ctx)
    symbol = form.typed(to_symbol(packed))
    return _bound(form, symbol, PACKED_PRODUCTS, lambda n: made[n] if n in made else value(n))


def _bound(form: Form, symbol: Any, name: str, value: Callable[[str], Any]) -> Bound:
    engine = CachedOpEngine(symbol, form.data, name, is_static=False)
    return engine, [value(each) for each in engine.inputs]
