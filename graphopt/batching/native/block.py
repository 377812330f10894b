"""A block: steps of a plan that the bridge runs as one operator, and the numbers it reads."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from graphopt.backend.arrays import array_of
from graphopt.batching.kinds import Kind
from graphopt.batching.native.lookups import Lookup
from graphopt.batching.native.programs import (
    REDUCTIONS,
    Cut,
    Joined,
    Native,
    Parameter,
    Reduction,
    Reshaped,
    Rows,
    Split,
    parameters_of,
    width_of,
)
from graphopt.batching.runs import Ints
from graphopt.batching.signature import Signature
from graphopt.compat import import_mxnet
from graphopt.ir.types import DTYPES
from graphopt.kernels.recurrence.plan import plan as plan_program
from graphopt.kernels.recurrence.spec import parse

#: Kinds of steps; kernels/bridge/schedule.h has the same list.
_KINDS = {name: kind for kind, name in enumerate(("rows", *REDUCTIONS, "concat"))}

#: Stands where the number of an index would.
_NO_INDEX = -1


@dataclass(frozen=True, slots=True)
class Call:
    """One group of a block.

    Attributes:
        native: what the bridge makes of it.
        signature: of the group.
        store: the first of its outputs.
        rows: of its outputs.
        arguments: store and row of every row of every argument.
        lengths: of reductions, how many rows each result takes.
        parted: the lookup that one argument's rows are of, and the program parted there.
    """

    native: Native
    signature: Signature
    store: int
    rows: int
    arguments: tuple[tuple[Ints, Ints], ...]
    lengths: Ints | None = None
    parted: tuple[Lookup, Split] | None = None

    @property
    def stores(self) -> range:
        """Of its outputs."""
        return range(self.store, self.store + len(self.signature.outs))


@dataclass(slots=True)
class NativeBlock:
    """What is needed to run a block.

    Attributes:
        externals: stores that it reads.
        looked_up: what it reads of lookups: their stores, and which output.
        indices: stores of these lookups.
        exports: stores that it makes, with the shape that rows have outside.
        numbers: the plan, as an int32 array of MXNet.
        learned: arrays of all programs, each the sum of what is named.
        attrs: of the operator, but for the stash.
        stash_size: elements that backward needs.
        calls: the groups, and those that nobody reads, for whoever wants what was not exported.
        reads: stores that these read.
        parameters: what these read besides rows.
    """

    externals: tuple[int, ...]
    looked_up: tuple[tuple[int, int], ...]
    indices: tuple[int, ...]
    exports: tuple[tuple[int, tuple[int, ...]], ...]
    numbers: Any
    learned: tuple[tuple[Parameter, ...], ...]
    attrs: dict[str, Any]
    stash_size: int
    calls: tuple[Call, ...]
    reads: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()

    def keep(self, calls: Sequence[Call]) -> None:
        """Remember the calls that MXNet has to make for what was not exported."""
        self.calls = tuple(calls)
        read = {int(s) for c in calls for stores, _ in c.arguments for s in np.unique(stores)}
        self.reads = tuple(sorted(read))
        sources = {call.signature.serial: call.signature.source for call in calls}
        found = [parameter for source in sources.values() for parameter in parameters_of(source)]
        self.parameters = tuple(found)


def make_block(
    calls: Sequence[Call],
    totals: Sequence[int],
    kinds: Sequence[Kind],
    wanted: Container[int],
    lookups: Mapping[int, Lookup],
) -> NativeBlock:
    """Put a block together.

    Args:
        calls: groups in an order in which they can run.
        totals: rows of each store.
        kinds: of the rows of each store.
        wanted: stores that are read outside of the block.
        lookups: stores whose distinct rows are made ahead of it.
    """
    return _Maker(calls, totals, kinds, wanted, lookups).finish()


class _Maker:
    """Numbers rows: first those from outside, then those of steps; views have those they view."""

    def __init__(
        self,
        calls: Sequence[Call],
        totals: Sequence[int],
        kinds: Sequence[Kind],
        wanted: Container[int],
        lookups: Mapping[int, Lookup],
    ) -> None:
        self.calls, self.totals, self.kinds, self.wanted = calls, totals, kinds, wanted
        own = [store for call in calls for store in call.stores]
        read = {int(s) for call in calls for stores in _whole(call) for s in np.unique(stores)}
        self.externals = sorted(read.difference(own).difference(lookups))
        self.looked_up = {(s, 0): width_of(kinds[s]) for s in sorted(read.intersection(lookups))}
        self.looked_up |= _looked_up(calls)
        self.indices = sorted({lookup for lookup, _ in self.looked_up})
        # Where the numbers of a store's rows are, in two tables.
        self.begin = np.zeros(max([*own, *read]) + 1, dtype=np.int64)
        count = 0
        for store in (*self.externals, *(s for s, which in self.looked_up if not which), *own):
            self.begin[store] = count
            count += totals[store]
        self.target = np.empty(count, dtype=np.int64)
        self.offset = np.zeros(count, dtype=np.int64)
        self.numbers: list[Any] = [len(self.externals) + len(self.looked_up)]
        self.programs: dict[Rows, int] = {}
        self.exports: list[tuple[int, int, int]] = []  # store, step, which output
        self.steps = self.rows = self.stash_size = 0
        for store in self.externals:
            self.numbers += [totals[store], width_of(kinds[store]), _NO_INDEX]
            self._number(store)
        #: The number of row 0 of what is computed from a lookup's rows.
        self.tables: dict[tuple[int, int], int] = {}
        for (store, which), width in self.looked_up.items():
            self.numbers += [totals[store], width, self.indices.index(store)]
            self.tables[store, which] = self.rows
            if which:
                self.rows += totals[store]
            else:
                self._number(store)
        views = sum(1 for call in calls if self._is_view(call))
        self.numbers.append(len(calls) - views)
        for call in calls:
            self._add(call)

    def finish(self) -> NativeBlock:
        """The block."""
        self.numbers.append(len(self.exports))
        self.numbers += [n for _, step, which in self.exports for n in (step, which)]
        parts = [np.asarray(part, dtype=np.int32).ravel() for part in self.numbers]
        first = self.calls[0].signature.outs[0]
        stores = [store for store, _, _ in self.exports]
        return NativeBlock(
            externals=tuple(self.externals),
            looked_up=tuple(self.looked_up),
            indices=tuple(self.indices),
            exports=tuple(
                (store, (self.totals[store], *self.kinds[store].tail)) for store in stores
            ),
            numbers=array_of(np.concatenate(parts), import_mxnet().cpu()),
            learned=tuple(group for rows in self.programs for group in rows.learned),
            attrs={
                "specs": " ;;;; ".join(str(rows.spec) for rows in self.programs),
                "externals": len(self.externals) + len(self.looked_up),
                "indices": len(self.indices),
                "exports": " ".join(
                    f"{self.totals[store]} {width_of(self.kinds[store])}" for store in stores
                ),
                "dtype": DTYPES[first.dtype][2],
            },
            stash_size=self.stash_size,
            calls=tuple(self.calls),
        )

    def _is_view(self, call: Call) -> bool:
        """Whether a call computes nothing: nobody outside wants its rows."""
        is_view = isinstance(call.native, (Cut, Reshaped))
        return is_view and call.store not in self.wanted

    def _number(self, store: int) -> None:
        """Give the rows of a store the next numbers."""
        begin, rows = self.begin[store], self.totals[store]
        self.target[begin : begin + rows] = np.arange(self.rows, self.rows + rows)
        self.rows += rows

    def _add(self, call: Call) -> None:
        native = call.native
        if call.parted is not None:
            lookup, split = call.parted
            rows = call.arguments[split.position][1]
            ahead = [self._ahead(lookup, split, which, rows) for which in split.needed]
            others = [self._found(*given) for given in _others(call, split)]
            self._step(call, split.rest, [*ahead, *others])
            return
        found = [self._found(stores, rows) for stores, rows in call.arguments]
        if isinstance(native, (Cut, Reshaped)):
            found = [self._viewed(call, native, *found[0])]
            if self._is_view(call):
                begin = self.begin[call.store]
                self.target[begin : begin + call.rows], self.offset[begin : begin + call.rows] = (
                    found[0]
                )
                return
            native = _copy(width_of(call.signature.outs[0]), call.signature.outs[0].dtype)
        self._step(call, native, found)

    def _step(
        self, call: Call, native: Rows | Reduction | Joined, found: Sequence[tuple[Ints, Ints]]
    ) -> None:
        kind, program, stash = "rows", 0, 0
        outs = [width_of(out) for out in call.signature.outs]
        widths: Sequence[int] = outs
        if isinstance(native, Reduction):
            kind = native.how
        elif isinstance(native, Joined):
            kind = "concat"
            widths = [width_of(self.kinds[int(stores[0])]) for stores, _ in call.arguments]
        else:
            program = self.programs.setdefault(native, len(self.programs))
            widths = native.spec.sequences
            stash = plan_program(native.spec, training=True).stash_width
        self.numbers += [_KINDS[kind], program, call.rows, len(found), len(outs), *outs]
        for width, (targets, offsets) in zip(widths, found, strict=True):
            has_offsets = bool(offsets.any())
            self.numbers += [width, len(targets), int(has_offsets), targets]
            if has_offsets:
                self.numbers.append(offsets)
        if call.lengths is not None:
            self.numbers.append(call.lengths)
        for which, store in enumerate(call.stores):
            self._number(store)
            if store in self.wanted:
                self.exports.append((store, self.steps, which))
        self.steps += 1
        self.stash_size += call.rows * (sum(outs) + stash)

    def _found(self, stores: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Numbers of rows, and from which column on."""
        at = self.begin[stores] + rows
        return self.target[at], self.offset[at]

    def _ahead(self, lookup: Lookup, split: Split, which: int, rows: Ints) -> tuple[Ints, Ints]:
        """Numbers of rows of what was computed ahead."""
        output = 0 if which < 0 else lookup.output(split) + which
        return self.tables[lookup.store, output] + rows, np.zeros_like(rows)

    def _viewed(
        self, call: Call, native: Cut | Reshaped, targets: Ints, offsets: Ints
    ) -> tuple[Ints, Ints]:
        if isinstance(native, Cut):
            return targets, offsets + native.offset
        times, width = call.rows // len(targets), width_of(call.signature.outs[0])
        inside = np.tile(np.arange(times) * width, len(targets))
        return np.repeat(targets, times), np.repeat(offsets, times) + inside


