"""Sizes of optimized graphs, compared exactly with the ones written down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from graphopt.analysis.metrics import measure
from graphopt.ir.graph import Graph

PATH = Path(__file__).parent / "baselines" / "counters.json"
NAMES = ("nodes", "calls", "parameters", "intermediate_bytes")

Counters = dict[str, int]


def count(graphs: Sequence[Graph], *, frozen: bool) -> Counters:
    """Summed over the graphs that a net was compiled to."""
    sizes = [measure(graph, frozen=frozen).as_dict() for graph in graphs]
    return {name: sum(size[name] for size in sizes) for name in NAMES}


def check(name: str, found: Counters) -> None:
    """Fail unless the counters are those of the baselines."""
    expected = _read().get(name)
    how = "pytest bench --benchmark-disable --slow --update-baselines, and look at the difference"
    assert expected is not None, f"no counters are written down for {name!r}: {how}"
    assert found == expected, f"the counters of {name!r} changed; if for the better: {how}"


def update(name: str, found: Counters) -> None:
    """Write the counters down."""
    known = _read() | {name: found}
    lines = [f"  {json.dumps(key)}: {json.dumps(known[key])}" for key in sorted(known)]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _read() -> dict[str, Counters]:
    if not PATH.exists():
        return {}
    found: dict[str, Counters] = json.loads(PATH.read_text(encoding="utf-8"))
    return found
