"""Threads that work meanwhile, and end with the process whatever is left to do.

Those of :class:`concurrent.futures.ThreadPoolExecutor` do all that they were given before a process
may end, even one that its user interrupts (Ctrl-C).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from graphopt.forking import lock

A = TypeVar("A")
R = TypeVar("R")


class Daemons(Generic[A, R]):
    """Up to so many threads, which begin as there is something to do for them."""

    def __init__(self, work: Callable[[A], R], most: int, name: str) -> None:
        """Start none yet.

        Args:
            work: what each of them does with what it is given.
            most: how many there may be.
            name: of each thread.
        """
        self._work, self._most, self._name = work, most, name
        self._queue: SimpleQueue[tuple[Future[R], A]] = SimpleQueue()
        self._lock = lock()
        self._threads = self._unfinished = 0

    def submit(self, given: A) -> Future[R]:
        """Have something done after what was given before.

        Raises:
            RuntimeError: no thread can be started.
        """
        begun: Future[R] = Future()
        with self._lock:
            self._unfinished += 1
            if self._threads < min(self._unfinished, self._most):
                self._threads += 1  # first: a signal's handler may get here as well
                self._start()
        self._queue.put((begun, given))
        return begun

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            self._threads -= 1
            self._unfinished -= 1
            raise

    def cancel(self) -> None:
        """Begin nothing of what is given by now."""
        with contextlib.suppress(Empty):
            while True:
                self._queue.get_nowait()[0].cancel()

    def _run(self) -> None:
        # Interrupts are for the main thread. Processes that this one starts do not take them either
        # as they begin: a terminal sends them to all.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        while True:
            self._do(*self._queue.get())

    def _do(self, begun: Future[R], given: A) -> None:
        tell = self._done(begun, given)
        with self._lock:  # whoever is told next may give this thread more
            self._unfinished -= 1
        tell()

    def _done(self, begun: Future[R], given: A) -> Callable[[], None]:
        """Do it unless it was cancelled; what tells whoever waits for it."""
        if not begun.set_running_or_notify_cancel():
            return lambda: None
        try:
            return partial(begun.set_result, self._work(given))
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for it
            return partial(begun.set_exception, error)
