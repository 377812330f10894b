"""Evaluation at compile time of what depends on no input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from graphopt.analysis.effects import held_nodes, is_pure
from graphopt.ir.attrs import Attrs
from graphopt.ir.constant import add_constant
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId, Value
from graphopt.ir.ops import canonical, info
from graphopt.ir.types import TensorType
from graphopt.pipeline.base import Pass, PassContext

if TYPE_CHECKING:
    import numpy as np

_NAMED = 5

#: Evaluating larger values at compile time costs more than it can save.
_EVALUATE_BYTES: Final = 1 << 24

#: Integers beyond this do not survive ``_full``, whose value is a double.
_EXACT_INT: Final = 1 << 53

#: What folding ends in: a value that is there, or a fill, which reads nothing.
_FOLDED: Final = frozenset({CONSTANT, "_zeros", "_ones", "_full", "_npi_zeros", "_npi_ones"})

#: Operators that are a fill of the shape of their output.
_FILLS: Final = {
    "_zeros": "_zeros",
    "_zeros_without_dtype": "_zeros",
    "_npi_zeros": "_zeros",
    "zeros_like": "_zeros",
    "_ones": "_ones",
    "_npi_ones": "_ones",
    "ones_like": "_ones",
    "_full": "_full",
}

#: Positions of inputs of which an operator reads the shape alone.
_SHAPE_ONLY: Final[dict[str, tuple[int, ...]]] = {
    "zeros_like": (0,),
    "ones_like": (0,),
    "shape_array": (0,),
    "size_array": (0,),
    "_contrib_arange_like": (0,),
    "_contrib_index_array": (0,),
    "_contrib_MultiBoxPrior": (0,),
    "_npi_full_like": (0,),
    "broadcast_like": (1,),
    "reshape_like": (1,),
    "slice_like": (1,),
}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """What depends on no input's values is a fill or a constant, not a computation.

    Folded are creation operators, constants, what pure deterministic operators make of them, and
    what is read off static shapes (``shape_array``, ``zeros_like``, the shape side of
    ``slice_like``), after which the data is not read any more. A result of equal elements becomes
    ``_zeros``, ``_ones`` or ``_full``; another one a constant node, if it has at most ``max_bytes``
    bytes. All are evaluated by the target, in one call.

    Left alone is what has no static type or more than 16 MiB; bfloat16; and graph outputs, which
    the executor has to own, unless they become a fill without evaluating.

    The folded graph holds for the shapes it was typed with; ``use_shapes=False`` reads none off.

    Attributes:
        max_bytes: of one constant node.
        use_shapes: whether to take static shapes of values for constants.

    Example::

        // before
        graph net(%x: f32[2,3]) {
          %steps = _arange() {start=0.0, stop=3.0} : f32[3]
          %twice = _mul_scalar(%steps) {scalar=2.0} : f32[3]
          %zeros = zeros_like(%x) : f32[2,3]
          %y = broadcast_add(%zeros, %twice) : f32[2,3]
          %z = elemwise_add(%x, %y) : f32[2,3]
          return %z
        }
        // after
        graph net(%x: f32[2,3]) {
          %y = constant() {data="AAAAAAAAAEAAAIBAAAAAAAAAAEAAAIBA", dtype="float32", shape=(2, 3)} : f32[2,3]
          %z = elemwise_add(%x, %y) : f32[2,3]
          return %z
        }
    """

    name: ClassVar[str] = "fold-constants"

    max_bytes: int = 65536
    use_shapes: bool = True

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Find what is constant, evaluate where it meets what is not, and put the values there."""
        refused = _Refused(cx)
        constant = self._constant_nodes(graph, refused)
        edge = list(_edge(graph, constant, refused))
        forms = {value: _known_form(graph, graph[value.node]) for value in edge}
        unknown = [value for value, form in forms.items() if form is None]
        if unknown and cx.target is None:
            refused.add("there is no target to evaluate them", *(graph[v.node] for v in unknown))
        elif unknown and cx.target is not None:
            extract = _extract(graph, constant, unknown)
            arrays = cx.target.evaluate(extract, {})
            for number, value in enumerate(unknown):
                forms[value] = self._form(graph, value, arrays[f"output{number}"], refused)
        refused.report()
        found = {value: form for value, form in forms.items() if form is not None}
        return _replaced(graph, constant, found, cx) if found else graph

    def _constant_nodes(self, graph: Graph, refused: _Refused) -> set[NodeId]:
        """Nodes whose values are determined by attributes and shapes, if shapes may be used."""
        held = held_nodes(graph)
        constant: set[NodeId] = set()
        for node in graph:
            if node.is_input or node.id in held or not _is_deterministic(node, refused.cx.training):
                continue
            by_shape = _SHAPE_ONLY.get(canonical(node.op), ()) if self.use_shapes else ()
            if not all(
                value.node in constant
                or (position in by_shape and not _unfit(graph.type_of(value)))
                for position, value in enumerate(node.inputs)
            ):
                continue
            reason = next(filter(None, map(_unfit, node.types)), "")
            if reason:
                refused.add(reason, node)
            else:
                constant.add(node.id)
        return constant

    def _form(
        self, graph: Graph, value: Value, array: np.ndarray, refused: _Refused
    ) -> _Form | None:
        """How to write an evaluated value into the graph, if at all."""
        node, type_ = graph[value.node], graph.type_of(value)
        if TensorType(str(array.dtype), array.shape) != type_:
            refused.add("the target evaluates them to another type", node)
            return None
        form = _fill(array)
        if form is None and array.nbytes > self.max_bytes:
            refused.add(f"their values are not all equal and exceed {self.max_bytes} bytes", node)
            return None
        return form or _constant(array)


