"""What can be wrapped around every pass: verification, printing, dumping, numeric checks.

An instrument that raises :class:`graphopt.errors.GraphoptError` after a pass vetoes its result: the
manager rolls the pass back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphopt.errors import GraphError, GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.verify import verify
from graphopt.pipeline.base import Pass, PassContext

if TYPE_CHECKING:
    import numpy as np

#: dtype -> (rtol, atol); one place, never loosened silently.
TOLERANCE: dict[str, tuple[float, float]] = {
    "float64": (1e-6, 1e-8),
    "float32": (1e-3, 1e-4),
    "float16": (1e-2, 1e-2),
    "bfloat16": (5e-2, 5e-2),
}


#: Runs a graph on arrays by input name; returns named arrays to compare.
Evaluate = Callable[[Graph, Mapping[str, Any]], dict[str, Any]]


class Instrument:
    """Hooks around a pipeline; each does nothing unless overridden."""

    #: Error against the original graph that the last check found, if the instrument measures one.
    max_error: float | None = None

    def before_pipeline(self, graph: Graph, cx: PassContext) -> None:
        """Called once, with the graph as it came."""

    def after_pass(self, pass_: Pass, before: Graph, after: Graph, cx: PassContext) -> None:
        """Called when a pass returned; ``after is before`` when it changed nothing."""

    def after_failure(self, pass_: Pass, before: Graph, error: Exception) -> None:
        """Called when a pass raised, or an instrument vetoed it."""


class Verify(Instrument):
    """Checks the graph's invariants and that the pass kept the signature."""

    def before_pipeline(self, graph: Graph, cx: PassContext) -> None:
        """Verify the input graph."""
        verify(graph)

    def after_pass(self, pass_: Pass, before: Graph, after: Graph, cx: PassContext) -> None:
        """Verify a changed graph."""
        if after is before:
            return
        verify(after, where=pass_.name, known=before)
        check_signature(before, after, pass_.name)


def check_signature(before: Graph, after: Graph, where: str) -> None:
    """Raise unless inputs (names, roles, order) and the number of outputs are the same.

    Raises:
        GraphError: they are not.
    """
    signatures = [[(node.op, node.name) for node in g.inputs] for g in (before, after)]
    if signatures[0] != signatures[1]:
        missing = [name for _, name in signatures[0] if name not in {n for _, n in signatures[1]}]
        raise GraphError(f"{where} changed the graph's inputs: {missing or 'order or roles'}")
    if len(before.outputs) != len(after.outputs):
        raise GraphError(
            f"{where} changed the number of outputs from {len(before.outputs)}"
            f" to {len(after.outputs)}"
        )


@dataclass
class PrintIR(Instrument):
    """Prints the graph after passes.

    Args:
        when: ``all``, ``changed``, ``failed``, or names of passes.
        write: takes the text; standard error unless told otherwise.
    """

    when: Literal["all", "changed", "failed"] | Collection[str] = "changed"
    write: Callable[[str], object] = field(default=lambda text: sys.stderr.write(text))

    def after_pass(self, pass_: Pass, before: Graph, after: Graph, cx: PassContext) -> None:
        """Print what the pass made."""
        if self._wanted(pass_.name, changed=after is not before):
            self.write(f"// after {pass_}\n{after}\n")

    def after_failure(self, pass_: Pass, before: Graph, error: Exception) -> None:
        """Print what the pass was given."""
        if self.when in ("all", "failed"):
            self.write(f"// {pass_} failed: {error}\n{before}\n")

    def _wanted(self, name: str, *, changed: bool) -> bool:
        if self.when == "changed":
            return changed
        return self.when == "all" or (self.when != "failed" and name in self.when)


