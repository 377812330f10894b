"""Chooses an engine: candidates have to agree, and the fastest is taken and remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from graphopt.backend.candidates import Form, Make, is_packed
from graphopt.backend.choice import (
    CONVOLUTION_KERNELS,
    EXACT_CONVOLUTIONS,
    PRODUCT_KERNELS,
    Choice,
)
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.measured import remember, remembered
from graphopt.backend.order import in_less_memory
from graphopt.backend.race import race
from graphopt.backend.sorting import WithoutChoosing, chooses, compare_columns, run_once
from graphopt.backend.symbol import first_line
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, GraphError, GraphoptError
from graphopt.ir.fingerprint import fingerprint
from graphopt.pipeline.instruments import compare


def choose(
    form: Form,
    candidates: Mapping[str, Make],
    arrays: Mapping[str, Any],
    value: Callable[[str], Any],
    choice: Choice,
) -> Engine:
    """The fastest of the candidates that compute what the first one does.

    Args:
        form: what they run.
        candidates: what makes them, by name.
        arrays: what the form reads in the call at hand, by name.
        value: the array that an input of theirs has there, by its name.
        choice: what was found is noted there.

    Raises:
        BudgetError: no training step takes as little as was asked for.
        GraphoptError: none of them runs; the message says why not.
    """
    key = key_of(form, candidates)
    known = remembered(key) if len(candidates) > 1 else None
    if known is not None and known["engine"] in candidates:
        choice.measured_ms = dict(known["measured_ms"])
        choice.failed = dict(known.get("failed", {}))
        choice.is_remembered = True
        candidates = {known["engine"]: candidates[known["engine"]]}
    engines = _made(candidates, _Agreement(form, arrays), value, choice)
    if not engines:
        reasons = "; ".join(f"{name}: {why}" for name, why in choice.failed.items())
        raise GraphoptError(f"MXNet cannot run graph {form.graph.name!r}: {reasons}")
    times = choice.measured_ms
    choice.engine = min(engines, key=lambda name: times.get(name, 0.0))
    if len(candidates) > 1:
        found = {"engine": choice.engine, "measured_ms": times, "failed": choice.failed}
        remember(key, found)
    return engines[choice.engine]


def key_of(form: Form, candidates: Iterable[str]) -> tuple[str, ...]:
    """What the choice of an engine depends on, besides the machine."""
    packed = "" if form.with_products is None else fingerprint(form.with_products)
    return ("engine", fingerprint(form.graph), packed, str(form.ctx), *candidates)


class _Agreement:
    """Whether engines compute what the first one does."""

    def __init__(self, form: Form, arrays: Mapping[str, Any]) -> None:
        self._form, self._arrays = form, arrays
        self._first, self._expected = "", dict[str, np.ndarray[Any, Any]]()

    def check(self, name: str, found: dict[str, np.ndarray[Any, Any]]) -> None:
        """Compare what an engine found.

        Raises:
            GraphError: it is something else.
        """
        if not self._expected:
            self._first, self._expected = name, found
            return
        try:
            compare(self._expected, found, where=name)
        except GraphError as error:
            self._look_closer(name, found, error)

    def _look_closer(
        self, name: str, found: dict[str, np.ndarray[Any, Any]], error: GraphError
    ) -> None:
        """Whether it is rounding of large numbers, or of what values are chosen by."""
        if chooses(self._form.graph):  # the size of an index says nothing
            self._apart.compare(self._first, name)
            return
        try:
            compare_columns(self._expected, found, name)
        except GraphError:
            raise error from None

    @cached_property
    def _apart(self) -> WithoutChoosing:
        return WithoutChoosing(self._form, self._arrays)


def _made(
    candidates: Mapping[str, Make],
    agreement: _Agreement,
    value: Callable[[str], Any],
    choice: Choice,
) -> dict[str, Engine]:
    """The candidates that can be made and agree, timed if there are several."""
    engines: dict[str, Engine] = {}
    feeds: dict[str, dict[str, Any]] = {}
    for name, make in candidates.items():
        if name == EXACT_CONVOLUTIONS and CONVOLUTION_KERNELS in engines:
            continue  # slower, and not needed
        try:
            engine = make()
            if len(candidates) > 1:
                known = {n: value(n) for n in engine.inputs}
                # MXNet's oneDNN rewrites compute wrong values for some graphs.
                agreement.check(name, run_once(engine, known))
                feeds[name] = known
            engines[name] = engine
        except BudgetError:
            raise
        except Exception as error:  # noqa: BLE001 - a candidate that fails is only not chosen
            choice.failed[name] = first_line(error)
    if feeds:
        choice.measured_ms = race(engines, feeds)
    return engines


def ordered(form: Form, engine: Engine, arrays: Mapping[str, Any], choice: Choice) -> Engine:
    """The engine, with its operators in an order that takes less memory if one is found."""
    if form.training or not isinstance(engine, CachedOpEngine | ExecutorEngine):
        return engine
    if engine.name in (CONVOLUTION_KERNELS, EXACT_CONVOLUTIONS, PRODUCT_KERNELS):
        return engine  # regions share their memory already; packed nodes have no plain order
    parts = ("order", engine.name, *key_of(form, ()))
    known = remembered(parts)
    if known is None:
        found = in_less_memory(engine, unfuse(form.graph, is_packed), arrays, form.ctx)
        known = {"told": str(found or ""), "json": found.symbol.tojson() if found else ""}
        remember(parts, known)
    if not known["json"]:
        return engine
    choice.memory = known["told"]
    return engine.on(form.typed(import_mxnet().sym.load_json(known["json"])))
