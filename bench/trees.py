"""Batches of pairs of sentences with their trees, and what peers need to read them.

Needs numpy only, for the peers' Pythons read this too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))  # they are no package
sick = importlib.import_module("sick")

Batch, Node, Pair, Sentence = sick.Batch, sick.Node, sick.Pair, sick.Sentence

#: SICK, where this machine has it.
DATA = Path(os.environ.get("GRAPHOPT_DATA") or Path(__file__).parents[2] / "shared" / "data")


def pairs_of() -> tuple[list[Pair], int]:
    """Pairs to train with, and the size of the vocabulary; generated ones without SICK."""
    if (DATA / "sick" / "train").exists():
        return sick.load_pairs(DATA / "sick", "train")
    return generated_pairs()


def generated_pairs() -> tuple[list[Pair], int]:
    """As many pairs as SICK has, the same on every machine."""
    return sick.generate(4500, seed=0), sick.WORDS


def batches_of(pairs: Sequence[Pair], size: int, count: int) -> list[Batch]:
    """Different batches at random; pairs come again only where there are too few of them."""
    order = np.random.default_rng(size).permutation(len(pairs))
    chosen = [pairs[order[number % len(pairs)]] for number in range(size * count)]
    return [sick.batch_of(chosen[start : start + size]) for start in range(0, len(chosen), size)]


def save(batches: Sequence[Batch], path: Path) -> None:
    """Write the arrays of the batches, for a process that takes them as its input."""
    np.savez(path, **{f"{n}_{key}": a for n, b in enumerate(batches) for key, a in vars(b).items()})


def load(path: str | Path) -> list[Batch]:
    """Read what :func:`save` has written."""
    with np.load(path) as arrays:
        count = 1 + max(int(name.split("_")[0]) for name in arrays.files)
        keys = ("words", "parents", "roots", "targets")
        return [Batch(*(arrays[f"{n}_{key}"] for key in keys)) for n in range(count)]


def sentences_of(batch: Batch) -> list[Sentence]:
    """The sentences of a batch again, left ones first."""
    # In a batch sentences lie one behind the other, and each has one root.
    tree = batch.parents.copy()
    tree[batch.roots] = batch.roots
    while (tree[tree] != tree).any():
        tree = tree[tree]
    ends = np.append(np.flatnonzero(np.diff(tree)) + 1, len(tree))
    found, start = [], 0
    for end in ends.tolist():
        parents = batch.parents[start:end]
        found.append(Sentence(batch.words[start:end], np.where(parents < 0, -1, parents - start)))
        start = end
    return found


def pairs_in(batch: Batch) -> list[Pair]:
    """The pairs of a batch again."""
    sentences = sentences_of(batch)
    scores = sick.scores_of(batch.targets).tolist()
    sides = sentences[: len(batch)], sentences[len(batch) :]
    return [Pair(*found) for found in zip(*sides, scores, strict=True)]
