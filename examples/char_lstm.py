"""The next character of a text: one-hot characters, LSTM, dense, in plain MXNet and optimized.

    python examples/char_lstm.py                          # generated text
    python examples/char_lstm.py --text FILE --batch-size 32 --unrolled

FILE is any text in UTF-8, such as Nietzsche's Beyond Good and Evil; it is read in lower case. Of
every window of 40 characters, three characters after the one before, the next character is
learnt. The last tenth of the text is for the test. Without a file a text is generated, of made-up
words in made-up sentences.

How the modes are trained, and why each has a process of its own, is told in ``training.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from training import Task, gluon, initialized, last, parser, run, shortened

HIDDEN = 128
LENGTH = 40
STEP = 3


class CharacterNet(gluon.HybridBlock):
    """Scores ``(batch, characters)`` of what follows windows ``(batch, length)``."""

    def __init__(
        self,
        characters: int,
        hidden: int = HIDDEN,
        length: int = LENGTH,
        unrolled: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._characters, self._length, self._unrolled = characters, length, unrolled
        with self.name_scope():
            if unrolled:
                self.cell = gluon.rnn.LSTMCell(hidden, input_size=characters, prefix="lstm_")
            else:
                self.lstm = gluon.rnn.LSTM(hidden, input_size=characters, prefix="lstm_")
            self.score = gluon.nn.Dense(characters, in_units=hidden, prefix="score_")

    def hybrid_forward(self, F: Any, windows: Any) -> Any:
        steps = F.one_hot(F.transpose(windows), depth=self._characters)
        if self._unrolled:
            outputs, _ = self.cell.unroll(self._length, steps, layout="TNC", merge_outputs=False)
            return self.score(outputs[-1])
        return self.score(last(F, self.lstm(steps)))


def characters(
    count: int, hidden: int = HIDDEN, length: int = LENGTH, unrolled: bool = False
) -> dict[str, Any]:
    """The parts of the task that the data have no part in; ``count`` characters there are."""
    return {
        "net": initialized(CharacterNet(count, hidden, length, unrolled, prefix="characters_")),
        "loss": gluon.loss.SoftmaxCrossEntropyLoss(),
        "optimizer": "rmsprop",
        "settings": {"learning_rate": 0.01},
    }


def make_task(options: argparse.Namespace) -> Task:
    """The task that the command line asks for."""
    text = options.text.read_text(encoding="utf-8").lower() if options.text else generate()
    alphabet = sorted(set(text))
    number = {character: i for i, character in enumerate(alphabet)}
    numbers = np.array([number[character] for character in text], dtype="float32")
    parts = np.split(numbers, [len(numbers) * 9 // 10])
    train, test = (shortened(windows(part), options.samples or len(part)) for part in parts)
    return Task(
        **characters(len(alphabet), unrolled=options.unrolled),
        train=gluon.data.ArrayDataset(*train),
        test=gluon.data.ArrayDataset(*test),
        is_right=lambda scores, labels: scores.argmax(axis=1) == labels,
    )


def windows(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Windows of the text, and the character that follows each."""
    every = np.lib.stride_tricks.sliding_window_view(numbers, LENGTH + 1)[::STEP]
    return np.ascontiguousarray(every[:, :-1]), np.ascontiguousarray(every[:, -1])


def generate(sentences: int = 4_000, seed: int = 0) -> str:
    """Sentences of made-up words; only some words follow each word, so there is much to learn."""
    rng = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprstvwz" for b in "aeiou"]
    words = ["".join(rng.choice(syllables, size=rng.integers(1, 5))) for _ in range(200)]
    followers = rng.integers(len(words), size=(len(words), 4))
    text = []
    for _ in range(sentences):
        word = int(rng.integers(len(words)))
        sentence = [words[word]]
        for choice in rng.integers(4, size=rng.integers(4, 12)):
            word = int(followers[word, choice])
            sentence.append(words[word])
        text.append(" ".join(sentence) + str(rng.choice([".", "?", "!"], p=[0.8, 0.1, 0.1])))
    return "\n".join(text)


def main() -> None:
    """Train as the command line says."""
    options = parser(str(__doc__), batch_size=128)
    options.add_argument("--unrolled", action="store_true", help="an LSTMCell, step by step")
    options.add_argument("--text", type=Path, metavar="FILE", help="the text to learn")
    run(make_task, options.parse_args())


if __name__ == "__main__":
    main()
