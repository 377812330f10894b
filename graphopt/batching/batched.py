"""``graphopt.batch``: the function, and what it returns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from graphopt.batching import outputs
from graphopt.batching.agenda import by_agenda, by_depth
from graphopt.batching.execute import NotRecording, run_plan, settle_gradients
from graphopt.batching.given import Given
from graphopt.batching.hooks import autograd_state, recorded
from graphopt.batching.library import Library
from graphopt.batching.liveness import is_steep
from graphopt.batching.plan import make_plan, structure_key
from graphopt.batching.recorder import ACTIVE, Recorder
from graphopt.batching.samples import Outcome, Samples
from graphopt.batching.statistics import Statistics
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, SampleError, UnsupportedError
from graphopt.frontend.blocks import describe
from graphopt.pipeline.remarks import counted
from graphopt.recording import active as calls

Scheduler = Literal["depth", "agenda"]

#: Plans kept; the oldest goes first.
MAX_PLANS = 64


def batch(
    net: Any, batch_axis: int = 0, debug: bool = False, scheduler: Scheduler = "depth"
) -> Batched:
    """Run a Block over many samples at once, whatever their structure.

    Args:
        net: a Gluon Block written for one sample: its arrays have a batch axis of length 1. It may
            recurse, loop, and read values; it is not changed.
        batch_axis: along which outputs are joined.
        debug: run sample by sample, without any batching: same results.
        scheduler: ``depth`` batches like calls at the same depth (TensorFlow Fold); ``agenda``
            picks the ready calls of the lowest average depth (Neubig et al., 2017).

    Returns:
        A callable: ``batched([(args of sample 1), (args of sample 2), ...])``.

    Raises:
        InputError: ``net`` is no Block, or an option has no such value.
    """
    mx = import_mxnet()
    if not isinstance(net, mx.gluon.Block):
        raise InputError(f"cannot batch a {type(net).__name__}: give a Gluon Block")
    if not hasattr(batch_axis, "__index__"):
        raise InputError(f"batch_axis {batch_axis!r} is no axis: give its number")
    if scheduler not in ("depth", "agenda"):
        raise InputError(f"scheduler {scheduler!r} is none of depth, agenda")
    return Batched(net, batch_axis, debug=debug, scheduler=scheduler)


class Batched:
    """A Block over many samples; see :func:`batch`.

    Attributes:
        net: the user's Block.
        statistics: of the latest call.
    """

    def __init__(
        self, net: Any, batch_axis: int = 0, *, debug: bool = False, scheduler: Scheduler = "depth"
    ) -> None:
        """Nothing is recorded before the first call."""
        self.net, self.batch_axis = net, batch_axis
        self.debug, self.scheduler = debug, scheduler
        self.statistics = Statistics()
        self._library = Library(net)

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Run all samples.

        Args:
            samples: per sample a tuple (or list) of the Block's arguments.

        Returns:
            What the Block returns, with arrays joined along the batch axis; a list of arrays where
            their shapes differ or they have no elements. An empty list for no samples.

        Raises:
            SampleError: samples raised; it carries the results of the others.
            UnsupportedError: the Block does what cannot be batched; the message says what.
        """
        given = [self._arguments(number, sample) for number, sample in enumerate(samples)]
        if not given:
            return []
        if self.debug or ACTIVE.recorder is not None or calls.ACTIVE.tape is not None:
            return self._one_by_one(given)
        return self._together(given)

    def explain(self) -> str:
        """What was batched in the latest call; what could not be so far, and why."""
        lines = [f"{describe(self.net)}, scheduler {self.scheduler!r}", f"  {self._told()}"]
        for text, count in sorted(self._library.remarks.items()):
            lines.append(f"  not batched: {text} ({counted(count, 'times')})")
        lines += [f"  not noticed: {text}" for text in sorted(self._library.cautions)]
        return "\n".join(lines)

    def _told(self) -> str:
        if self.debug:
            return "debug=True: samples run one by one, and nothing is batched"
        return str(self.statistics) if self.statistics.samples else "nothing was called yet"

    def __reduce__(self) -> Any:
        """Copy and pickle the Block; plans are made anew."""
        return batch, (self.net, self.batch_axis, self.debug, self.scheduler)

    def __repr__(self) -> str:
        return f"Batched({self.net.name}, batch_axis={self.batch_axis})"

    def _arguments(self, number: int, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, (tuple, list)):
            raise InputError(
                f"sample {number} is a {type(sample).__name__}: give a tuple of the arguments of"
                f" {describe(self.net)} for each sample"
            )
        return tuple(sample)

    def _one_by_one(self, samples: Sequence[tuple[Any, ...]]) -> Any:
        outcome = Outcome([None] * len(samples))
        for number, sample in enumerate(samples):
            try:
                outcome.results[number] = self.net(*sample)
            except Exception as error:  # noqa: BLE001 - the user's; the other samples go on
                outcome.failures[number] = error
        self.statistics = Statistics(samples=len(samples))
        return self._finish(outcome, None)

    def _together(self, samples: Sequence[tuple[Any, ...]]) -> Any:
        statistics = Statistics(samples=len(samples))
        runner = Samples()
        self._library.refresh()
        recorder = Recorder(self._library, autograd_state(), runner.pause)
        began = time.perf_counter()
        given = Given(recorder, samples)

        def flush() -> None:
            done = runner.finished
            finished = None if done is None else [*done, *given.settle()]
            self._flush(recorder, statistics, finished)

        def run() -> Outcome:
            return runner.run(recorder, self.net, given.samples, flush)

        outcome = recorded(recorder, run)
        spent = time.perf_counter() - began
        statistics.calls = recorder.calls
        statistics.seconds_recording = (
            spent - statistics.seconds_scheduling - statistics.seconds_running
        )
        self.statistics = statistics
        try:
            if recorder.guards:
                results = [*outcome.results, *(c.copy for c in given.written())]
                settle_gradients(recorder, outputs.runs_in(results, recorder))
            if not any(isinstance(e, UnsupportedError) for e in outcome.failures.values()):
                given.write_back()  # else the user calls again, without batching
            return self._finish(outcome, recorder)
        finally:
            recorder.forget()

    def _flush(
        self, recorder: Recorder, statistics: Statistics, finished: Sequence[Any] | None
    ) -> None:
        """Run what was recorded; ``finished`` has what samples returned, when all have."""
        if not recorder.has_pending():
            return
        began = time.perf_counter()
        groups = recorder.close()
        wanted = None if finished is None else outputs.stores_of(finished, recorder)
        recorder.is_steep |= any(is_steep(group.signature) for group in groups)
        results = None
        if recorder.is_steep and finished is not None:
            results = outputs.runs_in(finished, recorder)
        key = (
            structure_key(recorder, groups),
            wanted,
            recorder.outside,
            recorder.is_steep,
            results,
        )
        plan = self._library.plans.get(key)
        if plan is None:
            with NotRecording(0):
                order = by_agenda if self.scheduler == "agenda" else by_depth
                plan = make_plan(recorder, order(groups), wanted, results)
            if len(self._library.plans) >= MAX_PLANS:
                self._library.plans.pop(next(iter(self._library.plans)), None)
            self._library.plans[key] = plan
            statistics.plans += 1
        else:
            statistics.cache_hits += 1
        recorder.totals, recorder.homes = list(plan.totals), list(plan.homes)
        planned = time.perf_counter()
        run_plan(recorder, plan)
        recorder.plan = plan
        recorder.flows.extend(plan.flows)
        statistics.flushes += 1
        statistics.groups += plan.groups
        statistics.operators += len(plan.steps)
        recorder.reopen()
        statistics.seconds_scheduling += planned - began
        statistics.seconds_running += time.perf_counter() - planned

    def _finish(self, outcome: Outcome, recorder: Recorder | None) -> Any:
        if not outcome.failures:
            return outputs.combine(outcome.results, self.batch_axis, recorder)
        number, error = next(iter(sorted(outcome.failures.items())))
        if isinstance(error, UnsupportedError):
            raise UnsupportedError(f"sample {number}: {error}") from error
        raise SampleError(outcome.failures, [outputs.real(r) for r in outcome.results]) from error
