"""Compiled kernels on disk: shared by processes, whole or not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphopt.kernels import library
from tests.kernels.cache_support import SPEC, entries
from tests.places import REPOSITORY

#: Runs the kernel as a user's process would, and tells how it came by it.
RUN = f"""
import json, sys
import numpy as np
from graphopt.kernels import library
from graphopt.kernels.run import run
from graphopt.kernels.spec_parser import parse
x = np.linspace(-2, 2, 1000, dtype="float32")
(y,) = run(parse({SPEC!r}), [x])
np.testing.assert_allclose(y, np.tanh(x) * x, rtol=1e-5, atol=1e-6)
print(json.dumps(vars(library.STATISTICS) | {{"numba": "numba" in sys.modules}}))
"""


def start(place: Path, code: str = RUN, **settings: str) -> subprocess.Popen[str]:
    env = {**os.environ, "GRAPHOPT_CACHE_DIR": str(place), "OMP_NUM_THREADS": "1", **settings}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)


def test_two_processes_at_once_and_one_that_comes_later(with_bridge: Path) -> None:
    first, second = start(with_bridge), start(with_bridge)
    for process in (first, second):
        found = told(process)
        assert found["compiled"] + found["loaded"] == 1
    assert [path.suffix for path in (with_bridge / "kernels").iterdir()] == [".o"]
    later = told(start(with_bridge))
    assert later == {"compiled": 0, "here": 0, "loaded": 1, "by_llvm": 0, "numba": False}


KILLED_COMPILING = """
import time
from graphopt.kernels import cpu
def compile_object(spec, **how):
    print("compiling", flush=True)
    time.sleep(100)
cpu.compile_object = compile_object
"""
KILLED_WRITING = """
import time
from pathlib import Path
def replace(path, target):
    print("writing", flush=True)
    time.sleep(100)
Path.replace = replace
"""


@pytest.mark.parametrize("when", [KILLED_COMPILING, KILLED_WRITING], ids=["compiling", "writing"])
def test_a_process_that_is_killed_leaves_nothing_by_halves(
    with_bridge: Path, folder: Path, when: str
) -> None:
    assert folder == with_bridge  # the bridge is there before this process looks there
    with start(with_bridge, when + RUN, GRAPHOPT_COMPILERS="0") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() in ("compiling", "writing")
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert entries(with_bridge) == []
    library.kernel(SPEC, backward=False)
    assert library.STATISTICS.compiled == 1
    (path,) = entries(with_bridge)
    assert path.stat().st_size > 500
