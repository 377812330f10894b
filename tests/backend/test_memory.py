from __future__ import annotations

import subprocess
import sys

import pytest

from tests.places import REPOSITORY

# Allocates as many MB again and again from a thread, as MXNet's workers do, and counts page faults.
# Of several numbers, the larger ones come last: they find too little in what is freed already.
_FAULTS = """
import resource, sys, threading
import numpy as np
from graphopt.backend.memory import keep_freed_memory, share_one_heap

print(share_one_heap() and keep_freed_memory())

def work(size):
    for _ in range(5):
        np.ones(size, "float32")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        np.ones(size, "float32")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

for megabytes in sys.argv[1:]:
    thread = threading.Thread(target=work, args=(int(megabytes) << 18,))
    thread.start()
    thread.join()
"""


def faults(kept: str, megabytes: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whether freed memory is kept, and a number for each size."""
    monkeypatch.setenv("GRAPHOPT_KEEP_MEMORY_MB", kept)
    command = [sys.executable, "-c", _FAULTS, *megabytes]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    return done.stdout.split()


# All sizes in one process, and each in its own.
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
@pytest.mark.parametrize(
    "megabytes",
    [
        ["12", "48", "100"],
        *(pytest.param([size], marks=pytest.mark.slow) for size in ("12", "48", "100")),
    ],
)
def test_freed_memory_is_used_again(megabytes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kept, *counts = faults("1024", megabytes, monkeypatch)
    assert kept == "True"
    assert len(counts) == len(megabytes)
    assert all(int(count) < 20 for count in counts), counts  # less than one for each array
    assert faults("0", megabytes[:1], monkeypatch)[0] == "False"


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
