"""``graphopt inspect``: what each pass of a pipeline does to a graph, measured."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphopt.analysis.metrics import Metrics, measure
from graphopt.api.running import run as run_pipeline
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA
from graphopt.ir.types import dtype_name
from graphopt.pipeline.base import Mode, Pass, PassContext
from graphopt.pipeline.instruments import CheckNumerics, Instrument
from graphopt.pipeline.manager import Receipt, Result
from graphopt.pipeline.remarks import Remark

if TYPE_CHECKING:
    import numpy as np

#: Shortest span that one sample of a timing covers, in milliseconds.
_SAMPLE_MS = 5.0
#: How long the timing of one graph may take before fewer samples have to do, in seconds.
_LONG_S = 5.0


@dataclass(frozen=True)
class Row:
    """The graph after one pass; the first row is the graph as it was given.

    ``run_ms`` and ``original_ms`` are medians of calls of this graph and of the original, made in
    turns, so that a machine that slows down slows both; ``speed_up`` is their ratio. They are
    ``None`` where the pass changed nothing or nothing was run, as is ``max_error``, the largest
    absolute error of an output (in training mode also of a gradient) against the original.
    """

    name: str
    status: str
    metrics: Metrics
    pass_ms: float = 0.0
    check_ms: float = 0.0
    run_ms: float | None = None
    original_ms: float | None = None
    engine: str = ""
    max_error: float | None = None
    reason: str = ""
    stats: Mapping[str, int] = field(default_factory=dict)

    @property
    def speed_up(self) -> float | None:
        """How many times faster than the original."""
        return self.original_ms / self.run_ms if self.run_ms and self.original_ms else None

    def as_dict(self) -> dict[str, object]:
        """A form for JSON."""
        found: dict[str, object] = asdict(self)
        del found["metrics"]
        return found | self.metrics.as_dict() | {"speed_up": self.speed_up}


@dataclass(frozen=True)
class Step:
    """One pass of a pipeline: its receipt, its remarks, and the graph before and after it."""

    receipt: Receipt
    before: Graph
    after: Graph
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """All rows, the one that sums them up, the steps between them, and the pipeline's result."""

    rows: tuple[Row, ...]
    total: Row
    steps: tuple[Step, ...]
    result: Result


@dataclass
class Snapshots(Instrument):
    """Keeps what every pass made; has to stand last in the list of instruments.

    Args:
        step: told the name of each pass when it is through.
    """

    step: Callable[[str], object] = field(default=lambda _: None)
    kept: list[tuple[Graph, tuple[Remark, ...]]] = field(default_factory=list)

    def after_pass(self, pass_: Pass, before: Graph, after: Graph, cx: PassContext) -> None:
        """Keep the graph."""
        self.kept.append((after, tuple(cx.remarks)))
        self.step(pass_.name)

    def after_failure(self, pass_: Pass, before: Graph, error: Exception) -> None:
        """Keep the graph the pass was given."""
        self.kept.append((before, ()))
        self.step(pass_.name)

    def steps(self, original: Graph, receipts: tuple[Receipt, ...]) -> list[Step]:
        """One step per receipt of the run."""
        kept = iter(self.kept)
        steps: list[Step] = []
        current = original
        for receipt in receipts:
            # No instrument hears of a pass that was refused.
            after, remarks = (current, ()) if receipt.status == "refused" else next(kept)
            steps.append(Step(receipt, current, after, remarks))
            current = after
        return steps


def inspect(
    graph: Graph,
    pipeline: str | tuple[Pass, ...] = "default",
    *,
    mode: Mode = "inference",
    frozen: bool | None = None,
    feeds: Mapping[str, np.ndarray[Any, Any]] | None = None,
    run: bool = True,
    seconds: float = 1.0,
    step: Callable[[str], object] = lambda _: None,
) -> Inspection:
    """Run a pipeline, and the graph after every pass that changed it.

    Args:
        graph: with static types, unless ``run`` is false.
        pipeline: text, a pipeline's name, or passes.
        mode: what has to stay the same; in training mode a run is forward and backward.
        frozen: whether parameters never change; default: in inference, yes.
        feeds: values by input name, parameters included; drawn at random where absent.
        run: whether to run graphs, for times and errors.
        seconds: how long to time each graph beside the original.
        step: told what was done, twice a pass.

    Raises:
        InputError: an input has no static type, or a value does not fit.
        GraphoptError: MXNet cannot run the graph.
    """
    values: dict[str, np.ndarray[Any, Any]] = {}
    if run:
        from graphopt.backend.calibrate import calibrated_feeds

        values = {**calibrated_feeds(graph), **(feeds or {})}
    snapshots = Snapshots(step)
    checks: list[Instrument] = [CheckNumerics(values)] if run else []
    frozen = mode == "inference" if frozen is None else frozen
    around = [*checks, snapshots]
    result = run_pipeline(graph, pipeline, mode=mode, frozen=frozen, instruments=around)
    race = Race(graph, values, training=mode == "training", seconds=seconds) if run else None
    size = measure(graph, frozen=frozen)
    rows = [_row("(as lifted)", "", size, race.time(graph) if race else None)]
    steps = snapshots.steps(graph, result.receipts)
    for made in steps:
        receipt = made.receipt
        timed = race.time(made.after) if race and receipt.status == "changed" else None
        rows.append(_row(receipt.pass_text, receipt.status, receipt.after, timed, receipt))
        step(f"timed after {receipt.pass_text}")
    return Inspection(tuple(rows), _total(rows), tuple(steps), result)


