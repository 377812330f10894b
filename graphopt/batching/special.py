"""Operators that move rows about: most cost no computation, as only the places of rows change.

Views, slices and joins along axis 0, and reductions along axis 0 (to segments of any length).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphopt.batching import speedups
from graphopt.batching.kinds import Kind, kind, kind_of
from graphopt.batching.lazy import Lazy
from graphopt.batching.native.programs import Reduction, Reshaped
from graphopt.batching.operators import handle, infer
from graphopt.batching.recorder import PAUSED, Recorder
from graphopt.batching.rules import NotRowwiseError, axes_of, axis_of, flag, value
from graphopt.batching.runs import COUNT_BITS, COUNT_MASK, cut
from graphopt.batching.signature import run_identity, run_reduction, run_view
from graphopt.batching.sums import apart
from graphopt.ir.ops import canonical

if TYPE_CHECKING:
    from graphopt.batching.library import Entry, Library
    from graphopt.batching.signature import Signature

Attributes = Mapping[str, Any]
Maker = Callable[["Library", int, str, int, Attributes], "Entry"]

_VIEWS = ("Reshape", "Flatten", "expand_dims", "squeeze", "reshape_like")
#: Fewer elements than this are better sliced by MXNet than found one by one.
_LONG = 16
_SEGMENTS = ("sum", "mean", "max", "min")


def find(op: str, attrs: Attributes, args: Sequence[Any]) -> Maker | None:
    """What records this operator, if it moves rows about."""
    name = canonical(op)
    rank = len(args[0].shape)
    if name in _VIEWS:
        return _view
    if name == "add_n":
        return _add_n
    if name == "Embedding" and rank > 1:
        return _embedding
    if name == "Concat" and axis_of(attrs, rank, 1, "dim") == 0:
        return _concat
    if name == "stack" and axis_of(attrs, rank + 1, 0) == 0:
        return _stack
    if name == "slice_axis" and axis_of(attrs, rank, 0) == 0:
        return _slice_axis
    if name == "slice_axis" and _cuts_rows(args[0].shape, axis_of(attrs, rank, 0)):
        return _slice_inner
    if name in (*_SEGMENTS, "norm", "prod") and 0 in axes_of(attrs, rank):
        return _reduction
    return None


def kind_of_any(array: Any) -> Kind:
    """The Kind of a lazy or real array."""
    return array.kind if isinstance(array, Lazy) else kind_of(array)


def runs_of(x: Lazy) -> tuple[int, ...]:
    """The runs of a value, however many."""
    return (x.run,) if x.runs is None else x.runs


def placed(recorder: Recorder, x: Lazy, runs: Sequence[int], rows: int) -> Lazy:
    """A value made of rows of ``x``."""
    return recorder.scattered(runs, rows, x.kind, x.depth)


def together(recorder: Recorder, x: Lazy) -> Lazy:
    """The same value with its rows side by side."""
    if x.runs is None:
        return x
    signature = recorder.library.signature(
        ("together", x.kind), "gather", 1, [x.kind], recorder.state, run_identity
    )
    found: Lazy = recorder.join(signature, (x,), x.rows)
    return found


def detached(recorder: Recorder, x: Lazy) -> Lazy:
    """``x``, or a copy of it where autograd's recording was paused, or ended, inside the sample.

    Where only places change nothing is run that could stop the gradient.
    """
    if recorder.state & PAUSED:
        found: Lazy = recorder.call(handle("_copy"), [x], (), ())
        return found
    return x


def rows_between(x: Lazy, begin: int, end: int) -> list[int]:
    """The runs of rows ``begin`` to ``end``."""
    if x.runs is None:
        return [cut(x.run, begin, end)]
    found, start = [], 0
    for run in x.runs:
        count = run & COUNT_MASK
        low, high = max(begin, start), min(end, start + count)
        if low < high:
            found.append(cut(run, low - start, high - start))
        start += count
    return found


def as_shape(recorder: Recorder, x: Lazy, shape: Sequence[int]) -> Lazy:
    """The same elements in another shape of at least one axis."""
    shape = tuple(int(extent) for extent in shape)
    if shape == x.shape:
        return apart(detached(recorder, x))
    can_reuse = x.runs is None and recorder.state == recorder.outside
    key = (x.run, shape)
    if can_reuse:
        known = recorder.views.get(key)
        if known is not None:
            return known
        x = recorder.origins.get(x.run, x)  # a view of a view
        if x.shape == shape:
            return apart(x)
    found: Lazy = recorder.view(view_as(recorder, x.kind, shape[1:]), x, shape[0])
    if can_reuse:
        recorder.views[key] = found
        recorder.origins[found.run] = x
    return found


def view_as(recorder: Recorder, of: Kind, tail: tuple[int, ...]) -> Signature:
    """The signature of a view; several for each sample ask for it."""
    library, key = recorder.library, ("view", of, tail)
    return library.known(key, recorder.state) or library.signature(
        key,
        "reshape",
        1,
        [kind(tail, of.dtype, of.ctx)],
        recorder.state,
        run_view(tail),
        source=Reshaped(),
    )


def _view(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    shapes: dict[Any, tuple[int, ...]] = {}

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        x = recorder.rows_of(args[0])
        key = tuple(tuple(a.shape) for a in args)
        shape = shapes.get(key)
        if shape is None:
            found, _ = infer(operator, attrs, key, [kind_of_any(a) for a in args])
            shape = found[0]
            if math.prod(shape) != x.size:  # MXNet does not always look, and reads past the end
                raise ValueError(f"cannot reshape array of shape {x.shape} into shape {shape}")
            shapes[key] = shape
        return as_shape(recorder, x, shape)

    return entry


def _embedding(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    """Each element by itself, so that sequences of different lengths are looked up together."""
    names, values = list(attrs), list(attrs.values())

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        x = recorder.rows_of(args[0])
        words = as_shape(recorder, x, (x.size,))
        found = recorder.call(operator, [words, *args[1:]], names, values)
        return as_shape(recorder, found, (*x.shape, *found.kind.tail))

    return entry


def _add_n(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    reduced: dict[Kind, Any] = {}

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        values = [
            a if type(a) is Lazy and a.recorder is recorder else recorder.rows_of(a) for a in args
        ]
        first = values[0]
        of, rows = first.kind, first.rows
        if any([x.kind is not of or x.rows != rows for x in values]):  # noqa: C419 - is faster
            infer(operator, attrs, [x.shape for x in values], [x.kind for x in values])
            raise NotRowwiseError("add_n of different types")
        if len(values) == 1:
            return apart(detached(recorder, first))
        signature = reduced.get(of)
        if signature is None:
            signature = reduced[of] = _reduced(recorder, "sum", of)
        depth = max(recorder.base, *[x.depth for x in values])
        if rows == 1:
            return recorder.reduce(signature, [x.run for x in values], len(values), depth)
        parts = [
            recorder.reduce(
                signature,
                [run for x in values for run in rows_between(x, row, row + 1)],
                len(values),
                depth,
            )
            for row in range(first.rows)
        ]
        return _joined(recorder, parts)

    module: Any = speedups.load()[0]
    return entry if module is None else module.Sums(reduced, entry)


def _reduced(recorder: Recorder, how: str, of: Kind) -> Any:
    return recorder.library.signature(
        ("reduce", how, of),
        how,
        1,
        [of],
        recorder.state,
        run_reduction(how, None),
        form="reduce",
        source=Reduction(how),
    )


def _joined(recorder: Recorder, values: Sequence[Lazy]) -> Lazy:
    runs: list[int] = []
    for x in values:
        for run in runs_of(x):
            if runs and _follows(runs[-1], run):
                runs[-1] += run & COUNT_MASK
            else:
                runs.append(run)
    rows = sum(x.rows for x in values)
    return recorder.scattered(runs, rows, values[0].kind, max(x.depth for x in values))


def _follows(run: int, after: int) -> bool:
    """Whether a run begins where another ends, in the same store."""
    count = run & COUNT_MASK
    if count + (after & COUNT_MASK) > COUNT_MASK:
        return False
    return (run & ~COUNT_MASK) + (count << COUNT_BITS) == after & ~COUNT_MASK


def _concat(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        values = [recorder.rows_of(a) for a in args]
        if any(x.kind is not values[0].kind for x in values):
            infer(operator, attrs, [x.shape for x in values], [x.kind for x in values])
            raise TypeError(f"concat of arrays of types {[x.kind for x in values]}")
        return _joined(recorder, [detached(recorder, x) for x in values])

    return entry


def _stack(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        values = [recorder.rows_of(a) for a in args]
        if any(x.shape != values[0].shape or x.kind is not values[0].kind for x in values):
            infer(operator, attrs, [x.shape for x in values], [x.kind for x in values])
            raise TypeError(f"stack of arrays of types {[x.kind for x in values]}")
        return _joined(recorder, [as_shape(recorder, x, (1, *x.shape)) for x in values])

    return entry


def _slice_axis(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        x = recorder.rows_of(args[0])
        low, high = _bounds(operator, attrs, x, 0)
        x = detached(recorder, x)
        return placed(recorder, x, rows_between(x, low, high), high - low)

    return entry


def _bounds(operator: int, attrs: Attributes, x: Lazy, axis: int) -> tuple[int, int]:
    """Where a slice along an axis begins and ends, counted from 0; MXNet's error if it does not."""
    extent = x.shape[axis]
    begin, end = int(value(attrs, "begin", 0)), value(attrs, "end", None)
    low = begin + extent if begin < 0 else begin
    high = extent if end is None else int(end)
    high = high + extent if high < 0 else high
    if not 0 <= low < high <= extent:
        infer(operator, attrs, [x.shape], [x.kind])
        raise IndexError(f"{begin}:{end} of an axis of {extent}")
    return low, high


