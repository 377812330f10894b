"""A language model as it was written before Gluon: unrolled LSTM cells in a BucketingModule.

    python examples/bucketing_lm.py                     # generated text
    python examples/bucketing_lm.py --text FILE --epochs 2

FILE is any text in UTF-8, a sentence a line, such as WikiText-2's. Sentences of one bucket of
lengths are a Symbol of their own, of as many steps, with the same weights. Of the model one line is
graphopt's; both modes train from the same weights, an epoch each in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from char_lstm import generate

import graphopt
from graphopt.cli.console import Table, say_json
from graphopt.cli.progress import progress
from graphopt.compat import import_mxnet

mx = import_mxnet()

BUCKETS = (10, 20, 30, 40, 60)
NOTHING, UNKNOWN = 0, 1  # numbers of what fills up a sentence, and of rare words


def sentences(text: str, most: int) -> tuple[list[list[int]], int]:
    """Sentences as numbers of words, and how many words there are; rare ones are one word."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    common = Counter(word for line in lines for word in line).most_common(most - 2)
    number = {word: at for at, (word, _) in enumerate(common, 2)}
    return [[number.get(word, UNKNOWN) for word in line] for line in lines], len(number) + 2


def language_model(words: int, units: int, layers: int = 2) -> Any:
    """What a ``BucketingModule`` asks for: the Symbol of a bucket."""

    def symbol(steps: int) -> tuple[Any, tuple[str, ...], tuple[str, ...]]:
        stack = mx.rnn.SequentialRNNCell()
        for layer in range(layers):
            stack.add(mx.rnn.LSTMCell(units, prefix=f"lstm{layer}_"))
        data = mx.sym.var("data")
        embedded = mx.sym.Embedding(data, input_dim=words, output_dim=units, name="embed")
        outputs, _ = stack.unroll(steps, inputs=embedded, merge_outputs=True)
        rows = mx.sym.reshape(outputs, shape=(-1, units))
        scores = mx.sym.FullyConnected(rows, num_hidden=words, name="scores")
        label = mx.sym.reshape(mx.sym.var("softmax_label"), shape=(-1,))
        return mx.sym.SoftmaxOutput(scores, label, name="softmax"), ("data",), ("softmax_label",)

    return symbol


def made(data: Any, words: int, options: argparse.Namespace, *, optimized: bool) -> Any:
    """A module, bound and with weights."""
    symbol = language_model(words, options.units)
    module = mx.mod.BucketingModule(symbol, default_bucket_key=data.default_bucket_key)
    if optimized:
        module = graphopt.optimize(module)
    module.bind(data.provide_data, data.provide_label)
    mx.random.seed(0)
    np.random.seed(0)  # which MXNet's initializers draw from
    module.init_params(mx.init.Xavier())
    module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.003})
    return module


def epoch(module: Any, batches: list[Any]) -> tuple[float, float]:
    """Seconds of an epoch, and its perplexity."""
    metric = mx.metric.Perplexity(ignore_label=NOTHING)
    start = time.perf_counter()
    for batch in batches:
        module.forward_backward(batch)
        module.update()
        module.update_metric(metric, batch.label)
    mx.nd.waitall()
    return time.perf_counter() - start, float(metric.get()[1])


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help="the text to learn")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--units", type=int, default=200, help="of a word and of each cell")
    parser.add_argument("--words", type=int, default=10_000, help="the most that are told apart")
    parser.add_argument("--samples", type=int, help="the most sentences")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8") if options.text else generate(2_000)
    lines, words = sentences(text, options.words)
    random.seed(0)  # which the iterator shuffles by
    lines = lines[: options.samples]
    with contextlib.redirect_stdout(sys.stderr):  # it tells how many sentences are too long
        data = mx.rnn.BucketSentenceIter(
            lines, options.batch_size, buckets=list(BUCKETS), invalid_label=NOTHING
        )
    modules = {
        mode: made(data, words, options, optimized=mode == "optimized")
        for mode in ("plain", "optimized")
    }
    runs: dict[str, Any] = {mode: {"seconds": [], "losses": []} for mode in modules}
    with progress(options.epochs * len(modules), "epochs") as advance:
        for _ in range(options.epochs):
            data.reset()
            batches = list(data)  # the same ones, as each reset shuffles them
            for mode, module in modules.items():
                seconds, perplexity = epoch(module, batches)
                runs[mode]["seconds"].append(seconds)
                runs[mode]["losses"].append(perplexity)
                advance(f"{mode}, perplexity {perplexity:.1f}")
    runs["optimized"]["explain"] = modules["optimized"].explain()
    if options.json:
        say_json({"runs": runs})
        return
    rows = []
    for mode, run in runs.items():
        first, *others = run["seconds"]
        usual = f"{statistics.median(others):.1f}" if others else "-"
        rows.append([mode, f"{first:.1f}", usual, f"{run['losses'][-1]:.1f}"])
    Table(["mode", ">first epoch, s", ">others, s (median)", ">perplexity"], rows).show()


if __name__ == "__main__":
    main()
