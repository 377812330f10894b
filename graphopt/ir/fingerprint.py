"""Structural hashes of nodes and graphs, stable across processes."""

from __future__ import annotations

from hashlib import blake2b

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node, NodeId
from graphopt.ir.types import TensorType

#: How an array is to be filled. A Gluon constant's has an address in it, another each time.
_INIT = "__init__"


def fingerprint(graph: Graph) -> str:
    """Hex digest of a graph: structure, attributes, input names and roles, and the types of inputs.

    Ids, the names of operators and the initializers of inputs do not count.
    """
    digests = node_digests(graph)
    total = blake2b(digest_size=16)
    for node in graph.inputs:
        total.update(digests[node.id])
    for value in graph.outputs:
        total.update(digests[value.node] + value.index.to_bytes(4, "little"))
    return total.hexdigest()


def fingerprint_of_any_size(graph: Graph) -> str:
    """The same for graphs that differ in the extents of data only, as far as attributes do not."""
    copy = graph.copy()
    for node in graph.role(DATA):
        shape = node.type.shape
        extents = None if shape is None else (None,) * len(shape)
        copy.update(node.but(types=(TensorType(node.type.dtype, extents),)))
    return fingerprint(copy)


def node_digests(graph: Graph) -> dict[NodeId, bytes]:
    """Per node, a digest of everything that determines its value. Linear."""
    digests: dict[NodeId, bytes] = {}
    for node in graph.topological():
        digests[node.id] = _digest(node, digests)
    return digests


def _digest(node: Node, digests: dict[NodeId, bytes]) -> bytes:
    attrs = node.attrs
    if node.is_input and _INIT in attrs:
        attrs = Attrs({key: value for key, value in attrs.items() if key != _INIT})
    state = blake2b(f"{node.op}\0{attrs.text}\0".encode(), digest_size=16)
    if node.is_input:
        state.update(f"{node.name}\0{node.type}".encode())
    for value in node.inputs:
        state.update(digests[value.node] + value.index.to_bytes(4, "little"))
    for before in node.after:
        state.update(b"after" + digests[before])
    for nested in node.graphs:
        state.update(fingerprint(nested).encode())
    return state.digest()
