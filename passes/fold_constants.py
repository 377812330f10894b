"""Evaluation at compile time of what depends on no input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from graphopt.analysis.effects import held_nodes, is_pure
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId, Value
from graphopt.ir.ops import canonical, info
from graphopt.ir.types import TensorType
from graphopt.passes.folding.forms import (
    FILLS,
    Form,
    constant_form,
    fill_form,
    is_known,
    known_form,
)
from graphopt.passes.folding.origins import Origin, origins
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite.substitute import substitute

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NAMED = 5

#: Evaluating larger values at compile time costs more than it can save.
_EVALUATE_BYTES: Final = 1 << 24

#: What folding ends in: a value that is there, or a fill, which reads nothing.
_FOLDED: Final = frozenset(
    {CONSTANT, "_zeros", "_zeros_without_dtype", "_ones", "_full", "_npi_zeros", "_npi_ones"}
)

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

    Left alone is what has no static type or more than 16 MiB, and graph outputs, which the
    executor has to own, unless they become a fill without evaluating.

    In training so is a graph of which no output would read an input any more: MXNet refuses to
    differentiate it, instead of giving gradients of zero.

    The folded graph holds for the shapes it was typed with; ``use_shapes=False`` reads none off.

    Attributes:
        max_bytes: of one constant node.
        use_shapes: whether to take static shapes of values for constants.

    Example::

        // before
        graph net(%x: f32[2,3]) {
          %steps = _arange() {start=0.0, stop=3.0} : f32[3]
          %twice = _mul_scalar(%steps) {scalar=2.0} : f32[3]
          %y = broadcast_add(%x, %twice) : f32[2,3]
          %zeros = zeros_like(%x) : f32[2,3]
          return %y, %zeros
        }
        // after
        graph net(%x: f32[2,3]) {
          %twice = constant() {data="AAAAAAAAAEAAAIBA", dtype="float32", shape=(3,)} : f32[3]
          %y = broadcast_add(%x, %twice) : f32[2,3]
          %zeros = _zeros() {dtype="float32", shape=(2, 3)} : f32[2,3]
          return %y, %zeros
        }
    """

    name: ClassVar[str] = "fold-constants"

    max_bytes: int = 65536
    use_shapes: bool = True

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Find where constant values meet others, evaluate them there, and write them down."""
        refused: dict[str, list[Node]] = {}
        constant = self._constant_nodes(graph, cx, refused)
        edge = _edge(graph, constant, refused)
        forms = self._forms(graph, constant, edge, cx, refused)
        for reason, nodes in refused.items():
            cx.missed(f"{len(nodes)} constant values stay: {reason}", *nodes[:_NAMED])
        if not forms:
            return graph
        folded = _replaced(graph, constant, forms)
        if cx.training and _reads_inputs(graph) and not _reads_inputs(folded):
            cx.missed("no output would read an input, and MXNet differentiates no such graph")
            return graph
        known = origins(graph, constant, _SHAPE_ONLY)
        for value in forms:
            if known[value.node].origin is Origin.SHAPES:
                cx.goes_by(known[value.node].shapes)
        cx.count("folded", len(forms))
        cx.passed(f"folded {len(forms)} values", *(graph[v.node] for v in [*forms][:_NAMED]))
        return folded

    def _constant_nodes(
        self, graph: Graph, cx: PassContext, refused: dict[str, list[Node]]
    ) -> set[NodeId]:
        """Nodes whose values follow from attributes and, if they may be used, from shapes."""
        constant = self._constant_but(graph, cx, {}, frozenset())
        lost = _no_longer_run(graph, constant, training=cx.training)
        return self._constant_but(graph, cx, refused, _with_readers(graph, lost))

    def _constant_but(
        self,
        graph: Graph,
        cx: PassContext,
        refused: dict[str, list[Node]],
        kept: Container[NodeId],
    ) -> set[NodeId]:
        """Such nodes, but for those that read one of ``kept``."""
        held = held_nodes(graph)
        constant: set[NodeId] = set()
        for node in graph:
            if node.is_input or node.id in held or not _is_deterministic(node, cx.training):
                continue
            by_shape = _SHAPE_ONLY.get(canonical(node.op), ()) if self.use_shapes else ()
            if not all(
                value.node in constant or position in by_shape
                for position, value in enumerate(node.inputs)
            ):
                continue
            reason = _unfit(graph, node)
            if any(value.node in kept for value in node.inputs):
                reason = "what they read has effects, and would not run any more"
            if reason:
                refused.setdefault(reason, []).append(node)
            else:
                constant.add(node.id)
        return constant

    def _forms(
        self,
        graph: Graph,
        constant: set[NodeId],
        edge: list[Value],
        cx: PassContext,
        refused: dict[str, list[Node]],
    ) -> dict[Value, Form]:
        """How to write down the values at the edge, or what those read that have to stay."""
        wanted = [v for v in self._wanted(graph, constant, edge) if not is_known(graph[v.node])]
        arrays: dict[Value, NDArray[Any]] = {}
        if wanted and cx.target is None:
            _refuse(refused, "there is no target to evaluate them", graph, wanted)
        elif wanted and cx.target is not None:
            found = cx.target.evaluate(_extract(graph, constant, wanted), {})
            arrays = {value: found[f"output{number}"] for number, value in enumerate(wanted)}
        forms: dict[Value, Form] = {}
        seen, pending = set(edge), [*reversed(edge)]
        while pending:
            value = pending.pop()
            node = graph[value.node]
            if is_known(node):
                forms[value] = known_form(graph, node)
                continue
            if value not in arrays:
                continue
            form = self._form(graph, value, arrays[value], refused)
            if form is not None:
                forms[value] = form
                continue
            inputs = _foldable_inputs(graph, constant, value)
            pending += [v for v in reversed(inputs) if v not in seen]
            seen.update(inputs)
        return forms

    def _wanted(self, graph: Graph, constant: set[NodeId], edge: list[Value]) -> list[Value]:
        """The edge, and behind values that may prove too large for a constant, their inputs."""
        wanted = dict.fromkeys(edge)
        pending, budget = [*edge], _EVALUATE_BYTES
        while pending:
            value = pending.pop()
            nbytes = graph.type_of(value).nbytes or 0
            if nbytes <= self.max_bytes or is_known(graph[value.node]) or budget < nbytes:
                continue
            budget -= nbytes
            inputs = [v for v in _foldable_inputs(graph, constant, value) if v not in wanted]
            wanted.update(dict.fromkeys(inputs))
            pending += inputs
        return [*wanted]

    def _form(
        self, graph: Graph, value: Value, array: NDArray[Any], refused: dict[str, list[Node]]
    ) -> Form | None:
        """How to write down an evaluated value, if at all."""
        if TensorType(str(array.dtype), array.shape) != graph.type_of(value):
            _refuse(refused, "the target evaluates them to another type", graph, [value])
            return None
        fill = fill_form(array)
        if fill is None and array.nbytes > self.max_bytes:
            reason = f"they are not uniform and have more than {self.max_bytes} bytes"
            _refuse(refused, reason, graph, [value])
            return None
        return fill or constant_form(array)


def _foldable_inputs(graph: Graph, constant: set[NodeId], value: Value) -> list[Value]:
    return [
        v
        for v in dict.fromkeys(graph[value.node].inputs)
        if v.node in constant and canonical(graph[v.node].op) not in _FOLDED
    ]


def _refuse(refused: dict[str, list[Node]], reason: str, graph: Graph, values: list[Value]) -> None:
    refused.setdefault(reason, []).extend(graph[value.node] for value in values)


def _no_longer_run(graph: Graph, folded: set[NodeId], *, training: bool) -> set[NodeId]:
    """Operators with effects that MXNet runs, and would not if those nodes read nothing."""
    before, after = _run(graph, frozenset()), _run(graph, folded)
    return {n for n in before - after if not is_pure(graph[n], training=training)}


def _run(graph: Graph, folded: Container[NodeId]) -> set[NodeId]:
    """Nodes that the outputs depend on, if those nodes read nothing."""
    pending = [value.node for value in graph.outputs]
    found = set(pending)
    while pending:
        node = graph[pending.pop()]
        if node.id in folded:
            continue
        read = {*(value.node for value in node.inputs), *node.after} - found
        found |= read
        pending += read
    return found


def _with_readers(graph: Graph, nodes: set[NodeId]) -> set[NodeId]:
    """Nodes, and all that reads them."""
    found: set[NodeId] = set()
    for node in graph:
        if node.id in nodes or any(value.node in found for value in node.inputs):
            found.add(node.id)
    return found


def _is_deterministic(node: Node, training: bool) -> bool:
    """Whether a node is pure, computes the same in either mode, and can be typed on its own."""
    if node.op == CONSTANT:
        return True
    if not is_pure(node, training=training) or node.attrs.get("infer_range", False):
        return False
    return not (training and info(node.op, node.attrs).mode_dependent)


def _unfit(graph: Graph, node: Node) -> str:
    """Why the types of a node or of its inputs forbid to fold it, or nothing."""
    limit = None if is_known(node) else _EVALUATE_BYTES
    for type_ in (*(graph.type_of(value) for value in node.inputs), *node.types):
        if not type_.is_static:
            return "they have no static type"
        if not type_.shape or not type_.size:
            # MXNet's older operators read no axes, or an extent of 0, as "unknown".
            return "they have no axes or no elements"
        if limit is not None and (type_.nbytes or 0) > limit:
            return f"evaluating them takes arrays of more than {limit} bytes"
    return ""


def _edge(graph: Graph, constant: set[NodeId], refused: dict[str, list[Node]]) -> list[Value]:
    """Constant values, not yet written down, that are read by what will stay."""
    outputs = set(graph.outputs)
    # The executor hands out its own arrays, never those of constants; a fill is its own.
    owned = {
        value.node
        for value in outputs
        if value.node in constant and canonical(graph[value.node].op) not in FILLS
    }
    edge: list[Value] = []
    for node in graph:
        if node.id not in constant or canonical(node.op) in _FOLDED:
            continue
        if node.id in owned:
            refused.setdefault("graph outputs have to be computed", []).append(node)
            continue
        read = {
            graph[use.node].inputs[use.position].index
            for use in graph.node_users(node.id)
            if use.node not in constant or use.node in owned
        }
        edge += [v for v in node.values if v.index in read or v in outputs]
    return edge


def _extract(graph: Graph, constant: set[NodeId], wanted: list[Value]) -> Graph:
    """A graph without inputs that returns the values; named by number, so that names are unique."""
    part = Graph(f"constants of {graph.name}")
    made: dict[Value, Value] = {}
    for node in _upstream(graph, constant, wanted):
        if is_known(node):
            op, attrs = known_form(graph, node)
            twin = part.add(op, (), attrs, node.types, f"node{node.id}")
        else:
            for value in node.inputs:
                if value not in made:  # only its shape is read
                    made[value] = _placeholder(part, graph.type_of(value)).out()
            inputs = [made[value] for value in node.inputs]
            twin = part.add(node.op, inputs, node.attrs, node.types, f"node{node.id}")
        made.update(zip(node.values, twin.values, strict=True))
    part.set_outputs(made[value] for value in wanted)
    return part


def _placeholder(part: Graph, type_: TensorType) -> Node:
    attrs = {"dtype": type_.dtype, "shape": type_.shape}
    return part.add("_zeros", (), attrs, (type_,), f"shape{len(part)}")


def _upstream(graph: Graph, constant: set[NodeId], wanted: list[Value]) -> list[Node]:
    """What evaluation needs, producers first; it starts at what is known."""
    reached: set[NodeId] = set()
    pending = [value.node for value in wanted]
    while pending:
        node = graph[pending.pop()]
        if node.id in reached or node.id not in constant:
            continue
        reached.add(node.id)
        if not is_known(node):
            pending.extend(value.node for value in node.inputs)
    return [node for node in graph if node.id in reached]


def _replaced(graph: Graph, constant: set[NodeId], forms: Mapping[Value, Form]) -> Graph:
    """The values in their new form, without the nodes that nothing reads any more."""
    folded = graph.copy()
    names = Counter(node.name for node in graph)
    new: dict[Value, Value] = {}
    for value, (op, attrs) in forms.items():
        node, types = graph[value.node], (graph.type_of(value),)
        if len(node.types) > 1:
            name = _free_name(names, f"{node.name}_output{value.index}")
            twin = folded.add(op, (), attrs, types, name, origin=node.origin)
            new[value] = twin.out()
            continue
        name = node.name
        if op == CONSTANT and (not name or names[name] > 1):
            name = _free_name(names, name)  # it becomes a variable, and they are told by name
        folded.update(node.but(op=op, inputs=(), attrs=attrs, name=name))
    for node in graph if new else ():
        substitute(folded, folded[node.id], new)
    outputs = {value.node for value in graph.outputs}
    for node in reversed(graph.topological()):
        if node.id in constant and node.id not in outputs and not folded.node_users(node.id):
            folded.erase(node.id)
    return folded


def _reads_inputs(graph: Graph) -> bool:
    """Whether an output depends on an input; a search that mostly ends soon."""
    pending = [value.node for value in graph.outputs]
    seen = set(pending)
    while pending:
        node = graph[pending.pop()]
        if node.is_input:
            return True
        fresh = {value.node for value in node.inputs} - seen
        seen |= fresh
        pending += fresh
    return False


def _free_name(names: Counter[str], base: str) -> str:
    name, count = base or "constant", 0
    while names[name]:
        count += 1
        name = f"{base or 'constant'}_{count}"
    names[name] += 1
    return name
