"""Interrupts (Ctrl-C) while other processes compile kernels, as a terminal sends them: to all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from graphopt.kernels import library
from graphopt.kernels.compilers import Compiled, CompilerError, Job
from tests.places import REPOSITORY

TEXT = "f32[a] (f32[a]) {{ %1 = mul %0 {}.5; %2 = tanh %1; return %2:f32[a] }}"
TEXTS = [TEXT.format(number) for number in range(20)]


#: What shells start in the background is deaf to interrupts, and so is all that it starts.
HEARS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def interrupted(code: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run, interrupt once it says so, and wait until it and all that it started have ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS + code],
        cwd=REPOSITORY,
        env=os.environ | {"GRAPHOPT_CACHE_DIR": str(place), "GRAPHOPT_COMPILERS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=100)  # compilers have its stderr, too
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(code, process.returncode, out, err)


ENDLESS = f"""
import signal, sys
from graphopt.kernels import compilers, library

compilers._BEGIN = '''
import sys, time
print("graphopt compiler 1", flush=True)
time.sleep(1000)
'''
if HANDLES:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
library.expect([(text, False) for text in {TEXTS!r}])
print("begun", flush=True)
library.prepare({TEXTS!r}, gradients=False)
"""


@pytest.mark.parametrize(
    ("handles", "code", "told"),
    [(False, -signal.SIGINT, "KeyboardInterrupt"), (True, 3, "")],
    ids=["interrupt", "exit"],
)
def test_a_process_ends_with_kernels_left_to_compile(
    tmp_path: Path, handles: bool, code: int, told: str
) -> None:
    done = interrupted(ENDLESS.replace("HANDLES", str(handles)), tmp_path)
    assert done.returncode == code
    assert done.stderr.split("\n")[-2:] == ([told, ""] if told else [""])


CAUGHT = f"""
import ctypes
import numpy as np
from graphopt.kernels import compilers, library

texts = {TEXTS!r}
library.expect([(text, False) for text in texts])
try:
    print("begun", flush=True)
    library.prepare(texts, gradients=False)
except KeyboardInterrupt:
    print("caught")
x, y = np.linspace(-2, 2, 64, dtype="float32"), np.zeros(64, "float32")
signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
arrays, strides = (ctypes.c_int64 * 2)(x.ctypes.data, y.ctypes.data), (ctypes.c_int64 * 2)()
for number in (0, 19):
    kernel = library.kernel(texts[number], backward=False)
    signature(kernel.address)(ctypes.addressof(arrays), ctypes.addressof(strides), 1, 64, 0)
    np.testing.assert_allclose(y, np.tanh((number + 0.5) * x), rtol=1e-5, atol=1e-6)
print(compilers.why_not(), library.STATISTICS.here)
"""


def test_compilers_stay_usable_where_it_is_caught(tmp_path: Path) -> None:
    done = interrupted(CAUGHT, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("caught\nNone 0\n", "", 0)


class Interrupted(Future[Any]):
    def result(self, timeout: float | None = None) -> Any:
        raise KeyboardInterrupt


def test_what_has_not_begun_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [library._job(text, backward=False) for text in TEXTS[:4]]
    waited_for, running, queued, done = Interrupted(), Future[Any](), Future[Any](), Future[Any]()
    for begun in (waited_for, running, done):
        begun.set_running_or_notify_cancel()
    done.set_result(None)
    futures = dict(zip(jobs, (waited_for, running, queued, done), strict=True))
    monkeypatch.setattr(library, "_begun", dict(futures))
    with pytest.raises(KeyboardInterrupt):
        library._elsewhere(known(jobs[0]))
    del futures[jobs[2]]
    assert library._begun == futures
    assert queued.cancelled()


def known(job: Job | None) -> Job:
    assert job is not None
    return job


@pytest.mark.parametrize("error", [CompilerError, ValueError])
def test_what_has_failed_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    job = known(library._job(TEXTS[0], backward=False))
    failed, fine = Future[Compiled](), Future[Compiled]()
    failed.set_exception(error("anything"))
    fine.set_result(Compiled(b"code", 0))
    monkeypatch.setattr(library, "_begun", {job: failed})
    monkeypatch.setattr(library, "submit", lambda _job: fine)
    if error is CompilerError:
        assert library._elsewhere(job) is None
    else:
        with pytest.raises(error):
            library._elsewhere(job)
    assert library._elsewhere(job) == fine.result()
    assert not library._begun
