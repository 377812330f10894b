"""Passes over a captured graph, and what they left bound to its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from graphopt.analysis.integers import integers_with_gradient
from graphopt.api.running import run
from graphopt.backend.adding import with_copies
from graphopt.backend.findings import Findings
from graphopt.backend.fitting import require_sizes
from graphopt.backend.kept_results import kept_result
from graphopt.backend.known_sizes import recall, record
from graphopt.backend.late import wait_for
from graphopt.backend.loops import with_read_copies
from graphopt.backend.lower import lower
from graphopt.backend.pools import Pools
from graphopt.ir.fingerprint import fingerprint_of_any_size
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX
from graphopt.nn.built import Built
from graphopt.nn.config import Config
from graphopt.nn.control_flow import require_open_loops
from graphopt.nn.following import Following, why_not_followed
from graphopt.nn.learned_integers import any_learns
from graphopt.pipeline.base import Mode
from graphopt.pipeline.manager import no_collections


def build_graph(
    config: Config,
    graph: Graph,
    values: dict[str, Any],
    arrays: Mapping[str, Any],
    ctx: Any,
    mode: Mode,
    *,
    akin: Iterable[Findings] = (),
    of_any_size: bool = False,
    numpy: bool = False,
    pools: Pools | None = None,
) -> Built | Following:
    """Run the passes over a graph and bind it to its parameters.

    Args:
        config: what the user asked for.
        graph: as it was captured.
        values: arrays of the parameters that it reads, by name.
        arrays: its data inputs, by name.
        ctx: where all of them are.
        mode: which pipeline.
        akin: what was measured for graphs that may differ in the shapes of data only.
        of_any_size: whether that of quite other sizes will do, as it is built again if it is called
            often.
        numpy: whether it returns arrays of ``mx.np``.
        pools: memory that steps share.

    Raises:
        UnsupportedError: memory is planned, and a shape is not known before it is computed.
    """
    if mode == "training" and config.plans_memory:
        require_sizes(graph)
    wait_for((*arrays.values(), *values.values()))
    integers = integers_with_gradient(graph) if mode == "training" else frozenset[str]()
    integers_learn = any_learns({**values, **arrays}, integers)
    settings = replace(config.settings(mode), integers_learn=integers_learn)
    key = (
        fingerprint_of_any_size(graph),
        mode,
        str(settings),
        str(config.pipeline(mode)),
        str(ctx),
    )
    shapes = [tuple(array.shape) for array in arrays.values()]
    known = [*akin, *recall(key)]
    may_follow = bool(values) and config.follows(mode)
    why_not = why_not_followed(ctx) if may_follow else None
    follows = may_follow and why_not is None
    told = f"read in every call, as writes to them are not noticed: {why_not}" if why_not else ""
    findings = Findings(shapes, known, partial(record, key), of_any_size=of_any_size)
    feeds = None
    if config.check:
        read = {node.name for node in graph.inputs}
        every = values | dict(arrays)
        feeds = {name: array.asnumpy() for name, array in every.items() if name in read}

    def build(frozen: bool) -> Built:
        pipeline = config.pipeline(mode)
        options: dict[str, Any] = {
            "mode": mode,
            "frozen": frozen,
            "precise": settings.precise,
            "strict": settings.strict,
            "device": ctx.device_type,
            "plans_memory": settings.plans_memory,
            "integers_learn": integers_learn,
        }
        if config.check:
            result = run(graph, pipeline, **options, check=True, feeds=feeds)
        else:
            result = kept_result(graph, pipeline, options, lambda g: run(g, pipeline, **options))
        left = result.graph
        if mode == "training":
            require_open_loops(left)
            left = with_read_copies(with_copies(left, graph))
        lowered = lower(
            left,
            values,
            ctx,
            training=mode == "training",
            frozen=frozen,
            numpy=numpy,
            tune=not settings.precise,
            memory=config.memory,
            pools=pools,
            follows=follows,
            keeps_operators=config.keeps_operators,
            integers_learn=integers_learn,
        )
        unlearned = frozenset[str]() if integers_learn else integers
        return Built(result, lowered, frozen, findings, told, unlearned)

    def noted(frozen: bool) -> Built:
        with findings.active(), no_collections():
            return build(frozen)

    if not follows:
        return noted(settings.frozen)
    states = [node.name for node in graph.role(AUX)]
    return Following(noted, values, states=states, strict=config.strict)
