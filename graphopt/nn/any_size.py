"""Calls of sizes that a Block was not compiled for, run by a graph that was compiled for others.

What passes leave may depend on the sizes of the data: an attribute may hold one, an axis of extent
1 may be taken for one to broadcast along. Two signatures whose graphs came out alike show that it
does not depend on what they differ in. Such a graph is run on an engine that infers shapes at every
call, so a new size costs no more than its call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from graphopt.analysis.effects import may_repeat
from graphopt.backend.any_size import REGIONS
from graphopt.backend.draws import same_draws
from graphopt.backend.sorting import compare_results, draws, run_once
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.frontend.gluon import Traced
from graphopt.ir.sizes import Sized, Sizes
from graphopt.nn.entry import Entry
from graphopt.nn.signatures import Signature, sizes_of

#: What MXNet makes of the Block is called so.
PLAIN: Final = "as in MXNet"
#: How many times as fast one has to be as another that was chosen with more care.
_DOUBT: Final = 1.1
#: Calls of each engine that are timed, and seconds after which those are enough.
_FEWEST, _MOST, _ENOUGH_S = 6, 20, 0.03
#: The same of calls that take so many seconds; how many times as long as the fastest one may take
#: to be called again then; and of calls that take very long.
_LONG_S, _FEWEST_LONG, _HOPELESS = 0.05, 2, 1.5
_VERY_LONG_S, _FEWEST_VERY_LONG = 0.25, 1
#: Sizes at which what compiling saves is measured; the middle of what was found counts.
_MOST_LOOKS: Final = 5
#: Calls that a trial takes, about.
CALLS_OF_A_TRIAL: Final = 15
#: Sizes of which calls are counted.
_REMEMBERED: Final = 4096

#: Runs arrays.
Run = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass
class _Way:
    """An engine by what it runs."""

    name: str
    inputs: Sequence[str]
    run: Run

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on arrays in the order of ``inputs``."""
        return list(self.run(arrays))


@dataclass
class _BySize:
    """When a graph that is made for a size is worth that (see graphopt.nn.ski_rental).

    Attributes:
        saved_s: seconds that it saves of a call.
        made_s: seconds that making it takes.
    """

    saved_s: float
    made_s: float
    _asked: OrderedDict[Sizes, int] = field(default_factory=OrderedDict)

    @classmethod
    def of(
        cls, times: Mapping[str, float], best_s: float, first_s: Mapping[str, float]
    ) -> _BySize | None:
        """By what calls took, the first of each and later ones; ``None`` if it saves nothing."""
        if times.get(REGIONS, math.inf) * _DOUBT >= best_s:
            return None
        return cls(best_s - times[REGIONS], max(0.0, first_s[REGIONS] - times[REGIONS]))

    def told(self) -> str:
        """What ``explain()`` says of it."""
        calls = max(1, math.ceil(self.made_s / self.saved_s))
        which = "first call" if calls == 1 else f"call {calls}"
        return f"those are made at the {which} of a size, in {self.made_s * 1e3:.0f} ms"

    def is_due(self, sizes: Sizes) -> bool:
        """Whether calls of such sizes, this one too, would have paid for it."""
        calls = self._asked[sizes] = self._asked.pop(sizes, 0) + 1
        if len(self._asked) > _REMEMBERED:
            self._asked.popitem(last=False)
        return calls * self.saved_s >= self.made_s