@dataclass
class DumpIR(Instrument):
    """Writes ``000_input.gir``, ``001_<pass>.gir`` ... into a directory."""

    directory: Path
    count: int = 0

    def before_pipeline(self, graph: Graph, cx: PassContext) -> None:
        """Write the input graph."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "000_input.gir").write_text(f"{graph}\n")

    def after_pass(self, pass_: Pass, before: Graph, after: Graph, cx: PassContext) -> None:
        """Write what the pass made."""
        self.count += 1
        (self.directory / f"{self.count:03d}_{pass_.name}.gir").write_text(f"// {pass_}\n{after}\n")


@dataclass
class CheckNumerics(Instrument):
    """Runs the graph after every change and compares with what the original computes.

    Args:
        feeds: value per input name.
        rtol: relative tolerance instead of the dtype's own.
        atol: absolute tolerance instead of the dtype's own.
        evaluate: runs a graph on the feeds; default: the pipeline's target.

    Outputs are compared, in training mode gradients of all inputs too; not behind a pass that has
    other random numbers drawn.
    """

    feeds: Mapping[str, np.ndarray[Any, Any]]
    rtol: float | None = None
    atol: float | None = None
    evaluate: Evaluate | None = None
    expected: dict[str, np.ndarray[Any, Any]] | None = None

    def before_pipeline(self, graph: Graph, cx: PassContext) -> None:
        """Run the original graph."""
        self.expected = self._run(graph, cx)
        self.max_error = 0.0

    def after_pass(self, pass_: Pass, before: Graph, after: Graph, cx: PassContext) -> None:
        """Run the changed graph and compare."""
        if after is before or self.expected is None:
            return
        found = self._run(after, cx)
        if pass_.draws is not None:
            cx.note(f"values were not compared: {pass_.draws}")
            self.expected = found
            return
        self.max_error = compare(self.expected, found, self.rtol, self.atol, pass_.name)

    def _run(self, graph: Graph, cx: PassContext) -> dict[str, np.ndarray[Any, Any]]:
        if self.evaluate is not None:
            return self.evaluate(graph, self.feeds)
        if cx.target is None:
            raise GraphoptError("a numeric check needs a target to run graphs on")
        return cx.target.evaluate(graph, self.feeds, training=cx.training, gradients=cx.training)


def compare(
    expected: Mapping[str, np.ndarray[Any, Any]],
    found: Mapping[str, np.ndarray[Any, Any]],
    rtol: float | None = None,
    atol: float | None = None,
    where: str = "",
) -> float:
    """Largest absolute error over all named arrays.

    Raises:
        GraphError: shapes or dtypes differ, or a value is off by more than
            ``atol + rtol * |value|``; the message tells the array, the worst place and both values.
    """
    import numpy as np

    worst = 0.0
    for name, want in expected.items():
        got = found[name]
        if got.shape != want.shape or got.dtype != want.dtype:
            raise GraphError(
                f"{where} changed {name} from {want.dtype}{list(want.shape)}"
                f" to {got.dtype}{list(got.shape)}"
            )
        if want.size == 0:
            continue
        default = TOLERANCE.get(str(want.dtype), (0.0, 0.0))
        relative = default[0] if rtol is None else rtol
        absolute = default[1] if atol is None else atol
        near = _error_if_near(want, got, relative, absolute)
        if near is not None:
            worst = max(worst, near)
            continue
        same = np.asarray((got == want) | ((got != got) & (want != want)))
        wide_want, wide_got = want.astype(np.float64), got.astype(np.float64)
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(wide_got - wide_want))
            excess = error - absolute - relative * np.abs(wide_want)
        excess = np.where(same, -np.inf, np.nan_to_num(excess, nan=np.inf))
        if relative == absolute == 0:  # float64 does not hold every integer
            excess = np.where(same, excess, np.maximum(excess, np.finfo(np.float64).tiny))
        at = np.unravel_index(int(np.argmax(excess)), excess.shape)
        if excess[at] > 0:
            place = [int(i) for i in at]
            raise GraphError(
                f"{where} changed {name} beyond rtol {relative:g}, atol {absolute:g}:"
                f" {_shown(want[at])} became {_shown(got[at])} at {place}"
            )
        worst = max(worst, float(np.nan_to_num(error, nan=np.inf).max()))
    return worst


def _error_if_near(
    want: np.ndarray[Any, Any], got: np.ndarray[Any, Any], relative: float, absolute: float
) -> float | None:
    """The largest error, if all numbers are finite and near; nearly all comparisons end here."""
    import numpy as np

    if want.dtype.kind != "f" or relative == absolute == 0:
        return None
    wide = want.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got - wide)
        most = relative * np.abs(wide) + absolute
    worst = float(error.max())
    return worst if np.isfinite(worst) and bool((error <= most).all()) else None


def _shown(number: Any) -> str:
    return f"{number:.9g}" if number.dtype.kind == "f" else str(number)