def _others(call: Call, split: Split) -> list[tuple[Ints, Ints]]:
    """The arguments of a call but for the one where its program is parted."""
    return [given for at, given in enumerate(call.arguments) if at != split.position]


def _whole(call: Call) -> list[Ints]:
    """Stores of the arguments that a call reads as they are."""
    if call.parted is None:
        return [stores for stores, _ in call.arguments]
    _, split = call.parted
    others = [stores for stores, _ in _others(call, split)]
    return [*others, call.arguments[split.position][0]] if -1 in split.needed else others


def _looked_up(calls: Sequence[Call]) -> dict[tuple[int, int], int]:
    """What calls read that is computed ahead: store of the lookup and output, with its columns."""
    found: dict[tuple[int, int], int] = {}
    for call in calls:
        if call.parted is None:
            continue
        lookup, split = call.parted
        widths = [split.rest.spec.sequences[at] for at in range(len(split.needed))]
        for which, width in zip(split.needed, widths, strict=True):
            if which >= 0:
                found[lookup.store, lookup.output(split) + which] = width
    return found


@cache
def _copy(width: int, dtype: str) -> Rows:
    """The program that computes nothing."""
    short = {"float32": "f32", "float64": "f64"}[dtype]
    return Rows(parse(f"recurrence {short} ({width}) () () () ;; next ;; emit x0"), ())
