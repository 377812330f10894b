"""A block: steps of a plan that the bridge runs as one operator, and the numbers it reads."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from graphopt.backend.arrays import array_of
from graphopt.batching.kinds import Kind
from graphopt.batching.native.programs import (
    REDUCTIONS,
    Cut,
    Joined,
    Native,
    Parameter,
    Reduction,
    Reshaped,
    Rows,
    width_of,
)
from graphopt.batching.runs import Ints
from graphopt.batching.signature import Signature
from graphopt.compat import import_mxnet
from graphopt.ir.types import DTYPES
from graphopt.kernels.recurrence.program import plan as plan_program
from graphopt.kernels.recurrence.spec import parse

#: Kinds of steps; kernels/bridge/schedule.h has the same list.
_KINDS = {name: kind for kind, name in enumerate(("rows", *REDUCTIONS, "concat"))}


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
    """

    native: Native
    signature: Signature
    store: int
    rows: int
    arguments: tuple[tuple[Ints, Ints], ...]
    lengths: Ints | None = None

    @property
    def stores(self) -> range:
        """Of its outputs."""
        return range(self.store, self.store + len(self.signature.outs))


@dataclass(slots=True)
class NativeBlock:
    """What is needed to run a block.

    Attributes:
        externals: stores that it reads.
        exports: stores that it makes, with the shape that rows have outside.
        numbers: the plan, as an int32 array of MXNet.
        learned: arrays of all programs, each the sum of what is named.
        attrs: of the operator, but for the stash.
        stash_size: elements that backward needs.
        calls: the groups, and those that nobody reads, for whoever wants what was not exported.
    """

    externals: tuple[int, ...]
    exports: tuple[tuple[int, tuple[int, ...]], ...]
    numbers: Any
    learned: tuple[tuple[Parameter, ...], ...]
    attrs: dict[str, Any]
    stash_size: int
    calls: tuple[Call, ...]


def make_block(
    calls: Sequence[Call],
    totals: Sequence[int],
    kinds: Sequence[Kind],
    wanted: Container[int],
    unread: Sequence[Call] = (),
) -> NativeBlock:
    """Put a block together.

    Args:
        calls: groups in an order in which they can run.
        totals: rows of each store.
        kinds: of the rows of each store.
        wanted: stores that are read outside of the block.
        unread: groups that need not run unless somebody asks for them.
    """
    made = _Maker(calls, totals, kinds, wanted).finish()
    made.calls += tuple(unread)
    return made


class _Maker:
    """Numbers rows: first those from outside, then those of steps; views have those they view."""

    def __init__(
        self,
        calls: Sequence[Call],
        totals: Sequence[int],
        kinds: Sequence[Kind],
        wanted: Container[int],
    ) -> None:
        self.calls, self.totals, self.kinds, self.wanted = calls, totals, kinds, wanted
        own = [store for call in calls for store in call.stores]
        read = {int(s) for call in calls for stores, _ in call.arguments for s in np.unique(stores)}
        self.externals = sorted(read.difference(own))
        # Where the numbers of a store's rows are, in two tables.
        self.begin = np.zeros(max(*own, *read) + 1, dtype=np.int64)
        count = 0
        for store in (*self.externals, *own):
            self.begin[store] = count
            count += totals[store]
        self.target = np.empty(count, dtype=np.int64)
        self.offset = np.zeros(count, dtype=np.int64)
        self.numbers: list[Any] = [len(self.externals)]
        self.programs: dict[Rows, int] = {}
        self.exports: list[tuple[int, int, int]] = []  # store, step, which output
        self.steps = self.rows = self.stash_size = 0
        for store in self.externals:
            self.numbers += [totals[store], width_of(kinds[store])]
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
            exports=tuple(
                (store, (self.totals[store], *self.kinds[store].tail)) for store in stores
            ),
            numbers=array_of(np.concatenate(parts), import_mxnet().cpu()),
            learned=tuple(group for rows in self.programs for group in rows.learned),
            attrs={
                "specs": " ;;;; ".join(str(rows.spec) for rows in self.programs),
                "externals": len(self.externals),
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
        found = [self._found(stores, rows) for stores, rows in call.arguments]
        native = call.native
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
            stash = plan_program(native.spec, lengths=False, training=True).stash_width
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

    def _viewed(
        self, call: Call, native: Cut | Reshaped, targets: Ints, offsets: Ints
    ) -> tuple[Ints, Ints]:
        if isinstance(native, Cut):
            return targets, offsets + native.offset
        times, width = call.rows // len(targets), width_of(call.signature.outs[0])
        inside = np.tile(np.arange(times) * width, len(targets))
        return np.repeat(targets, times), np.repeat(offsets, times) + inside


@cache
def _copy(width: int, dtype: str) -> Rows:
    """The program that computes nothing."""
    short = {"float32": "f32", "float64": "f64"}[dtype]
    return Rows(parse(f"recurrence {short} ({width}) () () () ;; next ;; emit x0"), ())