class AnySize:
    """A graph that came out alike for several sizes.

    Attributes:
        saved: the share of a call's time that compiling for its sizes saves, once it is tried.
        told: what trying it found, for ``explain()``; empty before.
        calls: how many it ran.
    """

    def __init__(self, entry: Entry) -> None:
        """Of an entry that has it; it is not tried yet."""
        self._entry = entry
        self._engine = ""
        self._by_size: _BySize | None = None
        self._looks: list[float] = []
        self._told = ""
        self.saved = 1.0
        self.told = ""
        self.calls = 0

    @property
    def is_tried(self) -> bool:
        """Whether it is known how fast it is."""
        return bool(self.told)

    @property
    def runs(self) -> bool:
        """Whether it is right, and faster than what MXNet makes of the Block."""
        return bool(self._engine) or self._by_size is not None

    @property
    def trial_s(self) -> float:
        """Seconds that trying it takes, about."""
        times = self._entry.lowered.choice.measured_ms.values()
        return CALLS_OF_A_TRIAL * min(times, default=0.0) / 1e3

    def settle(self, given: Sequence[Any], sized: Sized, plain: Run) -> None:
        """Find what runs it the fastest, on arrays of another size; nothing is learned from it.

        It is MXNet where more calls than the caller's own would leave traces, or draw numbers that
        differ from call to call.

        Args:
            given: arrays of a call.
            sized: what follows their sizes.
            plain: runs those as MXNet would.

        Raises:
            MXNetError: MXNet does not run them.
        """
        graph = self._entry.original
        if not may_repeat(graph, training=False) or draws(graph):
            self._give_up("its operators may not be called for a trial")
            return
        if not self.is_for(given[0].ctx):
            self._give_up("parameters are computed, or of another dtype")
            return
        names = self._entry.traced.names
        data = dict(zip(names, given, strict=True))
        ways = {PLAIN: _Way(PLAIN, names, plain)}
        expected = run_once(ways[PLAIN], data).values
        try:
            with self._same_draws():
                self._try(ways, data, expected, sized)
        except Exception as error:  # noqa: BLE001 - the call can go as in MXNet
            self.failed(error)

    def _try(
        self,
        ways: dict[str, _Way],
        data: Mapping[str, Any],
        expected: Mapping[str, np.ndarray[Any, Any]],
        sized: Sized,
    ) -> None:
        given, wrong = list(data.values()), list[str]()
        first_s: dict[str, float] = {}
        for name in self._entry.lowered.at_any_size.names:
            way = self._way(name, sized)
            try:
                once = run_once(way, data)
                first_s[name] = once.seconds
                compare_results(self._entry.lowered.form.graph, expected, once.values, name)
            except (GraphoptError, import_mxnet().MXNetError) as error:
                wrong.append(f"{name}: {first_line(error)}")
            else:
                ways[name] = way
        times = _in_turns(ways, given)
        if self._entry.mode == "training" and len(times) > 1:
            del times[PLAIN]  # gradients are what is faster by kernels
        others = {name: seconds for name, seconds in times.items() if name != REGIONS}
        best = _best(others)
        self._engine = "" if best == PLAIN else best
        self._by_size = _BySize.of(times, others[best], first_s)
        best = best if self._by_size is None else REGIONS
        if self._by_size is not None:
            wrong.insert(0, self._by_size.told())
        told = [f"{name} {seconds * 1e3:.2f} ms" for name, seconds in times.items()]
        self._told = "; ".join([", ".join(told), *wrong])
        self._compare(self._entry, ways[best], self._of_own_size(given))

    def _compare(self, entry: Entry, way: _Way, given: Sequence[Any]) -> None:
        """Note what a graph that was compiled for the size of these arrays saves."""
        names = entry.traced.names
        known = _Way("compiled", names, _with_data(entry.built.run, names))
        times = _in_turns({way.name: way, known.name: known}, given)
        self._looks.append(1 - times[known.name] / times[way.name])
        self.saved = max(0.0, statistics.median_low(self._looks))
        self.told = f"{self._told}; compiled saves {self.saved:.0%}"

    def look_again(self, entry: Entry, given: Sequence[Any], sized: Sized) -> None:
        """Compare with what was compiled after all, as a machine that others use misleads.

        Args:
            entry: what was compiled for another size than the first comparison was of.
            given: arrays of that size.
            sized: what follows it.
        """
        engine = self._engine if self._by_size is None else REGIONS
        if not engine or len(self._looks) >= _MOST_LOOKS:
            return
        try:
            with self._same_draws():
                self._compare(entry, self._way(engine, sized), given)
        except Exception as error:  # noqa: BLE001 - the call has been made
            self.failed(error)

    def _same_draws(self) -> AbstractContextManager[None]:
        """A graph for training draws seeds of Dropout's masks even where it does not need them."""
        return same_draws(self._entry.lowered.form.graph, training=False)

    def _way(self, engine: str, sized: Sized) -> _Way:
        names, run = self._entry.traced.names, self._entry.built.run_at_any_size

        def call(arrays: Sequence[Any]) -> list[Any]:
            sizes = tuple(extent for array in arrays for extent in array.shape)
            return run(dict(zip(names, arrays, strict=True)), engine, sized, sizes)

        return _Way(engine, names, call)

    def is_for(self, ctx: Any) -> bool:
        """Whether parameters are as those that it was compiled for: not computed, of that dtype."""
        return self._entry.refresh(ctx)

    def lacks_gradients(self, given: Sequence[Any]) -> bool:
        """Whether a call with those arrays may ask for gradients that it does not compute."""
        return self._entry.lacks_gradients(given)

    def engine_for(self, sizes: Sizes, *, is_compiled_else: bool) -> str:
        """What is to run a call of such sizes; empty if MXNet is."""
        if self._by_size is None:
            return self._engine
        is_due = self._by_size.is_due(sizes)
        return REGIONS if is_due or (is_compiled_else and not self._engine) else self._engine

    def run(
        self, key: Signature, given: Sequence[Any], sized: Sized, engine: str
    ) -> tuple[list[Any], Traced]:
        """The outputs, and what tells their layout; it has to be for the parameters at hand."""
        entry = self._entry
        self.calls += 1
        data = dict(zip(entry.traced.names, given, strict=True))
        found = entry.built.run_at_any_size(data, engine, sized, sizes_of(key))
        return found, entry.traced

    def failed(self, error: Exception) -> None:
        """Do not run it any more."""
        is_known = isinstance(error, (GraphoptError, import_mxnet().MXNetError))
        self._give_up(("" if is_known else f"{type(error).__name__}: ") + first_line(error))

    def _give_up(self, why: str) -> None:
        self._engine, self._by_size, self.saved = "", None, 1.0
        self.told = f"given up: {why}"

    def _of_own_size(self, given: Sequence[Any]) -> list[Any]:
        """Arrays of the size that the entry was compiled for, of values that occur."""
        shapes = {node.name: node.type.shape for node in self._entry.original.role("data")}
        names = self._entry.traced.names
        given_by_name = zip(names, given, strict=True)
        # What the graph does not read may be of any size.
        return [_resized(a, shapes[n] or ()) if n in shapes else a for n, a in given_by_name]


