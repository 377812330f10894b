"""Convolutions and what lies between them, as regions in blocked layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.analysis.frozen import frozen_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONVOLUTIONS, DATA, PARAM, Node, NodeId, Value
from graphopt.kernels.convolutions.activations import is_light
from graphopt.kernels.convolutions.plan import plan
from graphopt.kernels.convolutions.single import Layer, algorithms, layer_of, weight_bytes
from graphopt.kernels.convolutions.spec import DIRECT, WINOGRAD, ConvolutionsSpec, is_paired
from graphopt.kernels.convolutions.windows import (
    has_algorithm,
    has_weights,
    is_reshape,
    why_not,
)
from graphopt.kernels.products import IN_PAIRS
from graphopt.passes.fusion.groups import Groups
from graphopt.passes.fusion.region import operators, replace_region, results
from graphopt.pipeline.base import Mode, Pass, PassContext
from graphopt.rewrite.substitute import transplant

#: Channels of a block where no processor is asked.
_LANES = 16
#: The bridge is told of so many numbers at most.
_MOST_NUMBERS = 60_000
#: What an algorithm that rounds more has to be faster by, and one whose weights take so many bytes
#: more.
_WORTH, _WORTH_MEMORY, _MANY_BYTES = 0.9, 0.85, 8 << 20


@dataclass(frozen=True)
class FuseConvolutions(Pass):
    """Convolutions with all that lies between them are one node, computed in blocked layout.

    A region holds convolutions and deconvolutions, pooling, sums, products, concatenations,
    functions of each number, gates of each channel, nearest upsampling, and FullyConnected. Images
    stay in blocks of as many channels as a vector has lanes from one end to the other; sums and
    functions are computed with the convolution before them, and what is joined is written to its
    place at once. Convolutions of 3x3 pixels are computed directly or by Winograd's minimal
    filtering, whichever is faster on this machine; on processors that add while they multiply,
    AMD's with AVX-512, two products may take one multiplication.

    Which is faster on the whole, regions or MXNet's oneDNN, is measured when the graph is lowered.

    Args:
        winograd: consider Winograd's algorithm, which rounds more.
        paired: consider products in pairs.

    Example::

        // before
        graph net(%x: f32[1,3,8,8], param %w: f32[4,3,3,3]) {
          %c = Convolution(%x, %w) {kernel=(3, 3), no_bias=True, num_filter=4} : f32[1,4,6,6]
          %y = relu(%c) : f32[1,4,6,6]
          return %y
        }
        // after
        graph net(%x: f32[1,3,8,8], param %w: f32[4,3,3,3]) {
          %y_region = graphopt_convolutions(%x, %w) {algorithms=("direct",), lanes=16}
              : f32[1,4,6,6] [
            graph region(%in0: f32[1,3,8,8], param %in1: f32[4,3,3,3]) {
              %c = Convolution(%in0, %in1) {kernel=(3, 3), no_bias=True, num_filter=4}
                  : f32[1,4,6,6]
              %y = relu(%c) : f32[1,4,6,6]
              return %y
            }
          ]
          return %y_region
        }
    """

    name: ClassVar[str] = "fuse-convolutions"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})
    needs_frozen: ClassVar[bool] = True
    cpu_only: ClassVar[str] = "kernels run on CPUs only so far"
    rounding: ClassVar[str] = "sums are rounded in another order"

    winograd: bool = True
    paired: bool = True

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Grow regions along reads, and replace those with a convolution."""
        if not any(has_algorithm(node) for node in graph):
            return graph
        why = None if cx.target is None else cx.target.why_no_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"no convolution was fused: {why}")
            return graph
        lanes = _LANES if cx.target is None else cx.target.block_lanes()
        edited = graph.copy()
        done = 0
        for nodes in _regions(graph, cx):
            done += self._replace(graph, edited, nodes, lanes, cx)
        cx.count("regions", done)
        return edited if done else graph

    def _replace(
        self, graph: Graph, edited: Graph, nodes: Sequence[Node], lanes: int, cx: PassContext
    ) -> bool:
        inputs, outputs = _boundary(graph, nodes)
        if not outputs:  # nobody reads it
            return False
        body = _body(graph, nodes, inputs, outputs)
        chosen = tuple(self._algorithms(body, lanes, cx))
        spec = ConvolutionsSpec(body, lanes, chosen)
        try:
            size = len(plan(spec).numbers(lanes))
            if size > _MOST_NUMBERS:
                raise GraphoptError(f"{len(nodes)} operators are too many")
        except GraphoptError as error:
            cx.missed(f"{len(nodes)} operators are no region: {error}", nodes[-1])
            return False
        attrs = {"lanes": lanes, "algorithms": chosen}
        replace_region(edited, nodes, inputs, outputs, CONVOLUTIONS, attrs, body, "region")
        fast, paired = sum(name in WINOGRAD for name in chosen), sum(map(is_paired, chosen))
        cx.count("operators", len(nodes))
        cx.count("by Winograd", fast)
        cx.count("in pairs", paired)
        how = f", {fast} of the convolutions by Winograd's algorithm" if fast else ""
        how += f", products of {paired} in pairs" if paired else ""
        cx.passed(f"{operators(nodes)} became one region in blocked layout{how}", nodes[-1])
        return True

    def _algorithms(self, body: Graph, lanes: int, cx: PassContext) -> list[str]:
        """The fastest algorithm of every convolution; one that rounds more has to be worth it."""
        found = []
        has_pairs = cx.target is not None and cx.target.dense_means() == IN_PAIRS
        for node in body.topological():
            if not has_algorithm(node):
                continue
            layer = layer_of(body, node)
            names = [
                name
                for name in algorithms(layer)
                if (self.winograd or name not in WINOGRAD)
                and (not is_paired(name) or (self.paired and has_pairs))
            ]
            times = _measured(layer, node, names, lanes, cx)
            best = DIRECT
            for name in names[1:]:
                best = name if times[name] < _worth(layer, name, best) * times[best] else best
            found.append(best)
        return found


