"""Products of our own on their way to MXNet: their weights packed, once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from graphopt.backend.arrays import view_of
from graphopt.backend.kept import Kept
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, PRODUCT, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.products import is_tiled, packed, packed_size
from graphopt.passes.pack_products import problem_of


def has_products(graph: Graph) -> bool:
    """Whether a graph holds products of our own."""
    return any(node.op == PRODUCT for node in graph)


class Packed(Kept):
    """Packed weights of products."""

    def __init__(self, array: Any, *, tiled: bool = False) -> None:
        """Of an NDArray; ``tiled`` as :func:`packed` has it."""
        super().__init__(array)
        self.tiled = tiled


#: By what they were made from. A net has an engine for each shape of its inputs, and its weights
#: are packed for all of them alike. By values and not by arrays, since arrays are written to, and
#: every engine folds parameters into arrays of its own.
_KEPT: Final[WeakValueDictionary[tuple[bytes, tuple[int, ...], str, bool], Packed]] = (
    WeakValueDictionary()
)


def with_packed_products(
    graph: Graph, values: Mapping[str, Any], ctx: Any
) -> tuple[Graph, dict[str, Any], list[Packed]]:
    """A copy whose products read packed weights and biases of their own, these, and their keepers.

    Equal weights are packed once for all graphs, as long as somebody has their keeper. Biases are
    copied, so that a layer is frozen as a whole, not its weights alone.

    Args:
        graph: its products' weights are inputs or constants.
        values: NDArray per name of these.
        ctx: where the packed ones are to be.
    """
    copy, made = graph.copy(), {}
    keepers: list[Packed] = []
    known: dict[Value, Value] = {}
    layers: dict[tuple[Value, bool], tuple[Value, bool]] = {}

    def named(value: Value, array: Any) -> Value:
        name = copy.unique_name(f"{graph[value.node].name}_packed")
        made[name] = array
        return copy.add_input(name, PARAM, TensorType("float32", array.shape)).out()

    for node in graph:
        if node.op != PRODUCT:
            continue
        data, weights, *bias = node.inputs
        tiled = is_tiled(import_mxnet(), *problem_of(graph, node)[:3])
        if (weights, tiled) not in layers:
            keeper = _packed(view_of(values[graph[weights.node].name]), ctx, tiled=tiled)
            keepers.append(keeper)
            layers[weights, tiled] = named(weights, keeper.array), keeper.tiled
        for value in bias:
            if value not in known:
                known[value] = named(value, values[graph[value.node].name].copy())
        packed_weights, tiled = layers[weights, tiled]
        inputs = (data, packed_weights, *(known[value] for value in bias))
        attrs = node.attrs.set(packed=True, tiled=tiled)
        copy.update(copy[node.id].but(inputs=inputs, attrs=attrs))
    return copy, made, keepers


def _packed(weights: npt.NDArray[np.float32], ctx: Any, *, tiled: bool) -> Packed:
    key = hashlib.blake2b(weights.data).digest(), weights.shape, str(ctx), tiled
    found = _KEPT.get(key)
    if found is None:
        mx = import_mxnet()
        units, depth = weights.shape
        for order in (True, False) if tiled else (False,):
            array = mx.nd.empty((packed_size(mx, depth, units, tiled=order),), ctx)
            if packed(mx, weights, tiled=order, into=view_of(array)) is not None:
                break
        found = _KEPT.setdefault(key, Packed(array, tiled=order))
    return found
