"""What the body of a loop looks up by numbers that are its data: once, for all steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from graphopt.analysis.effects import is_pure
from graphopt.analysis.needed import needed_for
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.ir.reshape import reshaped
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.recurrence.moves import tuple_of
from graphopt.rewrite.substitute import substitute, substitute_outputs

_LOOKUPS: Final = frozenset({"Embedding", "take", "one_hot"})
#: No kernel of a step computes in two dtypes.
_WANTED: Final = _LOOKUPS | {"Cast"}
#: Bytes that a lookup of all steps may take, where those of what the loop returns are not more.
_MOST_BYTES: Final = 256 << 20


def compute_ahead(
    graph: Graph,
    body: Graph,
    data: Mapping[Value, Value],
    captured: Mapping[Value, Value],
    steps: int,
    *,
    training: bool,
) -> dict[Value, Value]:
    """Look up in front of a loop what its body looks up by its data, and cast what it casts of it.

    Numbers may be cast, sliced and reshaped before. Linear.

    Args:
        graph: where the loop is; the operators are added to it.
        body: of the loop, with types; what is looked up becomes an input of it.
        data: inputs of the body that are another in each step, and the arrays of all steps.
        captured: inputs of the body that are the same in all steps, and their values in the graph.
        steps: how often the body runs.
        training: whether the graph is one that is trained.

    Returns:
        The new inputs of the body, and their arrays in the graph.

    Raises:
        GraphoptError: that would take much more memory than one step after the other.
    """
    able = _able(body, data, captured, steps, training=training)
    wanted = [body[number] for number in able if canonical(body[number].op) in _WANTED]
    if not training:  # else MXNet keeps them of all steps, too, for the gradients
        _check_memory(body, wanted, steps)
    needed = needed_for(body, [node.out() for node in wanted])
    outside = {**data, **captured}
    for number, attrs in able.items():
        if number in needed:
            _add(graph, body[number], attrs, steps, outside)
    made: dict[Value, Value] = {}
    for node in wanted:
        row = body.add_input(body.unique_name(f"{node.name}_row"), DATA, node.type)
        made[node.out()] = row.out()
    for node in tuple(body):
        substitute(body, node, made)
    substitute_outputs(body, made)
    return {row: outside[value] for value, row in made.items()}


def _check_memory(body: Graph, wanted: Sequence[Node], steps: int) -> None:
    """Refuse rows as wide as a vocabulary: MXNet has one step of them at a time."""
    returned = sum(body.type_of(value).nbytes or 0 for value in body.outputs)
    most = max(_MOST_BYTES, steps * returned)
    for node in wanted:
        taken = steps * (node.type.nbytes or 0)
        if canonical(node.op) in _LOOKUPS and taken > most:
            raise GraphoptError(
                f"{node.label}: of all steps at once it takes {taken >> 20} MiB, of"
                f" {most >> 20} at most"
            )


def _able(
    body: Graph,
    data: Mapping[Value, Value],
    captured: Mapping[Value, Value],
    steps: int,
    *,
    training: bool,
) -> dict[NodeId, Attrs]:
    """Operators that can run on all steps at once, sources first, and their attributes then."""
    varying = {value.node for value in data}
    same = {value.node for value in captured}
    found: dict[NodeId, Attrs] = {}
    for node in body:
        if not node.inputs or not is_pure(node, training=training):
            continue
        table = {"Embedding": 1, "take": 0}.get(canonical(node.op))
        read = [n for n in range(len(node.inputs)) if n != table]
        if table is not None and node.inputs[table].node not in same:
            continue
        if all(node.inputs[n].node in varying for n in read):
            attrs = _for_all_steps(body, node, steps)
            if attrs is not None:
                varying.add(node.id)
                found[node.id] = attrs
    return found


def _for_all_steps(body: Graph, node: Node, steps: int) -> Attrs | None:
    """Attributes with which a node does for all steps what it does for one; ``None`` for none."""
    op = canonical(node.op)
    if op == "take":
        return node.attrs if int(node.attrs.get("axis", 0)) == 0 else None
    if op in ("Embedding", "one_hot"):
        return node.attrs
    before = body.type_of(node.inputs[0]).shape
    if op in _MOVES:
        return _MOVES[op](node.attrs, (steps, *_extents(before)), _extents(node.type.shape))
    if op in POINTWISE and "shape" not in node.attrs and op != "broadcast_axis":
        alike = all(body.type_of(value).shape == node.type.shape for value in node.inputs)
        return node.attrs if alike else None
    return None


def _extents(shape: tuple[int | None, ...] | None) -> tuple[int, ...]:
    return tuple(extent or 0 for extent in shape or ())


def _reshape(attrs: Attrs, before: tuple[int, ...], after: tuple[int, ...]) -> Attrs | None:
    codes = (0, *tuple_of(attrs.get("shape")))
    if len(codes) == 1 or attrs.flag("reverse"):
        return None
    try:
        fits = reshaped(before, codes) == (before[0], *after)
    except ValueError:
        return None
    return attrs.set(shape=codes) if fits else None


def _expand(attrs: Attrs, _before: tuple[int, ...], _after: tuple[int, ...]) -> Attrs:
    axis = int(attrs["axis"])
    return attrs.set(axis=axis + (axis >= 0))


def _slice_axis(attrs: Attrs, before: tuple[int, ...], _after: tuple[int, ...]) -> Attrs:
    return attrs.set(axis=int(attrs["axis"]) % (len(before) - 1) + 1)


def _split(attrs: Attrs, before: tuple[int, ...], _after: tuple[int, ...]) -> Attrs:
    return attrs.set(axis=int(attrs.get("axis", 1)) % (len(before) - 1) + 1)


def _slice(attrs: Attrs, _before: tuple[int, ...], _after: tuple[int, ...]) -> Attrs:
    given = {key: tuple_of(attrs.get(key)) for key in ("begin", "end", "step")}
    return attrs.set(**{key: (None, *found) for key, found in given.items() if found})


def _squeeze(attrs: Attrs, before: tuple[int, ...], _after: tuple[int, ...]) -> Attrs | None:
    given = [int(axis) % (len(before) - 1) + 1 for axis in tuple_of(attrs.get("axis"))]
    axes = given or [axis for axis in range(1, len(before)) if before[axis] == 1]
    return attrs.set(axis=tuple(axes)) if axes else None


_MOVES: Final[dict[str, Callable[[Attrs, tuple[int, ...], tuple[int, ...]], Attrs | None]]] = {
    "Reshape": _reshape,
    "expand_dims": _expand,
    "slice_axis": _slice_axis,
    "SliceChannel": _split,
    "slice": _slice,
    "squeeze": _squeeze,
}


def _add(graph: Graph, node: Node, attrs: Attrs, steps: int, outside: dict[Value, Value]) -> None:
    inputs = [outside[value] for value in node.inputs]
    types = [TensorType(type_.dtype, (steps, *_extents(type_.shape))) for type_ in node.types]
    name = graph.unique_name(node.name)
    made = graph.add(node.op, inputs, attrs, types, name, origin=node.origin)
    outside |= {node.out(n): made.out(n) for n in range(len(types))}
