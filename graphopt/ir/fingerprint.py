"""Structural hashes of nodes and graphs, stable across processes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from hashlib import blake2b
from typing import Final

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, BY_ATTRIBUTES, DATA, PARAM, Node, NodeId
from graphopt.ir.sizes import is_sized
from graphopt.ir.types import TensorType

#: How an array is to be filled. A Gluon constant's has an address in it, another each time.
INIT: Final = "__init__"


#: Inputs whose extents do not count: none, those of data, and in nested graphs all.
_NONE: Final[frozenset[str]] = frozenset()
_DATA: Final = frozenset((DATA,))
_ALL: Final = frozenset((DATA, PARAM, AUX))


def fingerprint(graph: Graph) -> str:
    """Hex digest of a graph: structure, attributes, and the roles and types of inputs.

    Data counts by name, what is learned by its place among the inputs: a net has the same digest
    under any prefix. Ids, names of operators and initializers of inputs do not count.
    """
    return _fingerprint(graph, _NONE)


def fingerprint_of_any_size(graph: Graph, names: Container[str] = ()) -> str:
    """The same for graphs that differ in the extents of data only, as far as attributes do not.

    Neither do those of other inputs of such names count, nor of constants that may follow the data.
    """
    return _fingerprint(graph, _DATA, names)


def node_digests(graph: Graph) -> dict[NodeId, bytes]:
    """Per node, a digest of everything that determines its value, inputs by their names. Linear."""
    return _digests(graph, {node.id: node.name for node in graph.inputs}, _NONE)


def _fingerprint(graph: Graph, of_any_size: frozenset[str], names: Container[str] = ()) -> str:
    """``of_any_size``: roles of inputs whose extents do not count; ``names``: of some more."""
    called = {
        node.id: node.name if node.op == DATA else f"\0{place}"
        for place, node in enumerate(graph.inputs)
    }
    digests = _digests(graph, called, of_any_size, names)
    total = blake2b(digest_size=16)
    for node in graph.inputs:
        total.update(digests[node.id])
    for value in graph.outputs:
        total.update(digests[value.node] + value.index.to_bytes(4, "little"))
    return total.hexdigest()


def _digests(
    graph: Graph,
    called: Mapping[NodeId, str],
    of_any_size: frozenset[str],
    names: Container[str] = (),
) -> dict[NodeId, bytes]:
    """``called``: what tells inputs apart."""
    digests: dict[NodeId, bytes] = {}
    for node in graph.topological():
        digests[node.id] = _digest(node, digests, called, of_any_size, names)
    return digests


def _digest(
    node: Node,
    digests: dict[NodeId, bytes],
    called: Mapping[NodeId, str],
    of_any_size: frozenset[str],
    names: Container[str],
) -> bytes:
    attrs = node.attrs
    if node.is_input and INIT in attrs:
        attrs = Attrs({key: value for key, value in attrs.items() if key != INIT})
    if of_any_size and is_sized(node):
        attrs = attrs.set(shape=(None,) * len(node.type.shape or ()))
    state = blake2b(f"{node.op}\0{attrs.text}\0".encode(), digest_size=16)
    if node.is_input:
        is_free = node.op in of_any_size or node.name in names
        told = _of_any_size(node.type) if is_free else node.type
        state.update(f"{called[node.id]}\0{told}".encode())
    for value in node.inputs:
        state.update(digests[value.node] + value.index.to_bytes(4, "little"))
    for before in node.after:
        state.update(b"after" + digests[before])
    if of_any_size and node.op in BY_ATTRIBUTES:
        return state.digest()  # sizes in a graph that does not run do not matter
    for nested in node.graphs:
        state.update(_fingerprint(nested, _ALL if of_any_size else _NONE).encode())
    return state.digest()


def _of_any_size(type_: TensorType) -> TensorType:
    return TensorType(type_.dtype, None if type_.shape is None else (None,) * len(type_.shape))
