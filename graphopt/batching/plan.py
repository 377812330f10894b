"""From a recording to steps: where each argument of each group comes from, as cheaply as can be.

A plan depends on the structure alone, not on values, and is kept for recordings of equal structure.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from graphopt.batching.calls import Group
from graphopt.batching.gather import Segments, gather, index_array
from graphopt.batching.kinds import Kind
from graphopt.batching.liveness import Liveness, is_steep
from graphopt.batching.native.block import NativeBlock
from graphopt.batching.native.lookups import Lookup
from graphopt.batching.native.stages import Planned, arrange
from graphopt.batching.recorder import Recorder
from graphopt.batching.runs import Ints, expand, unpack
from graphopt.batching.signature import Signature
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

#: With at most so many pieces of adjacent rows, slices are joined; with more, rows are gathered.
_PIECES = 3
#: A call of MXNet costs about as much as copying so many rows.
_CALL_ROWS = 100
#: Results of samples that a plan remembers how to bring together.
_RESULTS = 8


@dataclass(slots=True)
class Argument:
    """How the rows of one argument are brought together.

    Either ``pieces``, runs ``(store, begin, end)`` to be joined (``end`` of -1: the whole store);
    or ``parts``, rows of single stores to be joined, and then put in order by ``indices``;
    or rows ``indices`` of ``stores`` one behind the other.
    """

    pieces: tuple[tuple[int, int, int], ...] = ()
    parts: tuple[tuple[int, Any], ...] = ()
    stores: tuple[int, ...] = ()
    indices: Any = None
    uses: int = 1


@dataclass(slots=True)
class Step:
    """One group, ready to run."""

    signature: Signature
    store: int
    arguments: list[Argument]
    segments: Segments | None = None
    calls: tuple[tuple[tuple[int, int, int], ...], ...] = ()  # of form single: runs per call
    live: Any = None  # rows that get a gradient, where not all may; see liveness.py


@dataclass(slots=True)
class LookupStep:
    """An embedding of which distinct rows are made."""

    lookup: Lookup
    step: Step


@dataclass(slots=True)
class Plan:
    """Leaves to join, then steps, lookups and blocks in order.

    ``flows`` has the groups, where :mod:`graphopt.batching.liveness` wants to know them.
    """

    leaves: list[tuple[int, Kind]]
    steps: list[Step | LookupStep | NativeBlock]
    groups: int
    totals: list[int]
    homes: list[tuple[int, int]]
    results: dict[Any, Argument] = field(default_factory=dict)
    flows: Sequence[Planned] = ()


def structure_key(recorder: Recorder, groups: Sequence[Group]) -> tuple[Any, ...]:
    """Equal for recordings that have the same plan."""
    return (
        tuple(recorder.totals),
        tuple(recorder.homes),
        tuple((leaves.kind, leaves.store, leaves.total) for leaves in recorder.leaves.values()),
        tuple((g.signature.serial, g.store, g.total, *map(len, g.places)) for g in groups),
        b"".join(place.tobytes() for g in groups for place in (*g.places, g.pointers)),
    )


def make_plan(
    recorder: Recorder,
    batches: Sequence[Sequence[Group]],
    wanted: Collection[int] | None,
    results: Sequence[int] | None = None,
) -> Plan:
    """Plan batches of groups, given in an order in which they can run.

    Args:
        recorder: that recorded them.
        batches: groups that run together.
        wanted: stores that are read after the plan was run; None: any may be.
        results: runs of what samples returned; None as long as any may go on.
    """
    totals, homes = list(recorder.totals), list(recorder.homes)
    for batch in batches:
        _move_together(batch, totals, homes)
    planner = Planner(totals, homes)
    leaves = [(leaves.store, leaves.kind) for leaves in recorder.leaves.values()]
    groups = [_planned(batch, planner, totals) for batch in batches]
    if wanted is not None:
        wanted = {homes[store][0] for store in wanted}
    masks = _masks(groups, planner, totals, results) if recorder.is_steep else {}
    order: Sequence[int | Lookup | NativeBlock] = range(len(batches))
    if why_no_kernels(recorder.library) is None:
        order = arrange(groups, totals, recorder.kinds, recorder.outside, wanted, masks)

    def step(item: int | Lookup | NativeBlock) -> Step | LookupStep | NativeBlock:
        if isinstance(item, NativeBlock):
            return item
        if isinstance(item, Lookup):
            return LookupStep(item, step_of(groups[item.group], planner))
        if batches[item][0].signature.form == "single":
            return _single(batches[item], planner)
        return step_of(groups[item], planner, masks.get(item))

    steps = [step(item) for item in order]
    flows = groups if recorder.is_steep else ()
    return Plan(leaves, steps, len(batches), totals, homes, flows=flows)


def _masks(
    groups: Sequence[Planned],
    planner: Planner,
    totals: Sequence[int],
    results: Sequence[int] | None,
) -> dict[int, Any]:
    """The rows that get a gradient of each group that needs a mask: all, as long as any may."""
    steep = [
        number
        for number, (signature, *_) in enumerate(groups)
        if signature.form == "rows" and is_steep(signature)
    ]
    if results is None:
        return {number: np.ones(groups[number][2], dtype=bool) for number in steep}
    liveness = Liveness(groups, totals)
    liveness.reach(*planner.rows([array("q", results)]))
    found = {number: liveness.rows(groups[number]) for number in steep}
    return {number: live for number, live in found.items() if not live.all()}


def why_no_kernels(library: Any) -> str | None:
    """Why groups cannot run in the bridge here; noted once."""
    why = bridge.why_not(import_mxnet())
    if why is not None:
        library.note(f"groups run in MXNet's operators: {why}")
    return why


def _move_together(batch: Sequence[Group], totals: list[int], homes: list[tuple[int, int]]) -> None:
    """The rows of all groups of a batch go to the stores of the first, one behind the other."""
    first = batch[0]
    offset = 0
    for group in batch:
        for at in range(len(first.signature.outs)):
            homes[group.store + at] = (first.store + at, offset)
        offset += group.total
    for at in range(len(first.signature.outs)):
        totals[first.store + at] = offset


class Planner:
    """Plans arguments; equal ones are the same object."""

    def __init__(self, totals: Sequence[int], homes: Sequence[tuple[int, int]]) -> None:
        """``totals`` has the rows of every store, ``homes`` where its rows went."""
        self._totals = totals
        self._moved = np.asarray(homes, dtype=np.int64).reshape(-1, 2)
        self._known: dict[bytes, Argument] = {}

    def rows(self, places: Sequence[array[int]]) -> tuple[Ints, Ints]:
        """Store and row of every row of runs, as they will be."""
        runs = [np.frombuffer(place, dtype=np.int64) for place in places]
        stores, rows = expand(runs[0] if len(runs) == 1 else np.concatenate(runs))
        moved = self._moved[stores]
        return moved[:, 0], rows + moved[:, 1]

    def run(self, run: int) -> tuple[int, int, int]:
        """Store, first row and number of rows of one run, as they will be."""
        store, start, count = unpack(run)
        home, offset = self._moved[store]
        return int(home), start + int(offset), count

    def __call__(self, stores: Ints, rows: Ints, ctx: Any) -> Argument:
        """How to bring rows together, given by store and row."""
        key = stores.tobytes() + rows.tobytes()
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _argument(stores, rows, self._totals, ctx)
        else:
            found.uses += 1
        return found


def _single(batch: Sequence[Group], plan: Planner) -> Step:
    """Calls that run one by one."""
    calls = tuple(
        tuple(plan.run(run) for run in call)
        for group in batch
        for call in zip(*group.places, strict=True)
    )
    return Step(batch[0].signature, batch[0].store, [], calls=calls)


def _planned(batch: Sequence[Group], plan: Planner, totals: Sequence[int]) -> Planned:
    """Where the rows of a batch's arguments are."""
    signature, store = batch[0].signature, batch[0].store
    found = tuple(plan.rows([g.places[at] for g in batch]) for at in range(signature.inputs))
    lengths = None
    if signature.form == "reduce":
        lengths = np.concatenate([np.frombuffer(g.pointers, dtype=np.int64) for g in batch])
    return signature, store, totals[store], found, lengths


