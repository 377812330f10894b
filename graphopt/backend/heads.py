"""Products of attention's heads in MXNet's operators, from nothing but their attributes."""

from __future__ import annotations

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node, Value
from graphopt.ir.types import UNKNOWN, TensorType

#: (batch, rows, heads, columns) <-> (batch, heads, rows, columns)
_TURN = (0, 2, 1, 3)


#: What MXNet's products of interleaved operands are called, before their kind.
INTERLEAVED = "_contrib_interleaved_matmul_"


def reads_heads(node: Node) -> bool:
    """Whether matrices of a product lie side by side, so that it is no ``batch_dot`` by itself."""
    return any(node.attrs.get(key) for key in ("heads_a", "heads_b", "heads_out"))


def of_interleaved(node: Node) -> tuple[str, Attrs]:
    """MXNet's operator for a ``graphopt_interleaved_dot``, and its attributes."""
    return f"{INTERLEAVED}{node.attrs['kind']}", Attrs(heads=node.attrs["heads"])


def in_mxnets_operators(graph: Graph, node: Node) -> Graph:
    """The transposes, the ``batch_dot`` and the transpose behind it, with the node's inputs."""
    body = Graph("region")
    sides = []
    for at, (key, value) in enumerate(zip(("heads_a", "heads_b"), node.inputs, strict=True)):
        side = body.add_input(f"in{at}", DATA, graph.type_of(value)).out()
        sides.append(_stacked(body, side, f"{node.name}_{key}") if node.attrs.get(key) else side)
    flags = {key: node.attrs.flag(key) for key in ("transpose_a", "transpose_b")}
    heads = node.attrs.get("heads_out")
    made = _of_stack(node.type) if heads else node.type
    result = body.add("batch_dot", sides, flags, [made], f"{node.name}_products").out()
    if heads:
        codes = (-4, -1, heads, 0, 0)
        apart = _permuted(node.type)
        name = f"{node.name}_apart"
        result = body.add("Reshape", [result], {"shape": codes}, [apart], name).out()
        result = body.add("transpose", [result], {"axes": _TURN}, [node.type], node.name).out()
    body.set_outputs([result])
    return body


def _stacked(body: Graph, heads: Value, name: str) -> Value:
    """Matrices one behind the other, of heads side by side."""
    type_ = body.type_of(heads)
    turned = body.add("transpose", [heads], {"axes": _TURN}, [_permuted(type_)], f"{name}_turned")
    return body.add("Reshape", [turned], {"shape": (-3, 0, 0)}, [_of_stack(type_)], name).out()


def _permuted(heads: TensorType) -> TensorType:
    if heads.shape is None:
        return UNKNOWN
    batch, rows, count, columns = heads.shape
    return heads.with_shape((batch, count, rows, columns))


def _of_stack(heads: TensorType) -> TensorType:
    if heads.shape is None:
        return UNKNOWN
    batch, rows, count, columns = heads.shape
    known = None if batch is None or count is None else batch * count
    return heads.with_shape((known, rows, columns))
