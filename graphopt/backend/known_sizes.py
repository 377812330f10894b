"""What processes measured for graphs that differ in sizes only, kept for others to go by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graphopt.backend.findings import Findings
from graphopt.backend.measured import remember, remembered

#: Sizes of one graph that are kept, the latest ones.
_MOST: Final = 8


def recall(key: Sequence[str]) -> list[Findings]:
    """Of all sizes that were measured; ``key`` is what they have in common."""
    return [Findings.of(each) for each in _kept(key)]


def record(key: Sequence[str], findings: Findings) -> None:
    """Keep what was measured for a graph itself; nothing happens if it went by another one."""
    if findings.goes_by_another or findings.is_empty:
        return
    known = findings.as_json()
    others = [each for each in _kept(key) if each["shapes"] != known["shapes"]]
    remember(_parts(key), [*others, known][-_MOST:])


def _kept(key: Sequence[str]) -> list[dict[str, Any]]:
    return remembered(_parts(key)) or []


def _parts(key: Sequence[str]) -> tuple[str, ...]:
    return ("sizes", *key)
