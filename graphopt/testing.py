"""Helpers for tests of passes, here and in projects that bring their own."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.verify import verify
from graphopt.passes import registry
from graphopt.pipeline.base import Pass, Settings, Target
from graphopt.pipeline.instruments import compare
from graphopt.pipeline.manager import Result, run_passes
from graphopt.pipeline.spec import build

if TYPE_CHECKING:
    import numpy as np


def run_pass(
    graph: str | Graph,
    pipeline: str | Sequence[Pass],
    *,
    target: Target | None = None,
    **settings: object,
) -> Result:
    """Run a pipeline on a graph or its text, in strict mode, and check the contract.

    Args:
        graph: a graph, or text that parses to one.
        pipeline: text or passes.
        target: where passes may infer types and evaluate constants.
        **settings: fields of :class:`graphopt.pipeline.base.Settings`.

    Raises:
        AssertionError: the pass wrote to its input.
        PassError: a pass failed.
    """
    if isinstance(graph, str):
        graph = parse(textwrap.dedent(graph).strip())
    before = str(graph)
    options = Settings(**{"strict": True, **settings})  # type: ignore[arg-type]
    result = run_passes(graph, build(pipeline, registry), options, target)
    assert str(graph) == before, "the pass wrote to the graph it was given"
    return result


def assert_ir(graph: Graph | Result, expected: str) -> None:
    """Assert that a graph prints as ``expected``, indentation aside."""
    if isinstance(graph, Result):
        graph = graph.graph
    verify(graph)
    want = str(parse(textwrap.dedent(expected).strip()))
    assert str(graph) == want, f"found\n{graph}\nexpected\n{want}"


def assert_equivalent(
    before: Graph,
    after: Graph,
    *,
    training: bool = False,
    seeds: Sequence[int] = (0, 1),
    rtol: float | None = None,
    atol: float | None = None,
    feeds: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> None:
    """Assert that two graphs compute the same: by MXNet, and by the numpy reference where it can.

    With ``training`` the gradients of all inputs and the updated auxiliary states are compared too.

    Raises:
        GraphError: a value differs; the message tells where and by how much.
    """
    from graphopt.backend import reference
    from graphopt.backend.random_feeds import random_feeds
    from graphopt.backend.target import MXNetTarget

    target = MXNetTarget()
    for seed in seeds:
        values = {**random_feeds(before, seed), **(feeds or {})}
        want, got = (
            target.evaluate(g, values, training=training, gradients=training)
            for g in (before, after)
        )
        compare(want, got, rtol, atol, "the second graph (MXNet)")
        if not training and reference.supports(before) and reference.supports(after):
            for graph, name in ((before, "first"), (after, "second")):
                outputs = reference.run(graph, values)
                found = {f"output{i}": array for i, array in enumerate(outputs)}
                compare(want, found, rtol, atol, f"the {name} graph (reference)")
