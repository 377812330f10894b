"""Counts that receipts and benchmarks go by: exact, deterministic, independent of the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, CONSTANT, CONVOLUTIONS, DATA, PARAM, Node
from graphopt.ir.ops import info


@dataclass(frozen=True, slots=True)
class Metrics:
    """Size of a graph.

    ``nodes``: operators, inputs not counted. ``calls``: operators that run on every call (neither
    views nor computed once from frozen parameters). ``parameters``: elements of parameters and
    auxiliary states that are read. ``intermediate_bytes``: bytes those calls write, the graph's
    outputs left out, and what steps of a region of convolutions write for each other.
    ``unknown_types``: values without a static type, which count as 0 bytes.
    """

    nodes: int
    calls: int
    parameters: int
    intermediate_bytes: int
    unknown_types: int

    def as_dict(self) -> dict[str, int]:
        """Field names and values."""
        return asdict(self)


def measure(graph: Graph, *, frozen: bool = False) -> Metrics:
    """Count; ``frozen`` tells that parameters are constants. Linear in the graph's size."""
    once = frozen_nodes(graph) if frozen else frozenset()
    outputs = set(graph.outputs)
    nodes = calls = parameters = written = unknown = 0
    for node in graph.topological():
        if node.op == DATA:
            continue
        if node.op in (PARAM, AUX):
            parameters += (node.type.size or 0) if graph.node_users(node.id) else 0
            continue
        nodes += 1
        unknown += sum(not type_.is_static for type_ in node.types)
        if node.id in once or not runs(node):
            continue
        calls += 1
        written += _within(node)
        for value, type_ in zip(node.values, node.types, strict=True):
            if value not in outputs:
                written += type_.nbytes or 0
    return Metrics(nodes, calls, parameters, written, unknown)


def _within(node: Node) -> int:
    """Bytes that a node writes for itself."""
    if node.op != CONVOLUTIONS:
        return 0
    from graphopt.kernels.convolutions.plan import plan
    from graphopt.kernels.convolutions.spec import spec_of

    return 4 * plan(spec_of(node)).written


def runs(node: Node) -> bool:
    """Whether an operator does work: views only rename memory, constants are there already."""
    return node.op != CONSTANT and not info(node.op, node.attrs).view
