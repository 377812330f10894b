"""Which regions are better left to MXNet.

A region of several operators walks memory once instead of several times. A lone operator gains only
where MXNet's own loop is slower than memory, and most of its loops over floats are: those that
choose, round or divide are not vectorised, reductions add one number to the other, float16 is
converted number by number, and the gradient of what was stretched is summed up by index arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.kernels.instructions import INSTRUCTIONS, Kind
from graphopt.kernels.spec import KernelSpec

#: A lone operator that costs this or more an element is faster as a kernel.
_WORTH_ALONE = 8.0
#: Cheap ones that MXNet's CPU code computes one element after the other. A step over 2.4 million
#: float32 takes 2 to 11 times as long as by kernels, two threads each.
_SCALAR_INSTRUCTIONS = frozenset(
    {"ceil", "div", "floor", "recip", "round", "sqrt", "trunc", "where"}
)
_SCALAR_OPERATORS = frozenset({"clip", "relu", "_npx_relu", "_power_scalar", "_npi_power_scalar"})
#: What leaves arrays in oneDNN's blocks of channels, where other operators of MXNet bring them into
#: rows and back. Kernels leave them as they are.
_ANCHORS = frozenset({"Convolution", "Deconvolution", "BatchNorm", "Pooling", "LRN", "Concat"})


def why_not_worth(
    graph: Graph, nodes: Sequence[Node], spec: KernelSpec, *, device: str
) -> str | None:
    """Why a region is better left to MXNet, or ``None``.

    Args:
        graph: that the nodes belong to, with static types.
        nodes: the region.
        spec: the kernel that would compute it.
        device: ``"cpu"`` or ``"gpu"``; MXNet's loops are slow on the first only.
    """
    values = [value for node in nodes for value in (*node.inputs, node.out())]
    in_blocks = device == "cpu" and any(_is_in_blocks(graph, value) for value in values)
    if in_blocks and all(_is_by_onednn(node) for node in nodes):
        return "beside a convolution MXNet computes it on oneDNN's blocked layout"
    if len(nodes) > 1 or sum(INSTRUCTIONS[step.op].cost for step in spec.body) >= _WORTH_ALONE:
        return None
    if device != "cpu" or _is_by_onednn(nodes[0]):
        return "MXNet computes it as fast"
    if (in_blocks and spec.body) or _is_slow_in_mxnet(graph, nodes[0], spec):
        return None
    return "MXNet computes it as fast"


def _is_slow_in_mxnet(graph: Graph, node: Node, spec: KernelSpec) -> bool:
    if canonical(node.op) in _SCALAR_OPERATORS:
        return True
    if any(
        step.op in _SCALAR_INSTRUCTIONS or INSTRUCTIONS[step.op].kind is Kind.REDUCE
        for step in spec.body
    ):
        return True
    types = [node.type, *map(graph.type_of, node.inputs)]
    if any(type_.size != node.type.size for type_ in types):
        return True
    return bool(spec.body) and any(type_.dtype == "float16" for type_ in types)


def _is_by_onednn(node: Node) -> bool:
    """Whether MXNet has oneDNN compute it, in whatever layout the operands have."""
    op = canonical(node.op)
    if node.type.dtype != "float32":
        return False
    if op in ("Activation", "LeakyReLU"):
        return node.attrs.get("act_type", "leaky") in ("relu", "leaky")
    return op in ("elemwise_add", "add_n")


def _is_in_blocks(graph: Graph, value: Value) -> bool:
    """Whether MXNet has, or wants, a value in blocks of channels."""
    if (graph.type_of(value).rank or 0) < 4:
        return False
    around = [graph[value.node], *(graph[use.node] for use in graph.users(value))]
    return any(canonical(node.op) in _ANCHORS for node in around)
