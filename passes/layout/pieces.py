"""Slices, splits, concatenations and reversals that undo or extend one another."""

from __future__ import annotations

from typing import NamedTuple

from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.layout.views import as_ints, static_shape
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement

SLICES = ("slice_axis", "slice")
SPLITS = ("SliceChannel", "_split_v2")

#: Slices look for their part among so many inputs of a concatenation: keeps the pass near-linear.
MAX_PARTS = 256


class Piece(NamedTuple):
    """A value that is ``source[begin:end]`` along ``axis``."""

    source: Value
    axis: int
    begin: int
    end: int


def piece(edit: Edit, value: Value) -> Piece | None:
    """What a value is a contiguous part of, if it is one along a single axis."""
    node = edit.node(value)
    op = canonical(node.op)
    if not edit.is_movable(node) or op not in (*SLICES, *SPLITS):
        return None
    source = node.inputs[0]
    shape = static_shape(edit.type(source))
    if shape is None or static_shape(edit.type(value)) is None:
        return None
    if op == "slice_axis":
        axis = node.attrs["axis"] % len(shape)
        begin, end, _ = slice(node.attrs["begin"], node.attrs.get("end")).indices(shape[axis])
        return Piece(source, axis, begin, end)
    return _of_slice(node, shape) if op == "slice" else _of_split(edit, node, value.index, shape)


def _of_slice(node: Node, shape: tuple[int, ...]) -> Piece | None:
    begins, ends = (_limits(node.attrs[key]) for key in ("begin", "end"))
    steps = _limits(node.attrs.get("step")) or (None,) * len(begins)
    if any(step not in (None, 1) for step in steps):
        return None
    spans = [
        (axis, *slice(begin, end).indices(shape[axis])[:2])
        for axis, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]
    cut = [span for span in spans if span[1:] != (0, shape[span[0]])]
    if len(cut) > 1:
        return None
    axis, begin, end = cut[0] if cut else (0, 0, shape[0])
    return Piece(node.inputs[0], axis, begin, end)


def _limits(value: object) -> tuple[int | None, ...]:
    if value is None or value == ():
        return ()
    return value if isinstance(value, tuple) else (int(str(value)),)


def _of_split(edit: Edit, node: Node, index: int, shape: tuple[int, ...]) -> Piece | None:
    extents = static_shape(edit.type(node.out(index)))
    if node.attrs.get("squeeze_axis") or extents is None:
        return None
    is_even = canonical(node.op) == "SliceChannel" or node.attrs.get("sections", 0)
    axis = node.attrs.get("axis", 1 if canonical(node.op) == "SliceChannel" else 0) % len(shape)
    begin = index * extents[axis] if is_even else as_ints(node.attrs["indices"])[index]
    return Piece(node.inputs[0], axis, begin, begin + extents[axis])


def _cut(edit: Edit, part: Piece, like: Node) -> Value:
    """The value of a piece: its source as it is, or a slice of it."""
    type_ = edit.type(part.source)
    shape = static_shape(type_)
    assert shape is not None
    if (part.begin, part.end) == (0, shape[part.axis]):
        return part.source
    small = (*shape[: part.axis], part.end - part.begin, *shape[part.axis + 1 :])
    attrs = {"axis": part.axis, "begin": part.begin, "end": part.end}
    return edit.add("slice_axis", (part.source,), attrs, type_.with_shape(small), like=like)


def _slice(edit: Edit, node: Node) -> Replacement:
    """A slice of everything, of a slice, or of one part of a concatenation."""
    part = piece(edit, node.out())
    if part is None:
        return None
    if edit.type(part.source) == node.type:
        return part.source
    below = piece(edit, part.source)
    if below is not None and below.axis == part.axis:
        if edit.uses(part.source) > 1 or edit.node(part.source).op in SPLITS:
            return None
        shifted = Piece(below.source, part.axis, below.begin + part.begin, below.begin + part.end)
        return _cut(edit, shifted, node)
    inner = _within(edit, part)
    if inner is None:
        return None
    while (deeper := _within(edit, inner)) is not None:
        inner = deeper
    return _cut(edit, inner, node)


def _within(edit: Edit, part: Piece) -> Piece | None:
    """The same of one part of a concatenation, if it is a piece of that."""
    joined = edit.producer(part.source, ("Concat",), only_user=False)
    if joined is None or len(joined.inputs) > MAX_PARTS:
        return None
    if _concat_axis(edit, joined) != part.axis:
        return None
    for source, begin, end in _spans(edit, joined, part.axis):
        if begin <= part.begin and part.end <= end:
            return Piece(source, part.axis, part.begin - begin, part.end - begin)
    return None