def _worth(layer: Layer, name: str, best: str) -> float:
    """What share of the best one's time an algorithm may take to be the better one."""
    many = weight_bytes(layer, name) > weight_bytes(layer, best) + _MANY_BYTES
    return _WORTH_MEMORY if many else _WORTH


def _measured(
    layer: Layer, node: Node, names: Sequence[str], lanes: int, cx: PassContext
) -> dict[str, float]:
    """Milliseconds of each algorithm; without a machine to ask, only the first one is known."""
    target = cx.target
    if target is None or len(names) == 1:
        return {name: float("inf") if at else 0.0 for at, name in enumerate(names)}
    parts = ("convolution", str(layer), str(lanes), *names)
    found: dict[str, float] = target.measured_once(
        parts, lambda: target.layer_times_ms(layer, names), (node.name, *names)
    )
    return found


def _regions(graph: Graph, cx: PassContext) -> list[list[Node]]:
    """Groups of nodes that can be a region each, in topological order."""
    frozen, held = frozen_nodes(graph), held_nodes(graph)
    candidates: set[NodeId] = set()
    for node in graph:
        if node.is_input or node.id in frozen or node.id in held or node.after or not node.inputs:
            continue
        why = why_not(graph, node)
        if why is None and has_weights(node):
            learned = all(value.node in frozen for value in node.inputs[1:])
            why = None if learned else "its weights are computed from data"
        if why is None:
            candidates.add(node.id)
        elif has_algorithm(node):
            cx.missed(f"stays outside of regions: {why}", node)
    groups = Groups(graph)
    order = graph.topological()
    for node in order:
        if node.id not in candidates:
            continue
        for value in node.inputs:
            if value.node in candidates and groups.can_merge(node.id, value.node):
                groups.merge(node.id, value.node)
    found: dict[NodeId, list[Node]] = {}
    for node in order:
        if node.id in candidates:
            found.setdefault(groups.find(node.id), []).append(node)
    trimmed = map(_without_light_beginnings, found.values())
    return [nodes for nodes in trimmed if any(map(has_algorithm, nodes))]


def _without_light_beginnings(nodes: Sequence[Node]) -> list[Node]:
    """Without what is light and reads nothing of the region: images are loaded as they are."""
    inside = {node.id for node in nodes}
    for node in nodes:
        if (is_light(node) or is_reshape(node)) and not any(
            value.node in inside for value in node.inputs
        ):
            inside.remove(node.id)
    return [node for node in nodes if node.id in inside]


def _boundary(graph: Graph, nodes: Sequence[Node]) -> tuple[list[Value], list[Value]]:
    """What a region reads, images first and then parameters, and what others read of it."""
    inside = {node.id for node in nodes}
    images = dict.fromkeys(
        value
        for node in nodes
        for value in (node.inputs[:1] if has_weights(node) else node.inputs)
        if value.node not in inside
    )
    learned = [value for node in nodes if has_weights(node) for value in node.inputs[1:]]
    return [*images, *learned], results(graph, nodes)


def _body(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> Graph:
    """The region as a graph of its own; each of its nodes has weights to itself."""
    body = Graph("region")
    new: dict[Value, Value] = {}
    count = sum(len(node.inputs) - 1 for node in nodes if has_weights(node))
    for number, value in enumerate(inputs[: len(inputs) - count]):
        new[value] = body.add_input(f"in{number}", DATA, graph.type_of(value)).out()
    learned = [
        body.add_input(f"in{number}", PARAM, graph.type_of(inputs[number])).out()
        for number in range(len(inputs) - count, len(inputs))
    ]
    for node in nodes:
        own = dict(new)
        if has_weights(node):
            for value in node.inputs[1:]:
                own[value] = learned.pop(0)
        transplant(body, node, own)
        new[node.out()] = own[node.out()]
    body.set_outputs(new[value] for value in outputs)
    return body
