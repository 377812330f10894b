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

from bench import trees
from tests.places import REPOSITORY
from tests.tiers import one_of

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
    one_of(
        2, [("char_lstm.py", ("--unrolled",)), ("imdb_lstm.py", ("--sparse", "--workers", "1"))]
    ),
)
def test_both_modes_learn_the_same(script: str, options: tuple[str, ...]) -> None:
    check_runs(run(script, *TINY, *options, "--json"))


def test_a_bucketing_module_learns_the_same_in_both_modes() -> None:
    sizes = ("--samples", "64", "--batch-size", "8", "--units", "8", "--words", "50")
    runs = json.loads(run("bucketing_lm.py", *sizes, "--epochs", "1", "--json"))["runs"]
    np.testing.assert_allclose(runs["optimized"]["losses"], runs["plain"]["losses"], rtol=1e-3)
    assert "reroll-recurrence" in runs["optimized"]["explain"]
    assert "one kernel updates" in runs["optimized"]["explain"]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("way", one_of(3, ["recursive", "vectorised", "one by one"]))
def test_trees_are_learned(way: str) -> None:
    option = [] if way == "vectorised" else [f"--{way.replace(' ', '-')}"]
    said = run("tree_lstm_sick.py", "--limit", "16", "--epochs", "2", *option, "--json")
    found: dict[str, Any] = json.loads(said)
    assert found["way"] == way
    first, second = found["epochs"]
    assert second["loss"] < first["loss"]
    assert -1 <= second["pearson"] <= 1
    if way != "one by one":
        assert found["compared"]["largest_difference"] < 1e-4


def test_pairs_come_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a\nkid\nis\nplaying\n", "utf-8")
    for part in ("train", "dev"):
        folder = tmp_path / part
        folder.mkdir()
        (folder / "a.toks").write_text("A kid is playing\nplaying\n" * 4, "utf-8")
        (folder / "a.parents").write_text("2 4 4 0\n0\n" * 4, "utf-8")
        (folder / "b.toks").write_text("is a dog playing\na kid\n" * 4, "utf-8")
        (folder / "b.parents").write_text("0 3 1 3\n2 0\n" * 4, "utf-8")
        (folder / "sim.txt").write_text("4.7\n1\n" * 4, "utf-8")
    pairs, words = trees.sick.load_pairs(tmp_path, "train")
    assert words == 5
    assert pairs[0].left.words.tolist() == [1, 2, 3, 4]
    assert pairs[0].left.parents.tolist() == [1, 3, 3, -1]
    assert pairs[0].right.words.tolist() == [3, 1, 0, 4]
    said = run("tree_lstm_sick.py", "--one-by-one", "--epochs", "1", "--data", str(tmp_path))
    assert said.startswith("epoch 1: ")


def test_a_batch_of_pairs_is_a_forest() -> None:
    pairs = trees.sick.generate(5, seed=0)
    batch = trees.sick.batch_of(pairs)
    sentences = [pair.left for pair in pairs] + [pair.right for pair in pairs]
    assert (batch.parents[batch.roots] == -1).all()
    assert (batch.parents < 0).sum() == len(batch.roots) == len(sentences)
    # Up from any word is the root of its sentence.
    tree = np.arange(len(batch.words))
    while (batch.parents[tree] >= 0).any():
        tree = np.where(batch.parents[tree] < 0, tree, batch.parents[tree])
    np.testing.assert_array_equal(
        tree, np.repeat(batch.roots, [len(sentence.words) for sentence in sentences])
    )
    for found, pair in zip(trees.pairs_in(batch), pairs, strict=True):
        assert found.score == pytest.approx(pair.score)
        assert found.left.tree == pair.left.tree
        assert found.right.tree == pair.right.tree


@pytest.mark.parametrize(
    ("score", "target"), [(1, [1, 0, 0, 0, 0]), (3.25, [0, 0, 0.75, 0.25, 0]), (5, [0, 0, 0, 0, 1])]
)
def test_a_score_is_the_mean_of_its_target(score: float, target: list[float]) -> None:
    found = trees.sick.targets_of([score])
    np.testing.assert_allclose(found, [target], atol=1e-6)
    np.testing.assert_allclose(trees.sick.scores_of(found), [score], rtol=1e-6)


def test_generated_trees_are_like_those_of_sick() -> None:
    pairs = trees.sick.generate(300, seed=1)
    sentences = [sentence for pair in pairs for sentence in (pair.left, pair.right)]

    def height(node: Any) -> int:
        return 1 + max(map(height, node.children), default=0)

    assert np.mean([len(sentence.words) for sentence in sentences]) == pytest.approx(9.7, rel=0.1)
    assert np.mean([height(sentence.tree) for sentence in sentences]) == pytest.approx(4.4, rel=0.1)
