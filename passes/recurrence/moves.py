"""Operators that only move elements of a step's values, done to the numbers of their columns.

The numbers have the axes of the value; that of the batch, which none of these may touch, has one
element. What a shape says about the batch is not looked at: the numbers come out in another shape
than the value has, where one of these mixes sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.node import Node
from graphopt.ir.ops import canonical
from graphopt.passes.recurrence.columns import Numbers

_Shape = tuple[int, ...]
_Move = Callable[[Attrs, Sequence[Numbers], _Shape], Sequence[Numbers]]


def moved(node: Node, arrays: Sequence[Numbers], shape: _Shape, *, batched: bool) -> list[Numbers]:
    """The numbers of each output of a node.

    Args:
        node: one of ``MOVES``.
        arrays: the numbers of its inputs.
        shape: of the first output's numbers.
        batched: whether axis 0 is that of the batch.

    Raises:
        GraphoptError: it moves elements from one sequence to another.
    """
    op = canonical(node.op)
    if batched and op in ("reverse", "slice") and _turns_the_batch(node.attrs):
        raise GraphoptError(f"{node.label} turns the batch around")
    try:
        found = [np.asarray(array) for array in MOVES[op](node.attrs, arrays, shape)]
    except (ValueError, IndexError) as error:
        raise GraphoptError(f"{node.label} moves more than columns") from error
    if found[0].shape != shape:
        raise GraphoptError(f"{node.label} moves more than columns")
    return found


def _turns_the_batch(attrs: Attrs) -> bool:
    step = tuple_of(attrs.get("step"))
    return 0 in tuple_of(attrs.get("axis")) or step[:1] not in ((), (None,), (1,))


def _reshape(_attrs: Attrs, arrays: Sequence[Numbers], shape: _Shape) -> Sequence[Numbers]:
    return [arrays[0].reshape(shape)]


def _broadcast(_attrs: Attrs, arrays: Sequence[Numbers], shape: _Shape) -> Sequence[Numbers]:
    return [np.broadcast_to(arrays[0], shape)]


def _swap(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    return [np.swapaxes(arrays[0], int(attrs.get("dim1", 0)), int(attrs.get("dim2", 0)))]


def _transpose(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    return [arrays[0].transpose(tuple_of(attrs.get("axes")) or None)]


def _slice_axis(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    index = [slice(None)] * arrays[0].ndim
    index[int(attrs["axis"])] = slice(int(attrs["begin"]), attrs.get("end"))
    return [arrays[0][tuple(index)]]


def _slice(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    begin, end, step = (tuple_of(attrs.get(key)) for key in ("begin", "end", "step"))
    steps = [*step, *(None for _ in begin[len(step) :])]
    return [arrays[0][tuple(map(slice, begin, end, steps))]]


def _slice_like(attrs: Attrs, arrays: Sequence[Numbers], shape: _Shape) -> Sequence[Numbers]:
    return [arrays[0][tuple(map(slice, shape))]]


def _split(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    axis = int(attrs.get("axis", 1))
    parts = np.split(arrays[0], int(attrs["num_outputs"]), axis=axis)
    return [part.squeeze(axis) for part in parts] if attrs.flag("squeeze_axis") else parts


def _concat(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    return [np.concatenate(arrays, axis=int(attrs.get("dim", 1)))]


def _stack(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    return [np.stack(arrays, axis=int(attrs.get("axis") or 0))]


def _repeat(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    return [np.repeat(arrays[0], int(attrs["repeats"]), axis=attrs.get("axis"))]


def _tile(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    return [np.tile(arrays[0], tuple_of(attrs.get("reps")))]


def _reverse(attrs: Attrs, arrays: Sequence[Numbers], _shape: _Shape) -> Sequence[Numbers]:
    return [np.flip(arrays[0], axis=tuple_of(attrs.get("axis")))]


def tuple_of(found: Any) -> tuple[Any, ...]:
    """An attribute that may be one number or left out, as a tuple."""
    if found is None:
        return ()
    return found if isinstance(found, tuple) else (found,)


MOVES: Final[dict[str, _Move]] = {
    **dict.fromkeys(("Reshape", "Flatten", "expand_dims", "squeeze", "reshape_like"), _reshape),
    **dict.fromkeys(("_copy", "_np_copy", "_np_squeeze", "_npx_reshape", "_np_reshape"), _reshape),
    **dict.fromkeys(("broadcast_to", "broadcast_axis", "_npi_broadcast_to"), _broadcast),
    "broadcast_like": _broadcast,
    "SwapAxis": _swap,
    "transpose": _transpose,
    "slice_axis": _slice_axis,
    "slice": _slice,
    "slice_like": _slice_like,
    "SliceChannel": _split,
    "Concat": _concat,
    "stack": _stack,
    "repeat": _repeat,
    "tile": _tile,
    "reverse": _reverse,
}
