"""Graphs of nothing but small kernels, which run in the thread that calls them.

Waking a thread of MXNet's engine takes 20 to 30 us, a kernel over some hundred elements one: a net
that is one such kernel was slower in a loop of training steps than the operators it stood for,
which kept that thread busy (kernels/bridge/inline_operator.h).
"""

from __future__ import annotations

import json
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, FUSED, Node
from graphopt.kernels.bridge.versions import fit

#: The operator that the caller runs. Only a CachedOp that is not static may have it.
INLINE: Final = "graphopt_fused_inline"

#: The most elements of an array, and kernels of a graph.
_MOST_ELEMENTS, _MOST_KERNELS = 4096, 4


def is_all_small(graph: Graph) -> bool:
    """Whether the caller of such a graph had better run it. Linear.

    Not where MXNet does not lay out arrays as the bridge reads them.
    """
    nodes = [node for node in graph if not node.is_input and node.op != CONSTANT]
    if not 0 < len(nodes) <= _MOST_KERNELS or any(node.op != FUSED for node in nodes):
        return False
    return all(_is_small(graph, node) for node in nodes) and fit(import_mxnet())


def run_by_caller(symbol: Any) -> Any:
    """The Symbol with kernels that the caller runs for those that MXNet's engine runs."""
    document = json.loads(symbol.tojson())
    for entry in document["nodes"]:
        if entry["op"] == FUSED:
            entry["op"] = INLINE
    # MXNet reads no \\u escapes.
    return import_mxnet().sym.load_json(json.dumps(document, ensure_ascii=False))


def _is_small(graph: Graph, node: Node) -> bool:
    types = (*map(graph.type_of, node.inputs), *node.types)
    return all(type_.size is not None and type_.size <= _MOST_ELEMENTS for type_ in types)
