"""Random values under which a deep network stays well conditioned.

With moving statistics drawn at random, every BatchNorm scales by a factor that has nothing to do
with what reaches it, and a hundred of them make outputs explode or vanish: errors measured then say
nothing about a pass. So the statistics are taken from the random data itself, and then disturbed,
and the branches of a residual network are kept small beside its trunk, without which a random
network of 150 layers turns a relative change of 1e-7 into one of 1e-2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.target import MXNetTarget
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.types import UNKNOWN

_NORMS = frozenset({"BatchNorm"})
_SUMS = frozenset({"elemwise_add", "broadcast_add", "add_n"})
_GATES = frozenset({"broadcast_mul", "elemwise_mul", "Dropout", "_copy"})
_LEAST_VARIANCE = 0.05
#: Values per channel below which their mean and variance say too little.
_LEAST_SAMPLES = 16
#: Scale of a residual branch.
_BRANCH = 0.1

Feeds = dict[str, np.ndarray[Any, Any]]


def calibrated_feeds(graph: Graph, seed: int = 0) -> Feeds:
    """As :func:`random_feeds`, with BatchNorm's moving statistics near those of the data.

    One run in training mode. Where the graph cannot be run that way, the statistics stay random.

    Raises:
        InputError: an input that is read has no static type.
    """
    feeds = random_feeds(graph, seed)
    norms = [node for node in graph if _has_statistics(graph, node)]
    if not norms:
        return feeds
    for node in norms:
        gamma = graph[node.inputs[1].node].name
        if gamma in feeds and _is_branch(graph, node):
            feeds[gamma] = feeds[gamma] * feeds[gamma].dtype.type(_BRANCH)
    try:
        found = MXNetTarget().evaluate(_statistics(graph, norms), feeds, training=True)
    except GraphoptError:
        return feeds
    rng = np.random.default_rng(seed)
    for number, node in enumerate(norms):
        eps = float(node.attrs.get("eps", 1e-3))
        mean = np.nan_to_num(found[f"output{2 * number}"].astype(np.float64))
        inverse_std = found[f"output{2 * number + 1}"].astype(np.float64)
        variance = np.nan_to_num(1 / np.square(inverse_std) - eps, posinf=1.0)
        if (graph.type_of(node.inputs[0]).size or 0) < _LEAST_SAMPLES * mean.size:
            # One sample is its own mean: the difference would be nothing but rounding.
            variance = np.full_like(variance, np.mean(variance + np.square(mean)))
            mean = np.zeros_like(mean)
        variance = np.maximum(variance, _LEAST_VARIANCE)
        spread = 0.1 * np.sqrt(variance)
        values = (
            mean + spread * rng.standard_normal(mean.shape),
            variance * rng.uniform(0.8, 1.25, variance.shape),
        )
        for value, array in zip(node.inputs[3:5], values, strict=True):
            name = graph[value.node].name
            feeds[name] = array.astype(feeds[name].dtype)
    return feeds


def _has_statistics(graph: Graph, node: Node) -> bool:
    return (
        node.op in _NORMS
        and not node.attrs.get("use_global_stats")
        and all(graph[value.node].is_input for value in node.inputs[3:5])
    )


def _is_branch(graph: Graph, node: Node) -> bool:
    """Whether a sum reads the node, perhaps behind a gate."""
    pending = [node]
    while pending:
        for use in graph.users(pending.pop().out()):
            user = graph[use.node]
            if user.op in _SUMS:
                return True
            if user.op in _GATES:
                pending.append(user)
    return False


def _statistics(graph: Graph, norms: list[Node]) -> Graph:
    """The graph that returns mean and inverse standard deviation of what each BatchNorm reads."""
    probe = graph.copy()
    for node in norms:
        types = (node.types[0], UNKNOWN, UNKNOWN)
        probe.update(node.but(attrs=node.attrs.set(output_mean_var=True), types=types))
    probe.set_outputs(Value(node.id, index) for node in norms for index in (1, 2))
    return probe
