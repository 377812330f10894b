"""What batching did: how many calls became how few, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.pipeline.remarks import counted


@dataclass
class Statistics:
    """Of the latest call of a batched Block.

    Attributes:
        samples: given.
        calls: operator calls and child Blocks recorded.
        groups: of like calls, each made as one.
        operators: calls of MXNet that were made; the bridge runs many groups in one.
        flushes: times that something was run; more than 1 where samples read values.
        plans: structures planned anew; ``cache_hits`` were known.
        seconds_recording: running the samples' Python.
        seconds_scheduling: planning.
        seconds_running: asking MXNet to run it (which goes on in the background).
    """

    samples: int = 0
    calls: int = 0
    groups: int = 0
    operators: int = 0
    flushes: int = 0
    plans: int = 0
    cache_hits: int = 0
    seconds_recording: float = 0.0
    seconds_scheduling: float = 0.0
    seconds_running: float = 0.0

    @property
    def calls_saved(self) -> int:
        """Calls of MXNet that were not made."""
        return self.calls - self.operators

    @property
    def mean_batch(self) -> float:
        """Calls per group."""
        return self.calls / self.groups if self.groups else 0.0

    @property
    def us_per_call(self) -> float:
        """Microseconds of recording per recorded call, the sample's own Python included."""
        return 1e6 * self.seconds_recording / self.calls if self.calls else 0.0

    def __str__(self) -> str:
        return (
            f"{counted(self.samples, 'samples')}: {counted(self.calls, 'calls')} in"
            f" {counted(self.groups, 'groups')} ({self.mean_batch:.1f} calls each), run as"
            f" {counted(self.operators, 'operators')} in"
            f" {counted(self.flushes, 'flushes', 'flush')},"
            f" {self.cache_hits} of {self.cache_hits + self.plans} plans known;"
            f" recording {1e3 * self.seconds_recording:.1f} ms ({self.us_per_call:.1f} us a call),"
            f" scheduling {1e3 * self.seconds_scheduling:.1f} ms,"
            f" running {1e3 * self.seconds_running:.1f} ms"
        )
