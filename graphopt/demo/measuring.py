"""One line of the demo's table: an example in plain MXNet and optimized, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import graphopt
from graphopt.compat import import_mxnet
from graphopt.demo.checking import Arrays, infer, jumps, relative_error, train, train_step
from graphopt.demo.models import Example
from graphopt.demo.timing import Race, timed

Mode = Literal["inference", "training"]

#: Largest error, relative to the largest value, that float32 arithmetic in another order explains.
TOLERANCE = 1e-3

#: A ratio below this is called no speed-up.
FASTER = 1.05


@dataclass(frozen=True)
class Row:
    """What was measured; ``reasons`` tell why a net did not become faster.

    ``jump`` is how far plain MXNet's gradients jump when rounding changes the sign of what a ReLU
    reads, where that had to be asked.
    """

    name: str
    mode: Mode
    plain_ms: float
    optimized_ms: float
    max_error: float
    reasons: tuple[str, ...] = field(default=())
    jump: float = 0.0

    @property
    def speed_up(self) -> float:
        """How many times faster than plain MXNet."""
        return self.plain_ms / self.optimized_ms

    @property
    def is_right(self) -> bool:
        """Whether outputs (and gradients) are those of plain MXNet."""
        return self.max_error <= max(TOLERANCE, self.jump)

    def as_dict(self) -> dict[str, object]:
        """A form for JSON."""
        return asdict(self) | {"speed_up": self.speed_up, "is_right": self.is_right}


def measure(example: Example, mode: Mode, *, seconds: float) -> Row:
    """Check and time one example for ``mode``."""
    net = _optimized(example, mode)
    values = infer if mode == "inference" else train
    plain = example.as_plain()
    expected, found = values(example, plain), values(example, net)
    error = relative_error(expected, found)
    jump = _jump(example, plain, expected, found) if mode == "training" else 0.0
    _settle(example, net, mode)
    contenders = {"plain": plain, "graphopt": net}
    race = Race({key: timed(_runner(example, each, mode)) for key, each in contenders.items()})
    medians = race.run(seconds)
    row = Row(example.name, mode, medians["plain"], medians["graphopt"], error, jump=jump)
    return row if row.speed_up >= FASTER else replace(row, reasons=reasons(net))


def _settle(example: Example, net: Any, mode: Mode, most: int = 100) -> None:
    """Call it until its first calls, which tell how it is best run, are over."""
    run = _runner(example, net, mode)
    for _ in range(most):
        if not getattr(net, "on_trial", False):
            return
        run()


def _jump(example: Example, plain: Any, expected: Arrays, found: Arrays) -> float:
    """How far gradients may be off, if they are and nothing else is."""
    names = [name for name in expected if not name.startswith("gradient:")]
    others = relative_error({n: expected[n] for n in names}, {n: found[n] for n in names})
    if others > TOLERANCE or relative_error(expected, found) <= TOLERANCE:
        return 0.0
    return jumps(example, plain, expected)


def _optimized(example: Example, mode: Mode) -> Any:
    """The net as a user would have it: samples that come one by one are batched."""
    if len(example.calls) > 1:
        return graphopt.batch(example.net)
    return graphopt.optimize(example.net, mode="inference" if mode == "inference" else "auto")


def reasons(net: Any, most: int = 2) -> tuple[str, ...]:
    """Why not more was done, in the words of ``net.explain()``; the most telling first."""
    lines = [line.strip() for line in net.explain().splitlines()]
    found = [line for line in lines if line.startswith("taken child by child:")]
    found += [f"{line}, which gains nothing here" for line in lines if _has_fewer_calls(line)]
    found += [line for line in lines if line.startswith(("not done:", "not on "))]
    found += [line for line in lines if " refused: " in line]
    return tuple(dict.fromkeys(found))[:most] or ("no pass of this version applies to it",)


def _has_fewer_calls(line: str) -> bool:
    """Whether a line such as ``operator calls 4 -> 3`` tells of a change."""
    words = line.split()
    return words[:2] == ["operator", "calls"] and words[2] != words[-1]


def _runner(example: Example, net: Any, mode: Mode) -> Callable[[], None]:
    wait = import_mxnet().nd.waitall

    def run() -> None:
        if mode == "inference":
            example.run(net)
        else:
            train_step(example, net)
        wait()

    return run
