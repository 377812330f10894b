"""Pairs of sentences with dependency trees: those of SICK, or generated ones that look like them.

SICK (Sentences Involving Compositional Knowledge, SemEval-2014) says of 10,000 pairs how much they
mean the same, from 1 to 5. Its folder holds ``vocab.txt`` and, in ``train`` and ``dev``, a line a
pair: ``a.toks`` and ``b.toks``, the words; ``a.parents`` and ``b.parents``, for each word the place
of the one it depends on, the first being 1 and 0 meaning none; ``sim.txt``, the score.

This needs numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

#: Scores go from 1 to this.
SCORES = 5

#: Number of a word that is not in the vocabulary.
UNKNOWN = 0

#: Words of generated sentences, as many as SICK has.
WORDS = 2300


@dataclass(frozen=True)
class Node:
    """A word and what depends on it: ``position`` is the word's place in its sentence."""

    position: int
    children: tuple[Node, ...]


@dataclass(frozen=True)
class Sentence:
    """Numbers of words, and for each the place of the word it depends on; -1 for the root."""

    words: np.ndarray
    parents: np.ndarray

    @cached_property
    def tree(self) -> Node:
        """The root, with all the others below it."""
        below: list[list[int]] = [[] for _ in self.parents]
        for child, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                below[parent].append(child)
        order = [int(np.flatnonzero(self.parents < 0)[0])]
        for position in order:
            order.extend(below[position])
        made: dict[int, Node] = {}
        for position in reversed(order):
            made[position] = Node(position, tuple(made[child] for child in below[position]))
        return made[order[0]]


@dataclass(frozen=True)
class Pair:
    """Two sentences and how much they mean the same, from 1 to 5."""

    left: Sentence
    right: Sentence
    score: float


@dataclass(frozen=True)
class Batch:
    """Pairs as one forest: all left sentences, then all right ones.

    Attributes:
        words: (nodes,) numbers of words.
        parents: (nodes,) places in the forest; -1 for roots.
        roots: (2 * pairs,) places of the roots, in the order of the sentences.
        targets: (pairs, 5) how likely each whole score is, so that their mean is the score.
    """

    words: np.ndarray
    parents: np.ndarray
    roots: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)


def batch_of(pairs: Sequence[Pair]) -> Batch:
    """The pairs as arrays."""
    sentences = [pair.left for pair in pairs] + [pair.right for pair in pairs]
    lengths = [len(sentence.words) for sentence in sentences]
    starts = np.repeat(np.cumsum([0, *lengths[:-1]]), lengths)
    local = np.concatenate([sentence.parents for sentence in sentences])
    return Batch(
        words=np.concatenate([sentence.words for sentence in sentences]).astype("i4"),
        parents=np.where(local < 0, -1, local + starts).astype("i4"),
        roots=np.flatnonzero(local < 0).astype("i4"),
        targets=targets_of([pair.score for pair in pairs]),
    )


def targets_of(scores: Sequence[float]) -> np.ndarray:
    """Each score spread over the two whole ones next to it."""
    found = np.zeros((len(scores), SCORES), "f4")
    exact = np.asarray(scores) - 1
    low = np.minimum(exact.astype(int), SCORES - 2)
    rows = np.arange(len(scores))
    found[rows, low] = 1 - (exact - low)
    found[rows, low + 1] = exact - low
    return found


def scores_of(probabilities: np.ndarray) -> np.ndarray:
    """The mean score of each row."""
    return probabilities @ np.arange(1, SCORES + 1)


def load_pairs(folder: Path, part: str) -> tuple[list[Pair], int]:
    """The pairs of ``train`` or ``dev``, and how many words there are."""
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()
    numbers = {word: number for number, word in enumerate(lines, start=UNKNOWN + 1)}
    left, right = (_sentences(folder / part, side, numbers) for side in "ab")
    scores = [float(line) for line in (folder / part / "sim.txt").read_text().split()]
    return [Pair(*found) for found in zip(left, right, scores, strict=True)], len(lines) + 1


def _sentences(folder: Path, side: str, numbers: dict[str, int]) -> list[Sentence]:
    tokens = (folder / f"{side}.toks").read_text("utf-8").splitlines()
    heads = (folder / f"{side}.parents").read_text().splitlines()
    return [
        Sentence(
            np.array([numbers.get(word, UNKNOWN) for word in words.lower().split()], "i4"),
            np.array(parents.split(), "i4") - 1,
        )
        for words, parents in zip(tokens, heads, strict=True)
    ]


def generate(count: int, seed: int, words: int = WORDS) -> list[Pair]:
    """Pairs whose trees are about as long, deep and wide as those of SICK.

    Each word stands for a number between 0 and 1, and a sentence for the mean of its words, in
    which heads weigh more than what depends on them: the score says how near two means are.
    """
    rng = np.random.default_rng(seed)
    numbers = np.random.default_rng(words).random(words)
    pairs = []
    for _ in range(count):
        left, right = _random_sentence(rng, words), _random_sentence(rng, words)
        apart = abs(_meaning(left, numbers) - _meaning(right, numbers))
        pairs.append(Pair(left, right, round(float(max(1.0, 5 - 10 * apart)), 1)))
    return pairs


def _meaning(sentence: Sentence, numbers: np.ndarray) -> float:
    weights, above = np.ones(len(sentence.words)), sentence.parents
    while (above >= 0).any():
        weights[above >= 0] /= 2
        above = np.where(above >= 0, sentence.parents[above], -1)
    return float(np.average(numbers[sentence.words], weights=weights))


def _random_sentence(rng: np.random.Generator, words: int) -> Sentence:
    length = int(np.clip(rng.normal(9.7, 3.9), 3, 36))
    # As in any language, few words make up most of a text.
    chosen = (1 + (words - 1) * rng.random(length) ** 4).astype("i4")
    before = (rng.random(length) * np.arange(length)).astype("i4")
    before[0] = -1
    # Heads are anywhere in a sentence, so its words are in no order that the tree knows.
    place = rng.permutation(length).astype("i4")
    parents = np.empty(length, "i4")
    parents[place] = np.where(before < 0, -1, place[before])
    return Sentence(chosen, parents)