@dataclass(frozen=True)
class Timed:
    """Median times of a graph and of the original, in milliseconds, and the graph's engine."""

    run_ms: float
    original_ms: float
    engine: str


class Race:
    """Times graphs beside the original one, call by call in turns."""

    def __init__(
        self,
        original: Graph,
        feeds: Mapping[str, np.ndarray[Any, Any]],
        *,
        training: bool = False,
        seconds: float = 1.0,
    ) -> None:
        """Lower the original; ``feeds`` has a value for every input that is read."""
        from graphopt.compat import import_mxnet

        mx = import_mxnet()
        self._arrays = {n: mx.nd.array(a, dtype=a.dtype) for n, a in feeds.items()}
        self._training, self._seconds = training, seconds
        self._original = original
        self._first = self._lower(original)
        self._lowered = (original, self._first)

    def time(self, graph: Graph) -> Timed:
        """Time a graph with the original's inputs."""
        if self._lowered[0] is not graph:
            self._lowered = graph, self._lower(graph)
        current = self._lowered[1]
        if current is self._first:
            took = _medians([self._first], self._seconds / 2)[0]
            return Timed(took, took, current.engine)
        run_ms, original_ms = _medians([current, self._first], self._seconds)
        return Timed(run_ms, original_ms, current.engine)

    def _lower(self, graph: Graph) -> _Runner:
        return _Runner(graph, self._arrays, training=self._training)


class _Runner:
    """A lowered graph with its inputs; a call runs it once and waits for the results.

    In training a call is forward and backward, but forward alone where all inputs are integers.
    """

    def __init__(self, graph: Graph, arrays: Mapping[str, Any], *, training: bool) -> None:
        from graphopt.api.lowering import lower

        roles = {node.name: node.op for node in graph.inputs if node.name in arrays}
        params = {name: arrays[name] for name, role in roles.items() if role != DATA}
        self._data = {name: arrays[name] for name, role in roles.items() if role == DATA}
        # Of a graph without parameters, the gradients of data are what training may compute.
        self._learned = (_of_floats(params) or _of_floats(self._data)) if training else []
        for array in self._learned:
            array.attach_grad()
        self._training = training
        self._call = lower(graph, params, training=training)
        self()
        self.engine = self._call.choice.engine

    def __call__(self) -> None:
        from graphopt.compat import import_mxnet

        mx = import_mxnet()
        if self._training:
            with mx.autograd.record():
                outputs = self._call(**self._data)
            if self._learned:
                mx.autograd.backward(outputs)
        else:
            outputs = self._call(**self._data)
        for output in outputs:
            output.wait_to_read()
        if self._training:
            mx.nd.waitall()


def _of_floats(arrays: Mapping[str, Any]) -> list[Any]:
    return [array for array in arrays.values() if dtype_name(array.dtype).startswith("float")]


def _medians(runners: list[_Runner], seconds: float) -> list[float]:
    """Median milliseconds of a call of each, sampled in turns.

    As many samples as the time allows: at least three, and five unless that takes very long.
    """
    quickest = [min(_sample(runner, 1) for _ in range(3)) for runner in runners]
    repeats = [max(1, math.ceil(_SAMPLE_MS / max(took, 1e-3))) for took in quickest]
    samples: list[list[float]] = [[] for _ in runners]
    start = time.perf_counter()
    while (taken := len(samples[0])) < 50:
        spent = time.perf_counter() - start
        if taken >= 3 and spent > seconds and (taken >= 5 or spent > _LONG_S):
            break
        for found, runner, repeat in zip(samples, runners, repeats, strict=True):
            found.append(_sample(runner, repeat))
    return [statistics.median(found) for found in samples]


def _sample(runner: _Runner, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        runner()
    return (time.perf_counter() - start) * 1e3 / repeat


def _row(
    name: str,
    status: str,
    metrics: Metrics,
    timed: Timed | None,
    receipt: Receipt | None = None,
) -> Row:
    changed = receipt is not None and receipt.status == "changed"
    return Row(
        name,
        status,
        metrics,
        receipt.time_ms if receipt else 0.0,
        receipt.check_ms if receipt else 0.0,
        timed.run_ms if timed else None,
        timed.original_ms if timed else None,
        timed.engine if timed else "",
        receipt.max_error if receipt and changed else None,
        receipt.reason if receipt else "",
        receipt.stats if receipt else {},
    )


def _total(rows: list[Row]) -> Row:
    """The graph all passes made: that of the last one which changed something."""
    changed = [row for row in rows if row.status == "changed"]
    last = changed[-1] if changed else rows[0]
    return replace(
        last,
        name="(total)",
        status=f"{len(changed)} of {len(rows) - 1}",
        pass_ms=sum(row.pass_ms for row in rows),
        check_ms=sum(row.check_ms for row in rows),
        stats={},
    )
