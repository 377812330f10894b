"""A Block, or a program of it, compiled for one signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.analysis.lookups import only_numbers_of_rows
from graphopt.backend.findings import Findings
from graphopt.backend.lower import Lowered
from graphopt.backend.pools import Pools
from graphopt.backend.zero_pages import give_back_zeros
from graphopt.cached import cached_property
from graphopt.errors import UnsupportedError
from graphopt.frontend.gluon import Traced
from graphopt.ir.fingerprint import fingerprint_of_any_size
from graphopt.ir.graph import Graph
from graphopt.nn.building import build_graph
from graphopt.nn.built import Built
from graphopt.nn.config import Config
from graphopt.nn.control_flow import require_gradients
from graphopt.nn.following import Following
from graphopt.nn.inner_sizes import InnerSizes
from graphopt.nn.learned_integers import any_learns
from graphopt.nn.parameters import (
    Watched,
    gradients_of,
    is_replaced,
    is_retyped,
    own_array,
    watched,
    with_new_arrays,
)
from graphopt.pipeline.base import Mode
from graphopt.pipeline.manager import Result


@dataclass
class Entry:
    """A Block compiled for one signature."""

    mode: Mode
    types: str
    original: Graph
    built: Built | Following
    traced: Traced
    watched: list[Watched]
    computed: Sequence[Any] = ()  # parameters that calls read other arrays of
    calls_left: int | None = None  # until it is measured for its own sizes, if it was for others
    has_run: bool = False
    prepared_s: float = 0.0  # what it took before the call that runs it first

    @property
    def result(self) -> Result:
        """Of the passes."""
        return self.built.result

    @cached_property
    def structure(self) -> str:
        """What the passes and measuring left, but for the sizes of data."""
        known = {node.name for node in self.result.graph.inputs}
        computed = {n.name for form in self.forms for n in form.inputs} - known
        shapes = sorted(map(str, self.result.shapes))
        return " ".join(
            [*(fingerprint_of_any_size(form, computed) for form in self.forms), *shapes]
        )

    @cached_property
    def forms(self) -> tuple[Graph, Graph, Graph]:
        """What passes left, what a call computes of it, and that with packed products if so."""
        form = self.lowered.form
        return self.result.graph, form.graph, form.packed

    @cached_property
    def inner_sizes(self) -> InnerSizes:
        """Extents of all that the net computes, for data of any size."""
        return InnerSizes(self.traced, self.original)

    @property
    def lowered(self) -> Lowered:
        """What a call runs."""
        return self.built.lowered

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Names of data that are numbers of rows to look up, and nothing else."""
        return only_numbers_of_rows(self.original)

    def data(self, given: Sequence[Any], ctx: Any) -> dict[str, Any]:
        """What a call with those arrays runs on, by name."""
        found = dict(zip(self.traced.names, given, strict=True))
        if self.computed:
            found |= {parameter.name: parameter.data(ctx) for parameter in self.computed}
        return found

    def lacks_gradients(self, given: Sequence[Any]) -> bool:
        """Whether a call with those arrays may ask for gradients that it does not compute."""
        unlearned = self.built.unlearned
        if not unlearned:
            return False
        return any_learns(dict(zip(self.traced.names, given, strict=True)), unlearned)

    def refresh(self, ctx: Any) -> bool:
        """Follow parameters that got new arrays.

        They do by ``cast``, ``initialize``, ``reset_ctx``, and when ``grad_req`` changes.

        Returns:
            Whether it could; one may be computed now that was not, or of another dtype.
        """
        stale = with_new_arrays(self.watched)
        if stale:
            if any(is_replaced(parameter, ctx) for parameter in stale):
                return False
            if any(is_retyped(known, ctx) for known in self.watched):
                return False
            self.built.rebind({p.name: own_array(p, ctx) for p in stale})
            self.watched = [watched(p, ctx) for p, *_ in self.watched]
        return True


def compile_graph(
    config: Config,
    graph: Graph,
    parameters: Mapping[str, Any],
    arrays: Mapping[str, Any],
    ctx: Any,
    mode: Mode,
    *,
    traced: Traced,
    computed: Sequence[Any] = (),
    akin: Iterable[Findings] = (),
    of_any_size: bool = False,
    numpy: bool = False,
    pools: Pools | None = None,
) -> Entry:
    """Run the passes over a graph and bind it to its parameters.

    Args:
        config: what the user asked for.
        graph: as it was captured.
        parameters: those that it reads, by name, whose arrays are bound.
        arrays: its data inputs, by name.
        ctx: where all of them are.
        mode: which pipeline.
        traced: what it was captured from.
        computed: parameters that are data inputs, as every call reads another array of them.
        akin: what was measured for graphs that may differ in the shapes of data only.
        of_any_size: whether that of quite other sizes will do for a while.
        numpy: whether it returns arrays of ``mx.np``.
        pools: memory that steps share.
    """
    settings = config.settings(mode)
    if mode == "training":
        require_gradients(graph)
    if mode == "training" and config.plans_memory:
        _require_dense_gradients(parameters)
    values = {name: own_array(p, ctx) for name, p in parameters.items()}
    if mode == "inference":  # before memory is taken for what is built
        give_back_zeros(gradients_of(parameters.values()))
    built = build_graph(
        config,
        graph,
        values,
        arrays,
        ctx,
        mode,
        akin=akin,
        of_any_size=of_any_size,
        numpy=numpy,
        pools=pools,
    )
    types = ", ".join(f"{node.name}: {node.type}" for node in graph.role("data"))
    # Frozen graphs keep the values they were made from, whatever happens to the parameters.
    followed = [] if settings.frozen else parameters.values()
    known = [watched(p, ctx) for p in followed]
    return Entry(mode, types, graph, built, traced, known, computed)


def _require_dense_gradients(parameters: Mapping[str, Any]) -> None:
    """Refuse a training step whose memory cannot be planned.

    Raises:
        UnsupportedError: a gradient takes as much as rows were read.
    """
    for name, parameter in parameters.items():
        if parameter._grad_stype != "default":
            kind = parameter._grad_stype
            raise UnsupportedError(f"the gradient of parameter {name!r} is {kind}")
