"""One line of the demo's table: an example in plain MXNet and optimized, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import graphopt
from graphopt.compat import import_mxnet
from graphopt.demo.checking import infer, relative_error, train, train_step
from graphopt.demo.models import Example
from graphopt.demo.timing import Race, timed

Mode = Literal["inference", "training"]

#: Largest error, relative to the largest value, that float32 arithmetic in another order explains.
TOLERANCE = 1e-3

#: A ratio below this is called no speed-up.
FASTER = 1.05


@dataclass(frozen=True)
class Row:
    """What was measured; ``reasons`` tell why a net did not become faster."""

    name: str
    mode: Mode
    plain_ms: float
    optimized_ms: float
    max_error: float
    reasons: tuple[str, ...] = field(default=())

    @property
    def speed_up(self) -> float:
        """How many times faster than plain MXNet."""
        return self.plain_ms / self.optimized_ms

    @property
    def is_right(self) -> bool:
        """Whether outputs (and gradients) are those of plain MXNet."""
        return self.max_error <= TOLERANCE

    def as_dict(self) -> dict[str, object]:
        """A form for JSON."""
        return asdict(self) | {"speed_up": self.speed_up, "is_right": self.is_right}


def measure(example: Example, mode: Mode, *, seconds: float) -> Row:
    """Check and time one example for ``mode``."""
    net = _optimized(example, mode)
    values = infer if mode == "inference" else train
    plain = example.as_plain()
    error = relative_error(values(example, plain), values(example, net))
    contenders = {"plain": plain, "graphopt": net}
    race = Race({key: timed(_runner(example, each, mode)) for key, each in contenders.items()})
    medians = race.run(seconds)
    row = Row(example.name, mode, medians["plain"], medians["graphopt"], error)
    if row.speed_up >= FASTER:
        return row
    return Row(row.name, mode, row.plain_ms, row.optimized_ms, error, reasons(net))


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
