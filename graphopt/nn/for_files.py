"""What is written to files: graphs for data of any size, though calls had some sizes.

Passes go by sizes. In the process, calls of others are compiled anew, or know what follows the
sizes. A file serves them all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphopt.analysis.meeting import meet_here, meet_nearby
from graphopt.backend.documents import document_of, infers, of_two_sizes, symbol_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.lengths import far_longer, longer, others, with_extent

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.ir.sizes import Shapes
    from graphopt.nn.entry import Entry

#: Compiles a graph for data inputs, by name.
Compile = Callable[[dict[str, Any]], "Entry"]

#: Where the samples of a batch lie: in front, or behind the steps of sequences.
_AXES: Final = (0, 1)


def for_files(
    entry: Entry, compiled: Compile, *, kernels: bool
) -> tuple[Any, dict[str, Any]] | None:
    """The Symbol to write for an entry, and its parameters by name.

    It is compiled again, for data that are longer on all axes that the user's Symbol leaves open:
    by one where they are equal, and apart where they need not be; and for those of one element
    along which an operator broadcasts then. What is filled in then for another shape, as the first
    states of recurrences, gets a shape that MXNet infers. If anything else differs, the first one
    is for its sizes alone. So it is where passes may have gone by what holds for all of these, but
    not for data that are far longer, and where it has no use for some of the data.

    Args:
        entry: compiled for inference.
        compiled: compiles the same graph for other data.
        kernels: whether fused kernels stay, which may be for sizes.

    Returns:
        ``None`` where only the user's Symbol is right for other sizes, too.
    """
    entry = _of_several(entry, compiled)
    symbol, params = _exported(entry, kernels=kernels)
    sizes = _other_sizes(entry)
    found = _of_all(entry, compiled, sizes, kernels=kernels)
    if found is not None and (kernels or _is_right(entry, found, params, sizes)):
        return found, params
    if not kernels:
        return None
    warnings.warn(
        "the file with fused kernels is right only for data of the sizes of the last call;"
        " without kernels it serves any",
        UserWarning,
        stacklevel=4,
    )
    return symbol, params


def _other_sizes(entry: Entry) -> list[Shapes]:
    """Shapes of data for which the graph has to be the same."""
    own = _data_shapes(entry)

    def is_open(shapes: Shapes) -> bool:
        return _is_open(entry, shapes)

    def widens(shapes: Shapes) -> bool:
        try:
            return meet_here(_lifted(entry, own), _lifted(entry, shapes))
        except GraphoptError:
            return True

    return others(own, is_open, widens)


def _of_all(
    entry: Entry, compiled: Compile, sizes: Sequence[Shapes], *, kernels: bool
) -> Any | None:
    """The Symbol for the sizes of an entry and for others; ``None`` if there is none."""
    symbol, params = _exported(entry, kernels=kernels)
    found = made = document_of(symbol)
    sized = [(_data_shapes(entry), made)]
    for shapes in sizes:
        other = _compiled(entry, compiled, shapes)
        if other is None or entry.result.shapes != other.result.shapes:
            return None
        beside, theirs = _exported(other, kernels=kernels)
        if not _are_alike(entry, params, theirs):
            return None
        sized.append((shapes, document_of(beside)))
        # Nets of mx.np are asked for it, as what was compiled of them is a classic Symbol.
        both = of_two_sizes(found, sized[-1][1], opens=not entry.lowered.form.numpy)
        if both is None:
            return None
        found = both
    if sizes and _meet_nearby(entry):
        return None
    if found == made:
        return symbol
    are_inferred = all(infers(found, each | _of(params), document) for each, document in sized)
    return symbol_of(found) if are_inferred else None


def _is_right(
    entry: Entry, symbol: Any, params: Mapping[str, Any], sizes: Sequence[Shapes]
) -> bool:
    """Whether a Symbol reads what the user's does, and returns the same shapes."""
    returned = entry.traced.returned
    read = {*entry.traced.names}.intersection(returned.list_inputs())
    return read.issubset(symbol.list_inputs()) and all(
        _outputs(symbol, shapes | _of(params)) == _outputs(returned, shapes | _known(entry))
        for shapes in sizes
    )


def _meet_nearby(entry: Entry) -> bool:
    """Whether passes may have gone by what holds for data a little longer, and not for all."""
    own = _data_shapes(entry)

    def is_open(shapes: Shapes) -> bool:
        return _is_open(entry, shapes)

    try:
        near = _lifted(entry, own), _lifted(entry, longer(own, is_open))
        return any(meet_nearby(*near, _lifted(entry, far)) for far in far_longer(own, is_open))
    except GraphoptError:
        return True


