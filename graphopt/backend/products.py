"""Products of our own on their way to MXNet: their weights packed, once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphopt.backend.arrays import view_of
from graphopt.backend.holding import held
from graphopt.backend.kept import Kept, kept
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, PRODUCT, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.products import is_tiled, packed, packed_size
from graphopt.passes.pack_products import problem_of

#: Orders of packed weights; ``TILES`` is that of :func:`packed` if they are ``tiled``.
PANELS: Final = "panels"
TILES: Final = "tiles"


def has_products(graph: Graph) -> bool:
    """Whether a graph holds products of our own."""
    return any(node.op == PRODUCT for node in graph)


def packs_products(graph: Graph) -> bool:
    """Whether some of them read packed weights."""
    return any(node.op == PRODUCT and not node.attrs.flag("in_place") for node in graph)


def with_packed_products(
    graph: Graph, values: Mapping[str, Any], ctx: Any
) -> tuple[Graph, dict[str, Any], list[Kept]]:
    """A copy whose products read packed weights and biases of their own, these, and their keepers.

    Those that read weights where they lie stay. Equal weights are packed once for all graphs, as
    long as somebody has their keeper. Biases are copied, so that a layer is frozen as a whole, not
    its weights alone.

    Args:
        graph: its products' weights are inputs or constants.
        values: NDArray per name of these.
        ctx: where the packed ones are to be.
    """
    copy, made = graph.copy(), {}
    keepers: list[Kept] = []
    known: dict[Value, Value] = {}
    layers: dict[tuple[Value, bool], tuple[Value, bool]] = {}

    def named(value: Value, array: Any) -> Value:
        name = copy.unique_name(f"{graph[value.node].name}_packed")
        made[name] = array
        return copy.add_input(name, PARAM, TensorType("float32", array.shape)).out()

    for node in graph:
        if node.op != PRODUCT or node.attrs.flag("in_place"):
            continue
        data, weights, *bias = node.inputs
        tiled = is_tiled(import_mxnet(), *problem_of(graph, node)[:3])
        if (weights, tiled) not in layers:
            array = values[graph[weights.node].name]
            keeper = held([array], partial(_packed, ctx=ctx, tiled=tiled))
            keepers.append(keeper)
            layers[weights, tiled] = named(weights, keeper.array), keeper.order == TILES
        for value in bias:
            if value not in known:
                known[value] = named(value, values[graph[value.node].name].copy())
        packed_weights, tiled = layers[weights, tiled]
        inputs = (data, packed_weights, *(known[value] for value in bias))
        attrs = node.attrs.set(packed=True, tiled=tiled)
        copy.update(copy[node.id].but(inputs=inputs, attrs=attrs))
    return copy, made, keepers


def _packed(weights: npt.NDArray[np.float32], ctx: Any, *, tiled: bool) -> Kept:
    """Weights as products read them, or those of equal ones: packing takes less than a digest."""
    mx = import_mxnet()
    units, depth = weights.shape
    order = TILES if tiled else PANELS
    array = mx.nd.empty((packed_size(mx, depth, units, tiled=tiled),), ctx)
    if packed(mx, weights, tiled=tiled, into=view_of(array)) is None:
        return _packed(weights, ctx, tiled=False)
    return kept(array, order)
