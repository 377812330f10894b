"""Inference with parameters computed in, as long as nobody writes to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np

from graphopt.backend.arrays import address_of
from graphopt.backend.findings import Findings
from graphopt.backend.holding import digests
from graphopt.backend.late import LateError
from graphopt.backend.lower import Lowered
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.forking import lock
from graphopt.ir.sizes import Sized, Sizes
from graphopt.kernels.bridge.versions import why_unfit
from graphopt.kernels.bridge.written import Writes
from graphopt.nn.built import Built
from graphopt.pipeline.manager import Result

#: Calls between two writes for which it is tried again; that takes as long as 12 to 16.
PATIENCE: Final = 8
LONGEST: Final = 512
#: Times in a row that all contents are compared because arrays were written, and one more every so
#: many calls. MXNet counts some writes that change nothing: binding an executor is one, and
#: BatchNorm counts as a writer of what it only reads.
LOOKS: Final = 16
CALLS_PER_LOOK: Final = 8
#: Comparing so many, which takes some 0.1 ms, counts for one as well, unless it is in vain.
FEW_BYTES: Final = 1 << 20
#: What a comparison counts for in a net that learns between all calls.
COST_IN_VAIN: Final = 8
DEBT: Final = 2.0  # at most


def why_not_followed(ctx: Any) -> str | None:
    """Why writes to arrays there cannot be noticed, or ``None`` if they can."""
    if ctx.device_type != "cpu":
        return "they are on another device than the CPU"
    return why_unfit(import_mxnet())


class Following:
    """Runs a graph with its parameters computed in, and without while they are often written to.

    MXNet's engine counts writes to an array, which costs a call next to nothing to look up; where
    it counted some, what the arrays hold is compared. When parameters were written they are
    computed in anew, at once if that was of use for some calls the last time, else after as many
    calls without a write, which the graph that reads parameters serves. Each time it was of no use
    the number doubles, so that a net that learns between all calls never waits for it (as in ski
    rental: Karlin, Manasse, Rudolph and Sleator, Competitive snoopy caching, 1988).
    """

    def __init__(
        self,
        build: Callable[[bool], Built],
        values: dict[str, Any],
        *,
        states: Collection[str] = (),
        strict: bool = False,
    ) -> None:
        """Build it with parameters computed in.

        Args:
            build: builds it, with parameters computed in or not, of the arrays in ``values`` at
                that time.
            values: the arrays of its parameters by name, at least one.
            states: names of those that are auxiliary states, as running statistics are.
            strict: raise where they cannot be computed in, instead of doing without.
        """
        self._build, self._values, self._strict = build, values, strict
        self._states = frozenset(states)
        self._bytes = sum(map(_bytes, values.values()))
        self._lock = lock()
        self._living: Built | None = None
        self._frozen: Built | None = None
        self._why_not = ""
        self._has_lived = self._has_to_freeze = False  # what reads parameters in every call
        self._patience, self._calls, self._looks = PATIENCE, 0, float(LOOKS)
        self._freeze()
        self._now()  # what does not fit its parameters raises here, and nobody keeps it

    @property
    def result(self) -> Result:
        """Of the passes, for what runs now."""
        return self._now().result

    @property
    def lowered(self) -> Lowered:
        """What runs now."""
        return self._now().lowered

    @property
    def unlearned(self) -> frozenset[str]:
        """Nothing, as it infers."""
        return frozenset()

    @property
    def findings(self) -> Findings:
        """What was measured for it."""
        return (self._frozen or self._living or self._now()).findings

    @property
    def frozen(self) -> bool:
        """Whether parameters are computed in now."""
        return self._frozen is not None

    @property
    def told(self) -> str:
        """What ``explain()`` says about parameters."""
        if self._why_not:
            return f"read in every call: {self._why_not}"
        if self.frozen:
            return "computed in, and anew when they are written to"
        return (
            f"read in every call, until {self._patience} follow each other without a write to them"
        )

    def run(self, data: Mapping[str, Any]) -> list[Any]:
        """Run on arrays by name, with parameters as they are."""
        built = self._followed()
        if self._has_lived or built is not self._living:
            return built.run(data)
        try:
            found = built.run(data)
        except LateError:
            raise
        except import_mxnet().MXNetError:  # CachedOps take no operators without a gradient
            if self._why_not:
                raise
            with self._lock:
                self._has_to_freeze = True
                self._freeze()
            return self._now().run(data)
        self._has_lived = True
        return found

    def run_at_any_size(
        self, data: Mapping[str, Any], engine: str, sized: Sized, sizes: Sizes
    ) -> list[Any]:
        """The same for arrays of other sizes."""
        return self._followed().run_at_any_size(data, engine, sized, sizes)

    def rebind(self, values: Mapping[str, Any]) -> None:
        """Go on with other arrays for parameters.

        They may be the same memory, as where ``grad_req`` becomes "null" or is so no more.
        """
        with self._lock:
            is_same = all(_share(self._values[name], array) for name, array in values.items())
            self._values |= values
            if self._living is not None:
                self._living.rebind(values)
            if not is_same:  # else what is watched is kept, so it stays that memory
                self._frozen = None
                self._freeze()

    def release(self) -> None:
        """Inference has no shared memory."""

    def _now(self) -> Built:
        with self._lock:
            return self.living() if self._frozen is None else self._frozen

    def living(self) -> Built:
        """What reads parameters in every call."""
        with self._lock:
            if self._living is None:
                self._living = self._build(False)
            return self._living

    def _followed(self) -> Built:
        """What runs the next call."""
        with self._lock:
            self._follow()
            return self._now()

    def _follow(self) -> None:
        """Look for writes, and see to it that what runs knows of them."""
        self._looks = min(self._looks + 1 / CALLS_PER_LOOK, LOOKS)
        if self._why_not:
            return
        if not (self._writes.are_none() or self._is_same()):
            self._note_write()
        elif self._frozen is None and self._calls >= self._patience:
            self._freeze()
        self._calls += 1

    def _note_write(self) -> None:
        """Compute parameters in anew if that was of use the last time, else go on without."""
        if self._frozen is not None:
            was_of_use = self._has_to_freeze or self._calls >= self._patience
            longer, shorter = self._patience * 2, self._patience // 2
            self._patience = max(PATIENCE, shorter) if was_of_use else min(longer, LONGEST)
            self._frozen = None
            if was_of_use:
                self._freeze()
                return
        self._calls = 0

    def _is_same(self) -> bool:
        """Whether the arrays hold what they held although they were written, for all we know."""
        touched = self._writes.touched()
        everything = self._bytes
        written = sum(map(_bytes, touched))
        cost = written / max(everything, FEW_BYTES)
        if cost > self._looks:
            return False  # a later look still tells whether they are what they were at the last one
        found = _digests(touched)
        is_same = found.items() <= self._digests.items()
        if self._frozen is None and not is_same:  # however few, it takes longer than a small net
            cost = COST_IN_VAIN * written / max(everything, 1)
        self._looks = max(-DEBT, self._looks - cost)
        self._digests |= found
        return is_same

    def _freeze(self) -> None:
        """Compute parameters in, as they are now."""
        mx = import_mxnet()
        self._calls, self._why_not = 0, ""
        try:
            arrays = list(self._values.values())
            # In this order: what is written while it is built shows in the next call.
            states = [array for name, array in self._values.items() if name in self._states]
            self._writes = Writes(mx, arrays, states)
            self._digests = _digests(arrays)
            self._frozen = self._build(True)
        except LateError:
            raise
        except (GraphoptError, mx.MXNetError) as error:
            if self._strict:
                raise
            self._why_not = str(error).strip().partition("\n")[0]


def _share(one: Any, other: Any) -> bool:
    """Whether two living arrays are one memory."""
    if one is other:
        return True
    if (one.shape, one.dtype, one.ctx) != (other.shape, other.dtype, other.ctx):
        return False
    return address_of(one) == address_of(other)


def _digests(arrays: Sequence[Any]) -> dict[int, int]:
    """Numbers for what arrays hold, by the ids of the arrays."""
    return dict(zip(map(id, arrays), digests(arrays), strict=True))


def _bytes(array: Any) -> int:
    return int(array.size * np.dtype(array.dtype).itemsize)
