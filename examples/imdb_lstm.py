"""Sentiment of film reviews: embedding, LSTM, dense, trained in plain MXNet and optimized.

    python examples/imdb_lstm.py                          # generated reviews
    python examples/imdb_lstm.py --data DIR --batch-size 1024 --sparse

DIR holds ``imdb_seq_top20k.npz`` with the reviews of ``train`` and of ``test``: ``train_x``, the
words of all reviews one after the other as numbers below 20,000; ``train_off``, where each review
begins, and at the end their total length; ``train_y``, 1 where a review is favourable; and the same
for ``test``. Without it reviews are generated: some words are used more often by those who liked a
film, others by those who did not, and these words decide.

How the modes are trained, and why each has a process of its own, is told in ``training.py``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from training import Task, gluon, initialized, last, parser, run, shortened

WORDS = 20_000
WIDTH = 128
LENGTH = 80

#: Number of the blanks in front of a review that is too short.
BLANK = 0
#: Words that one side uses more than the other, in generated reviews.
OPINIONS = {0: range(100, 150), 1: range(150, 200)}


class SentimentNet(gluon.HybridBlock):
    """Scores ``(batch, 1)`` of reviews ``(batch, words)``; positive ones are favourable."""

    def __init__(
        self, words: int = WORDS, width: int = WIDTH, sparse: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.embed = gluon.nn.Embedding(words, width, sparse_grad=sparse, prefix="embed_")
            self.lstm = gluon.rnn.LSTM(width, input_size=width, prefix="lstm_")
            self.score = gluon.nn.Dense(1, in_units=width, prefix="score_")

    def hybrid_forward(self, F: Any, reviews: Any) -> Any:
        # MXNet's LSTM takes steps first; turning the numbers round is cheaper than their vectors.
        states = self.lstm(self.embed(F.transpose(reviews)))
        return self.score(last(F, states))


def sentiment(sparse: bool = False, words: int = WORDS, width: int = WIDTH) -> dict[str, Any]:
    """The parts of the task that the data have no part in."""
    return {
        "net": initialized(SentimentNet(words, width, sparse, prefix="sentiment_")),
        "loss": gluon.loss.SigmoidBinaryCrossEntropyLoss(),
        "optimizer": "adam",
        "settings": {"learning_rate": 0.001},
    }


def make_task(options: argparse.Namespace) -> Task:
    """The task that the command line asks for."""
    train, test = load(options.data) if options.data else (generate(20_000, 0), generate(5_000, 1))
    if options.samples:
        train, test = shortened(train, options.samples), shortened(test, options.samples)
    return Task(
        **sentiment(options.sparse),
        train=gluon.data.ArrayDataset(*train),
        test=gluon.data.ArrayDataset(*test),
        is_right=lambda scores, labels: (scores[:, 0] > 0) == (labels > 0.5),
    )


def load(folder: Path) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test data: the last words of every review, and labels."""
    with np.load(folder / "imdb_seq_top20k.npz") as arrays:
        train, test = (
            (last_words(arrays[f"{part}_x"], arrays[f"{part}_off"]), arrays[f"{part}_y"])
            for part in ("train", "test")
        )
    return (train[0], np.float32(train[1])), (test[0], np.float32(test[1]))


def last_words(words: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """One row a review: as many of its last words as a row takes, blanks in front."""
    rows = np.full((len(offsets) - 1, LENGTH), BLANK, dtype="float32")
    for row, begin, end in zip(rows, offsets[:-1], offsets[1:], strict=True):
        kept = words[max(begin, end - LENGTH) : end]
        row[LENGTH - len(kept) :] = kept
    return rows


def generate(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Reviews of 40 to 120 words, one in eight of them an opinion, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(2, size=count)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(40, 120, size=count))])
    # As in any language, few words make up most of a text.
    words = 200 + (WORDS - 200) * rng.random(offsets[-1]) ** 4
    side = np.repeat(labels, np.diff(offsets))
    side ^= rng.random(len(side)) < 0.2  # who liked a film complains about something too
    starts = np.array([OPINIONS[0].start, OPINIONS[1].start])
    opinions = starts[side] + rng.integers(len(OPINIONS[0]), size=len(side))
    words = np.where(rng.random(len(side)) < 1 / 8, opinions, words.astype(int))
    return last_words(words, offsets), labels.astype("float32")


def main() -> None:
    """Train as the command line says."""
    options = parser(str(__doc__), batch_size=256)
    options.add_argument("--sparse", action="store_true", help="row-sparse embedding gradients")
    options.add_argument("--data", type=Path, metavar="DIR", help="folder with the reviews")
    run(make_task, options.parse_args())


if __name__ == "__main__":
    main()