def _cuts_rows(shape: tuple[int, ...], axis: int) -> bool:
    """Whether a slice along an inner axis chooses among long adjacent parts, as rows are."""
    inner = math.prod(shape[axis + 1 :])
    return axis > 0 and math.prod(shape[:axis]) == 1 and inner >= _LONG


def _slice_inner(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    """``(1, n, ...)`` is cut as n rows, wherever, and for any n."""
    from graphopt.batching.entries import by_rows

    others: dict[Kind, Entry] = {}

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        x = recorder.rows_of(args[0])
        axis = axis_of(attrs, x.ndim, 0)
        if not _cuts_rows(x.shape, axis):
            if x.kind not in others:
                others[x.kind] = by_rows(library, recorder, op, operator, args, attrs)
            return others[x.kind](recorder, args)
        low, high = _bounds(operator, attrs, x, axis)
        rows = as_shape(recorder, x, x.shape[axis:])
        rows = placed(recorder, rows, rows_between(rows, low, high), high - low)
        return as_shape(recorder, rows, (*x.shape[:axis], high - low, *x.shape[axis + 1 :]))

    return entry


def _reduction(library: Library, state: int, op: str, operator: int, attrs: Attributes) -> Entry:
    from graphopt.batching.entries import single

    why = "it reduces axis 0 of several rows"
    fallback = single(library, state, op, operator, attrs, why)
    extra = {k: v for k, v in attrs.items() if k not in ("axis", "exclude", "keepdims")}
    keepdims = flag(attrs, "keepdims")

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        x = recorder.rows_of(args[0])
        axes = axes_of(attrs, x.ndim)
        inner = tuple(sorted(axes - {0}))
        can = op in _SEGMENTS or (x.rows == 1 and inner)
        if not can or x.kind.dtype not in ("float32", "float64", "float16"):
            return fallback(recorder, args)
        shape = [1 if axis in axes else extent for axis, extent in enumerate(x.shape)]
        if not keepdims:
            shape = [extent for axis, extent in enumerate(x.shape) if axis not in axes] or [1]
        if inner:
            more = {"axis": inner, "keepdims": True, **extra}
            x = recorder.call(operator, [x], list(more), list(more.values()))
        if x.rows > 1:
            signature = _reduced(recorder, op, x.kind)
            depth = max(recorder.base, x.depth)
            x = recorder.reduce(signature, runs_of(x), x.rows, depth)
        return as_shape(recorder, x, shape)

    return entry
