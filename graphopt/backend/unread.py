"""Inputs that passes left no reader of, in graphs that train."""

from __future__ import annotations

from graphopt.ir.attrs import AttrValue
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, Node, Value
from graphopt.ir.types import TensorType


def reading_all(graph: Graph) -> Graph:
    """The graph with a reader for each input that has none, whose gradient is zeros.

    What nothing reads any more, as ``v`` in ``w * ones_like(v)`` or the rows of a table that a
    slice leaves out, gets zeros in MXNet: an operator that autograd does not know to have read it
    would leave the gradient of an older call there. A zero is made of its first row, and added to
    an output. Linear.
    """
    output = next((v for v in graph.outputs if is_float(graph.type_of(v))), None)
    unread = [node for node in graph.inputs if _is_unread(graph, node)]
    if output is None or not unread:
        return graph
    made = graph.copy()
    tied = output
    for node in unread:
        tied = _tied(made, tied, node)
    made.set_outputs(tied if value == output else value for value in graph.outputs)
    return made


def is_float(type_: TensorType) -> bool:
    """Whether MXNet has gradients of that type."""
    return type_.dtype in ("float16", "float32", "float64")


def _is_unread(graph: Graph, node: Node) -> bool:
    is_learned = node.op != AUX and is_float(node.type) and bool(node.type.size)
    return is_learned and not graph.node_users(node.id) and not graph.is_output(node.out())


def _tied(graph: Graph, output: Value, node: Node) -> Value:
    """The output with nothing of an input added."""
    type_ = graph.type_of(output)
    value, of = node.out(), node.type

    def then(op: str, attrs: dict[str, AttrValue], to: TensorType, *more: Value) -> None:
        nonlocal value, of
        inputs = (value, *more)
        value, of = graph.add(op, inputs, attrs, (to,), f"{node.name}_{op.lower()}").out(), to

    first: dict[str, AttrValue] = {"axis": 0, "begin": 0, "end": 1}
    if of.shape:
        then("slice_axis", first, of.with_shape((1, *of.shape[1:])))
        then("Reshape", {"shape": (-1,)}, of.with_shape((of.size,)))
        then("slice_axis", first, of.with_shape((1,)))
    then("zeros_like", {}, of)
    if of.dtype != type_.dtype:
        then("Cast", {"dtype": type_.dtype}, TensorType(type_.dtype, of.shape))
    if not type_.rank:
        then("reshape_like", {}, type_, output)
    added = graph.add("broadcast_add", (output, value), {}, (type_,), f"{node.name}_unread")
    return added.out()
