"""Inputs whose gradients MXNet's operators would overwrite where they are to be added."""

from __future__ import annotations

from typing import Final

from graphopt.analysis.lookups import looks_up
from graphopt.backend.unread import is_float
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node, Use
from graphopt.ir.ops import Gradient, canonical, info

#: Operators of MXNet whose backward adds to a gradient where it is told to. That of `mean`, `clip`,
#: `cumsum`, `flip`, `trace` and others overwrites it, or adds to what it has not written.
ADDING: Final = frozenset(
    {
        "Activation",
        "BatchNorm",
        "Cast",
        "Concat",
        "Convolution",
        "Deconvolution",
        "Embedding",
        "Flatten",
        "FullyConnected",
        "LayerNorm",
        "LeakyReLU",
        "Pooling",
        "Reshape",
        "SliceChannel",
        "SwapAxis",
        "UpSampling",
        "_copy",
        "_mul_scalar",
        "add_n",
        "batch_dot",
        "broadcast_add",
        "broadcast_mul",
        "dot",
        "elemwise_div",
        "elemwise_mul",
        "exp",
        "expand_dims",
        "log_softmax",
        "relu",
        "slice_axis",
        "softmax",
        "square",
        "stack",
        "sum",
        "take",
        "tile",
        "transpose",
        "where",
    }
)


def with_copies(graph: Graph, original: Graph) -> Graph:
    """The graph with a copy between an input and an operator that would overwrite its gradient.

    Something stood there in the user's graph, or several operators read the input, so that MXNet
    added what it had summed up. Passes left one of them. What stood alone there in the user's graph
    as well does what it does in MXNet. Linear.

    Args:
        graph: that learns, as passes left it.
        original: as it was captured.
    """
    before = {node.name: _only_reader(original, node) for node in original.inputs}
    made = None
    for node in graph.inputs:
        use = _only_use(graph, node)
        if use is None:
            continue
        op = canonical(graph[use.node].op)
        if op in ADDING or op.startswith("graphopt_") or before.get(node.name) == op:
            continue
        made = made or graph.copy()
        copy = made.add("_copy", (node.out(),), {}, (node.type,), f"{node.name}_added")
        reader = made[use.node]
        inputs = list(reader.inputs)
        inputs[use.position] = copy.out()
        made.update(reader.but(inputs=tuple(inputs)))
    return made or graph


def _only_reader(graph: Graph, node: Node) -> str | None:
    use = _only_use(graph, node)
    return None if use is None else canonical(graph[use.node].op)


def _only_use(graph: Graph, node: Node) -> Use | None:
    """The one use of an input that hands it a gradient; ``None`` if there is another number."""
    if node.op not in (DATA, PARAM) or not is_float(node.type) or graph.is_output(node.out()):
        return None
    uses = [use for use in graph.users(node.out()) if _hands_back(graph[use.node], use.position)]
    return uses[0] if len(uses) == 1 else None


def _hands_back(node: Node, position: int) -> bool:
    if info(node.op, node.attrs).gradient is Gradient.NONE:
        return False
    return not (position == 0 and looks_up(node))
