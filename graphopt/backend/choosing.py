"""Chooses an engine: candidates have to agree, and the fastest is taken and remembered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from graphopt.analysis.effects import may_repeat
from graphopt.backend.arrays import bytes_of
from graphopt.backend.candidates import Candidates, Form, Make, is_packed
from graphopt.backend.choice import (
    CACHED_OP,
    CACHED_OP_ONEDNN,
    CONVOLUTION_KERNELS,
    EXACT_CONVOLUTIONS,
    EXECUTOR_ONEDNN,
    KERNELS,
    PRODUCT_KERNELS,
    Choice,
)
from graphopt.backend.documents import renamed, text_of
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.findings import active
from graphopt.backend.late import LateError
from graphopt.backend.measured import remember, remembered
from graphopt.backend.order import in_less_memory
from graphopt.backend.race import race
from graphopt.backend.sorting import (
    WithoutChoosing,
    chooses,
    compare_results,
    draws,
    run_once,
    without_draws,
)
from graphopt.backend.symbol import first_line
from graphopt.backend.unfuse import unfuse
from graphopt.cached import cached_property
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, GraphError, GraphoptError
from graphopt.ir.fingerprint import fingerprint

#: Seconds of a first call beyond which fewer candidates are tried.
_LONG_S: Final = 0.5
#: Bytes of parameters from which on no more than two engines are kept: each has copies of them.
_HEAVY_BYTES: Final = 64 << 20
#: How many times as fast as one that is sure to agree another has to be to be looked at closer.
_LEAST_GAIN: Final = 1.03
#: Calls of each engine that trying and timing it takes, about.
_CALLS_OF_A_RACE: Final = 5

#: Lets go of what an engine packed, by its name, but for what some others read.
Forget = Callable[[str, Iterable[Engine]], None]


@dataclass(frozen=True)
class Chosen:
    """An engine, with what it computed of the call at hand if it was tried: fresh NDArrays."""

    engine: Engine
    outputs: list[Any] | None = None


def choose(
    form: Form,
    candidates: Mapping[str, Make],
    arrays: Mapping[str, Any],
    value: Callable[[str], Any],
    choice: Choice,
    forget: Forget,
) -> Chosen:
    """The fastest of the candidates that compute what the first one does.

    It is the one with kernels, as in training, or the first one, where more calls of the graph than
    the caller's own would leave traces.
    Where the graph draws random numbers, it is chosen without, so that a seed gives the same as in
    MXNet.

    Args:
        form: what they run.
        candidates: what makes them, by name.
        arrays: what the form reads in the call at hand, by name.
        value: the array that an input of theirs has there, by its name.
        choice: what was found is noted there.
        forget: lets go of what an engine packed, by its name, but for what some others read.

    Raises:
        BudgetError: no training step takes as little as was asked for.
        GraphError: none of them runs; the message says why not.
    """
    if not may_repeat(form.graph, training=False):
        name = CACHED_OP + KERNELS
        name = name if name in candidates else next(iter(candidates))
        candidates = {name: candidates[name]}
    elif len(candidates) > 1 and draws(form.graph):
        name = _without_drawing(form, candidates, arrays, choice)
        candidates = {name: candidates[name]}
    everything = candidates
    key, place = key_of(form, candidates), _place(form, candidates)
    known = remembered(key) if len(candidates) > 1 else None
    if known is not None and known["engine"] in candidates:
        choice.measured_ms = dict(known["measured_ms"])
        choice.failed = dict(known.get("failed", {}))
        choice.is_remembered = True
        active().earlier_s += _CALLS_OF_A_RACE * sum(choice.measured_ms.values()) / 1e3
        candidates = {known["engine"]: candidates[known["engine"]]}
    elif (like := _like(form, candidates, arrays, value, choice)) is not None:
        return like
    is_heavy = _bytes_kept(form, arrays) >= _HEAVY_BYTES
    agreement = _Agreement(form, arrays)
    trial = _Trial(candidates, agreement, value, choice, forget if is_heavy else None)
    engines = trial.run()
    if not engines and choice.is_remembered:  # what was the fastest does not run this time
        candidates, choice.is_remembered, choice.measured_ms = everything, False, {}
        trial = _Trial(candidates, agreement, value, choice, forget if is_heavy else None)
        engines = trial.run()
    if not engines:
        reasons = "; ".join(f"{name}: {why}" for name, why in choice.failed.items())
        raise GraphError(f"MXNet cannot run graph {form.graph.name!r}: {reasons}")
    choice.engine = trial.fastest()
    if len(candidates) > 1:
        times = choice.measured_ms
        found = {"engine": choice.engine, "measured_ms": times, "failed": choice.failed}
        remember(key, found)
    findings = active()
    findings.note(place, choice.engine)
    needed = (next(iter(candidates)), choice.engine)
    findings.seconds += sum(s for name, s in trial.tried_s.items() if name not in needed)
    return Chosen(engines[choice.engine], trial.outputs.get(choice.engine))


def _without_drawing(
    form: Form, candidates: Iterable[str], arrays: Mapping[str, Any], choice: Choice
) -> str:
    """Which of them is the fastest if others draw the random numbers."""
    first, *_ = candidates
    apart = without_draws(form, arrays)
    if apart is None:
        return first
    cut, values = apart
    made = Candidates(cut, values, choice)
    engines = {n: make for n, make in made.by_name(values).items() if n in candidates}
    if first not in engines:
        return first
    try:
        choose(cut, engines, values, values.__getitem__, choice, made.forget)
    except GraphoptError:
        return first
    return choice.engine


def _like(
    form: Form,
    candidates: Mapping[str, Make],
    arrays: Mapping[str, Any],
    value: Callable[[str], Any],
    choice: Choice,
) -> Chosen | None:
    """The engine that a graph of about these sizes has, if it is right here; it is not timed.

    Where only a closer look can tell, that was taken at the other graph.
    """
    name: str = active().taken(_place(form, candidates)) or ""
    if name not in candidates or len(candidates) == 1:
        return None
    first = next(iter(candidates))
    trial = _Trial(
        {n: candidates[n] for n in (first, name)}, _Agreement(form, arrays), value, choice
    )
    found = trial.tried().get(name)
    if found is None:
        return None
    choice.engine, choice.like = name, active().told
    if active().is_makeshift:  # it is to be known how long it may stay
        again = run_once(found, {n: value(n) for n in found.inputs})
        choice.measured_ms = {name: again.seconds * 1e3}
    return Chosen(found, trial.outputs.get(name))


def _place(form: Form, candidates: Iterable[str]) -> tuple[str, ...]:
    """Where :mod:`graphopt.backend.findings` has the choice among such candidates."""
    return ("engine", "frozen" if form.frozen else "", *candidates)


def _bytes_kept(form: Form, arrays: Mapping[str, Any]) -> int:
    """Of what the form reads besides data; what it fills in by itself has no array."""
    kept = (array for name, array in arrays.items() if name not in form.data)
    return sum(bytes_of(array) for array in kept if array is not None)


def key_of(form: Form, candidates: Iterable[str]) -> tuple[str, ...]:
    """What the choice of an engine depends on, besides the machine."""
    packed = "" if form.with_products is None else fingerprint(form.with_products)
    return ("engine", fingerprint(form.graph), packed, str(form.ctx), *candidates)


class _Agreement:
    """Whether engines compute what the first one does."""

    def __init__(self, form: Form, arrays: Mapping[str, Any]) -> None:
        self._form, self._arrays = form, arrays
        self._first, self._expected = "", dict[str, np.ndarray[Any, Any]]()

    def check(self, name: str, found: dict[str, np.ndarray[Any, Any]]) -> bool:
        """Compare what an engine found; ``False`` if only :meth:`look_closer` can tell.

        Raises:
            GraphError: it is something else.
        """
        if not self._expected:
            self._first, self._expected = name, found
            return True
        try:
            compare_results(self._form.graph, self._expected, found, name)
        except GraphError:
            if chooses(self._form.graph):
                return False
            raise
        return True

    def look_closer(self, name: str) -> None:
        """Compare what values are chosen by; takes some calls of the graph.

        Raises:
            GraphError: it is something else.
        """
        self._apart.compare(self._first, name)

    @cached_property
    def _apart(self) -> WithoutChoosing:
        return WithoutChoosing(self._form, self._arrays)


class _Trial:
    """The candidates that can be made and agree, timed if there are several."""

    def __init__(
        self,
        candidates: Mapping[str, Make],
        agreement: _Agreement,
        value: Callable[[str], Any],
        choice: Choice,
        forget: Forget | None = None,
    ) -> None:
        """With ``forget`` no more than two engines are kept at once, as far as that is possible."""
        self._candidates, self._agreement = candidates, agreement
        self._value, self._choice, self._forget = value, choice, forget
        self._engines: dict[str, Engine] = {}
        self._feeds: dict[str, dict[str, Any]] = {}
        self._first_s: dict[str, float] = {}
        self.tried_s: dict[str, float] = {}
        self.outputs: dict[str, list[Any]] = {}  # of the first call of each
        self._unsure: set[str] = set()  # those that only a closer look can tell of

    def run(self) -> dict[str, Engine]:
        """Those that are left, by name; timed."""
        self.tried()
        self._race()
        return self._engines

    def tried(self) -> dict[str, Engine]:
        """Those that can be made and agree as far as one call of them can tell, by name."""
        for name, make in self._candidates.items():
            if self._is_needless(name):
                continue
            if self._forget is not None and len(self._engines) > 1 and not self._unsure:
                self._let_go_of_the_slowest(self._forget)
            start = time.perf_counter()
            try:
                engine = make()
                if len(self._candidates) > 1:
                    self._try(name, engine)
                self._engines[name] = engine
            except (BudgetError, LateError):
                raise
            except Exception as error:  # noqa: BLE001 - a candidate that fails is only not chosen
                self._choice.failed[name] = first_line(error)
                self.outputs.pop(name, None)
                if self._forget is not None:
                    self._forget(name, self._engines.values())
            self.tried_s[name] = time.perf_counter() - start
        return self._engines

    def fastest(self) -> str:
        """The fastest of those left that is sure to agree."""
        if len(self._candidates) == 1:  # maybe the one that was chosen among others earlier
            return next(iter(self._engines))
        times = {name: self._choice.measured_ms[name] for name in self._engines}
        sure_ms = min(ms for name, ms in times.items() if name not in self._unsure)
        for name in sorted(times, key=times.__getitem__):
            is_worth_it = times[name] * _LEAST_GAIN < sure_ms
            if name not in self._unsure or (is_worth_it and self._does_agree(name)):
                return name
        raise AssertionError("the first one is sure")

    def _race(self, **options: float) -> None:
        """Time those that are left."""
        if self._feeds:
            with active().measuring():
                times = race(self._engines, self._feeds, self._first_s, **options)
            self._choice.measured_ms |= times

    def _let_go_of_the_slowest(self, forget: Forget) -> None:
        """As few calls of each tell, or the first where they take long; of equals either may go."""
        if min(self._first_s[name] for name in self._engines) > _LONG_S:
            first_ms = {name: self._first_s[name] * 1e3 for name in self._engines}
            self._choice.measured_ms |= first_ms
        else:
            self._race(patience_s=0)
        slowest = max(self._engines, key=self._choice.measured_ms.__getitem__)
        del self._engines[slowest], self._feeds[slowest], self.outputs[slowest]
        forget(slowest, self._engines.values())

    def _is_needless(self, name: str) -> bool:
        """Whether a candidate is not worth its first call."""
        if name == EXACT_CONVOLUTIONS:
            was_tried = CONVOLUTION_KERNELS in self._first_s
            return was_tried and CONVOLUTION_KERNELS not in self._choice.failed  # slower
        takes_long = self._first_s.get(CACHED_OP, 0.0) > _LONG_S
        if not takes_long and self._forget is None:
            return False
        # Another one has oneDNN's fusions, and kernels; what engines take besides is nothing then.
        if name == CACHED_OP_ONEDNN:
            return bool({EXECUTOR_ONEDNN, EXECUTOR_ONEDNN + KERNELS} & self._candidates.keys())
        has_both = EXECUTOR_ONEDNN + KERNELS in self._candidates
        return has_both and name in (EXECUTOR_ONEDNN, CACHED_OP + KERNELS)

    def _try(self, name: str, engine: Engine) -> None:
        """Call it once, and compare, as MXNet's oneDNN rewrites get some graphs wrong."""
        known = {n: self._value(n) for n in engine.inputs}
        once = run_once(engine, known)
        self._first_s[name], self.outputs[name] = once.seconds, once.outputs
        if not self._agreement.check(name, once.values):
            if name == CONVOLUTION_KERNELS and EXACT_CONVOLUTIONS in self._candidates:
                self._agreement.look_closer(name)
            else:
                self._unsure.add(name)
        self._feeds[name] = known

    def _does_agree(self, name: str) -> bool:
        try:
            self._agreement.look_closer(name)
        except Exception as error:  # noqa: BLE001 - it is only not chosen
            self._choice.failed[name] = first_line(error)
            del self._engines[name], self._choice.measured_ms[name]
            return False
        return True


def ordered(form: Form, engine: Engine, arrays: Mapping[str, Any], choice: Choice) -> Engine:
    """The engine, with its operators in an order that takes less memory if one is found."""
    if form.training or not isinstance(engine, CachedOpEngine | ExecutorEngine):
        return engine
    if engine.name in (CONVOLUTION_KERNELS, EXACT_CONVOLUTIONS, PRODUCT_KERNELS):
        return engine  # regions share their memory already; packed nodes have no plain order
    parts, graph = ("order", engine.name, *key_of(form, ())), unfuse(form.graph, is_packed)
    names = [node.name for node in graph]
    known = remembered(parts)
    if known is None or len(known.get("names", ())) != len(names):
        found = in_less_memory(engine, graph, arrays, form.ctx)
        text = text_of(found.symbol) if found else ""
        known = {"told": str(found or ""), "json": text, "names": names}
        remember(parts, known)
    if not known["json"]:
        return engine
    choice.memory = known["told"]
    # It may have been found for an equal graph with other names.
    text = renamed(known["json"], dict(zip(known["names"], names, strict=True)))
    return engine.on(form.typed(import_mxnet().sym.load_json(text)))
