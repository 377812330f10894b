"""Which way calls of a Block go whose Python has to run: measured in the first of them.

A Block that cannot be traced can be recorded at every call, run as it is, or be taken apart and its
children compiled. Which is the fastest depends on how much of its time is Python's, how much is in
the children and how much between them, so it is tried: a few calls go each way, in turns. All
compute the same. Nothing is computed twice.
"""

from __future__ import annotations

import dis
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from graphopt.backend.late import LateError
from graphopt.backend.measured import remember, remembered
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import HigherOrderError
from graphopt.ir.fingerprint import fingerprint
from graphopt.kernels.waiting import wait_for_all
from graphopt.pipeline.base import Mode
from graphopt.pipeline.remarks import in_ms

if TYPE_CHECKING:
    from graphopt.nn.entry import Entry
    from graphopt.recording.programs import Programs

RECORDED, PLAIN, APART = "recorded", "as it is", "child by child"

#: Times as fast as this recording is in few Blocks. Others may have kept the cores from all calls
#: of the other way, so both are timed once more, so many calls later.
_HARDLY: Final = 4
_MEANWHILE: Final = 20
#: Calls in a row that go one way. More than one, as nets that are called several times a step have
#: the backward pass behind the last of these calls.
_ROW: Final = 4
#: How many times as fast as the Block itself recorded calls need to be for no other to be tried.
_CLEARLY: Final = 1.25
#: How many times as fast children need to be where no two calls are alike.
_NOTABLY: Final = 1.15
#: Milliseconds of Python for each operator that is recorded, which compiled children spare; and the
#: share of a recorded call from which on these are tried.
_PYTHON_MS: Final = 0.01
_MUCH: Final = 0.25
#: Calls with arguments of other types than the call before before the trial ends, where there are
#: more types than a few; and calls of one type in a row before the trial goes on with that one.
_MOST_OTHERS: Final = 16
_FEW_TYPES: Final = 2
#: Recorded calls until programs have to be known: parameters get their shapes in the first.
_WARMING: Final = 3

#: Packages whose errors may hang on the way.
_OURS: Final = ("mxnet", "graphopt")

#: A way, and whether it is timed.
_Turn = tuple[str, bool]


class _Nested(threading.local):
    """Whether Blocks within one that is called have trials: not where that has one."""

    are_tried = True


NESTED: Final = _Nested()


@contextmanager
def nested(*, are_tried: bool) -> Iterator[None]:
    """Inside the block Blocks within the one that is called have trials of their own or not."""
    before, NESTED.are_tried = NESTED.are_tried, are_tried
    try:
        yield
    finally:
        NESTED.are_tried = before


