"""Environment variables by which MXNet is told how to bind an executor."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Held while the environment is another: it is that of the whole process.
_lock = threading.RLock()


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """The process's environment with other values, for one thread at a time."""
    with _lock:
        before = {key: os.environ.get(key) for key in values}
        try:
            os.environ.update(values)
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value
