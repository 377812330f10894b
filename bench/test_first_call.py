"""The first call of an optimized encoder, with an empty cache and with a warm one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.report import Record

ROOT = Path(__file__).resolve().parents[1]


def first_call(who: str, mode: str, size: str, cache: Path) -> dict[str, float]:
    """What a fresh process measures."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.first_call", who, mode, size],
        cwd=ROOT,
        env=os.environ | {"GRAPHOPT_CACHE_DIR": str(cache), "GRAPHOPT_REMEMBER": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_first_call(
    mode: str,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    tmp_path: Path,
) -> None:
    size = "small" if quick else "full"
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
        "warm more s": warm["first"] - plain["first"],
        "kernels": cold["compiled"],
    }
    targets = {"cold s": 10.0, "warm more s": 1.0}
    record(Record("First call of the encoder", mode, shown, {}, targets))