def _is_open(entry: Entry, shapes: Shapes) -> bool:
    """Whether the user's Symbol takes data of these shapes."""
    return _outputs(entry.traced.returned, shapes | _known(entry)) is not None


def _lifted(entry: Entry, shapes: Shapes) -> Graph:
    """The user's graph for data of these shapes."""
    symbol = entry.traced.returned
    read = {*symbol.list_inputs()}
    known = {n: s for n, s in (shapes | _known(entry)).items() if n in read}
    dtypes = {n.name: n.type.dtype for n in entry.original.inputs if n.name in read}
    return lift_symbol(symbol, known, {n: d for n, d in dtypes.items() if d}, data=shapes)


def _exported(entry: Entry, *, kernels: bool) -> tuple[Any, dict[str, Any]]:
    """The Symbol of an entry and the parameters that it reads."""
    symbol, params = entry.lowered.exported(kernels=kernels), entry.lowered.parameters()
    read = {*symbol.list_inputs()}
    return symbol, {name: array for name, array in params.items() if name in read}


def _are_alike(entry: Entry, params: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether parameters have the same shapes, and what was made beforehand the same values."""
    if _of(params) != _of(others):
        return False
    users = {node.name for node in entry.original.inputs}
    return all(
        np.array_equal(params[name].asnumpy(), others[name].asnumpy(), equal_nan=True)
        for name in params.keys() - users
    )


def _of_several(entry: Entry, compiled: Compile) -> Entry:
    """The entry, or one for several samples where it was compiled for one.

    Passes go by extents: of one sample a transpose is a view, a broadcast an elementwise operator
    and a mean over the batch nothing at all.
    """
    found, shapes = entry, _data_shapes(entry)
    for axis in _AXES:
        ones = [name for name, shape in shapes.items() if shape[axis:][:1] == (1,)]
        # The others may be one row for all samples; where they may not, they are as many.
        for chosen in (ones[:1], ones)[: len(ones)]:
            more = _samples(shapes, axis)
            wider = shapes | {name: with_extent(shapes[name], axis, more) for name in chosen}
            other = _compiled(entry, compiled, wider)
            if other is not None:  # else there are no samples on this axis
                found, shapes = other, wider
                break
    return found


def _samples(shapes: Shapes, axis: int) -> int:
    """Two, or as many more as no array has, which one of one row may be broadcast to."""
    taken = {extent for shape in shapes.values() for extent in shape[axis:][:1]}
    return next(many for many in count(2) if many not in taken)


def _compiled(entry: Entry, compiled: Compile, shapes: Shapes) -> Entry | None:
    mx = import_mxnet()
    lowered, types = entry.lowered, {n.name: n.type for n in entry.original.inputs}
    zeros = mx.np.zeros if lowered.form.numpy else mx.nd.zeros
    try:
        return compiled(
            {n: zeros(s, dtype=types[n].dtype, ctx=lowered.ctx) for n, s in shapes.items()}
        )
    except (GraphoptError, mx.MXNetError):
        return None


def _data_shapes(entry: Entry) -> Shapes:
    types = {node.name: node.type for node in entry.original.inputs}
    return {n: _static(types[n].shape) for n in entry.traced.names if n in types}


def _static(shape: Any) -> tuple[int, ...]:
    return tuple(extent or 0 for extent in shape or ())


def _known(entry: Entry) -> Shapes:
    """Shapes of what calls do not give."""
    given = {*entry.traced.names}
    return {n.name: _static(n.type.shape) for n in entry.original.inputs if n.name not in given}


def _of(arrays: Mapping[str, Any]) -> Shapes:
    return {name: tuple(array.shape) for name, array in arrays.items()}


def _outputs(symbol: Any, shapes: Shapes) -> list[tuple[int, ...]] | None:
    """What MXNet infers, if it can."""
    read = {*symbol.list_inputs()}
    try:
        _, found, _ = symbol.infer_shape_partial(**{n: s for n, s in shapes.items() if n in read})
    except import_mxnet().MXNetError:
        return None
    # Under `npx.set_np()` 0 is an extent, and a shape of which nothing is known is None.
    least = 0 if import_mxnet().util.is_np_shape() else 1
    is_known = found and all(s is not None and min(s, default=1) >= least for s in found)
    return found if is_known else None
