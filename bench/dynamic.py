"""Nets whose graph depends on the sample, as people write them: one sample at a time.

They know nothing of batching. Arrays of a sample have a batch axis of length 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np

from bench import tree_nets, trees

gluon = mx.gluon
nn = gluon.nn


@dataclass(frozen=True)
class Dynamic:
    """A net, and what it is called with, sample by sample."""

    net: Any
    samples: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Size:
    """How many samples, and how wide all vectors in a net are."""

    samples: int = 64
    units: int = 128
    words: int = 1000


SMALL = Size(samples=4, units=8, words=50)


# --- Two dependency trees ----------------------------------------------------------------------


def similarity(size: Size) -> Dynamic:
    """Child-sum Tree-LSTM over SICK's sentences.

    A few samples are generated ones: counts of them must not depend on what data a machine has.
    """
    pairs, words = trees.generated_pairs() if size == SMALL else trees.pairs_of()
    net = tree_nets.PerSample(tree_nets.Size(words, size.units, size.units), prefix="similarity_")
    # Pairs next to each other are alike in length.
    chosen = np.random.default_rng(0).permutation(len(pairs))[: size.samples]
    return Dynamic(net, [tree_nets.sample_of(pairs[number]) for number in chosen])


# --- Binary trees ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phrase:
    """A word of its own, by its place in the sentence, or two phrases."""

    position: int = -1
    parts: tuple[Phrase, ...] = ()


class BinaryCell(gluon.HybridBlock):
    """A node of an N-ary Tree-LSTM: each of two children has its own weights and forget gate."""

    def __init__(self, units: int, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.left = nn.Dense(5 * units, in_units=units)
            self.right = nn.Dense(5 * units, use_bias=False, in_units=units)

    def hybrid_forward(self, F: Any, h_left: Any, c_left: Any, h_right: Any, c_right: Any) -> Any:
        gates = self.left(h_left) + self.right(h_right)
        i, keep_left, keep_right, o, u = F.split(gates, num_outputs=5, axis=1)
        c = F.sigmoid(i) * F.tanh(u) + F.sigmoid(keep_left) * c_left
        c = c + F.sigmoid(keep_right) * c_right
        return F.sigmoid(o) * F.tanh(c), c


class Sentiment(gluon.Block):
    """Five classes of a sentence, from the phrases that it consists of."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.embed = nn.Embedding(size.words, size.units)
            self.leaf = nn.Dense(size.units, activation="tanh", in_units=size.units)
            self.cell = BinaryCell(size.units)
            self.score = nn.Dense(5, in_units=size.units)

    def forward(self, phrase: Phrase, words: Any) -> Any:
        return self.score(self.visit(phrase, self.embed(words))[0])

    def visit(self, phrase: Phrase, vectors: Any) -> Any:
        """State and memory of a phrase."""
        if not phrase.parts:
            c = self.leaf(vectors[:, phrase.position])
            return mx.nd.tanh(c), c
        left, right = (self.visit(part, vectors) for part in phrase.parts)
        return self.cell(*left, *right)


def sentiment(size: Size) -> Dynamic:
    """Binary trees over sentences as long as those of the Stanford sentiment treebank."""
    rng = np.random.default_rng(1)

    def split(start: int, end: int) -> Phrase:
        if end - start == 1:
            return Phrase(start)
        middle = int(rng.integers(start + 1, end))
        return Phrase(parts=(split(start, middle), split(middle, end)))

    lengths = np.clip(rng.normal(19, 9, size.samples).round(), 2, 50).astype(int).tolist()
    return Dynamic(
        Sentiment(size, prefix="sentiment_"),
        [(split(0, length), _numbers(rng, size.words, length)) for length in lengths],
    )


# --- Values decide what comes next -------------------------------------------------------------


