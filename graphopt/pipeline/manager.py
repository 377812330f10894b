"""Run a pipeline: every pass timed, instrumented, receipted, and rolled back if it fails."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from graphopt.analysis.metrics import Meter, Metrics
from graphopt.errors import GraphoptError, PassError
from graphopt.ir.graph import Graph
from graphopt.ir.halves import why_left
from graphopt.ir.naming import Placeholders, renamed
from graphopt.ir.types import Shape
from graphopt.pipeline.base import Pass, PassContext, Settings, Target
from graphopt.pipeline.instruments import Instrument, Verify
from graphopt.pipeline.remarks import Remark

Status = Literal["changed", "unchanged", "refused", "rolled back"]


@dataclass(frozen=True)
class Receipt:
    """What one pass did to the graph.

    ``time_ms`` is the pass alone, ``check_ms`` the instruments after it. ``max_error`` is the
    largest absolute error against the original graph, where a numeric check ran. ``reason`` tells
    why a pass was refused or rolled back. ``shapes`` are those by which values were computed.
    """

    pass_text: str
    status: Status
    before: Metrics
    after: Metrics
    time_ms: float
    check_ms: float = 0.0
    max_error: float | None = None
    stats: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    shapes: frozenset[Shape] = frozenset()

    def as_dict(self) -> dict[str, object]:
        """A form for JSON."""
        return {
            "pass": self.pass_text,
            "status": self.status,
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
            "time_ms": round(self.time_ms, 3),
            "check_ms": round(self.check_ms, 3),
            "max_error": self.max_error,
            "stats": dict(self.stats),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Result:
    """The graph a pipeline made, with a receipt per pass and all remarks.

    ``is_remembered`` tells that an earlier process ran the passes.
    """

    graph: Graph
    receipts: tuple[Receipt, ...]
    remarks: tuple[Remark, ...]
    is_remembered: bool = False

    @property
    def graphs(self) -> tuple[Graph]:
        """The graph alone."""
        return (self.graph,)

    @property
    def is_whole(self) -> bool:
        """Whether no pass was rolled back."""
        return all(receipt.status != "rolled back" for receipt in self.receipts)

    @property
    def shapes(self) -> frozenset[Shape]:
        """Those for which alone the graph is right, though nothing else in it may tell."""
        return frozenset[Shape]().union(*(receipt.shapes for receipt in self.receipts))

    def named(self, names: Placeholders) -> Result:
        """The same with names for placeholders."""
        receipts = (replace(r, reason=names.text(r.reason)) for r in self.receipts)
        remarks = (
            replace(r, message=names.text(r.message), nodes=tuple(map(names.name, r.nodes)))
            for r in self.remarks
        )
        graph = renamed(self.graph, names.name)
        return replace(self, graph=graph, receipts=tuple(receipts), remarks=tuple(remarks))


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    settings: Settings | None = None,
    target: Target | None = None,
    instruments: Sequence[Instrument] = (),
) -> Result:
    """Run ``passes`` in order on a copy of ``graph``.

    A pass that raises, makes a malformed graph or is vetoed by an instrument is rolled back and its
    receipt says why; the others go on. The graph given is never written to.

    Raises:
        PassError: only with ``settings.strict``: the first pass that failed, with the passes before
            it and the pipeline that is left, chained from the cause.
        GraphError: the graph given is malformed.
    """
    settings = settings or Settings()
    with no_collections():
        return _run_all(graph, passes, settings, target, [Verify(), *instruments])


@contextmanager
def no_collections() -> Iterator[None]:
    """No search for garbage inside: graphs hold no cycles, and every search walks all of them."""
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()


def _run_all(
    graph: Graph,
    passes: Sequence[Pass],
    settings: Settings,
    target: Target | None,
    around: Sequence[Instrument],
) -> Result:
    cx = PassContext(settings, target)
    for instrument in around:
        instrument.before_pipeline(graph, cx)
    receipts: list[Receipt] = []
    remarks: list[Remark] = []
    meter = Meter(frozen=settings.frozen)
    size = meter.measure(graph)
    left = why_left(graph)
    for number, pass_ in enumerate(passes):
        cx = PassContext(settings, target, pass_.name)
        refusal = left or pass_.refusal(settings)
        if refusal is not None:
            cx.missed(refusal)
            new_graph = graph
            receipt = Receipt(str(pass_), "refused", size, size, 0.0, reason=refusal)
        else:
            new_graph, receipt = _run_one(pass_, graph, size, cx, around, meter)
        receipts.append(receipt)
        remarks.extend(cx.remarks)
        if receipt.status == "rolled back" and settings.strict:
            raise _failure(graph, passes, number, receipt) from cx.error
        graph, size = new_graph, receipt.after
    return Result(graph, tuple(receipts), tuple(remarks))


def _run_one(
    pass_: Pass,
    graph: Graph,
    size: Metrics,
    cx: PassContext,
    around: Sequence[Instrument],
    meter: Meter,
) -> tuple[Graph, Receipt]:
    start = time.perf_counter()
    given = graph.copy()
    try:
        made = pass_.run(given, cx)
        spent = time.perf_counter() - start
        if not isinstance(made, Graph):
            raise GraphoptError(f"it returned {made!r}, not a graph")
        if not given.is_unchanged_from(graph):
            raise GraphoptError("it wrote to the graph it was given")
        after = graph if made.is_unchanged_from(graph) else made
        for instrument in around:
            instrument.after_pass(pass_, graph, after, cx)
    except Exception as error:  # noqa: BLE001 - any failure of a pass is rolled back and reported
        return graph, _rolled_back(pass_, graph, size, cx, around, error, start)
    new_size = size if after is graph else meter.measure(after)
    error_found = [i.max_error for i in around if i.max_error is not None]
    receipt = Receipt(
        str(pass_),
        "unchanged" if after is graph else "changed",
        size,
        new_size,
        spent * 1e3,
        (time.perf_counter() - start - spent) * 1e3,
        max(error_found) if error_found else None,
        dict(cx.stats),
        shapes=frozenset(cx.shapes),
    )
    return after, receipt


def _rolled_back(
    pass_: Pass,
    graph: Graph,
    size: Metrics,
    cx: PassContext,
    around: Sequence[Instrument],
    error: Exception,
    start: float,
) -> Receipt:
    for instrument in around:
        instrument.after_failure(pass_, graph, error)
    reason = str(error) if isinstance(error, GraphoptError) else f"{type(error).__name__}: {error}"
    cx.remarks.clear()  # they speak of changes that were taken back
    cx.missed(f"rolled back: {reason.splitlines()[0] if reason else type(error).__name__}")
    cx.stats = Counter()
    cx.error = error
    spent = (time.perf_counter() - start) * 1e3
    return Receipt(str(pass_), "rolled back", size, size, spent, reason=reason)


def _failure(graph: Graph, passes: Sequence[Pass], number: int, receipt: Receipt) -> PassError:
    done = ", ".join(p.name for p in passes[:number]) or "nothing"
    rest = ",".join(str(p) for p in passes[number:])
    return PassError(
        f"{receipt.pass_text} failed on graph {graph.name!r} after [{done}]: {receipt.reason};"
        f" the pipeline from there is '{rest}'"
    )
