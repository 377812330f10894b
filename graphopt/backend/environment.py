"""Environment variables by which MXNet is told how to bind an executor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from graphopt.forking import lock

#: Held while the environment is another: it is that of the whole process.
_lock = lock()
_before: list[dict[str, str | None]] = []  # what to put back, the latest last


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """The process's environment with other values, for one thread at a time."""
    with _lock:
        _before.append({key: os.environ.get(key) for key in values})
        try:
            os.environ.update(values)
            yield
        finally:
            _put_back()


def _put_back() -> None:
    for key, value in _before[-1].items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    _before.pop()


def _forget_threads() -> None:
    while _before and not _lock._is_owned():  # type: ignore[attr-defined]
        _put_back()


os.register_at_fork(after_in_child=_forget_threads)