def _concat_axis(edit: Edit, node: Node) -> int | None:
    rank = node.type.rank
    return None if rank is None else int(node.attrs.get("dim", 1)) % rank


def _spans(edit: Edit, node: Node, axis: int) -> list[tuple[Value, int, int]]:
    """Inputs of a concatenation with begin and end of each, as far as extents are known."""
    spans: list[tuple[Value, int, int]] = []
    at = 0
    for value in node.inputs:
        shape = static_shape(edit.type(value))
        if shape is None:
            break
        spans.append((value, at, at + shape[axis]))
        at += shape[axis]
    return spans


def _split(edit: Edit, node: Node) -> Replacement:
    """A split that takes a concatenation apart where it was put together."""
    joined = edit.producer(node.inputs[0], ("Concat",), only_user=False)
    if joined is None or len(joined.inputs) != len(node.types):
        return None
    axis = _concat_axis(edit, joined)
    spans = None if axis is None else _spans(edit, joined, axis)
    parts = [piece(edit, value) for value in node.values]
    for part, span in zip(parts, spans or (), strict=False):
        if part is None or (part.axis, part.begin, part.end) != (axis, *span[1:]):
            return None
    if spans is None or len(spans) != len(parts):
        return None
    return tuple(span[0] for span in spans)


def _concat(edit: Edit, node: Node) -> Replacement:
    """A concatenation of adjacent pieces, which are one piece; of one value, which is the value."""
    if len(node.inputs) == 1:
        return node.inputs[0]
    axis = _concat_axis(edit, node)
    if axis is None:
        return None
    runs: list[list[tuple[Value, Piece | None]]] = []
    for value in node.inputs:
        part = piece(edit, value)
        last = runs[-1][-1][1] if runs else None
        if part is not None and last is not None and _follows(last, part, axis):
            runs[-1].append((value, part))
        else:
            runs.append([(value, part)])
    if len(runs) == len(node.inputs):
        return None
    values = [v for run in runs for v in _joined(edit, run, axis, node)]
    if len(values) == len(node.inputs):
        return None
    if len(values) == 1:
        return values[0]
    return edit.add("Concat", values, node.attrs.set(num_args=len(values)), like=node)


def _follows(last: Piece, part: Piece, axis: int) -> bool:
    return last.source == part.source and last.axis == part.axis == axis and last.end == part.begin


def _joined(
    edit: Edit, run: list[tuple[Value, Piece | None]], axis: int, like: Node
) -> list[Value]:
    """One value for a run of adjacent pieces, or the pieces where that would only add work."""
    values = [value for value, _ in run]
    first, last = run[0][1], run[-1][1]
    if len(run) == 1 or first is None or last is None:
        return values
    whole = edit.type(first.source).shape
    is_whole = whole is not None and (first.begin, last.end) == (0, whole[axis])
    if not is_whole and any(edit.producer(value, SLICES) is None for value in values):
        return values
    return [_cut(edit, Piece(first.source, axis, first.begin, last.end), like)]


def _reverse(edit: Edit, node: Node) -> Replacement:
    """Two reversals along the same axes."""
    inner = edit.producer(node.inputs[0], ("reverse",), only_user=False)
    rank = node.type.rank
    if inner is None or rank is None:
        return None
    axes = [{axis % rank for axis in as_ints(n.attrs["axis"])} for n in (node, inner)]
    return inner.inputs[0] if axes[0] == axes[1] else None


def _last(edit: Edit, node: Node) -> Replacement:
    """The last step of sequences that have no lengths.

    The gradient of MXNet's operator reads memory that only its executor keeps from forward.
    """
    source = node.inputs[0]
    shape = static_shape(edit.type(source))
    if len(node.inputs) > 1 or shape is None or static_shape(node.type) is None:
        return None
    axis = node.attrs.get("axis", 0)
    type_ = edit.type(source).with_shape((*shape[:axis], 1, *shape[axis + 1 :]))
    step = edit.add(
        "slice_axis", (source,), {"axis": axis, "begin": -1, "end": None}, type_, like=node
    )
    return edit.add("squeeze", (step,), {"axis": axis}, like=node)


RULES = (
    Rule("slice-last-step", ("SequenceLast",), _last),
    Rule("merge-slices", SLICES, _slice),
    Rule("cancel-split", SPLITS, _split),
    Rule("join-pieces", ("Concat",), _concat),
    Rule("cancel-reverse", ("reverse",), _reverse),
)
