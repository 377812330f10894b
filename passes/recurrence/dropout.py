"""Dropout in the steps of a recurrence: masks that are drawn outside of it."""

from __future__ import annotations

from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.chains import Chain


def draw_outside(graph: Graph, chain: Chain) -> bool:
    """Have the steps of a chain multiply with masks that depend on no state.

    Dropout multiplies with a mask that it draws, so ``Dropout(x)`` is ``x * Dropout(ones)``: the
    same number of random nodes, each with the shape that it had. Returns whether there was one.
    """
    rows = [at for at, node in enumerate(chain.template) if canonical(node.op) == "Dropout"]
    for at in rows:
        for step in chain.steps:
            _draw_outside(graph, graph[step[at]])
    return bool(rows)


def draw_sequences(graph: Graph, body: Graph, steps: int, *, training: bool) -> dict[Value, Value]:
    """Have the body of a loop multiply with masks for all steps, which are drawn in front of it.

    Where nothing is dropped, Dropout goes away.

    Args:
        graph: where the loop is; the masks are added to it.
        body: of the loop, with types; each mask becomes an input of it.
        steps: how often the body runs.
        training: whether the graph is one that is trained.

    Returns:
        The new inputs of the body, and the masks (steps, batch, columns) in the graph.
    """
    masks: dict[Value, Value] = {}
    for node in tuple(body):
        if canonical(node.op) != "Dropout":
            continue
        (data,) = node.inputs
        kept = data
        if training or node.attrs.get("mode", "training") == "always":
            mask = _mask(graph, node, (steps, *(node.types[0].shape or ())))
            row = body.add_input(body.unique_name(f"{node.name}_mask"), DATA, node.types[0])
            masks[row.out()] = mask
            name = _name(body, node, "dropped")
            made = body.add("elemwise_mul", [data, row.out()], {}, node.types[:1], name)
            kept = made.out()
        body.replace_uses(node.out(0), kept)
        body.erase(node.id)
    return masks


def _mask(graph: Graph, node: Node, shape: tuple[int | None, ...]) -> Value:
    """One draw of a Dropout for an array that has an axis more in front."""
    type_ = TensorType(node.types[0].dtype, shape)
    attrs = {"shape": type_.shape, "dtype": type_.dtype}
    ones = graph.add("_ones", [], attrs, [type_], _name(graph, node, "ones"))
    shared = node.attrs.get("axes") or ()
    axes = shared if isinstance(shared, tuple) else (int(shared),)
    drawn = node.attrs.set(axes=tuple(int(axis) + 1 for axis in axes)) if axes else node.attrs
    types = [type_] * len(node.types)
    return graph.add(node.op, [ones.out()], drawn, types, _name(graph, node, "mask")).out()


def _draw_outside(graph: Graph, node: Node) -> None:
    (data,) = node.inputs
    type_ = graph.type_of(data)
    ones = graph.add(
        "_ones",
        [],
        {"shape": type_.shape, "dtype": type_.dtype},
        [type_],
        _name(graph, node, "ones"),
    )
    mask = graph.add(node.op, [ones.out()], node.attrs, node.types, _name(graph, node, "mask"))
    made = graph.add(
        "elemwise_mul", [data, mask.out()], {}, node.types[:1], _name(graph, node, "dropped")
    )
    graph.replace_uses(Value(node.id, 0), made.out())
    graph.erase(node.id)


def _name(graph: Graph, node: Node, what: str) -> str:
    return graph.unique_name(f"{node.name or 'dropout'}_{what}")
