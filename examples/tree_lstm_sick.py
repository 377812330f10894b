"""How much two sentences mean the same: a Tree-LSTM learns it, all trees of a batch at a time.

    python examples/tree_lstm_sick.py                     # generated sentences
    python examples/tree_lstm_sick.py --data DIR          # SICK, see sick.py
    python examples/tree_lstm_sick.py --recursive         # batched by graphopt.batch
    python examples/tree_lstm_sick.py --one-by-one --limit 500

There are two nets in ``tree_lstm.py`` which compute the same. One is vectorised: trees are an array
of parents, and a layer of graphopt goes through all of them at once. The other one walks Python
objects and calls itself. As it stands it takes one pair after the other, which ``--one-by-one``
shows; ``--recursive`` gives the same unmodified net to ``graphopt.batch``.

After each epoch you see Pearson's r between the scores of people and those of the net, on pairs it
has not learned from. In the end the net's weights are put into the recursive one, and some pairs
are scored one by one, to show that the scores are the same and how long that takes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sick import Pair, batch_of, generate, load_pairs, scores_of, targets_of
from training import gluon, initialized, mx
from tree_lstm import PerSample, Size, Vectorised, arrays_of, sample_of, set_weights, weights_of

import graphopt
from graphopt.cli.console import say, say_json
from graphopt.cli.progress import progress

#: Pairs to learn from and to test with, where they are generated.
GENERATED = 4500, 500

#: Fewer than SICK has: each word of these has to be learned, and is like no other.
GENERATED_WORDS = 200

#: Pairs that are scored one by one in the end.
COMPARED = 64

#: Of pairs, their five scores each, before the softmax.
Scorer = Callable[[Sequence[Pair]], Any]


class Model:
    """A net and the way it is called: ``vectorised``, ``recursive`` or ``one by one``."""

    def __init__(self, way: str, size: Size) -> None:
        self.way = way
        kind = Vectorised if way == "vectorised" else PerSample
        self.net = initialized(kind(size, prefix="similarity_"))
        self.net.hybridize()
        self.score = self._scorer()

    def predict(self, pairs: Sequence[Pair], batch_size: int) -> np.ndarray:
        """The scores, from 1 to 5."""
        found = []
        with progress(len(pairs), f"{self.way}, test") as step:
            for batch in batches(pairs, batch_size):
                found.append(scores_of(mx.nd.softmax(self.score(batch)).asnumpy()))
                for _ in batch:
                    step("")
        return np.concatenate(found)

    def _scorer(self) -> Scorer:
        net = self.net
        if self.way == "vectorised":
            return lambda pairs: net(*arrays_of(batch_of(pairs)))
        if self.way == "recursive":
            batched = graphopt.batch(net)
            return lambda pairs: batched([sample_of(pair) for pair in pairs])
        return lambda pairs: mx.nd.concat(*(net(*sample_of(pair)) for pair in pairs), dim=0)


def batches(pairs: Sequence[Pair], size: int) -> list[Sequence[Pair]]:
    """All pairs; the last batch may have fewer."""
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]


def train(
    model: Model, pairs: list[Pair], test: list[Pair], options: argparse.Namespace
) -> list[dict[str, float]]:
    """Learn, and tell after each epoch how it went."""
    rng = np.random.default_rng(0)  # the order is the same whichever way
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
    trainer = gluon.Trainer(model.net.collect_params(), "adagrad", {"learning_rate": 0.05})
    if model.way != "one by one":
        trainer = graphopt.optimize(trainer)
    epochs = []
    for number in range(1, options.epochs + 1):
        order = [pairs[place] for place in rng.permutation(len(pairs))]
        start, total = time.perf_counter(), 0.0
        parts = batches(order, options.batch_size)
        with progress(len(parts), f"{model.way}, epoch {number}") as step:
            for done, batch in enumerate(parts, start=1):
                targets = mx.nd.array(targets_of([pair.score for pair in batch]))
                with mx.autograd.record():
                    losses = loss_of(model.score(batch), targets)
                losses.backward()
                trainer.step(len(batch))
                total += float(losses.sum().asscalar())
                step(f"batch {done} of {len(parts)}")
        seconds = time.perf_counter() - start
        found = {
            "seconds": seconds,
            "pairs_per_s": len(pairs) / seconds,
            "loss": total / len(pairs),
            "pearson": pearson(model.predict(test, options.batch_size), test),
        }
        epochs.append(found)
        if not options.json:
            say(
                f"epoch {number}: {seconds:.1f} s, {found['pairs_per_s']:.0f} pairs/s,"
                f" loss {found['loss']:.4f}, r on dev {found['pearson']:.3f}"
            )
    return epochs


def pearson(scores: np.ndarray, pairs: Sequence[Pair]) -> float:
    """Correlation with the scores of people."""
    return float(np.corrcoef(scores, [pair.score for pair in pairs])[0, 1])


def compare(model: Model, pairs: Sequence[Pair], size: Size) -> dict[str, float]:
    """The model and the net that goes one by one, on the same pairs with the same weights."""
    plain = Model("one by one", size)
    set_weights(plain.net, weights_of(model.net))
    scores, speeds = [], []
    for contender in (model, plain):
        contender.predict(pairs, len(pairs))  # compiles, where something is to be compiled
        start = time.perf_counter()
        scores.append(contender.predict(pairs, len(pairs)))
        speeds.append(len(pairs) / (time.perf_counter() - start))
    return {
        "pairs_per_s": speeds[0],
        "one_by_one_pairs_per_s": speeds[1],
        "largest_difference": float(np.abs(scores[0] - scores[1]).max()),
    }


def load(options: argparse.Namespace) -> tuple[list[Pair], list[Pair], int]:
    """Pairs to learn from, pairs to test with, and how many words there are."""
    if options.data:
        (pairs, words), (test, _) = (load_pairs(options.data, part) for part in ("train", "dev"))
    else:
        words = GENERATED_WORDS
        pairs, test = (generate(count, seed, words) for seed, count in enumerate(GENERATED))
    return pairs[: options.limit], test[: options.limit], words


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(
        description=str(__doc__).splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = found.add_argument
    ways = found.add_mutually_exclusive_group()
    ways.add_argument(
        "--recursive", action="store_true", help="the recursive net, batched by graphopt.batch"
    )
    ways.add_argument("--one-by-one", action="store_true", help="the recursive net as it is")
    add("--batch-size", type=_positive, default=32, help="pairs in a batch")
    add("--epochs", type=_positive, default=5, help="times to go through the data")
    add("--limit", type=_positive, help="at most so many pairs for training, and for the test")
    add("--data", type=Path, metavar="DIR", help="folder with SICK")
    add("--json", action="store_true", help="write one JSON document instead of text")
    return found


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def main() -> None:
    """Train as the command line says."""
    options = parser().parse_args()
    pairs, test, words = load(options)
    size = Size(words)
    way = "recursive" if options.recursive else "vectorised"
    model = Model("one by one" if options.one_by_one else way, size)
    epochs = train(model, pairs, test, options)
    compared = {} if options.one_by_one else compare(model, test[:COMPARED], size)
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items() if value}
        say_json({"options": settings, "way": model.way, "epochs": epochs, "compared": compared})
    elif compared:
        ours, plain, apart = compared.values()
        say(
            f"{model.way}: {ours:.0f} pairs/s; one by one: {plain:.0f} pairs/s,"
            f" which takes {ours / plain:.1f}x as long; scores differ by {apart:.1e}"
        )


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    main()
