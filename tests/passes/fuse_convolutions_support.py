"""What tests of fuse-convolutions share: a fastest algorithm, graphs and their regions."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONVOLUTIONS, Node
from graphopt.ir.parser import parse
from graphopt.kernels.convolutions.single import Layer
from graphopt.kernels.products import IN_PAIRS
from graphopt.testing import run_pass

PASS = "fuse-convolutions"
TOLERANCE = {"rtol": 1e-3, "atol": 2e-4}


class Clock(MXNetTarget):
    """Makes one algorithm the fastest wherever it is possible."""

    def __init__(self, favourite: str = "direct") -> None:
        self.favourite = favourite
        self.asked: list[Layer] = []

    def dense_means(self) -> str:
        return IN_PAIRS  # on any processor

    def layer_times_ms(self, layer: Layer, algorithms: Sequence[str]) -> dict[str, float]:
        self.asked.append(layer)
        return {name: 1.0 if name == self.favourite else 2.0 for name in algorithms}


def fused(graph: Graph, favourite: str = "direct") -> Graph:
    return run_pass(graph, PASS, target=Clock(favourite), frozen=True).graph


def regions(graph: Graph) -> list[Node]:
    return [node for node in graph if node.op == CONVOLUTIONS]


def net(body: str, x: str = "f32[2,20,9,11]", params: str = "param %w: ?, param %b: ?") -> Graph:
    return with_types(parse(f"graph g(%x: {x}, {params}) {{ {body} }}"))


CONV = "%c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=36, pad=(1, 1)}"