def step_of(group: Planned, plan: Planner, live: Any = None) -> Step:
    """A group for MXNet to run; ``live`` has the rows that get a gradient, if not all may."""
    signature, store, _, found, lengths = group
    step = Step(signature, store, [], live=live)
    ctx = signature.outs[0].ctx
    if lengths is not None:
        step.segments = Segments(lengths, ctx)
        stores, rows = found[0]
        order = step.segments.rows
        step.arguments = [plan(stores[order], rows[order], ctx)]
        return step
    lonely = [
        live is None and signature.can_broadcast and len(rows) > 1 and _is_one_row(stores, rows)
        for stores, rows in found
    ]
    if all(lonely):
        lonely[:1] = [False]
    for (stores, rows), alone in zip(found, lonely, strict=True):
        end = 1 if alone else len(rows)
        step.arguments.append(plan(stores[:end], rows[:end], ctx))
    return step


def _is_one_row(stores: Ints, rows: Ints) -> bool:
    return bool((rows == rows[0]).all() and (stores == stores[0]).all())


def _argument(stores: Ints, rows: Ints, totals: Sequence[int], ctx: Any) -> Argument:
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(stores) != 0)) + 1
    if len(breaks) < _PIECES:
        bounds = [0, *breaks.tolist(), len(rows)]
        return Argument(
            pieces=tuple(
                _piece(int(stores[b]), int(rows[b]), e - b, totals) for b, e in pairwise(bounds)
            )
        )
    used = np.unique(stores)
    if len(used) > 1 and 2 * len(rows) + _CALL_ROWS * len(used) < sum(totals[s] for s in used):
        return _in_parts(stores, rows, used, ctx)
    sizes = [totals[store] for store in used]
    offsets = np.zeros(int(used[-1]) + 1, dtype=np.int64)
    offsets[used] = np.cumsum([0, *sizes[:-1]])
    return Argument(
        stores=tuple(int(store) for store in used),
        indices=index_array(rows + offsets[stores], ctx),
    )