def _best(times: Mapping[str, float]) -> str:
    """The fastest, but a later one if it takes about as long.

    The last one has what was measured to be the fastest at another size.
    """
    best, *others = reversed(list(times))
    for name in others:
        if times[name] * _DOUBT < times[best]:
            best = name
    return best


def _with_data(run: Callable[[dict[str, Any]], Sequence[Any]], names: Sequence[str]) -> Run:
    return lambda arrays: run(dict(zip(names, arrays, strict=True)))


def _in_turns(ways: Mapping[str, _Way], arrays: Sequence[Any]) -> dict[str, float]:
    """Seconds of a call of each, the best of some, in turns."""
    with import_mxnet().autograd.pause(train_mode=False):
        best = {name: _seconds(way, arrays) for name, way in ways.items()}  # these plan
        least = min(best.values())
        running = dict(ways)
        if least >= _LONG_S:
            running = {n: way for n, way in ways.items() if best[n] < least * _HOPELESS}
        best.update(dict.fromkeys(running, math.inf))
        start = time.perf_counter()
        for rounds in range(1, 1 + _MOST):
            best |= {name: min(best[name], _seconds(way, arrays)) for name, way in running.items()}
            is_enough = time.perf_counter() - start > _ENOUGH_S * len(running)
            if rounds >= _fewest(least) and is_enough:
                break
    return best


def _fewest(seconds: float) -> int:
    """Rounds of calls that take so long."""
    if seconds < _LONG_S:
        return _FEWEST
    return _FEWEST_LONG if seconds < _VERY_LONG_S else _FEWEST_VERY_LONG


def _seconds(way: _Way, arrays: Sequence[Any]) -> float:
    start = time.perf_counter()
    for output in way(arrays):
        output.wait_to_read()
    return time.perf_counter() - start


def _resized(array: Any, shape: Sequence[int | None]) -> Any:
    mx = import_mxnet()
    values = np.resize(array.asnumpy(), tuple(extent or 1 for extent in shape))
    made = mx.nd.array(values, ctx=array.ctx, dtype=array.dtype)
    return made.as_np_ndarray() if isinstance(array, mx.np.ndarray) else made
