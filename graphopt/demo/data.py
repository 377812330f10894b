"""Embedded and generated data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

#: Sentences with the 1-based head of every word, 0 at the root.
_TREEBANK = (
    ("rain fell", "2 0"),
    ("the old bridge creaks", "3 3 4 0"),
    ("she painted the door green", "2 0 4 2 2"),
    ("two dogs chase a red ball across the wet field", "2 3 0 6 6 3 10 10 10 3"),
    ("nobody in the crowded station noticed him", "6 5 5 5 1 0 6"),
    ("the baker who lost his keys sleeps in the shop", "2 7 4 2 6 4 0 10 10 7"),
    ("if the wind turns we will sail home before dusk", "4 3 4 7 7 7 0 7 10 7"),
    ("children laugh and sing and dance", "2 0 2 2 2 2"),
    ("a letter from an aunt in a far town arrived late", "2 10 5 5 2 9 9 9 5 0 10"),
    ("he said that the girl he met had known her father", "2 0 9 5 9 7 5 9 2 11 9"),
    ("cold tea without sugar tastes bitter", "2 5 4 2 0 5"),
    ("please close the window", "2 0 4 2"),
)


@dataclass(frozen=True)
class Tree:
    """A dependency tree: ``parents[i]`` is the head of word ``i``, -1 for the root."""

    words: tuple[str, ...]
    parents: tuple[int, ...]

    @property
    def root(self) -> int:
        """The word without a head."""
        return self.parents.index(-1)

    @property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The words below each word, from left to right."""
        below: list[list[int]] = [[] for _ in self.parents]
        for child, parent in enumerate(self.parents):
            if parent >= 0:
                below[parent].append(child)
        return tuple(map(tuple, below))


def trees() -> tuple[Tree, ...]:
    """The embedded dependency trees, of 2 to 11 words and 2 to 5 levels."""
    return tuple(
        Tree(tuple(text.split()), tuple(int(head) - 1 for head in heads.split()))
        for text, heads in _TREEBANK
    )


def vocabulary() -> tuple[str, ...]:
    """All words of the trees, sorted."""
    return tuple(sorted({word for tree in trees() for word in tree.words}))


def indices(tree: Tree) -> Any:
    """The words of a tree as numbers in the vocabulary: an NDArray of shape (1, words)."""
    number = {word: i for i, word in enumerate(vocabulary())}
    values = np.array([[number[word] for word in tree.words]], dtype="float32")
    return import_mxnet().nd.array(values)


def normal(shape: tuple[int, ...], seed: int = 0) -> Any:
    """An NDArray of standard normal numbers, the same for the same seed on every machine."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return import_mxnet().nd.array(values)


def tokens(shape: tuple[int, ...], vocabulary_size: int, seed: int = 0) -> Any:
    """An NDArray of token numbers, small ones more often, as words are."""
    uniform = np.random.default_rng(seed).random(shape)
    values = np.floor(vocabulary_size * uniform**3).astype("float32")
    return import_mxnet().nd.array(values)
