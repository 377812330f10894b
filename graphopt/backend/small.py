"""Which graphs are small: computing them takes less than waking a thread of MXNet's engine.

They are run by the thread that calls them (:mod:`graphopt.backend.caller`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, DENSE, DROPOUT, FUSED, PRODUCT, Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.kernels.gradient import is_differentiable
from graphopt.passes.fusion.fuse import alone
from graphopt.passes.pack_products import PackProducts
from graphopt.pipeline.base import Settings
from graphopt.pipeline.manager import run_passes


@dataclass(frozen=True)
class _Limits:
    """The most elements that nodes write, multiplications, and elements of a weight.

    ``draws``: random numbers may be drawn, which MXNet's engine does.
    """

    elements: int
    multiplications: int
    weights: int
    draws: bool = False


_MOST_NODES: Final = 64
#: At more, waking a thread of MXNet's engine takes a small part of the time.
_INFERENCE: Final = _Limits(1 << 17, 1 << 24, 1 << 30)
#: The same of a graph that learns, whose gradients take two times more; weights are packed in every
#: step.
_LEARNING: Final = _Limits(1 << 17, 1 << 21, 1 << 17)
#: Of a graph that learns as one operation of MXNet's engine.
_AT_ONCE: Final = _Limits(1 << 22, 1 << 27, 1 << 22, draws=True)
#: Draws the seed of Dropout's masks (passes/replace_dropout.py).
SEED: Final = "_random_randint"
#: The most elements of an array of a node that one thread runs in any case.
_MOST_BY_ONE: Final = 1 << 17
#: The most kernels that are compiled for this alone.
_MOST_ALONE: Final = 4
#: Operators that the bridge's graphs have nodes for; the number of the kind.
KINDS: Final = {
    FUSED: 0,
    PRODUCT: 1,
    "FullyConnected": 2,
    DENSE: 2,
    "Concat": 3,
    "SliceChannel": 4,
    "slice_axis": 4,
    "Embedding": 5,
    "BatchNorm": 6,
    DROPOUT: 7,
}
#: Those that MXNet's operators and the bridge's nodes round differently.
_ROUNDS: Final = frozenset({"FullyConnected", DENSE, "BatchNorm"})
#: Those that move numbers, and whose arrays so may be of any dtype.
_MOVES: Final = frozenset({"Concat", "SliceChannel", "slice_axis", "Embedding"})
#: Dtypes of the numbers of rows that are looked up.
_NUMBERS: Final = ("float16", "float32", "float64", "int32", "int64")
#: Those that have the same numbers in another shape.
VIEWS: Final = frozenset({"Reshape", "Flatten", "expand_dims", "squeeze", "reshape_like"})


def runs_by_caller(graph: Graph) -> bool:
    """Whether the thread that calls a graph for inference may run it. Linear."""
    return _is_within(graph, _fits, _INFERENCE)


def learns_by_caller(graph: Graph, *, exact: bool = False) -> bool:
    """Whether the thread that calls a graph may run it forward and backward. Linear.

    ``exact``: nothing may round otherwise than MXNet's operators.
    """
    return not (exact and _rounds(graph)) and _is_within(graph, _learns, _LEARNING)


def learns_at_once(graph: Graph, *, exact: bool = False) -> bool:
    """Whether a graph may be one operation of MXNet's engine, and its gradients another. Linear.

    ``exact``: as for :func:`learns_by_caller`.
    """
    return not (exact and _rounds(graph)) and _is_within(graph, _learns, _AT_ONCE)


def may_learn(graph: Graph) -> bool:
    """Whether a graph may be one once it is not frozen, with what parameters fold to. Linear."""
    nodes = [node for node in graph if not node.is_input and node.op != CONSTANT]
    return len(nodes) <= _MOST_NODES and all(
        canonical(node.op) in KINDS or canonical(node.op) in VIEWS or alone(graph, node) is not None
        for node in nodes
    )


def _rounds(graph: Graph) -> bool:
    return any(canonical(node.op) in _ROUNDS for node in graph)


def _is_within(graph: Graph, fits: Callable[[Graph, Node, _Limits], bool], limits: _Limits) -> bool:
    nodes = [node for node in graph if not node.is_input and node.op != CONSTANT]
    if not 0 < len(nodes) <= _MOST_NODES or not all(fits(graph, node, limits) for node in nodes):
        return False
    writers = [node for node in nodes if canonical(node.op) not in VIEWS]
    written = sum(type_.size or 0 for node in writers for type_ in node.types)
    work = sum(_multiplications(graph, node) for node in nodes)
    if written > limits.elements or work > limits.multiplications:
        return False
    roots = [root_of(graph, value) for value in graph.outputs]
    # What a call returns is computed there, in an array that nothing else is in.
    return len({*roots}) == len(roots) and not any(_is_read_only(graph, root) for root in roots)


def in_kernels(graph: Graph, *, learns: bool = False) -> Graph:
    """A graph whose operators are kernels, one by one, where a thread of MXNet's engine needs none.

    By themselves some are slower than MXNet's, or worth no kernel; but with one operator of MXNet's
    in it, the whole graph would need a thread of MXNet's engine. What comes has no form in MXNet's
    operators. Linear; graphs of too many nodes stay.

    Args:
        graph: frozen, and then its dense layers become products of ours, or to be trained.
        learns: which of both.
    """
    if len(graph) > _MOST_NODES + len(graph.inputs):
        return graph
    if not learns:
        graph = run_passes(graph, (PackProducts(),), Settings("inference", frozen=True), None).graph
    copy = graph.copy()
    made: set[str] = set()
    kept = {CONSTANT, *KINDS} - (set() if learns else {"BatchNorm"})
    for node in graph:
        if node.is_input or canonical(node.op) in kept or node.after:
            continue
        spec = alone(graph, node)
        if spec is None or (learns and not is_differentiable(spec)):
            continue
        if len(made | {str(spec)}) <= _MOST_ALONE:
            made.add(str(spec))
            inputs = tuple(dict.fromkeys(node.inputs))
            copy.update(node.but(op=FUSED, inputs=inputs, attrs=Attrs(spec=str(spec))))
    return copy


def _fits(graph: Graph, node: Node, _limits: _Limits) -> bool:
    types = (*map(graph.type_of, node.inputs), *node.types)
    if node.after or not all(type_.is_static and type_.size and type_.rank for type_ in types):
        return False
    op = canonical(node.op)
    if op == PRODUCT:
        return all(type_.dtype == "float32" for type_ in types)
    if op == "Embedding":
        return types[0].dtype in _NUMBERS
    return op == FUSED or op in _MOVES or _is_view(node)


def _is_view(node: Node) -> bool:
    """Whether all it reads is numbers, and of ``reshape_like`` a shape, which is known."""
    op = canonical(node.op)
    return op in VIEWS and len(node.inputs) == (2 if op == "reshape_like" else 1)


def _learns(graph: Graph, node: Node, limits: _Limits) -> bool:
    types = (*map(graph.type_of, node.inputs), *node.types)
    if node.after or not all(type_.is_static and type_.size and type_.rank for type_ in types):
        return False
    op = canonical(node.op)
    if op == FUSED:
        # Gradients of two views of one array would be written to one place at once.
        roots = [root_of(graph, value) for value in node.inputs]
        return len({*roots}) == len(roots)
    if op in ("FullyConnected", DENSE):
        is_small = (types[1].size or 0) <= limits.weights
        return is_small and all(type_.dtype == "float32" for type_ in types)
    if op in VIEWS:
        return _is_view(node)
    if op == SEED:
        return limits.draws and node.type.dtype == "int32" and not node.inputs
    if op == DROPOUT:
        return graph[node.inputs[1].node].op == SEED and node.type.dtype == "float32"
    if op == "Embedding":
        return _learns_lookup(node, types, limits)
    if any((type_.size or 0) > _MOST_BY_ONE for type_ in types):
        return False
    if op == "BatchNorm":
        return _learns_norm(node, types)
    return op in _MOVES and node.type.dtype in ("float32", "float64")


def _learns_lookup(node: Node, types: Sequence[TensorType], limits: _Limits) -> bool:
    """Whether rows of a table are looked up, all of which get gradients."""
    return (
        types[0].dtype in _NUMBERS
        and node.type.dtype in ("float32", "float64")
        and not bool(node.attrs.get("sparse_grad"))
        and (types[1].size or 0) <= limits.weights
        and (node.type.size or 0) <= _MOST_BY_ONE
    )


def _learns_norm(node: Node, types: Sequence[TensorType]) -> bool:
    """Whether a BatchNorm is along axis 1, of what the bridge computes."""
    axis, rank = int(node.attrs.get("axis", 1)), node.type.rank or 0
    return (
        len(node.types) == 1
        and all(type_.dtype == "float32" for type_ in types)
        and rank > 1
        and axis % rank == 1
        and not bool(node.attrs.get("fix_gamma", True))
    )


def _multiplications(graph: Graph, node: Node) -> int:
    if canonical(node.op) not in (PRODUCT, DENSE, "FullyConnected"):
        return 0
    units = (node.type.shape or (1,))[-1] or 1
    depth = (graph.type_of(node.inputs[0]).size or 0) * units // (node.type.size or 1)
    return (node.type.size or 0) * depth


def root_of(graph: Graph, value: Value) -> Value:
    """What a value is a view of."""
    while canonical(graph[value.node].op) in VIEWS:
        value = graph[value.node].inputs[0]
    return value


def _is_read_only(graph: Graph, value: Value) -> bool:
    return graph[value.node].is_input or graph[value.node].op in (CONSTANT, SEED)
