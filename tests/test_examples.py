"""The examples run as a user runs them, and train the same in both modes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.places import REPOSITORY

EXAMPLES = REPOSITORY / "examples"

TINY = ("--samples", "96", "--batch-size", "32", "--epochs", "1")


def run(script: str, *options: str, fails: bool = False) -> str:
    """What a script prints, or what it says when it fails."""
    # Arrays this small take longest where two threads wait for each other on a busy machine.
    settings = {"OMP_NUM_THREADS": "1", "GRAPHOPT_REMEMBER": "0"}
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | settings
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *options],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def check_runs(text: str) -> None:
    """Both modes are in the JSON document, and learn the same."""
    runs: dict[str, Any] = json.loads(text)["runs"]
    assert list(runs) == ["plain", "optimized"]
    plain, optimized = runs["plain"], runs["optimized"]
    np.testing.assert_allclose(optimized["losses"], plain["losses"], rtol=1e-3)
    assert optimized["explain"]
    assert min(run["peak_mb"] for run in runs.values()) > 10


@pytest.mark.parametrize(
    ("script", "options"),
    [("imdb_lstm.py", ("--sparse", "--workers", "1")), ("char_lstm.py", ("--unrolled",))],
)
def test_both_modes_learn_the_same(script: str, options: tuple[str, ...]) -> None:
    check_runs(run(script, *TINY, *options, "--json"))


def test_reviews_come_from_a_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(10, 200, size=100))])
        arrays[f"{part}_x"] = rng.integers(1, 20_000, size=offsets[-1]).astype("uint16")
        arrays[f"{part}_off"] = offsets.astype("int32")
        arrays[f"{part}_y"] = rng.integers(2, size=100).astype("uint8")
    np.savez(tmp_path / "imdb_seq_top20k.npz", **arrays)
    check_table(run("imdb_lstm.py", *TINY, "--data", str(tmp_path)))


def test_text_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(
        "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 40, "utf-8"
    )
    check_table(run("char_lstm.py", *TINY, "--text", str(path)))


def check_table(text: str) -> None:
    """Both modes are in the table that is printed, with the same loss."""
    *epochs, _, titles, plain, optimized, ratio = text.splitlines()
    assert [line.split(",")[0] for line in epochs] == ["plain", "optimized"]
    assert titles.split()[-2:] == ["peak", "MB"]
    # Before the loss: the mode and four times.
    losses = {line.split()[0]: float(line.split()[5]) for line in (plain, optimized)}
    assert losses.keys() == {"plain", "optimized"}
    np.testing.assert_allclose(losses["optimized"], losses["plain"], rtol=1e-3)
    assert ratio.startswith("optimized is ")


def test_too_few_samples_are_an_error_that_says_what_to_do() -> None:
    said = run("char_lstm.py", "--samples", "20", "--mode", "plain", fails=True)
    assert "choose a smaller --batch-size or more --samples" in said
    assert "Traceback" not in said
