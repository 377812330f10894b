"""Products of our own on their way to MXNet: their weights packed, once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, PRODUCT, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.products import packed


def has_products(graph: Graph) -> bool:
    """Whether a graph holds products of our own."""
    return any(node.op == PRODUCT for node in graph)


class Packed:
    """Packed weights, shared by all who keep this."""

    def __init__(self, array: Any) -> None:
        """Of an NDArray."""
        self.array = array


#: By what they were made from. A net has an engine for each shape of its inputs, and its weights
#: are packed for all of them alike. By values and not by arrays, since arrays are written to, and
#: every engine folds parameters into arrays of its own.
_KEPT: Final[WeakValueDictionary[tuple[bytes, tuple[int, ...], str], Packed]] = (
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

    def named(value: Value, array: Any) -> Value:
        name = copy.unique_name(f"{graph[value.node].name}_packed")
        made[name] = array
        return copy.add_input(name, PARAM, TensorType("float32", array.shape)).out()

    for node in graph:
        if node.op != PRODUCT:
            continue
        data, weights, *bias = node.inputs
        if weights not in known:
            keepers.append(_packed(values[graph[weights.node].name].asnumpy(), ctx))
            known[weights] = named(weights, keepers[-1].array)
        for value in bias:
            if value not in known:
                known[value] = named(value, values[graph[value.node].name].copy())
        inputs = (data, *(known[value] for value in (weights, *bias)))
        copy.update(copy[node.id].but(inputs=inputs, attrs=node.attrs.set(packed=True)))
    return copy, made, keepers


def _packed(weights: npt.NDArray[np.float32], ctx: Any) -> Packed:
    key = hashlib.blake2b(weights.tobytes()).digest(), weights.shape, str(ctx)
    found = _KEPT.get(key)
    if found is None:
        mx = import_mxnet()
        found = Packed(mx.nd.array(packed(mx, weights), ctx=ctx, dtype="float32"))
        found = _KEPT.setdefault(key, found)
    return found
