"""``hstack`` and others as operators whose shapes MXNet infers rightly."""

from __future__ import annotations

from graphopt.backend.infer import shape_spoilers
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import Shape, TensorType


def without_stacks(graph: Graph) -> Graph:
    """The graph with ``concatenate`` of reshaped arrays for stacks of arrays of known shapes.

    So are arrays reshaped that are laid flat to be joined or to have something inserted. MXNet
    infers wrong shapes of what stacks read, with which most of its executors cannot run it.
    """
    stacks = shape_spoilers(graph)
    if not stacks:
        return graph
    twin = graph.copy()
    for node in stacks:
        if not all(graph.type_of(value).is_static for value in node.inputs):
            continue
        if canonical(node.op).startswith("_npi_insert"):
            flat = _flat(twin, node.inputs[0])
            twin.update(node.but(inputs=(flat, *node.inputs[1:])))
        else:
            _concatenate(twin, node)
    return twin


def _flat(graph: Graph, value: Value) -> Value:
    return _reshaped(graph, value, (graph.type_of(value).size or 0,))


def _concatenate(graph: Graph, node: Node) -> None:
    op = canonical(node.op)
    parts, rank = [], 0
    for value in node.inputs:
        shape = _as_part(op, graph.type_of(value))
        parts.append(_reshaped(graph, value, shape))
        rank = len(shape)
    axis = min(2 if op == "_npi_dstack" else 1, rank - 1)
    attrs = node.attrs.set(axis=axis, num_args=len(parts))
    graph.update(node.but(op="_npi_concatenate", inputs=tuple(parts), attrs=attrs))


def _as_part(op: str, type_: TensorType) -> Shape:
    """The shape in which numpy joins an array of that type."""
    shape = type_.shape or ()
    if op == "_npi_concatenate":
        return (type_.size or 0,)
    if op == "_npi_hstack":
        return shape or (1,)
    if op == "_npi_column_stack":
        return shape if len(shape) > 1 else (*(shape or (1,)), 1)
    wider = {0: (1, 1, 1), 1: (1, *shape, 1), 2: (*shape, 1)}
    return wider.get(len(shape), shape)


def _reshaped(graph: Graph, value: Value, shape: Shape) -> Value:
    type_ = graph.type_of(value)
    if type_.shape == shape:
        return value
    types = (type_.with_shape(shape),)
    return graph.add("_np_reshape", (value,), {"newshape": shape}, types).out()