class Ways:
    """The trial of one Block in one mode, and what came of it.

    Attributes:
        chosen: the way of all calls from now on; ``None`` while it is tried.
        best_ms: milliseconds of a call, or of a training step, each way; the median if all differ.
        why: why it was chosen, if not for these.
    """

    def __init__(self, mode: Mode, programs: Programs, hybridized: str) -> None:
        """Nothing is tried yet.

        Args:
            mode: of what the Block is called for.
            programs: those of the Block when it is recorded.
            hybridized: how Blocks within were, on which the time of their Python depends.
        """
        self.chosen: str | None = None
        self.best_ms: dict[str, float] = {}
        self.why = ""
        self._mode = mode
        self._programs: Programs | None = programs
        self._hybridized = hybridized
        self._lock = threading.Lock()
        self._turns: Iterator[_Turn] = iter(())
        self._types: Any = None  # of what is timed
        self._last_types: Any = None
        self._seen: set[Any] = set()  # types, until they are more than a few
        self._others = self._row = self._made = 0
        self._is_of_any_types = False
        self._took: dict[str, list[float]] = {}
        self._open: tuple[str, float] | None = None  # a step that ends where the next call begins

    def run(self, args: Sequence[Any], call: Callable[[str], Any]) -> Any:
        """Make a call; ``call`` makes it one way or another."""
        if self.chosen is not None:
            return call(self.chosen)
        if not self._lock.acquire(blocking=False):
            return self._called(PLAIN, call)  # another thread's call is on trial
        try:
            turn = None if self.chosen else self._turn(args)
            if turn is None:
                return call(self.chosen) if self.chosen else self._called(PLAIN, call)
            return self._try(*turn, call)
        finally:
            self._lock.release()

    def let_go(self) -> None:
        """Forget the programs, once it is chosen."""
        self._programs, self._turns = None, iter(())

    def told(self) -> str:
        """What ``explain()`` says of it; empty while it is tried."""
        if self.chosen is None:
            return ""
        times = ", ".join(f"{way} {in_ms(ms)}" for way, ms in self.best_ms.items())
        others = ", with ever other types of arguments" if self._is_of_any_types else ""
        measured = f"measured in its calls{others}: {times}"
        return f"{self._mode}: {self.chosen}, {self.why or measured}"

    def _turn(self, args: Sequence[Any]) -> _Turn | None:
        wait_for_all(import_mxnet())
        if self._open is not None:
            self._note(*self._open)
            self._open = None
        if self._is_of_any_types:
            return next(self._turns, None)
        types = _types(args)
        self._row = self._row + 1 if types == self._last_types else 1
        self._last_types = types
        if types != self._types:
            if self._are_too_many(types):
                return next(self._turns, None)
            enough = 2 if self._made <= _WARMING else _MOST_OTHERS
            if self._types is not None and self._row < enough:
                return None  # as the last batch of an epoch, or one of two that take turns
            self._types, self._turns = types, self._schedule()
            self._begin()
        self._made += 1
        return next(self._turns, None)

    def _begin(self) -> None:
        """Nothing was timed."""
        self._took.clear()
        self.best_ms.clear()

    def _are_too_many(self, types: Any) -> bool:
        """Count a call of other types than those on trial; too many begin another trial."""
        if len(self._seen) <= _FEW_TYPES:
            self._seen.add(types)
        self._others += self._row == 1 and len(self._seen) > _FEW_TYPES
        if self._others > _MOST_OTHERS:
            self._is_of_any_types, self._turns = True, self._schedule_of_any_types()
            self._begin()
        return self._is_of_any_types

    def _schedule(self) -> Iterator[_Turn]:
        known = -1
        for _ in range(_WARMING):
            known = self._known()
            yield RECORDED, False
            if self._is_too_long() or self._is_remembered():
                return
        if self._differ(known):
            return
        yield PLAIN, False
        yield from self._in_turns(RECORDED, PLAIN)
        if self.best_ms[RECORDED] * _HARDLY < self.best_ms[PLAIN]:
            yield from [(RECORDED, False)] * _MEANWHILE
            yield from self._in_turns(RECORDED, PLAIN)
        python_ms = _PYTHON_MS * sum(len(entry.original) for entry in self._entries())
        is_clear = self.best_ms[RECORDED] * _CLEARLY <= self.best_ms[PLAIN]
        if not is_clear or python_ms > self.best_ms[RECORDED] * _MUCH:
            yield APART, False
            yield APART, False
            yield from self._in_turns(APART, RECORDED)
        if self._differ(known):
            return
        fastest = min(self.best_ms, key=self.best_ms.__getitem__)
        if fastest == RECORDED and self._entries():
            remember(self._key(), {"chosen": fastest, "best_ms": self.best_ms})
        self._choose(fastest)

    def _schedule_of_any_types(self) -> Iterator[_Turn]:
        """For calls with ever other types of arguments, of which none would be recorded again.

        Those of one way are as different as those of the other, so the medians tell; some of them
        compile children. MXNet works beside the Python of a Block as it is, which is not seen here.
        """
        yield from [(APART, False)] * _ROW
        for way in (PLAIN, APART, APART, PLAIN) * 2:
            yield from [(way, True)] * _ROW
        is_faster = self.best_ms[APART] * _NOTABLY < self.best_ms[PLAIN]
        self._choose(APART if is_faster else PLAIN)

    def _is_too_long(self) -> bool:
        assert self._programs is not None
        if self._programs.too_long:
            calls = self._programs.too_long
            self._choose(APART, f"as one graph of {calls} operators would take long to compile")
        return bool(self._programs.too_long)

    def _known(self) -> int:
        """How many programs there are, compiled or not."""
        assert self._programs is not None
        return len(self._entries()) + self._programs.rule.not_compiled

    def _differ(self, known: int) -> bool:
        """Whether there are more programs than were known; the children are compiled then."""
        if self._known() == known:
            return False
        self._choose(APART, "as recorded calls differ from each other")
        return True

    def _entries(self) -> list[Entry]:
        assert self._programs is not None
        return [entry for entry in self._programs.entries if entry.mode == self._mode]

    @staticmethod
    def _in_turns(*ways: str) -> Iterator[_Turn]:
        for _ in range(2):
            for way in ways:
                yield from [(way, True)] * _ROW

    def _try(self, way: str, is_timed: bool, call: Callable[[str], Any]) -> Any:
        is_step = import_mxnet().autograd.is_recording()
        start = time.perf_counter()
        found = self._called(way, call)
        if is_timed and is_step:
            self._open = way, start
        elif is_timed:
            wait_for_all(import_mxnet())
            self._note(way, start)
        return found

    def _called(self, way: str, call: Callable[[str], Any]) -> Any:
        try:
            return call(way)
        except Exception as error:
            if isinstance(error, LateError) or _is_raised_by_user(error):
                raise
            # As it is a Block fails that was hybridized and cannot be traced.
            other, chosen = (PLAIN, APART) if way == RECORDED else (RECORDED, RECORDED)
            if isinstance(error, HigherOrderError):
                chosen = PLAIN
            try:
                found = call(other)
            except Exception:  # noqa: BLE001 - it is the Block's own, whichever way it goes
                raise error from None
            self._choose(chosen, f"as it fails {way}: {first_line(error)}")
            return found

    def _note(self, way: str, start: float) -> None:
        took = (time.perf_counter() - start) * 1e3
        times = self._took.setdefault(way, [])
        times.append(took)
        self.best_ms[way] = median(times) if self._is_of_any_types else min(times)

    def _choose(self, way: str, why: str = "") -> None:
        self.chosen, self.why = way, why

    def _is_remembered(self) -> bool:
        """Whether it was tried on this machine before; it is chosen then."""
        known = remembered(self._key()) if self._entries() else None
        if known is None:
            return False
        self.best_ms = dict(known["best_ms"])
        self._choose(known["chosen"])
        return True

    def _key(self) -> tuple[str, ...]:
        graphs = (fingerprint(entry.original) for entry in self._entries())
        return ("fastest way", self._mode, self._hybridized, *graphs)


def _is_raised_by_user(error: Exception) -> bool:
    """Whether a ``raise`` or an ``assert`` outside of MXNet and graphopt made the error.

    Not if it is about types, as recorded arrays have others.
    """
    if isinstance(error, TypeError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _types(args: Sequence[Any]) -> Any:
    """Of all arrays among arguments, and the arguments that are none."""
    array = import_mxnet().nd.NDArray
    found: list[Any] = []
    for item in args:
        if isinstance(item, array):
            found.append((item.shape, item.dtype))
        elif isinstance(item, (list, tuple)):
            found.append(_types(item))
        else:
            found.append(type(item))
    return tuple(found)
