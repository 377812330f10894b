"""Operators of ``mx.np`` and ``mx.npx`` that move elements, of any dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.reshape import reshaped
from graphopt.passes.classic.types import are_classic, is_classic
from graphopt.passes.layout.views import as_ints
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement

#: Codes of ``npx.reshape`` and what ``mx.nd.reshape`` calls them. It has none for "leave out an
#: axis of length 1" (-3), and its 0, a copy, is an extent to the other.
_CODES: Final = {-1: -1, -2: 0, -4: -2, -5: -3, -6: -4}
#: The code of ``npx.reshape`` for an extent as it is.
_COPIED: Final = -2


def _reshape(edit: Edit, node: Node) -> Replacement:
    if not are_classic(edit, node) or node.attrs.get("order", "C") != "C":
        return None
    before = cast("tuple[int, ...]", edit.type(node.inputs[0]).shape)
    shape = cast("tuple[int, ...]", node.type.shape)
    given = as_ints(node.attrs.get("newshape"))
    codes = _translated(given) if canonical(node.op) == "_npx_reshape" else given
    if node.attrs.flag("reverse") or not _makes(codes, before, shape):
        codes = (0 if before[0] == shape[0] else -1, *shape[1:])
    return edit.add("Reshape", node.inputs, {"shape": codes}, like=node)


def _translated(codes: Sequence[int]) -> tuple[int, ...]:
    """Codes for ``mx.nd.reshape``; none if it cannot say that."""
    if any(code < 0 and code not in _CODES for code in codes):
        return ()
    return tuple(_CODES.get(code, code) for code in codes)


def _makes(codes: Sequence[int], before: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    try:
        return bool(codes) and reshaped(before, codes) == shape
    except ValueError:
        return False


def _transpose(edit: Edit, node: Node) -> Replacement:
    if not are_classic(edit, node):
        return None
    axes = as_ints(node.attrs.get("axes")) or tuple(reversed(range(len(node.type.shape or ()))))
    rank = len(axes)
    return edit.add("transpose", node.inputs, {"axes": [a % rank for a in axes]}, like=node)


def _moveaxis(edit: Edit, node: Node) -> Replacement:
    if not are_classic(edit, node):
        return None
    rank = len(node.type.shape or ())
    source = [axis % rank for axis in as_ints(node.attrs.get("source"))]
    target = [axis % rank for axis in as_ints(node.attrs.get("destination"))]
    axes = [axis for axis in range(rank) if axis not in source]
    for place, axis in sorted(zip(target, source, strict=True)):
        axes.insert(place, axis)
    return edit.add("transpose", node.inputs, {"axes": axes}, like=node)


def _squeeze(edit: Edit, node: Node) -> Replacement:
    if not are_classic(edit, node):
        return None
    axes = node.attrs.get("axis")  # an empty tuple names none, None all
    attrs = {} if axes is None else {"axis": as_ints(axes)}
    return edit.add("squeeze", node.inputs, attrs, like=node)


def _joined(edit: Edit, node: Node) -> Replacement:
    """``Concat`` and ``stack``; promoted dtypes are np's alone."""
    axis = node.attrs.get("axis", 0)
    if axis is None:
        return _behind_each_other(edit, node, _flat, 0)
    if not (are_classic(edit, node) and _are_alike(edit, node)):
        return None
    op, key = _JOINS[canonical(node.op)]
    if op == "stack" and len({edit.type(value).shape for value in node.inputs}) > 1:
        return None  # an error in np's operator, where mx.nd's reads behind an array
    attrs = {key: axis % len(node.type.shape or ()), "num_args": len(node.inputs)}
    return edit.add(op, node.inputs, attrs, like=node)


def _flat(rank: int) -> tuple[int, ...] | None:
    return None if rank == 1 else (-1,)


_JOINS: Final = {"_npi_concatenate": ("Concat", "dim"), "_npi_stack": ("stack", "axis")}


def _stacked(edit: Edit, node: Node) -> Replacement:
    """Arrays beside or behind each other; those of too few axes get an axis to be joined along."""
    last, codes = _STACKS[canonical(node.op)]
    return _behind_each_other(edit, node, codes.get, last)


#: The axis that is joined, if there is one, and by the number of axes what is reshaped to get it.
_STACKS: Final[dict[str, tuple[int, dict[int, tuple[int, ...]]]]] = {
    "_npi_hstack": (1, {0: (1,)}),
    "_npi_column_stack": (1, {0: (1, 1), 1: (-1, 1)}),
    "_npi_dstack": (2, {0: (1, 1, 1), 1: (1, -1, 1), 2: (0, 0, 1)}),
}


def _behind_each_other(
    edit: Edit, node: Node, codes_of: Callable[[int], tuple[int, ...] | None], last: int
) -> Replacement:
    """A join of what ``codes_of`` the number of axes reshape, also of arrays that ``mx.nd`` lacks.

    MXNet infers wrong shapes of what it reshapes itself to join it, with which a static CachedOp
    cannot run, nor anything else that reads the same.
    """
    if not (_are_alike(edit, node) and all(edit.type(v).is_static for v in node.inputs)):
        return None
    values = [_reshaped(edit, value, codes_of) for value in node.inputs]
    axis, size = min(last, len(node.type.shape or ()) - 1), len(values)
    if all(is_classic(type_) for type_ in (node.type, *map(edit.type, values))):
        return edit.add("Concat", values, {"dim": axis, "num_args": size}, like=node)
    return edit.add("_npi_concatenate", values, {"axis": axis, "num_args": size}, like=node)


def _reshaped(edit: Edit, value: Value, codes_of: Callable[[int], tuple[int, ...] | None]) -> Value:
    type_ = edit.type(value)
    before = cast("tuple[int, ...]", type_.shape)
    codes = codes_of(len(before))
    if codes is None:
        return value
    made, like = type_.with_shape(reshaped(before, codes)), edit.node(value)
    if is_classic(type_):
        return edit.add("Reshape", (value,), {"shape": codes}, made, like=like)
    newshape = tuple(code or _COPIED for code in codes)
    return edit.add("_npx_reshape", (value,), {"newshape": newshape}, made, like=like)


def _are_alike(edit: Edit, node: Node) -> bool:
    """Whether arrays are joined that all have the dtype of the result."""
    return all(edit.type(value).dtype == node.type.dtype for value in node.inputs)


def _broadcast_to(edit: Edit, node: Node) -> Replacement:
    """``mx.nd``'s adds no axes."""
    before = edit.type(node.inputs[0]).rank
    if not are_classic(edit, node) or before != node.type.rank:
        return None
    return edit.add("broadcast_to", node.inputs, {"shape": node.type.shape}, like=node)


RULES = (
    Rule("shape", ("_np_reshape", "_npx_reshape"), _reshape),
    Rule("shape", ("_np_transpose",), _transpose),
    Rule("shape", ("_np_moveaxis",), _moveaxis),
    Rule("shape", ("_np_squeeze",), _squeeze),
    Rule("shape", tuple(_JOINS), _joined),
    Rule("shape", tuple(_STACKS), _stacked),
    Rule("shape", ("_npi_broadcast_to",), _broadcast_to),
)
