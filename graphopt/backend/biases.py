"""Dense layers whose bias learns and whose weight does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graphopt.backend.documents import document_of, symbol_of
from graphopt.ir.node import DENSE
from graphopt.ir.types import dtype_name


def with_biases_that_learn(
    symbol: Any, arguments: Mapping[str, Any], learning: Collection[str]
) -> Any:
    """The symbol with an operator of ours where MXNet's leaves out the gradient of the bias.

    oneDNN computes it along with that of the weight, and MXNet neither where nobody wants the
    latter: the array keeps what was in it. Linear.

    Args:
        symbol: what is to be trained, on a CPU.
        arguments: arrays by name.
        learning: names of the arguments that get a gradient.
    """
    document = document_of(symbol)
    nodes = document["nodes"]
    learns: list[bool] = []
    found = []
    for node in nodes:
        sources = [source for source, *_ in node["inputs"]]
        takes = [learns[source] for source in sources]
        learns.append(any(takes) or (node["op"] == "null" and node["name"] in learning))
        if node["op"] == "FullyConnected" and takes[1:] == [False, True]:
            bias = arguments.get(nodes[sources[2]]["name"])
            if bias is not None and dtype_name(bias.dtype) == "float32":
                found.append(node)
    if not found:
        return symbol
    for node in found:
        node["op"] = DENSE
    return symbol_of(document)
