"""What the examples share: nets trained plain and optimized, epoch by epoch, and a report.

An example brings its data, its net and its options; :func:`run` does the rest. Each mode trains in
a process of its own and starts with the same weights; with ``--mode both`` the two take turns, an
epoch each, so that a machine that slows down slows both.

The processes are there for the peak memory. The system knows one peak of each process, and it never
goes down; besides, MXNet keeps what it has allocated for arrays to come. In one process, the mode
that comes second would use what the first one left and show the peak of both.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import graphopt
from graphopt.cli.console import Table, say, say_json
from graphopt.cli.progress import progress
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon = mx.gluon

#: Shown below the options.
WHY_PROCESSES = (
    "Each mode trains in a process of its own. The system knows one peak of memory of each process,"
    " which never goes down: in one process, the second mode would show the peak of both."
)


# --- What is trained ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Task:
    """What it takes to train: a new net and its loss, an optimizer, data, and what is right.

    ``is_right`` tells from the scores and the labels of a batch which samples came out right.
    """

    net: Any
    loss: Any
    optimizer: str
    settings: dict[str, float]
    train: Any
    test: Any
    is_right: Callable[[np.ndarray, np.ndarray], np.ndarray]


def initialized(net: Any, seed: int = 0) -> Any:
    """The net with random weights that depend on the seed only."""
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())
    return net


def shortened(arrays: Sequence[np.ndarray], samples: int) -> list[np.ndarray]:
    """The first samples."""
    return [array[:samples] for array in arrays]


def last(F: Any, states: Any) -> Any:
    """The last step of states with steps first.

    This is not ``SequenceLast``, whose backward in MXNet 1.9.1 writes outside of its arrays.
    """
    return F.squeeze(F.slice_axis(states, axis=0, begin=-1, end=None), axis=0)


# --- Training in one mode ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Epoch:
    """How one epoch went; losses and parts are means over its samples."""

    seconds: float
    first_batch_s: float
    batch_ms: float
    loss: float
    accuracy: float
    test_accuracy: float


class Training:
    """A task in one mode: the net is optimized, or hybridized as a careful user does it."""

    def __init__(self, task: Task, mode: str, batch_size: int, workers: int = 0) -> None:
        self.task = task
        self.mode = mode
        self.batch_size = batch_size
        self.workers = workers
        self.loaders: dict[str, Any] = {}
        self.net = task.net
        if mode == "optimized":
            self.net = graphopt.optimize(task.net)
        else:
            self.net.hybridize(static_alloc=True, static_shape=True)
        self.loss = task.loss
        self.loss.hybridize(static_alloc=True, static_shape=True)
        parameters = self.net.collect_params()
        self.trainer = gluon.Trainer(parameters, task.optimizer, dict(task.settings))
        if mode == "optimized":
            self.trainer = graphopt.optimize(self.trainer)

    def step(self, data: Any, labels: Any) -> tuple[Any, Any]:
        """Learn from a batch; returns scores and losses, which may be on their way still."""
        with mx.autograd.record():
            scores = self.net(data)
            loss = self.loss(scores, labels)
        loss.backward()
        self.trainer.step(len(labels))
        return scores, loss

    def epoch(self, number: int) -> Epoch:
        """Learn from all data, then test."""
        np.random.seed(number)  # the order of samples is the same in every mode
        loader = self._loader("train")
        losses: list[float] = []
        right: list[float] = []
        ends = [time.perf_counter()]
        for scores, labels, loss in _one_behind(self._steps(loader, f"epoch {number}")):
            losses.append(float(loss.mean().asscalar()))
            right.append(self._right(scores, labels))
            ends.append(time.perf_counter())
        batches = np.diff(ends)
        return Epoch(
            seconds=float(ends[-1] - ends[0]),
            first_batch_s=float(batches[0]),
            # The first one of an epoch waits for data, and in the first epoch for a compiler.
            batch_ms=1e3 * statistics.median(batches[1:] if len(batches) > 1 else batches),
            loss=statistics.fmean(losses),
            accuracy=statistics.fmean(right),
            test_accuracy=self.test(),
        )

    def test(self) -> float:
        """The part of the test data that comes out right."""
        loader = self._loader("test")
        with progress(len(loader), f"{self.mode}, test") as step:
            right = []
            for data, labels in _here(loader):
                right.append(self._right(self.net(data), labels))
                step("")
        return statistics.fmean(right)

    def _steps(self, loader: Any, what: str) -> Iterator[tuple[Any, Any, Any]]:
        with progress(len(loader), f"{self.mode}, {what}") as step:
            for number, (data, labels) in enumerate(_here(loader), start=1):
                scores, loss = self.step(data, labels)
                yield scores, labels, loss
                step(f"batch {number} of {len(loader)}")

    def _right(self, scores: Any, labels: Any) -> float:
        return float(self.task.is_right(scores.asnumpy(), labels.asnumpy()).mean())

    def _loader(self, part: str) -> Any:
        """The batches of ``train`` or ``test``, always by the same workers."""
        if part not in self.loaders:
            data = getattr(self.task, part)
            if len(data) < self.batch_size:
                raise SystemExit(
                    f"a batch takes {self.batch_size} samples and there are {len(data)} to {part}:"
                    " choose a smaller --batch-size or more --samples"
                )
            self.loaders[part] = gluon.data.DataLoader(
                data,
                self.batch_size,
                shuffle=part == "train",
                last_batch="discard",  # a batch of another size would be compiled for
                num_workers=self.workers,
            )
        return self.loaders[part]


def _here(loader: Any) -> Iterator[list[Any]]:
    """The batches, in memory that a hybridized net takes: workers leave them in shared memory."""
    for arrays in loader:
        yield [array.as_in_context(mx.cpu()) for array in arrays]


def _one_behind(items: Iterator[Any]) -> Iterator[Any]:
    """The items, each when the next one is made.

    So MXNet has a batch to work on while the results of the batch before are read.
    """
    before = next(items)
    for item in items:
        yield before
        before = item
    yield before


# --- Both modes, each in its process -----------------------------------------------------------


def run(make: Callable[[argparse.Namespace], Task], options: argparse.Namespace) -> None:
    """Train in the modes asked for, and print what came out.

    Args:
        make: makes the task, in another process: a function of a module.
        options: those of :func:`parser`, and what ``make`` needs.
    """
    # As many threads for both; MXNet reads this in the processes started here.
    os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
    modes = ["plain", "optimized"] if options.mode == "both" else [options.mode]
    workplaces = {mode: Workplace(make, options, mode) for mode in modes}
    epochs: dict[str, list[Epoch]] = {mode: [] for mode in modes}
    for number in range(1, options.epochs + 1):
        for mode in modes:
            found = workplaces[mode].ask(number)
            epochs[mode].append(found)
            if not options.json:
                say(_line(mode, number, found))
    ends = {mode: workplace.ask(None) for mode, workplace in workplaces.items()}
    runs = {mode: summary(epochs[mode]) | ends[mode] for mode in modes}
    if options.json:
        settings = {name: str(value) for name, value in vars(options).items() if value}
        say_json({"options": settings, "runs": runs})
    else:
        show(runs)


class Workplace:
    """A process that trains in one mode."""

    def __init__(
        self, make: Callable[[argparse.Namespace], Task], options: argparse.Namespace, mode: str
    ) -> None:
        # A fork would have MXNet's memory and none of its threads.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(make, options, mode, theirs))
        self._process.start()
        theirs.close()  # now the end of the process is the end of the pipe

    def ask(self, epoch: int | None) -> Any:
        """The epoch of this number; with None the end: what there is to say of all epochs."""
        try:
            self._pipe.send(epoch)
            found = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            self._process.join()
            sys.exit(self._process.exitcode or 1)  # the process has said why
        if epoch is None:
            self._process.join()
        return found


def _work(
    make: Callable[[argparse.Namespace], Task], options: argparse.Namespace, mode: str, pipe: Any
) -> None:
    try:
        training = Training(make(options), mode, options.batch_size, options.workers)
        for number in iter(pipe.recv, None):
            pipe.send(training.epoch(number))
    except EOFError:
        return  # the other mode has failed
    explained = training.net.explain() if mode == "optimized" else ""
    # Kilobytes on Linux; without the workers of the DataLoader.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    pipe.send({"peak_mb": peak, "explain": explained})


def summary(epochs: Sequence[Epoch]) -> dict[str, Any]:
    """What is worth knowing of all epochs."""
    later = epochs[1:] or epochs  # compiling and measuring belong to the first one
    return {
        "first_batch_s": epochs[0].first_batch_s,
        "first_epoch_s": epochs[0].seconds,
        "epoch_s": statistics.median(epoch.seconds for epoch in later),
        "batch_ms": statistics.median(epoch.batch_ms for epoch in later),
        "losses": [epoch.loss for epoch in epochs],
        "loss": epochs[-1].loss,
        "accuracy": epochs[-1].accuracy,
        "test_accuracy": epochs[-1].test_accuracy,
    }


def _line(mode: str, number: int, epoch: Epoch) -> str:
    return (
        f"{mode + ',':<11}epoch {number}: {epoch.seconds:.1f} s, loss {epoch.loss:.4f}, "
        f"accuracy {epoch.accuracy:.3f}, in the test {epoch.test_accuracy:.3f}"
    )


#: Columns of the table: their titles, and how their values are written.
COLUMNS = {
    "first_batch_s": (">first batch s", "{:.2f}"),
    "first_epoch_s": (">first epoch s", "{:.1f}"),
    "epoch_s": (">epoch s", "{:.1f}"),
    "batch_ms": (">batch ms", "{:.1f}"),
    "loss": (">loss", "{:.4f}"),
    "accuracy": (">accuracy", "{:.3f}"),
    "test_accuracy": (">in the test", "{:.3f}"),
    "peak_mb": (">peak MB", "{:.0f}"),
}


def show(runs: dict[str, dict[str, Any]]) -> None:
    """Print a table, and how many times faster the optimized net is."""
    rows = [
        [mode, *(form.format(found[name]) for name, (_, form) in COLUMNS.items())]
        for mode, found in runs.items()
    ]
    say()
    Table(["", *(title for title, _ in COLUMNS.values())], rows).show()
    if len(runs) == 2:
        plain, optimized = runs["plain"], runs["optimized"]
        say(f"optimized is {plain['batch_ms'] / optimized['batch_ms']:.2f}x as fast, by the batch")


def parser(about: str, batch_size: int) -> argparse.ArgumentParser:
    """The options of every example; ``about`` begins with a line that says what it does."""
    found = argparse.ArgumentParser(
        description=about.splitlines()[0],
        epilog=WHY_PROCESSES,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = found.add_argument
    add("--mode", choices=["plain", "optimized", "both"], default="both", help="what to train")
    add("--batch-size", type=_positive, default=batch_size, help="samples in a batch")
    add("--epochs", type=_positive, default=3, help="times to go through the data")
    add("--samples", type=_positive, help="at most so many samples for training, and for the test")
    add("--workers", type=int, choices=range(3), default=0, help="processes that load data")
    add("--json", action="store_true", help="write one JSON document instead of text")
    return found


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
