"""Interleaved timing of nets in this process and peers in theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.demo.timing import Race, Timed, timed


def waiting(run: Callable[[], object]) -> Callable[[], None]:
    """A call that returns when all that it started in MXNet is done."""
    wait = import_mxnet().nd.waitall

    def call() -> None:
        run()
        wait()

    return call


def race(
    benchmark: Any, contenders: dict[str, Callable[[], object] | Timed], rounds: int, quick: bool
) -> dict[str, float]:
    """Median milliseconds of each, in turns; the first is what the benchmark fixture records.

    Peers are closed in the end.

    Args:
        benchmark: the fixture; it times one call of the first contender after every round.
        contenders: calls of MXNet in this process, or peers (which time themselves).
        rounds: how many rounds; one when quick.
        quick: run each once, time nothing; then the result is empty.
    """
    try:
        return _race(benchmark, contenders, rounds, quick)
    finally:
        for contender in contenders.values():
            if hasattr(contender, "times_itself"):
                contender.close()


def _race(
    benchmark: Any, contenders: dict[str, Callable[[], object] | Timed], rounds: int, quick: bool
) -> dict[str, float]:
    calls = {name: waiting(c) for name, c in contenders.items() if not hasattr(c, "times_itself")}
    first = calls[next(iter(contenders))]
    if quick:
        for call in calls.values():
            call()
        benchmark(first)
        return {}
    runs: dict[str, Timed] = {
        name: timed(calls[name]) if name in calls else contender  # type: ignore[misc]
        for name, contender in contenders.items()
    }
    turns = Race(runs)

    def setup() -> None:
        turns.round()
        first()  # brings caches back to the contender that is recorded

    benchmark.pedantic(first, setup=setup, rounds=rounds)
    return turns.medians()


def ratios(medians: dict[str, float], of: str = "graphopt") -> dict[str, float]:
    """How many times faster ``of`` is than each of the others."""
    return {name: ms / medians[of] for name, ms in medians.items() if name != of}


def figures(medians: dict[str, float]) -> dict[str, float]:
    """The medians with their unit."""
    return {f"{name} ms": ms for name, ms in medians.items()}
