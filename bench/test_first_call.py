"""The first calls of an optimized encoder, with an empty cache and with a warm one.

The bridge is there in both, as installing builds it; how long that takes is told beside them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.fresh import ROOT, measured
from bench.report import Record
from graphopt.kernels.cache import folder


def first_call(who: str, mode: str, size: str, cache: Path) -> dict[str, float]:
    """What a fresh process measures."""
    return measured("bench.first_call", who, mode, size, cache=cache)


def install(cache: Path, *, quick: bool) -> float:
    """Put the bridge into an empty cache: the seconds of building it, 0 if it is only copied."""
    if quick:
        shutil.copytree(folder() / "bridge", cache / "bridge")
        return 0.0
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "graphopt.kernels.bridge.build"],
        cwd=ROOT,
        env=os.environ | {"GRAPHOPT_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_first_call(
    mode: str,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    tmp_path: Path,
) -> None:
    size = "small" if quick else "full"
    built = install(tmp_path, quick=quick)
    cold = first_call("graphopt", mode, size, tmp_path)
    warm = benchmark.pedantic(
        first_call, ("graphopt", mode, size, tmp_path), rounds=1 if quick else 3
    )
    assert (cold["loaded"], warm["compiled"]) == (0, 0)
    assert cold["compiled"] == warm["loaded"] > 0
    if quick:
        return
    plain = first_call("plain", mode, size, tmp_path)
    shown = {
        "cold s": cold["first"],
        "warm s": warm["first"],
        "plain s": plain["first"],
        "last batch, cold s": cold["last batch"],
        "plain's last batch s": plain["last batch"],
        "warm more s": warm["first"] - plain["first"],
        "kernels": cold["compiled"],
        "building the bridge s": built,
    }
    targets = {"cold s": 10.0, "warm more s": 1.0}
    record(Record("First call of the encoder", mode, shown, {}, targets))
