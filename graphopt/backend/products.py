"""Products of our own on their way to MXNet: their weights packed, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, PRODUCT, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.products import packed


def has_products(graph: Graph) -> bool:
    """Whether a graph holds products of our own."""
    return any(node.op == PRODUCT for node in graph)


def with_packed_products(
    graph: Graph, values: Mapping[str, Any], ctx: Any
) -> tuple[Graph, dict[str, Any]]:
    """A copy whose products read packed weights, and these.

    Weights that several products share are packed once.

    Args:
        graph: its products' weights are inputs or constants.
        values: NDArray per name of these.
        ctx: where the packed ones are to be.
    """
    mx = import_mxnet()
    copy, made = graph.copy(), {}
    known: dict[Value, Value] = {}
    for node in graph:
        if node.op != PRODUCT:
            continue
        data, weights, *bias = node.inputs
        if weights not in known:
            source = graph[weights.node].name
            array = packed(mx, values[source].asnumpy())
            name = copy.unique_name(f"{source}_packed")
            made[name] = mx.nd.array(array, ctx=ctx, dtype="float32")
            known[weights] = copy.add_input(name, PARAM, TensorType("float32", array.shape)).out()
        inputs = (data, known[weights], *bias)
        copy.update(copy[node.id].but(inputs=inputs, attrs=node.attrs.set(packed=True)))
    return copy, made
