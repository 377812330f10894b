"""Compute what depends on parameters alone, for a graph that is written with its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphopt.ir.graph import Graph

if TYPE_CHECKING:
    import numpy as np


def computed_once(
    graph: Graph, weights: Mapping[str, np.ndarray[Any, Any]]
) -> tuple[Graph, dict[str, np.ndarray[Any, Any]]]:
    """The part of a graph that runs on every call, and its parameters by name.

    Args:
        graph: parameters of which are frozen.
        weights: a value for each of them.

    Raises:
        GraphoptError: MXNet cannot run the part that is computed now.
    """
    from graphopt.api.running import run
    from graphopt.backend.freeze import freeze, with_fills
    from graphopt.backend.target import MXNetTarget

    split = freeze(graph)
    if split.once is None:
        return graph, dict(weights)
    found = MXNetTarget().evaluate(split.once, weights)
    made = {name: found[f"output{i}"] for i, name in enumerate(split.names)}
    # Dead in what is left: the operators that made them.
    rest = run(with_fills(split.per_call, [split]), "eliminate-dead-code").graph
    read = {node.name for node in rest.inputs if rest.users(node.out())}
    read.update(rest[value.node].name for value in rest.outputs)
    return rest, {name: array for name, array in {**weights, **made}.items() if name in read}
