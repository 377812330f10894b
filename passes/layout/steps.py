"""Steps that are cut from an array and joined again, as loops leave them."""

from __future__ import annotations

from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.layout.views import static_shape, view
from graphopt.passes.recurrence.sequences import Cut, cut_of
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement

#: Of fewer parts a split costs about what a slice does.
_MANY = 3


def _stack(edit: Edit, node: Node) -> Replacement:
    """All steps of an array with others in front or behind: the array, concatenated with those.

    A recurrence whose first output is its first input, as a moving average, is read like that.
    """
    shape = static_shape(node.type)
    if shape is None or len(node.inputs) < _MANY:
        return None
    axis = int(node.attrs.get("axis") or 0) % len(shape)
    parts: list[Value] = []
    at = 0
    while at < len(node.inputs):
        whole = _whole(edit, node.inputs, at, axis)
        if whole is None:
            parts.append(node.inputs[at])
            at += 1
        else:
            parts.append(whole)
            at += edit.type(whole).shape[axis]  # type: ignore[index,operator]
    if parts == [parts[0]]:
        return parts[0]
    if 2 * len(parts) > len(node.inputs):
        return None
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    joined = [
        part if edit.type(part).rank == len(shape) else view(edit, part, one, node)
        for part in parts
    ]
    return edit.add("Concat", joined, {"dim": axis, "num_args": len(joined)}, like=node)


def _whole(edit: Edit, values: tuple[Value, ...], first: int, axis: int) -> Value | None:
    """The array that values from ``first`` on are all steps of, in order, along ``axis``."""
    begin = _cut(edit, values[first])
    if begin is None or begin.index or begin.axis != axis:
        return None
    shape = static_shape(edit.type(begin.source))
    if shape is None or shape[axis] == 1 or first + shape[axis] > len(values):
        return None
    wanted = (Cut(begin.source, axis, number) for number in range(1, shape[axis]))
    rest = values[first + 1 :]
    return (
        begin.source
        if all(_cut(edit, v) == w for v, w in zip(rest, wanted, strict=False))
        else None
    )


def _cut(edit: Edit, value: Value) -> Cut | None:
    """Which step a value is, whatever sizes the graph is for: other parts may be longer there."""
    node = edit.node(value)
    if not _has_steps(node) or not edit.is_movable(node):
        return None
    cut = cut_of(edit.graph, value)
    rank = None if cut is None else edit.type(cut.source).rank
    if cut is None or rank is None:
        return None
    return Cut(cut.source, cut.axis % rank, cut.index)


def _split(edit: Edit, node: Node) -> Replacement:
    """Steps of which one is read: a slice."""
    read = [value for value in node.values if edit.uses(value)]
    if not _has_steps(node) or len(read) != 1 or len(node.types) < _MANY:
        return None
    if edit.graph.is_output(read[0]):
        return None  # its name tells which part it is
    shape, part = static_shape(edit.type(node.inputs[0])), node.types[0]
    if shape is None or static_shape(part) is None:
        return None
    axis, at = int(node.attrs.get("axis", 1)) % len(shape), read[0].index
    one = part.with_shape((*shape[:axis], 1, *shape[axis + 1 :]))
    span = {"axis": axis, "begin": at, "end": at + 1}
    piece = edit.add("slice_axis", node.inputs, span, one, like=node)
    piece = edit.add("squeeze", (piece,), {"axis": axis}, part, like=node)
    return (piece,) * len(node.types)


def _has_steps(node: Node) -> bool:
    return canonical(node.op) == "SliceChannel" and node.attrs.flag("squeeze_axis")


RULES = (
    Rule("join-steps", ("stack",), _stack),
    Rule("split-to-slice", ("SliceChannel",), _split),
)
