"""Which groups of a plan the bridge runs, and in which order then."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from typing import Any

import numpy as np

from graphopt.batching.kinds import Kind
from graphopt.batching.native.block import Call, NativeBlock, make_block
from graphopt.batching.native.lookups import Lookup, lookup_of, part
from graphopt.batching.native.programs import Cut, Native, Reshaped, native_of, width_of
from graphopt.batching.runs import Ints
from graphopt.batching.signature import Signature

#: Fewer calls that compute something are not worth an operator of their own.
MIN_CALLS = 2

#: A group as it is planned: signature, first store, rows, arguments, lengths of reductions.
Planned = tuple[Signature, int, int, tuple[tuple[Ints, Ints], ...], Ints | None]


def arrange(
    groups: Sequence[Planned],
    totals: Sequence[int],
    kinds: Sequence[Kind],
    outside: int,
    wanted: Container[int] | None,
    apart: Container[int] = (),
) -> list[int | Lookup | NativeBlock]:
    """Put groups together that the bridge can run.

    What MXNet runs and what the bridge runs take turns, as few as possible: a group of MXNet's runs
    in the turn after the last of the bridge's that it needs.

    Args:
        groups: in an order in which they can run.
        totals: rows of each store.
        kinds: of the rows of each store.
        outside: autograd's flags around the batch; groups recorded under others stay with MXNet.
        wanted: stores that are read after the plan; None if any may be.
        apart: numbers of groups that MXNet has to run.

    Returns:
        Numbers of groups that MXNet runs, embeddings whose distinct rows are made, and blocks, in
        their order.
    """
    natives = [
        None if number in apart else _native(group, kinds, outside)
        for number, group in enumerate(groups)
    ]
    reads = [_reads(group) for group in groups]
    unread = _unread(groups, natives, reads, outside, wanted)
    turns: list[int] = []
    made_in: dict[int, tuple[int, bool]] = {}
    for group, native, read in zip(groups, natives, reads, strict=True):
        turn = 0
        for store in read:
            earlier, is_native = made_in.get(store, (0, False))
            turn = max(turn, earlier + (is_native and native is None))
        turns.append(turn)
        for at in range(len(group[0].outs)):
            made_in[group[1] + at] = (turn, native is not None)
    blocks: dict[int, list[list[int]]] = {}
    for turn in range(max(turns, default=-1) + 1):
        ours = [n for n, at in enumerate(turns) if at == turn and natives[n] is not None]
        blocks[turn] = [
            same
            for same in _by_type([n for n in ours if n not in unread], groups)
            if sum(_computes(natives[n]) for n in same) >= MIN_CALLS
        ]
    in_blocks = {n for together in blocks.values() for same in together for n in same}
    lookups = _lookups(groups, natives, reads, in_blocks, unread, outside, wanted)
    left = [_call(groups[n], Reshaped()) for n in sorted(unread)]
    order: list[int | Lookup | NativeBlock] = []
    for turn, together in blocks.items():
        others = [n for n, at in enumerate(turns) if at == turn and n not in in_blocks]
        order += [lookups.get(groups[n][1], n) for n in others if n not in unread]
        for same in together:
            calls = [_call(groups[n], natives[n], lookups) for n in same]
            made = make_block(calls, totals, kinds, _Wanted(reads, set(same), wanted), lookups)
            looked_up = [_call(groups[lookup.group], Reshaped()) for lookup in lookups.values()]
            made.keep([*looked_up, *calls, *left])
            order.append(made)
    return order if in_blocks else [*order, *sorted(unread)]


def _lookups(
    groups: Sequence[Planned],
    natives: Sequence[Native | None],
    reads: Sequence[set[int]],
    in_blocks: Set[int],
    unread: Set[int],
    outside: int,
    wanted: Container[int] | None,
) -> dict[int, Lookup]:
    """Embeddings that only blocks read, by the stores that their rows would be in."""
    found: dict[int, Lookup] = {}
    if wanted is None:
        return found
    for n, (signature, store, *_) in enumerate(groups):
        if natives[n] is not None or store in wanted or signature.state != outside:
            continue
        readers = [m for m, read in enumerate(reads) if store in read and m not in unread]
        lookup = lookup_of(n, store, signature, readers, in_blocks)
        if lookup is not None:
            found[store] = lookup
    return found


def _by_type(ours: Sequence[int], groups: Sequence[Planned]) -> list[list[int]]:
    """Groups that may be one block: it has one dtype and one device.

    None reads what another of another type makes, as the bridge converts nothing.
    """
    found: dict[tuple[str, Any], list[int]] = {}
    for n in ours:
        out = groups[n][0].outs[0]
        found.setdefault((out.dtype, out.ctx), []).append(n)
    return list(found.values())


def _unread(
    groups: Sequence[Planned],
    natives: Sequence[Native | None],
    reads: Sequence[set[int]],
    outside: int,
    wanted: Container[int] | None,
) -> set[int]:
    """Views that MXNet would make and nobody reads, but for parts, where they come from."""
    read = set().union(*reads)
    return {
        n
        for n, (signature, store, *_) in enumerate(groups)
        if natives[n] is None
        and isinstance(signature.source, Reshaped)
        and signature.state == outside
        and wanted is not None
        and store not in read
        and store not in wanted
    }


class _Wanted:
    """Stores that others read than some groups."""

    def __init__(
        self, reads: Sequence[set[int]], but: set[int], after: Container[int] | None
    ) -> None:
        self.after = after
        self.read = {store for n, read in enumerate(reads) if n not in but for store in read}

    def __contains__(self, store: object) -> bool:
        return store in self.read or self.after is None or store in self.after


def _native(group: Planned, kinds: Sequence[Kind], outside: int) -> Native | None:
    signature, _, rows, arguments, _ = group
    if signature.state != outside or not arguments or not all(len(s) for s, _ in arguments):
        return None
    if signature.native is None:
        inputs = [kinds[int(stores[0])] for stores, _ in arguments]
        signature.native = native_of(signature.source, inputs, signature.outs)
    native: Native | str = signature.native
    if isinstance(native, str):
        return None
    if isinstance(native, Reshaped):
        # Rows that are put together from several ones do not lie side by side.
        stores, _ = arguments[0]
        source = width_of(kinds[int(stores[0])])
        if rows % len(stores) or source % width_of(signature.outs[0]):
            return None
    return native


def _computes(native: Native | None) -> bool:
    return native is not None and not isinstance(native, (Cut, Reshaped))


def _reads(group: Planned) -> set[int]:
    return {int(store) for stores, _ in group[3] for store in np.unique(stores)}


def _call(
    group: Planned, native: Native | None, lookups: Mapping[int, Lookup] | None = None
) -> Call:
    signature, store, rows, arguments, lengths = group
    assert native is not None  # groups of blocks have one
    parted = part(native, signature, arguments, lookups) if lookups else None
    return Call(native, signature, store, rows, arguments, lengths, parted)
