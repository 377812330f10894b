"""What is written to files: graphs for data of any size, though calls had some sizes.

Passes go by sizes. In the process, calls of others are compiled anew, or know what follows the
sizes. A file serves them all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphopt.analysis.meeting import meet_nearby
from graphopt.backend.documents import document_of, of_two_sizes, symbol_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.sizes import Shapes, far_longer, longer, with_extent

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.nn.entry import Entry

#: Compiles a graph for data inputs, by name.
Compile = Callable[[dict[str, Any]], "Entry"]

#: Where the samples of a batch lie: in front, or behind the steps of sequences.
_AXES: Final = (0, 1)


def for_files(
    entry: Entry, compiled: Compile, *, kernels: bool
) -> tuple[Any, dict[str, Any]] | None:
    """The Symbol to write for an entry, and its parameters by name.

    It is compiled a second time, for data that are longer by one on all axes that the user's Symbol
    leaves open. What is filled in then for another shape, as the first states of recurrences, gets
    a shape that MXNet infers. If anything else differs, the first one is for its sizes alone. So it
    is where passes may have gone by what holds for both, but not for data that are far longer.

    Args:
        entry: compiled for inference.
        compiled: compiles the same graph for other data.
        kernels: whether fused kernels stay, which may be for sizes.

    Returns:
        ``None`` where only the user's Symbol is right for other sizes, too.
    """
    entry = _of_several(entry, compiled)
    symbol, params = _exported(entry, kernels=kernels)
    shapes = own = _data_shapes(entry)
    for axis in range(max(map(len, own.values()), default=0)):
        wider = longer(shapes, axis)
        if _is_open(entry, wider):
            shapes = wider
    if shapes == own:
        return symbol, params
    other = _compiled(entry, compiled, shapes)
    beside, others = (None, {}) if other is None else _exported(other, kernels=kernels)
    are_alike = other is not None and entry.result.shapes == other.result.shapes
    if are_alike and _are_alike(entry, params, others) and not _meet_nearby(entry, own, shapes):
        found = _merged(symbol, beside, opens=not entry.lowered.form.numpy)
        wanted = _outputs(entry.traced.returned, shapes | _known(entry))
        if found is not None and (kernels or _outputs(found, shapes | _of(params)) == wanted):
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


def _meet_nearby(entry: Entry, own: Shapes, shapes: Shapes) -> bool:
    """Whether passes may have gone by what holds for both of these sizes, and not for all."""
    far = far_longer(own, lambda each: _is_open(entry, each))
    try:
        near = _lifted(entry, own), _lifted(entry, shapes)
        return any(meet_nearby(*near, _lifted(entry, each)) for each in far)
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
    """The entry, or one for two samples where it was compiled for one.

    Passes go by extents: of one sample a transpose is a view, a broadcast an elementwise operator
    and a mean over the batch nothing at all.
    """
    found, shapes = entry, _data_shapes(entry)
    for axis in _AXES:
        ones = [name for name, shape in shapes.items() if shape[axis:][:1] == (1,)]
        # The others may be one row for all samples; where they may not, they are as many.
        for chosen in (ones[:1], ones)[: len(ones)]:
            wider = shapes | {name: with_extent(shapes[name], axis, 2) for name in chosen}
            other = _compiled(entry, compiled, wider)
            if other is not None:  # else there are no samples on this axis
                found, shapes = other, wider
                break
    return found


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
    # Under `npx.set_np()` a shape of which nothing is known is None.
    is_known = found and all(shape is not None and min(shape, default=1) > 0 for shape in found)
    return found if is_known else None


def _merged(symbol: Any, other: Any, *, opens: bool) -> Any:
    """A Symbol for the sizes of two, of which fills alone differ; ``None`` if more does.

    ``opens`` is said of the arrays that the net returns: what was compiled is a classic Symbol.
    """
    made = document_of(symbol)
    found = of_two_sizes(made, document_of(other), opens=opens)
    if found is None or found == made:
        return found and symbol
    return symbol_of(found)
