"""What is written to files, compiled for several samples where calls had one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError

if TYPE_CHECKING:
    from graphopt.nn.entry import Entry

#: Where the samples of a batch lie: in front, or behind the steps of sequences.
_AXES = (0, 1)


def of_several(entry: Entry, compiled: Callable[[dict[str, Any]], Entry]) -> Entry:
    """The entry, or one for two samples where it was compiled for one.

    Passes go by extents: of one sample a transpose is a view, a broadcast an elementwise operator
    and a mean over the batch nothing at all. In the process calls of other sizes are compiled
    anew; a file serves them all.

    Args:
        entry: compiled for a signature.
        compiled: compiles the same graph for such data inputs, by name.
    """
    mx = import_mxnet()
    lowered = entry.lowered
    zeros = mx.np.zeros if lowered.form.numpy else mx.nd.zeros
    types = {node.name: node.type for node in entry.original.role("data")}
    found, shapes = entry, {name: type_.shape or () for name, type_ in types.items()}
    for axis in _AXES:
        wider = {name: _wider(shape, axis) for name, shape in shapes.items()}
        if wider == shapes:
            continue
        try:
            found = compiled(
                {n: zeros(s, dtype=types[n].dtype, ctx=lowered.ctx) for n, s in wider.items()}
            )
        except (GraphoptError, mx.MXNetError):  # there are no samples on this axis
            continue
        shapes = wider
    return found


def _wider(shape: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    is_one = len(shape) > axis and shape[axis] == 1
    return (*shape[:axis], 2, *shape[axis + 1 :]) if is_one else shape
