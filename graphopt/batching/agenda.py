"""Orders in which groups run, and which of them run together.

``depth`` runs groups as they were recorded, by depth. ``agenda`` waits with calls that could run
later together with others: among the signatures with ready groups it runs the one whose calls, all
in all, lie least deep. It decides about whole groups (calls alike at one depth), not single calls:
a hundred groups are ordered in a millisecond, ten thousand calls are not.

Source: Neubig, Goldberg and Dyer, On-the-fly Operation Batching in Dynamic Computation Graphs,
NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphopt.batching.calls import Group
from graphopt.batching.runs import STORE_SHIFT


def by_depth(groups: Sequence[Group]) -> list[list[Group]]:
    """Every group for itself; they are given by depth."""
    return [[group] for group in groups]


def by_agenda(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups of one signature that are ready at the same time run together.

    Quadratic in the number of groups that are ready at a time, linear in what they read.
    """
    maker = {group.store + at: group for group in groups for at in range(len(group.signature.outs))}
    missing: dict[int, int] = {}
    readers: dict[int, list[Group]] = {group.store: [] for group in groups}
    for group in groups:
        needed = {maker[store].store for store in _reads(group) if store in maker}
        missing[group.store] = len(needed)
        for store in needed:
            readers[store].append(group)
    mean_depth = _mean_depths(groups)
    ready: dict[int, list[Group]] = {}
    for group in groups:
        if not missing[group.store]:
            ready.setdefault(group.signature.serial, []).append(group)
    batches = []
    while ready:
        serial = min(ready, key=lambda s: (mean_depth[s], s))
        batch = ready.pop(serial)
        batches.append(batch)
        for done in batch:
            for reader in readers[done.store]:
                missing[reader.store] -= 1
                if not missing[reader.store]:
                    ready.setdefault(reader.signature.serial, []).append(reader)
    return batches


def _reads(group: Group) -> set[int]:
    return {
        int(store)
        for place in group.places
        for store in np.unique(np.frombuffer(place, dtype=np.int64) >> STORE_SHIFT)
    }


def _mean_depths(groups: Sequence[Group]) -> dict[int, float]:
    """Average depth of the calls of each signature."""
    sums: dict[int, tuple[int, int]] = {}
    for group in groups:
        depth, calls = sums.get(group.signature.serial, (0, 0))
        sums[group.signature.serial] = (depth + group.depth * group.calls, calls + group.calls)
    return {serial: depth / calls for serial, (depth, calls) in sums.items()}
