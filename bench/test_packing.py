"""Memory plans: how far above the lower bound, and how long it takes to find them.

Public cases are read where the shared data is there; what training looks like is generated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import workloads
from bench.report import Record
from graphopt.memory import Buffers, check_packing, pack, read_buffers
from tests.memory import cutting

FILES = sorted((workloads.DATA / "memalloc").glob("*.csv"))

#: Seconds for a plan.
LIMIT = 60.0

#: What no plan is to exceed, over the lower bound.
TARGETS = {"ratio": 1.15}

Tally = Callable[[str, dict[str, int]], None]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_public_case(
    file: Path, benchmark: Any, record: Callable[[Record], None], tally: Tally, quick: bool
) -> None:
    measured("Public cases of memory planning", file.stem, read_buffers(file), **locals())


@pytest.mark.parametrize("count", [1000, 4000, 12000, pytest.param(60000, marks=pytest.mark.slow)])
def test_training(
    count: int, benchmark: Any, record: Callable[[Record], None], tally: Tally, quick: bool
) -> None:
    measured("Memory of training, generated", f"{count} buffers", training(count), **locals())


@pytest.mark.parametrize("pieces", [100, 300])
def test_rectangle(
    pieces: int, benchmark: Any, record: Callable[[Record], None], tally: Tally, quick: bool
) -> None:
    """Cut to pieces, which fit without any gap."""
    measured("A rectangle cut to pieces", f"{pieces} pieces", cut(pieces), **locals())


def measured(
    table: str,
    name: str,
    buffers: Buffers,
    *,
    benchmark: Any,
    record: Callable[[Record], None],
    tally: Tally,
    quick: bool,
    **_: Any,
) -> None:
    """Count what the first greedy order makes, which no clock decides, and time the search."""
    first = pack(buffers, time_limit=0)
    check_packing(buffers, first.offsets, first.arena)
    figures = {"buffers": len(buffers), "bound": first.lower_bound, "greedy": first.arena}
    tally(f"packing/{name}", figures)
    # Compiling what comes after the greedy orders is not planning.
    pack(cut(20), time_limit=0.1)
    limit = 0.1 if quick else LIMIT
    found = benchmark.pedantic(lambda: pack(buffers, time_limit=limit), rounds=1)
    check_packing(buffers, found.offsets, found.arena)
    shown = {
        "buffers": len(buffers),
        "MB": found.arena / 1e6,
        "sum MB": found.total / 1e6,
        "greedy ratio": first.ratio,
        "ratio": round(found.ratio, 4),
        "s": found.seconds,
    }
    record(Record(table, f"{name}, {found.status}", shown, {}, TARGETS))


def training(count: int) -> Buffers:
    """Activations that live until their backward, gradients and workspaces that do not."""
    generator = np.random.default_rng(count)
    layers = count // 4
    end = 2 * layers
    rows = []
    for layer in range(layers):
        backward = end - layer - 1
        rows += [
            (layer, backward + 1, 24),
            (layer, layer + 1 + int(generator.integers(3)), 24),
            (backward, backward + 1 + int(generator.integers(4)), 24),
            (backward, end + 2 if generator.random() < 0.5 else backward + 1, 20),
        ]
    sizes = [int(2 ** generator.uniform(8, log)) for _, _, log in rows]
    return Buffers(range(len(rows)), [r[0] for r in rows], [r[1] for r in rows], sizes)


def cut(pieces: int) -> Buffers:
    """A rectangle of 60 moments and 1 MiB cut at random."""
    return cutting.cut(pieces, seed=pieces, height=1024, moments=60, unit=1024)
