"""Runs samples side by side: each until it needs a value, then all that is pending, then on.

Samples run in greenlets, so that plain Python (recursion, loops, ``if x.asscalar() > 0``) can wait
in the middle of an expression. A greenlet runs one sample after the other until one of them waits;
another one then goes on with the next. One thread runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from graphopt.batching.hooks import autograd_state, set_autograd_state
from graphopt.batching.lazy import Lazy
from graphopt.batching.nested import items_of, remake_of
from graphopt.batching.recorder import ACTIVE, Recorder
from graphopt.batching.sums import settled
from graphopt.errors import GraphoptError


@dataclass
class Outcome:
    """What samples returned, and what they raised, by number of sample."""

    results: list[Any]
    failures: dict[int, Exception] = field(default_factory=dict)


#: What a greenlet says to the main one: go on with others, or run what is recorded and return.
_WAITING, _FLUSH = object(), object()


def _settled(result: Any) -> Any:
    """What a sample returned, with sums recorded that were not yet."""
    if isinstance(result, Lazy):
        return settled(result)
    remake = remake_of(type(result))
    return result if remake is None else remake(result, map(_settled, items_of(result)))


def _nothing() -> None:
    """Before samples run there is nothing to flush."""


class Samples:
    """The greenlets of one batch."""

    def __init__(self) -> None:
        self._main = getcurrent()
        self._recorder: Recorder | None = None
        self._flush: Callable[[], None] = _nothing
        self._device: Any = None
        #: What all samples returned, when nothing else of them can be read any more.
        self.finished: list[Any] | None = None

    def pause(self, *, at_once: bool = False) -> None:
        """Called where a sample needs a value: returns when everything recorded was run.

        Args:
            at_once: before any other sample goes on, so that samples stay in their order.

        Raises:
            GraphoptError: called from elsewhere than a running sample.
        """
        here = getcurrent()
        recorder = self._recorder
        if recorder is None or here.parent is not self._main:
            raise GraphoptError(
                "a value of a batched call is read that was never computed: the call failed, or is"
                " still recording in another thread"
            )
        # Scopes that this sample is in; others come and go meanwhile, from none of them. What runs
        # unrecorded is told apart from the recorder's state: only MXNet's flags follow it.
        state, flags, active = recorder.state, autograd_state(), ACTIVE.recorder
        context = recorder.mx.current_context()
        recorder.state, ACTIVE.recorder = recorder.outside, recorder
        set_autograd_state(recorder.outside)
        self._main.switch(_FLUSH if at_once or recorder.is_in_turn else _WAITING)
        recorder.state, ACTIVE.recorder = state, active
        set_autograd_state(flags)
        recorder.mx.Context._default_ctx.value = context

    def run(
        self,
        recorder: Recorder,
        call: Callable[..., Any],
        samples: Sequence[Sequence[Any]],
        flush: Callable[[], None],
    ) -> Outcome:
        """Run ``call(*sample)`` for all samples; ``flush`` runs what is recorded."""
        self._main, self._recorder, self._flush = getcurrent(), recorder, flush
        outcome = Outcome([None] * len(samples))
        self.finished = None
        waiting: list[Any] = []
        # Asked of MXNet: a thread that never used a device has none by itself.
        self._device = recorder.mx.current_context()
        left = enumerate(samples)
        try:
            all_began = False
            while not all_began:
                runner = greenlet(self._run_left)
                self._resume(runner, waiting, call, left, outcome)
                all_began = runner.dead
            while waiting:
                flush()
                for _ in range(len(waiting)):
                    self._resume(waiting.pop(0), waiting)
            self.finished = outcome.results
            flush()
        finally:
            self._recorder = None
            for paused in waiting:  # only where a flush raised, or a sample what is no Exception
                paused.throw()
            set_autograd_state(recorder.outside)
            # The recorder refers to this: no cycle is to keep the values alive.
            self._flush, self.finished = _nothing, None
        return outcome

    def _resume(self, runner: Any, waiting: list[Any], *args: Any) -> None:
        """Let a greenlet run until it waits, or ends."""
        try:
            found = runner.switch(*args)
            while found is _FLUSH:
                self._flush()
                found = runner.switch()
        except BaseException:
            if not runner.dead:
                waiting.append(runner)  # to be ended with the others
            raise
        if found is _WAITING:
            waiting.append(runner)
        self._leave()

    def _run_left(
        self, call: Callable[..., Any], left: Iterator[tuple[int, Any]], outcome: Outcome
    ) -> None:
        """Run the samples that none has begun with: what a greenlet does."""
        for number, sample in left:
            try:
                found = call(*sample)
            except GreenletExit as error:
                if self._recorder is None:  # it was to end
                    return
                ended = GraphoptError("the sample raised GreenletExit: raise an Exception instead")
                ended.__cause__ = error
                outcome.failures[number] = ended
            except Exception as error:  # noqa: BLE001 - the user's; the other samples go on
                outcome.failures[number] = error
            else:
                outcome.results[number] = _settled(found)
            if self._recorder is None:  # it was to end, and the user's code would not
                return
            self._leave()

    def _leave(self) -> None:
        """Put back what a sample may have set: its device and autograd's flags."""
        recorder = self._recorder
        assert recorder is not None
        recorder.mx.Context._default_ctx.value = self._device
        if recorder.state != recorder.outside:
            recorder.state = recorder.outside
            set_autograd_state(recorder.outside)
