from __future__ import annotations

import subprocess
import sys

import pytest

from tests.places import REPOSITORY

# Allocates as many MB again and again from a thread, as MXNet's workers do, and counts page faults.
_FAULTS = """
import resource, sys, threading
import numpy as np
from graphopt.backend.memory import keep_freed_memory, share_one_heap

print(share_one_heap() and keep_freed_memory())

def work():
    size = int(sys.argv[1]) << 18
    for _ in range(5):
        np.ones(size, "float32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(size, "float32")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def faults(kept: str, megabytes: int, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, int]:
    monkeypatch.setenv("GRAPHOPT_KEEP_MEMORY_MB", kept)
    command = [sys.executable, "-c", _FAULTS, str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    done_so, count = done.stdout.split()
    return done_so == "True", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
@pytest.mark.parametrize("megabytes", [12, 48, 100])
def test_freed_memory_is_used_again(megabytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, count = faults("1024", megabytes, monkeypatch)
    assert kept
    assert count < 20  # less than one for each array
    kept, _ = faults("0", megabytes, monkeypatch)
    assert not kept


# Frees blocks with others between them, as compiling does, and tells what stays resident.
_HOLES = """
import re
import numpy as np
from graphopt.backend.memory import give_back_freed_memory, keep_freed_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10

keep_freed_memory()
before = resident()
blocks = [np.ones((2 if n % 2 else 1) << 18, "float32") for n in range(200)]
del blocks[1::2]
freed = resident()
done = give_back_freed_memory(), give_back_freed_memory(), give_back_freed_memory(always=True)
print(freed - before, resident() - before, *map(int, done))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc_trim")
def test_freed_memory_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HOLES], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    kept, left, *was_done = map(int, done.stdout.split())
    assert kept >= 290
    assert left <= 120
    assert was_done == [1, 0, 1]  # nothing was taken in between
