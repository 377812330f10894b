"""Remarks: what a pass did, and why it did not do more."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class RemarkKind(enum.Enum):
    """As LLVM's optimization remarks."""

    PASSED = "passed"
    MISSED = "missed"
    ANALYSIS = "analysis"


@dataclass(frozen=True, slots=True)
class Remark:
    """One statement of one pass about nodes of the graph, by their names."""

    kind: RemarkKind
    pass_name: str
    message: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" [{', '.join(self.nodes)}]" if self.nodes else ""
        return f"{self.kind.value}: {self.pass_name}: {self.message}{where}"

    def as_dict(self) -> dict[str, object]:
        """A form for JSON."""
        return {
            "kind": self.kind.value,
            "pass": self.pass_name,
            "message": self.message,
            "nodes": list(self.nodes),
        }


def counted(count: int, what: str, one: str = "") -> str:
    """A count as remarks and reports tell it.

    Args:
        count: how many.
        what: of what, in the plural if it is a plain noun ("operators", but "by columns").
        one: of what if it is 1, where that is not the plural without its s.
    """
    if count == 1 and (one or what.isalpha()):
        return f"1 {one or what.removesuffix('s')}"
    return f"{count} {what}"


def in_ms(milliseconds: float) -> str:
    """A time as remarks tell it, to three digits."""
    small = milliseconds < 1000
    return f"{milliseconds:.3g} ms" if small else f"{milliseconds:,.0f} ms"
