"""What the packer found, and how good it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphopt.memory.buffers import Buffers, Integers

Status = Literal["optimal", "feasible", "fits", "infeasible", "unknown"]


@dataclass(frozen=True, eq=False)
class Packing:
    """A place for each buffer.

    Attributes:
        buffers: what was placed.
        offsets: int64 ``[n]``, bytes from the start of the arena, in the order of the buffers. It
            is a right plan whatever the status.
        arena: bytes from 0 to the end of the highest buffer.
        lower_bound: bytes that no plan can do without: the largest sum of sizes live at once, or
            more where a search proved it.
        seconds: wall time that planning took.
        method: what found the plan.
        status: without a capacity "optimal" (proved) or "feasible"; with one "fits", "infeasible"
            (proved: no plan fits) or "unknown" (time ran out).
    """

    buffers: Buffers
    offsets: Integers
    arena: int
    lower_bound: int
    seconds: float
    method: str
    status: Status

    @property
    def total(self) -> int:
        """Bytes of all buffers without any reuse."""
        return self.buffers.total

    @property
    def ratio(self) -> float:
        """Arena over lower bound; 1 without buffers."""
        return self.arena / self.lower_bound if self.lower_bound else 1.0

    @property
    def is_optimal(self) -> bool:
        """Whether no plan has a smaller arena."""
        return self.arena == self.lower_bound

    def to_csv(self) -> str:
        """Lines ``id,lower,upper,size,offset`` under that heading."""
        from graphopt.memory.table import to_csv

        return to_csv(self.buffers, self.offsets)

    def as_dict(self) -> dict[str, object]:
        """The figures, without the offsets."""
        return {
            "buffers": len(self.buffers),
            "arena": self.arena,
            "lower_bound": self.lower_bound,
            "ratio": self.ratio,
            "total": self.total,
            "seconds": self.seconds,
            "method": self.method,
            "status": self.status,
        }
