from __future__ import annotations

import subprocess
import sys

import pytest

from tests.places import REPOSITORY

# Allocates 12 MB again and again from a thread, as MXNet's workers do, and counts page faults.
_FAULTS = """
import resource, threading
import numpy as np
from graphopt.backend.memory import keep_freed_memory

print(keep_freed_memory())

def work():
    for _ in range(20):
        np.ones(3 << 20, "float32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(3 << 20, "float32")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def faults(megabytes: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, int]:
    monkeypatch.setenv("GRAPHOPT_KEEP_MEMORY_MB", megabytes)
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
def test_freed_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, count = faults("1024", monkeypatch)
    assert kept
    assert count < 3072  # one array's pages, of twenty arrays
    kept, _ = faults("0", monkeypatch)
    assert not kept
