"""Child HybridBlocks: one recorded call each, if their graph keeps rows apart.

A Block's graph is traced once per types and autograd state, checked operator by operator, and run
as one CachedOp on all rows; parameters are shared with the Block. Where the graph does not keep
rows apart (or there is none), its operators are recorded instead: those of the graph that MXNet
keeps of a hybridized Block, or those that the Block's own Python calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.batching import special
from graphopt.batching.changes import Fingerprint
from graphopt.batching.entries import Unary
from graphopt.batching.family import Rented
from graphopt.batching.layout import Layout, layout_of, regroup
from graphopt.batching.lazy import Lazy
from graphopt.batching.library import FOREIGN
from graphopt.batching.operators import handle
from graphopt.batching.recorder import Recorder, Unrecorded
from graphopt.batching.rules import NotRowwiseError
from graphopt.batching.signature import Signature
from graphopt.batching.unit import Unit, make_unit
from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import describe
from graphopt.nn.ski_rental import AT_ONCE

#: A Unit takes as long to make as about so many calls, which were made one by one before.
_RENTED_CALLS = 32
_DESCEND = object()
_ARRAY = import_mxnet().nd.NDArray
_EMBEDDING = import_mxnet().gluon.nn.Embedding


def call_block(recorder: Recorder, block: Any, args: tuple[Any, ...]) -> Any:
    """Record a call of a HybridBlock; returns what the call would."""
    values = []
    key: list[Any] = [recorder.state, block]
    for a in args:
        if type(a) is not Lazy or a.recorder is not recorder:
            real = recorder.reals.get(id(a))
            if real is None or real.value is None:
                if type(a) is not _ARRAY:
                    return _call_nested(recorder, block, args)
                real = recorder.real(a)
                if real.tag is FOREIGN:
                    return descend(block, args)
                recorder.rows_of(a)
            a = real.value
        values.append(a)
        key.append(a.kind)
    unit = recorder.units.get(tuple(key))
    if unit is None or _is_due(unit):
        layout = (tuple, (0,) * len(values))
        is_new = unit is None
        if is_new and _is_left_to_python(recorder, block):
            return descend(block, args)
        unit = recorder.units[tuple(key)] = _enter(recorder, block, values, layout, is_new=is_new)
    if unit is _DESCEND:
        return descend(block, args)
    if type(unit) is _Lookup:
        return unit(recorder, values[0]) if not _has_hooks(block) else descend(block, args)
    return _record(recorder, block, unit, args, values)


class _Lookup:
    """An Embedding of sequences: its operator, which looks up each element by itself."""

    def __init__(self, block: Any) -> None:
        self._weight = block.weight
        self._operator = handle("Embedding")
        self._keys, self._values = list(block._kwargs), list(block._kwargs.values())

    def __call__(self, recorder: Recorder, x: Lazy) -> Any:
        """Record the calls for one sentence: the first of a kind in a batch tells how."""
        way = recorder.lookups.get((self, x.kind))
        if way is not None and way.fits(recorder, x, self._weight):
            return way(recorder, x)
        weight = self._weight.data(x.kind.ctx)
        found = recorder.call(self._operator, [x, weight], self._keys, self._values)
        if Way.has(recorder, x):
            words = special.as_shape(recorder, x, (x.size,))
            entry = recorder.enter(self._operator, [words, weight], self._keys, self._values)
            if type(entry) is Unary:
                way = Way(recorder, x, entry.signature, self._weight)
                recorder.lookups[self, x.kind] = way
        return found


class Way:
    """How the words of one row are looked up one by one: a view, a lookup, and a view of its rows.

    What special.py does for an embedding's operator, once it is known for a kind of words.
    """

    __slots__ = ("_arrays", "_flat", "_lookup", "_shape", "_whole", "_words")

    def __init__(self, recorder: Recorder, x: Lazy, lookup: Signature, weight: Any) -> None:
        """``lookup`` is the signature of the lookup of words by themselves."""
        of = lookup.outs[0]
        self._arrays = weight._data  # another list where it is cast, moved or made anew
        self._words, self._lookup = x.size, lookup
        self._flat = special.view_as(recorder, x.kind, ())
        self._shape = (*x.shape, *of.tail)
        self._whole = special.view_as(recorder, of, self._shape[1:])

    @staticmethod
    def has(recorder: Recorder, x: Lazy) -> bool:
        """Whether words are one row as it was given, outside of any scope of autograd's."""
        return x.runs is None and x.rows == 1 and recorder.state == recorder.outside

    def fits(self, recorder: Recorder, x: Lazy, weight: Any) -> bool:
        """Whether words of the kind can go this way; those that were looked at before cannot."""
        return (
            self.has(recorder, x)
            and weight._data is self._arrays
            and x.run not in recorder.origins
            and (x.run, (self._words,)) not in recorder.views
        )

    def __call__(self, recorder: Recorder, x: Lazy) -> Any:
        """Record the calls for the words of ``x``, for which it fits."""
        views, origins = recorder.views, recorder.origins
        words = views[x.run, (self._words,)] = recorder.view(self._flat, x, self._words)
        origins[words.run] = x
        recorder.calls += 2  # the operator's on the sentence, and on its words
        found = recorder.unary(self._lookup, words)
        whole = views[found.run, self._shape] = recorder.view(self._whole, found, 1)
        origins[whole.run] = found
        if found.shape == self._shape[1:]:
            views[whole.run, found.shape] = found  # its parts, which samples ask for next
        return whole