class Parser(gluon.Block):
    """Shifts words onto a stack, or joins the two topmost phrases, as a score of them says."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.embed = nn.Embedding(size.words, size.units)
            self.enter = nn.Dense(size.units, activation="tanh", in_units=size.units)
            self.cell = BinaryCell(size.units)
            self.join = nn.Dense(1, in_units=size.units)
            self.score = nn.Dense(5, in_units=size.units)

    def forward(self, words: Any) -> Any:
        vectors = self.embed(words)
        stack: list[Any] = []
        for position in range(words.shape[1]):
            c = self.enter(vectors[:, position])
            stack.append((mx.nd.tanh(c), c))
            while len(stack) > 1:
                joined = self.cell(*stack[-2], *stack[-1])
                if self.join(joined[0]).asscalar() < 0:
                    break
                stack[-2:] = [joined]
        while len(stack) > 1:
            stack[-2:] = [self.cell(*stack[-2], *stack[-1])]
        return self.score(stack[0][0])


def parser(size: Size) -> Dynamic:
    """Trees that the net makes up as it reads."""
    rng = np.random.default_rng(2)
    lengths = rng.integers(3, 13, size.samples).tolist()
    samples = [(_numbers(rng, size.words, length),) for length in lengths]
    return Dynamic(Parser(size, prefix="parser_"), samples)


# --- Words and their characters ----------------------------------------------------------------


class Tagger(gluon.Block):
    """Tags of words, read in both directions; a rare word is read by its characters.

    The output is ``(1, words, 9)``: samples of different lengths have outputs of different shapes.
    """

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        half = size.units // 2
        with self.name_scope():
            self.embed = nn.Embedding(size.words, size.units)
            self.letters = nn.Embedding(64, half)
            self.spell = gluon.rnn.LSTMCell(half, input_size=half)
            self.spell_back = gluon.rnn.LSTMCell(half, input_size=half)
            self.read = gluon.rnn.LSTMCell(half, input_size=size.units)
            self.read_back = gluon.rnn.LSTMCell(half, input_size=size.units)
            self.tag = nn.Dense(9, in_units=size.units)

    def forward(self, words: Sequence[tuple[bool, Any]]) -> Any:
        vectors = [self.vector(*word) for word in words]
        ahead = self.states(self.read, vectors)
        back = self.states(self.read_back, vectors[::-1])[::-1]
        tags = [self.tag(mx.nd.concat(*both, dim=1)) for both in zip(ahead, back, strict=True)]
        return mx.nd.stack(*tags, axis=1)

    def vector(self, rare: bool, numbers: Any) -> Any:
        """Of a word: ``numbers`` are its letters if it is rare, else the one that it has."""
        if not rare:
            return self.embed(numbers)[:, 0]
        letters = self.letters(numbers)
        steps = [letters[:, n] for n in range(numbers.shape[1])]
        ends = self.states(self.spell, steps)[-1], self.states(self.spell_back, steps[::-1])[-1]
        return mx.nd.concat(*ends, dim=1)

    def states(self, cell: Any, steps: Sequence[Any]) -> list[Any]:
        """The output of a cell at each step."""
        state, found = cell.begin_state(1), []
        for step in steps:
            output, state = cell(step, state)
            found.append(output)
        return found


def tagger(size: Size) -> Dynamic:
    """Sentences in which every fifth word is rare."""
    rng = np.random.default_rng(3)

    def word() -> tuple[bool, Any]:
        rare = bool(rng.random() < 0.2)
        return rare, _numbers(rng, 64 if rare else size.words, rng.integers(3, 11) if rare else 1)

    lengths = rng.integers(4, 25, size.samples).tolist()
    samples = [([word() for _ in range(length)],) for length in lengths]
    return Dynamic(Tagger(size, prefix="tagger_"), samples)


# --- Graphs in which ways meet again -----------------------------------------------------------


class Circuit(gluon.Block):
    """Gates of a circuit in the order of their inputs; each gate is computed once."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.kind = nn.Embedding(8, size.units)
            self.message = nn.Dense(size.units, activation="relu", in_units=size.units)
            self.cell = gluon.rnn.GRUCell(size.units, input_size=size.units)
            self.score = nn.Dense(2, in_units=size.units)

    def forward(self, gates: Sequence[tuple[int, ...]], kinds: Any) -> Any:
        vectors = self.kind(kinds)
        states: list[Any] = []
        for number, sources in enumerate(gates):
            (before,) = self.cell.begin_state(1)
            if sources:
                before = mx.nd.add_n(*(self.message(states[source]) for source in sources))
            states.append(self.cell(vectors[:, number], [before])[0])
        return self.score(states[-1])


def circuit(size: Size) -> Dynamic:
    """Each gate has up to three inputs among the eight gates before it."""
    rng = np.random.default_rng(4)
    samples = []
    for length in rng.integers(8, 33, size.samples).tolist():
        gates = [
            tuple(
                sorted({int(rng.integers(max(0, n - 8), n)) for _ in range(rng.integers(1, 4))})
                if n > 2
                else ()
            )
            for n in range(length)
        ]
        samples.append((gates, _numbers(rng, 8, length)))
    return Dynamic(Circuit(size, prefix="circuit_"), samples)


def _numbers(rng: np.random.Generator, below: int, count: int) -> Any:
    return mx.nd.array(rng.integers(below, size=(1, count)), dtype="int32")


NETS: dict[str, Callable[[Size], Dynamic]] = {
    "two dependency trees": similarity,
    "binary trees": sentiment,
    "control flow by value": parser,
    "tagger with characters": tagger,
    "directed acyclic graphs": circuit,
}
