"""Counts that receipts and benchmarks go by: exact, deterministic, independent of the machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, CONSTANT, CONVOLUTIONS, DATA, PARAM, Node, NodeId
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
    return Meter(frozen=frozen).measure(graph)


class Meter:
    """Measures graphs that share most of their nodes, as those before and behind a pass do."""

    def __init__(self, *, frozen: bool = False) -> None:
        """``frozen`` tells that parameters are constants."""
        self._frozen = frozen
        self._written: dict[NodeId, tuple[Node, int]] = {}

    def measure(self, graph: Graph) -> Metrics:
        """Count. Linear in the graph's size."""
        once = frozen_nodes(graph) if self._frozen else frozenset()
        nodes = calls = parameters = written = unknown = 0
        for node in graph.topological():
            if node.op == DATA:
                continue
            if node.op in (PARAM, AUX):
                parameters += (node.type.size or 0) if graph.node_users(node.id) else 0
                continue
            nodes += 1
            unknown += sum(not type_.is_static for type_ in node.types)
            if node.id not in once and runs(node):
                calls += 1
                written += self._written_by(node)
        for value in set(graph.outputs):
            node = graph[value.node]
            if not node.is_input and node.id not in once and runs(node):
                written -= graph.type_of(value).nbytes or 0
        return Metrics(nodes, calls, parameters, written, unknown)

    def _written_by(self, node: Node) -> int:
        """Bytes of the outputs, and of what the node writes for itself."""
        known = self._written.get(node.id)
        if known is None or known[0] is not node:
            size = _within(node) + sum(type_.nbytes or 0 for type_ in node.types)
            known = self._written[node.id] = node, size
        return known[1]


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
