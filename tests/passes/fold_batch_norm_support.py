"""What tests of fold-batch-norm share: graphs with a BatchNorm, and what is left of them."""

from __future__ import annotations

from graphopt.backend.infer import with_types
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import run_pass


def net(body: str, x: str = "f32[2,4,6,6]", w: str = "f32[6,4,3,3]") -> Graph:
    """A graph of data, a weight, a bias and the parameters of a BatchNorm, types inferred."""
    names = "param %b: ?, param %gamma: ?, param %beta: ?, aux %mean: ?, aux %var: ?"
    return with_types(parse(f"graph g(%x: {x}, param %w: {w}, {names}) {{ {body} }}"))


BN = "%gamma, %beta, %mean, %var) {fix_gamma=False, eps=1e-05}"
CONV = "%conv = Convolution(%x, %w) {kernel=(3, 3), num_filter=6, no_bias=True}\n"


def fold(graph: Graph | str, **settings: object) -> Result:
    return run_pass(graph, "fold-batch-norm", **{"frozen": True, **settings})


def live(result: Result) -> list[str]:
    """Operators that depend on the data, in order."""
    from graphopt.analysis.frozen import frozen_nodes

    frozen = frozen_nodes(result.graph)
    return [n.op for n in result.graph if n.id not in frozen and not n.is_input]
