"""Measurements that later processes on this machine need not make again.

What was measured depends on the graph, the processor, the number of threads and the versions; all
of that is in the key. ``graphopt cache clear`` forgets everything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from graphopt.backend.findings import Place, active
from graphopt.compat import import_mxnet
from graphopt.kernels import cache as disk

#: Off where every measurement is to be made anew.
ENABLED = os.environ.get("GRAPHOPT_REMEMBER", "1") != "0"
#: Of the environment, what changes how fast something is.
_SETTINGS = ("OMP_NUM_THREADS", "GRAPHOPT_AMX", "GRAPHOPT_PAIRED")


def remembered(parts: Sequence[str]) -> Any:
    """What was kept for ``parts``, or ``None``."""
    if not ENABLED:
        return None
    data = disk.load(_key(parts), disk.MEASUREMENTS)
    return None if data is None else json.loads(data)


def remember(parts: Sequence[str], value: Any) -> None:
    """Keep a value that JSON can hold."""
    if ENABLED:
        disk.store(_key(parts), json.dumps(value).encode(), disk.MEASUREMENTS)


def once(parts: Sequence[str], measure: Callable[[], Any], place: Place = ()) -> Any:
    """What was kept for ``parts``; measured and kept if there is nothing.

    Where ``place`` tells what it is about in graphs of any size, it is not measured either if it
    was for one of about that size; see :mod:`graphopt.backend.findings`.
    """
    findings, place = active(), (parts[0], *place) if all(place) and place else ()
    found = remembered(parts)
    if found is None and place:
        found = findings.taken(place)
        if found is not None:
            return found
    if found is None:
        with findings.measuring():
            found = measure()
        remember(parts, found)
    if place:
        findings.note(place, found)
    return found


def _key(parts: Sequence[str]) -> str:
    told = (os.environ.get(name, "") for name in _SETTINGS)
    return disk.key_of(*machine(), *told, *parts)


@cache
def machine() -> tuple[str, ...]:
    """What measurements depend on that does not change while the process runs."""
    from graphopt import __version__
    from graphopt.kernels.bridge.build import sources
    from graphopt.kernels.machine import identity

    cores = len(os.sched_getaffinity(0))
    return (import_mxnet().__version__, __version__, sources(), *identity(), str(cores))
