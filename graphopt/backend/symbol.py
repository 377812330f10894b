"""Graph -> MXNet Symbol, by way of Symbol JSON."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from graphopt.backend.draw_order import waits_of
from graphopt.backend.keeping import keeps
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError
from graphopt.ir.attrs import to_mxnet
from graphopt.ir.constant import constant_array
from graphopt.ir.graph import Graph
from graphopt.ir.node import (
    CONSTANT,
    CONVOLUTIONS,
    KEEPING,
    WITH_SPEC,
    Node,
    NodeId,
)
from graphopt.ir.types import DTYPES
from graphopt.kernels import bridge
from graphopt.kernels.convolutions.spec import spec_of, told

if TYPE_CHECKING:
    import numpy as np

MXNET_VERSION = 10901


def to_json(graph: Graph, stated: Container[str] = ()) -> str:
    """Symbol JSON of the graph; constants become variables (see :func:`constants`). Linear.

    ``stated``: names of variables that say which shape and dtype they have. Files need that of
    their parameters, as MXNet does not find the types of all from those of the data.
    """
    return json.dumps(_document(graph, stated), ensure_ascii=False)  # MXNet reads no \\u escapes


def to_symbol(graph: Graph, stated: Container[str] = ()) -> Any:
    """The MXNet Symbol of the graph; see :func:`to_json`.

    Raises:
        GraphError: MXNet does not accept it; the message is MXNet's first line.
        MissingDependencyError: it holds fused nodes, and they cannot run here.
    """
    mx = import_mxnet()
    if any(node.op in WITH_SPEC for node in graph):
        bridge.load(mx)
    handle = ctypes.c_void_p()
    text = to_json(graph, stated).encode()
    try:
        mx.base.check_call(
            mx.base._LIB.MXSymbolCreateFromJSON(ctypes.c_char_p(text), ctypes.byref(handle))
        )
    except mx.MXNetError as error:
        reason = first_line(error)
        raise GraphError(f"MXNet does not accept graph {graph.name!r}: {reason}") from None
    return mx.sym.Symbol(handle)


def first_line(error: Exception) -> str:
    """What an MXNet exception says, without source positions and the C++ stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    noise = ("Stack trace", "[bt]", "Traceback", 'File "')
    lines = [line for line in lines if not line.startswith(noise)]
    text = lines[0] if lines else type(error).__name__
    if len(lines) > 1 and text == "MXNetError:":
        text = lines[1]
    for prefix in ("MXNetError: ", "Error in operator "):
        if prefix in text:
            text = text[text.index(prefix) + (len(prefix) if prefix.startswith("MX") else 0) :]
    return text


def constants(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors of the graph's constant nodes, by the name of the variable that stands for each."""
    return {
        node.name: constant_array(node)
        for level in (graph, *(nested for node in graph for nested in node.graphs))
        for node in level
        if node.op == CONSTANT
    }


def _document(graph: Graph, stated: Container[str] = ()) -> dict[str, Any]:
    index: dict[NodeId, int] = {}
    inputs = {node.id for node in graph.inputs}
    nodes: list[dict[str, Any]] = []
    waits = waits_of(graph)
    for node in _in_order(graph):
        index[node.id] = len(nodes)
        entry = _entry(node, index)
        if node.id in waits:
            # Inputs are there from the start, and MXNet has no gradient for one waited for only.
            entry["control_deps"] = [index[b] for b in waits[node.id] if b not in inputs]
        if entry["op"] == "null" and node.name in stated:
            entry["attrs"] = _stated(node) | entry.get("attrs", {})
        nodes.append(entry)
    return {
        "nodes": nodes,
        "arg_nodes": [i for i, entry in enumerate(nodes) if entry["op"] == "null"],
        "heads": [[index[value.node], value.index, 0] for value in graph.outputs],
        "attrs": {"mxnet_version": ["int", MXNET_VERSION]},
    }


def _stated(node: Node) -> dict[str, str]:
    type_ = node.type
    if type_.dtype is None or not type_.is_static:
        return {}
    return {"__shape__": to_mxnet(type_.shape), "__dtype__": str(DTYPES[type_.dtype][2])}


def _in_order(graph: Graph) -> list[Node]:
    """Topological order that holds every input only if something reads it.

    A nested graph keeps all inputs, in signature order: its operator feeds them by position.
    """
    reads = {value.node for node in graph for value in node.inputs}
    reads.update(value.node for value in graph.outputs)
    return [node for node in graph if not node.is_input or node.id in reads]


def _entry(node: Node, index: dict[NodeId, int]) -> dict[str, Any]:
    is_variable = node.is_input or node.op == CONSTANT
    entry: dict[str, Any] = {
        "op": "null" if is_variable else KEEPING if keeps(node) else node.op,
        "name": node.name,
        "inputs": [[index[value.node], value.index, 0] for value in node.inputs],
    }
    if is_variable and not node.name:
        raise GraphError("a variable of the graph has no name, so MXNet cannot be given its value")
    attrs = {} if node.op == CONSTANT else node.attrs
    if node.op == CONVOLUTIONS:
        other = {"like": node.attrs["like"]} if "like" in node.attrs else {}
        attrs = {"spec": told(spec_of(node)), "packed": node.attrs.flag("packed"), **other}
    if keeps(node):
        attrs = node.attrs.without("keeps")
    if attrs:
        entry["attrs"] = {key: to_mxnet(value) for key, value in attrs.items()}
    if node.graphs and node.op not in WITH_SPEC:  # its spec says all
        entry["subgraphs"] = [_document(nested) for nested in node.graphs]
    return entry