def _has_hooks(block: Any) -> bool:
    return bool(block._forward_hooks or block._forward_pre_hooks)


def _call_nested(recorder: Recorder, block: Any, args: tuple[Any, ...]) -> Any:
    """Arguments in lists, and Nones among them."""
    leaves: list[Any] = []
    try:
        layout = layout_of(args, leaves)
    except TypeError:  # numbers, anything
        return descend(block, args)
    if not leaves or not all(isinstance(leaf, _ARRAY) for leaf in leaves):  # Symbols
        return descend(block, args)
    if any(type(a) is not Lazy and recorder.real(a).tag is FOREIGN for a in leaves):
        return descend(block, args)
    values = [recorder.rows_of(leaf) for leaf in leaves]
    key = (recorder.state, block, layout, *[x.kind for x in values])
    unit = recorder.units.get(key)
    if unit is None or _is_due(unit):
        is_new = unit is None
        if is_new and _is_left_to_python(recorder, block):
            return descend(block, args)
        unit = recorder.units[key] = _enter(recorder, block, values, layout, is_new=is_new)
    if not isinstance(unit, Unit):
        return descend(block, args)
    return _record(recorder, block, unit, args, values)


def _is_left_to_python(recorder: Recorder, block: Any) -> bool:
    """Whether a call of a kind that was not met before is not to be traced, nor remembered."""
    library = recorder.library
    return library.is_fleeting(recorder, block) or library.is_uninitialized(block)


def _is_due(unit: Any) -> bool:
    return type(unit) is Rented and next(unit.calls) > _RENTED_CALLS


def _record(recorder: Recorder, block: Any, unit: Unit, args: Any, values: Sequence[Lazy]) -> Any:
    rows = values[0].rows
    for x in values:
        if x.rows != rows:
            return descend(block, args)
    recorder.calls += 1
    if block._forward_pre_hooks:
        for hook in block._forward_pre_hooks.values():
            hook(block, args)
    if type(unit) is Rented:
        alone = [special.together(recorder, x) for x in values]
        found = recorder.join_single(unit.signature, alone, rows)
    else:
        found = recorder.join(unit.signature, values, rows)
    if unit.flat is not None:
        found = unit.flat(found)
    elif unit.results != 0:
        found = regroup(unit.results, iter(found if isinstance(found, list) else [found]))
    if block._forward_hooks:
        for hook in block._forward_hooks.values():
            hook(block, args, found)
    return found


def _enter(
    recorder: Recorder, block: Any, values: Sequence[Lazy], layout: Layout, *, is_new: bool
) -> Any:
    library = recorder.library
    if library.is_restless(block):
        library.note(f"{describe(block)} is recorded operator by operator: it changes all the time")
        return _DESCEND
    found = _made(recorder, block, values, layout, is_new=is_new)
    if found is not _DESCEND:  # else its own Python runs, as it is then
        # Afterwards, as parameters may learn their shapes meanwhile.
        library.traced[block] = Fingerprint(block)
    return found


def _made(
    recorder: Recorder, block: Any, values: Sequence[Lazy], layout: Layout, *, is_new: bool
) -> Any:
    library = recorder.library
    if type(block) is _EMBEDDING and values[0].kind.tail:
        return _Lookup(block)
    kinds = [(len(x.kind.tail), x.kind.dtype, x.kind.ctx) for x in values]
    family = library.families[recorder.state, block, layout, tuple(kinds)]
    with library.lock, Unrecorded():
        try:
            if is_new and family.units >= AT_ONCE:
                rented = family.rent(library, block, values, layout, recorder.state)
                if rented is not None:
                    return rented
            family.units += 1
            return make_unit(library, block, values, layout, recorder.state)
        except NotRowwiseError as error:
            library.note(f"{describe(block)} is recorded operator by operator: {error}")
            return _DESCEND


def descend(block: Any, args: tuple[Any, ...]) -> Any:
    """Call the Block as MXNet does; what it calls is recorded, see hooks.py and kept.py."""
    return import_mxnet().gluon.Block.__call__(block, *args)
