"""The number of threads changes no bit of what is documented not to depend on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import graphopt


def test_threads_change_no_bit() -> None:
    script = Path(__file__).with_name("thread_cases.py")
    root = str(Path(graphopt.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": root, "MXNET_ENGINE_TYPE": "NaiveEngine"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 22, done.stdout
