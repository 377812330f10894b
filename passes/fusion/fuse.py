"""What fuse-pointwise and fuse-reduction share: find regions, weigh them, make them nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphopt.analysis.effects import behind_rivals, held_nodes, written_values
from graphopt.analysis.frozen import frozen_nodes
from graphopt.analysis.gradients import without_gradient
from graphopt.analysis.sparse import makes_sparse
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, FUSED, Node, NodeId, Value
from graphopt.ir.ops import Gradient, canonical, info
from graphopt.kernels.expand import collapse
from graphopt.kernels.instructions import INSTRUCTIONS
from graphopt.kernels.spec import KernelSpec
from graphopt.passes.fusion.group_norm import with_groups_as_axes
from graphopt.passes.fusion.groups import Groups
from graphopt.passes.fusion.operators import FLOATS, NO_SPAN, Span
from graphopt.passes.fusion.pieces import pieces
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.region import operators, replace_region, results
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.fusion.translate import is_number, region_spec
from graphopt.passes.fusion.worth import why_not_worth
from graphopt.pipeline.base import PassContext
from graphopt.rewrite.substitute import transplant

#: Bounds on a kernel: more operands than this do not stay in registers.
MAX_MEMBERS = 64
MAX_OPERANDS = 24
#: Rows side by side that are worth a kernel across them.
FEWEST_COLUMNS = 8

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """What the members of a region agree on."""

    shape: Shape
    span: Span  # NO_SPAN: no reduction seen yet
    is_double: bool


@dataclass
class _Found:
    groups: Groups
    spaces: dict[NodeId, Space]


def fuse(graph: Graph, cx: PassContext, *, rows: bool) -> Graph:
    """Replace regions by fused nodes.

    Args:
        graph: with static types.
        cx: for settings and remarks.
        rows: regions around reductions; else pointwise ones only.
    """
    why = None if cx.target is None else cx.target.why_no_fused_kernels(cx.settings.device)
    if why is not None:
        cx.missed(f"no operator was fused: {why}")
        return graph
    given, graph = graph, with_groups_as_axes(graph) if rows else graph
    candidates = _candidates(graph, cx, rows=rows)
    if not candidates:
        return given
    found = _grow(graph, candidates)
    position = {node.id: at for at, node in enumerate(graph.topological())}
    regions = {found.groups.find(n) for n in candidates}
    places = {node: position[node] for node in behind_rivals(graph, training=cx.training)}
    fused, specs = graph.copy(), _Specs(graph, precise=cx.settings.precise, training=cx.training)
    done = 0
    for region in sorted(regions, key=lambda group: position[group]):
        members = sorted(found.groups.members(region), key=position.__getitem__)
        for nodes in pieces(graph, [graph[n] for n in members], MAX_OPERANDS):
            if rows and not any(canonical(node.op) in ROWS for node in nodes):
                continue
            done += _try(graph, fused, nodes, places, specs, cx)
    if not done:
        return given
    cx.count("kernels", done)
    return fused


def _candidates(graph: Graph, cx: PassContext, *, rows: bool) -> dict[NodeId, Space]:
    """Nodes that a kernel can compute, and over what space."""
    held = held_nodes(graph)
    written = written_values(graph, training=cx.training)
    frozen = frozen_nodes(graph) if cx.settings.frozen else frozenset()
    integers_learn = cx.settings.integers_learn
    truncating = _truncating(graph, integers_learn) if cx.training else frozenset()
    sparse = _sparse(graph)
    found: dict[NodeId, Space] = {}
    refused: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], Node] = {}
    for node in graph:
        op = canonical(node.op)
        if node.is_input or (op not in POINTWISE and op not in ROWS):
            continue
        # What has no inputs is a literal of the kernel, which is better than to be computed once.
        if (node.id in frozen and node.inputs) or node.id in held or node.after:
            continue
        if op in ROWS and not rows:
            continue
        why = why_no_kernel(graph, node, written, cx.settings.device)
        if node.id in truncating:
            why = "MXNet truncates its gradient to integers"
        if node.id in sparse:
            why = "it may be of a sparse array"
        if why is not None:
            refused[op, why] += 1
            examples.setdefault((op, why), node)
            continue
        found[node.id] = _space(graph, node, op)
    for (op, why), count in refused.items():
        times = "" if count == 1 else f" ({count} of them)"
        cx.missed(f"{op} is not fused: {why}{times}", examples[op, why])
    return found


def _sparse(graph: Graph) -> set[NodeId]:
    """Pointwise operators whose result may be sparse, as something that they read is. Linear."""
    made = {node.id for node in graph if makes_sparse(node.op, node.attrs)}
    if made:
        for node in graph.topological():
            if canonical(node.op) in POINTWISE and any(v.node in made for v in node.inputs):
                made.add(node.id)
    return made


def _truncating(graph: Graph, integers_learn: bool) -> frozenset[NodeId]:
    """Nodes that read integers through which MXNet lets a gradient pass. Linear.

    Whether those of inputs are asked for, as those of labels and masks are not, the caller knows.
    """
    passing: set[NodeId] = set()
    found: set[NodeId] = set()
    for node in graph.topological():
        read = [value for value in node.inputs if value.node in passing]
        if any(graph.type_of(value).dtype not in FLOATS for value in read):
            found.add(node.id)
        facts = info(node.op, node.attrs)
        if node.is_input:
            passes_on = integers_learn or node.type.dtype in FLOATS
        else:
            passes_on = bool(read) and facts.gradient is not Gradient.NONE
        if passes_on and not facts.stops_gradient:
            passing.add(node.id)
    return frozenset(found)


def why_no_kernel(graph: Graph, node: Node, written: frozenset[Value], device: str) -> str | None:
    """Why an operator of :data:`POINTWISE` or :data:`ROWS` is in no region, or ``None``."""
    op = canonical(node.op)
    types = [graph.type_of(value) for value in node.inputs] + [node.type]
    if not all(found.is_static for found in types):
        return "its shape or dtype is not known"
    if len(node.inputs) >= MAX_OPERANDS:
        return f"it has more than {MAX_OPERANDS - 1} inputs"
    if op in INSTRUCTIONS and INSTRUCTIONS[op].gradient is None:
        # MXNet derives the backward graph at once, at inference too.
        return "kernels have no derivative of it"
    if any(value in written for value in node.inputs):
        return "it reads a state that another operator writes"
    if op in ROWS:
        return ROWS[op].check(node, graph) or _no_columns(graph, node, op, device)
    return POINTWISE[op].check(node, graph)


def _no_columns(graph: Graph, node: Node, op: str, device: str) -> str | None:
    """Why axes are not reduced that others come behind."""
    span, shape = ROWS[op].span(node, graph), _shape(graph, node.inputs[0])
    if not span.columns:
        return None
    if device != "cpu":
        return None  # threads side by side take columns there, however few
    count = math.prod(shape[len(shape) - span.columns :])
    if count < FEWEST_COLUMNS:
        return f"of the axes that it reduces {count} lie side by side, too few for a vector"
    return None


def _space(graph: Graph, node: Node, op: str) -> Space:
    is_double = any(graph.type_of(v).dtype == "float64" for v in node.inputs)
    if op in ROWS:
        return Space(_shape(graph, node.inputs[0]), ROWS[op].span(node, graph), is_double)
    return Space(_shape(graph, node.out()), NO_SPAN, is_double or node.type.dtype == "float64")


def _shape(graph: Graph, value: Value) -> Shape:
    shape = graph.type_of(value).shape
    assert shape is not None
    return tuple(extent or 0 for extent in shape)


def _grow(graph: Graph, candidates: dict[NodeId, Space]) -> _Found:
    """Merge every candidate with those it reads, where that is possible."""
    groups = Groups(graph)
    spaces = dict(candidates)
    for node in graph.topological():
        if node.id not in candidates:
            continue
        for value in node.inputs:
            if value.node not in candidates or value.index != 0:
                continue
            mine, other = groups.find(node.id), groups.find(value.node)
            if mine == other:
                continue
            joined: Space | None = spaces[mine]
            if not _is_literal(graph, value, spaces[mine]):
                joined = _joined(graph, value, spaces[mine], spaces[other])
            size = len(groups.members(mine)) + len(groups.members(other))
            if joined is None or size > MAX_MEMBERS or not groups.can_merge(mine, other):
                continue
            spaces[groups.merge(mine, other)] = joined
    return _Found(groups, spaces)


def _is_literal(graph: Graph, value: Value, reader: Space) -> bool:
    """Whether a value is one number that nobody else reads, known before anything runs."""
    if not is_number(graph[value.node]):
        return False
    is_alone = len(graph.users(value)) == 1 and not graph.is_output(value)
    return is_alone and reader.is_double == (graph.type_of(value).dtype == "float64")


def _joined(graph: Graph, value: Value, reader: Space, source: Space) -> Space | None:
    """The space of two regions together, if they fit; the first reads ``value`` of the second."""
    if reader.is_double != source.is_double:
        return None
    reduces = reader.span.inner > 0
    if reduces and source.span.inner and reader.span != source.span:
        return None
    if reader.shape == source.shape:
        return Space(reader.shape, reader.span if reduces else source.span, reader.is_double)
    # A value per row, computed from a reduction's result.
    if source.span.inner and reader.shape in _row_shapes(source) and not reduces:
        return source
    return None


def _row_shapes(space: Space) -> tuple[Shape, ...]:
    """Shapes of one value per row: reduced axes kept with extent 1, or dropped."""
    inner, columns = space.span
    end = len(space.shape) - columns
    ones = space.shape[: end - inner] + (1,) * inner + space.shape[end:]
    return (ones, space.span.dropped(space.shape))


class _Specs:
    """The kernels of regions; those that are alike, as of the layers of a net, are made once."""

    def __init__(self, graph: Graph, *, precise: bool, training: bool) -> None:
        self._graph = graph
        self._precise = precise
        self._without_gradient = without_gradient(graph) if training else frozenset()
        self._made: dict[tuple[object, ...], tuple[KernelSpec, str]] = {}

    def of(
        self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> tuple[KernelSpec, str]:
        """The kernel of a region, and its text.

        Raises:
            GraphoptError: it is no kernel; the message names the node and the reason.
        """
        key = self._key(nodes, inputs, outputs)
        if key not in self._made:
            spec = region_spec(
                *(self._graph, nodes, inputs, outputs, self._without_gradient),
                precise=self._precise,
            )
            spec = replace(spec, precise=self._precise)
            collapse(spec)
            _check_extents(spec)
            self._made[key] = spec, str(spec)
        return self._made[key]

    def _key(
        self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> tuple[object, ...]:
        """All that the kernel depends on: operators, what each reads, and the types."""
        number = {value: at for at, value in enumerate(inputs)}
        number |= {node.out(): len(inputs) + at for at, node in enumerate(nodes)}
        return (
            *(self._graph.type_of(value) for value in inputs),
            *((n.op, n.attrs, n.types, *(number.get(v, v) for v in n.inputs)) for n in nodes),
            *((number[value], value in self._without_gradient) for value in outputs),
        )


def _try(
    graph: Graph,
    fused: Graph,
    nodes: Sequence[Node],
    places: Mapping[NodeId, int],
    specs: _Specs,
    cx: PassContext,
) -> bool:
    """Make one region a node of ``fused``, unless that is not possible or not worth it."""
    inputs, outputs = _boundary(graph, nodes, places)
    if not outputs:
        return False
    try:
        spec, text = specs.of(nodes, inputs, outputs)
    except GraphoptError as error:
        cx.missed(f"{operators(nodes)} are not fused: {error}", nodes[-1])
        return False
    why = why_not_worth(graph, nodes, spec, device=cx.settings.device)
    if why is not None:
        if len(nodes) > 1:
            cx.missed(f"{operators(nodes)} are not fused: {why}", nodes[-1])
        return False
    body = _body(graph, nodes, inputs, outputs)
    replace_region(fused, nodes, inputs, outputs, FUSED, {"spec": text}, body, "fused")
    saved = sum(graph.type_of(n.out()).nbytes or 0 for n in nodes if n.out() not in outputs)
    cx.count("operators", len(nodes))
    kernel = "one kernel" + (f", {saved / 1e6:.3g} MB are no longer written" if saved else "")
    cx.passed(f"{operators(nodes)} became {kernel}", nodes[-1])
    return True


def alone(graph: Graph, node: Node) -> KernelSpec | None:
    """The kernel of one operator by itself, for inference on a CPU; ``None`` if there is none."""
    op = canonical(node.op)
    if op not in POINTWISE and op not in ROWS:
        return None
    if why_no_kernel(graph, node, frozenset(), "cpu") is not None:
        return None
    try:
        spec = region_spec(graph, [node], tuple(dict.fromkeys(node.inputs)), [node.out()])
        collapse(spec)
        _check_extents(spec)
    except GraphoptError:
        return None
    return spec


def _check_extents(spec: KernelSpec) -> None:
    """Raise where an extent stands in an attribute only: the kernel would not know it."""
    known = frozenset(axis for operand in spec.inputs for axis in operand.covers)
    if len(known) < spec.rank:
        raise GraphoptError("the shape of the result is in none of the inputs")


def _boundary(
    graph: Graph, nodes: Sequence[Node], places: Mapping[NodeId, int]
) -> tuple[list[Value], list[Value]]:
    """Values a region reads from outside, and its own that are read outside.

    MXNet runs what they come from in their order, the last first in backward. Operators that write
    one state, as a BatchNorm that is called twice does, stay in the order they had, which
    ``places`` tells of them and of what reads of them.
    """
    inside = {node.id for node in nodes}
    inputs = dict.fromkeys(v for node in nodes for v in node.inputs if v.node not in inside)
    behind = [value for value in inputs if value.node in places]
    ordered = iter(sorted(behind, key=lambda value: places[value.node]))
    found = [next(ordered) if v.node in places else v for v in inputs]
    return found, results(graph, nodes)


def _body(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> Graph:
    """The operators of a region as a graph of their own, to be told and to be put back."""
    body = Graph("region")
    new: dict[Value, Value] = {}
    for number, value in enumerate(inputs):
        new[value] = body.add_input(f"in{number}", DATA, graph.type_of(value)).out()
    for node in nodes:
        transplant(body, node, new)
    body.set_outputs(new[value] for value in outputs)
    return body
