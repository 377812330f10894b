"""``sum(values)`` of Python, over any number of values: one reduction, not a chain of additions.

Python begins with ``0 + first``; what comes of it collects terms until somebody wants the value.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.batching.lazy import Lazy
from graphopt.batching.operators import handle
from graphopt.batching.recorder import ACTIVE, Recorder


class PendingSum(Lazy):
    """A sum that is not recorded yet.

    Attributes:
        terms: what is added, alike in shape.
        state: autograd's flags when it began; under others it is recorded before it goes on.
        total: the recorded value, once somebody wanted it.
    """

    __slots__ = ("state", "terms", "total")

    def __init__(self, recorder: Recorder, terms: tuple[Lazy, ...]) -> None:
        first = terms[0]
        super().__init__(recorder, 0, first.rows, first.kind, 0)
        self.terms = terms
        self.state = recorder.state
        self.total: Lazy | None = None

    def settle(self) -> Lazy:
        """The value, recorded at the first time."""
        if self.total is None:
            recorder = self.recorder
            state, recorder.state = recorder.state, self.state
            try:
                self.total = recorder.call(handle("add_n"), self.terms, (), ())
            finally:
                recorder.state = state
        return self.total


def apart(x: Lazy) -> Lazy:
    """``x`` as it is now, for what is a copy in MXNet although nothing is run for it.

    What stands for an array that is there already is another value once that array was written.
    """
    if x.depth or id(x.array) in x.recorder.owned:
        return x
    found = Lazy(x.recorder, x.run, x.rows, x.kind, 0)
    found.runs = x.runs
    return found


def begin(number: Any, value: Lazy) -> Any:
    """``0 + value``, or None where it is no beginning of a sum."""
    recorder = ACTIVE.recorder
    is_zero = type(number) is int and number == 0
    if not is_zero or recorder is None or value.recorder is not recorder:
        return None
    if np.dtype(value.kind.dtype).kind != "f":
        return None
    return PendingSum(recorder, (apart(settled(value)),))


def add(total: PendingSum, other: Any) -> Any:
    """``total + other``, or None where it does not go on as a sum."""
    recorder = ACTIVE.recorder
    if total.recorder is not recorder or total.state != recorder.state or total.total is not None:
        return None
    if not isinstance(other, Lazy) or other.recorder is not recorder:
        return None
    if other.kind is not total.kind or other.rows != total.rows:
        return None
    return PendingSum(recorder, (*total.terms, apart(settled(other))))


def settled(value: Lazy) -> Lazy:
    """A value that was recorded; after the call of the batched Block, the value itself."""
    if type(value) is PendingSum and value.recorder is ACTIVE.recorder:
        return value.settle()
    return value