def _in_parts(stores: Ints, rows: Ints, used: Ints, ctx: Any) -> Argument:
    """Rows of each store for themselves: few of many."""
    order = np.argsort(stores, kind="stable")
    bounds = np.searchsorted(stores[order], used)
    chosen = np.split(rows[order], bounds[1:])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    in_order = bool((np.diff(order) > 0).all())
    return Argument(
        parts=tuple(
            (int(store), index_array(part, ctx)) for store, part in zip(used, chosen, strict=True)
        ),
        indices=None if in_order else index_array(back, ctx),
    )


def _piece(store: int, begin: int, count: int, totals: Sequence[int]) -> tuple[int, int, int]:
    is_whole = begin == 0 and count == totals[store]
    return (store, begin, -1 if is_whole else begin + count)


class Joiner:
    """Brings arguments together; what several steps need is made once."""

    def __init__(self, stores: Sequence[Any]) -> None:
        """``stores`` fills while steps run."""
        self._nd = import_mxnet().nd
        self._stores = stores
        self._slices: dict[tuple[int, int, int], Any] = {}
        self._wholes: dict[tuple[int, ...], Any] = {}
        self._joined: dict[int, Any] = {}

    def __call__(self, argument: Argument) -> Any:
        """The argument as one array."""
        if argument.uses == 1:
            return self._join(argument)
        found = self._joined.get(id(argument))
        if found is None:
            found = self._joined[id(argument)] = self._join(argument)
        return found

    def _join(self, argument: Argument) -> Any:
        if argument.pieces:
            return self._concat([self._slice(piece) for piece in argument.pieces])
        if argument.parts:
            parts = [gather([self._stores[store]], rows) for store, rows in argument.parts]
            whole = self._concat(parts)
            return whole if argument.indices is None else gather([whole], argument.indices)
        stores = argument.stores
        if len(stores) == 1:
            return gather([self._stores[stores[0]]], argument.indices)
        if stores not in self._wholes:
            self._wholes[stores] = self._concat([self._stores[s] for s in stores])
        return gather([self._wholes[stores]], argument.indices)

    def _concat(self, parts: Sequence[Any]) -> Any:
        return parts[0] if len(parts) == 1 else self._nd.concat(*parts, dim=0)

    def _slice(self, piece: tuple[int, int, int]) -> Any:
        store, begin, end = piece
        if end < 0:
            return self._stores[store]
        if piece not in self._slices:
            self._slices[piece] = self._nd.slice_axis(
                self._stores[store], axis=0, begin=begin, end=end
            )
        return self._slices[piece]


def plan_rows(recorder: Recorder, runs: Sequence[int], ctx: Any) -> Argument:
    """How to bring any runs together: the outputs of samples.

    The plan that ran last keeps it. To make index arrays takes little time, but MXNet fills them
    behind all that was asked of it before: whoever does would wait for the whole batch.
    """
    wanted = array("q", runs)
    known = {} if recorder.plan is None else recorder.plan.results
    key = (wanted.tobytes(), ctx)
    found = known.get(key)
    if found is None:
        planner = Planner(recorder.totals, recorder.homes)
        if len(known) >= _RESULTS:
            known.clear()
        found = known[key] = planner(*planner.rows([wanted]), ctx)
    return found