#: Operator and attributes of a node without inputs.
_Form = tuple[str, Attrs]


class _Refused:
    """Nodes that look foldable but stay, by reason."""

    def __init__(self, cx: PassContext) -> None:
        self.cx = cx
        self.nodes: dict[str, list[Node]] = {}

    def add(self, reason: str, *nodes: Node) -> None:
        self.nodes.setdefault(reason, []).extend(nodes)

    def report(self) -> None:
        for reason, nodes in self.nodes.items():
            self.cx.missed(f"{len(nodes)} constant values stay: {reason}", *nodes[:_NAMED])


def _is_deterministic(node: Node, training: bool) -> bool:
    """Whether a node is pure and, in training, computes what it does in inference."""
    if node.op == CONSTANT:
        return True
    facts = info(node.op, node.attrs)
    return is_pure(node, training=training) and not (training and facts.mode_dependent)


def _unfit(type_: TensorType) -> str:
    """Why values of a type are not folded, or nothing."""
    if not type_.is_static or not type_.size:
        # MXNet's older operators take an extent of 0 for "unknown", and no extents too.
        return "they have no static type with at least one axis and one element"
    if not type_.shape:
        return "they have no axes"
    if type_.dtype == "bfloat16":
        return "numpy has no bfloat16"
    if (type_.nbytes or 0) > _EVALUATE_BYTES:
        return f"they exceed {_EVALUATE_BYTES} bytes"
    return ""


def _edge(graph: Graph, constant: set[NodeId], refused: _Refused) -> Iterator[Value]:
    """Constant values that something reads which itself is not replaced."""
    outputs = {value.node for value in graph.outputs}
    owned = {n for n in outputs & constant if graph[n].op in _FOLDED or not _is_fill(graph[n])}
    for node in graph:
        if node.id not in constant or canonical(node.op) in _FOLDED:
            continue
        if node.id in owned:
            refused.add("graph outputs belong to the executor", node)
            continue
        for value in node.values:
            readers = (use.node for use in graph.users(value))
            if value in graph.outputs or any(n not in constant or n in owned for n in readers):
                yield value
