"""A graph after its passes, bound to parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphopt.backend.findings import Findings
from graphopt.backend.lower import Lowered
from graphopt.ir.sizes import Sized, Sizes
from graphopt.pipeline.manager import Result


@dataclass(frozen=True)
class Built:
    """What runs, and how it came about.

    Attributes:
        result: of the passes.
        lowered: what a call runs.
        frozen: whether parameters are computed in, as they were when it was made.
        findings: what was measured for it.
        told: what ``explain()`` says about parameters.
        unlearned: names of integer inputs that it may compute no gradients of, as nobody asked.
    """

    result: Result
    lowered: Lowered
    frozen: bool
    findings: Findings
    told: str = ""
    unlearned: frozenset[str] = frozenset()

    def run(self, data: Mapping[str, Any]) -> list[Any]:
        """Run on arrays by name."""
        return self.lowered.run(data)

    def run_at_any_size(
        self, data: Mapping[str, Any], engine: str, sized: Sized, sizes: Sizes
    ) -> list[Any]:
        """Run on arrays by name, of other sizes."""
        return self.lowered.at_any_size.run(data, engine, sized, sizes)

    def rebind(self, values: Mapping[str, Any]) -> None:
        """Go on with other arrays for parameters."""
        self.lowered.rebind(values)

    def release(self) -> None:
        """Hand back shared memory; there are no calls to come."""
        self.lowered.release()
