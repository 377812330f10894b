"""A region of MXNet's operators as one kernel."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.kernels.spec import STORAGE_DTYPES, Arg, KernelSpec, Operand
from graphopt.kernels.spec_builder import Builder
from graphopt.passes.fusion.activations import prelu_axes
from graphopt.passes.fusion.operators import FLOATS, NO_SPAN, Axes, Span
from graphopt.passes.fusion.pointwise import CASTS, POINTWISE, prepared
from graphopt.passes.fusion.rows import ROWS


def output_axes(node: Node, shape: tuple[int, ...], span: Span = NO_SPAN) -> Axes:
    """The axes of the iteration space that each dimension of a node's first output runs along.

    Args:
        node: of an operator in :data:`POINTWISE` or :data:`ROWS`.
        shape: extents of the iteration space.
        span: the axes that are reduced in the region of the node.

    Raises:
        GraphoptError: the output does not lie in the space.
    """
    out, rank = node.type.shape, len(shape)
    row = ROWS.get(canonical(node.op))
    if row is not None and row.reduces:
        reduced = row.axes(node.attrs, rank)
        kept = tuple(axis for axis in range(rank) if axis not in reduced)
        with_ones = tuple(None if axis in reduced else axis for axis in range(rank))
        for axes in (with_ones, kept or (None,), kept):
            if out == tuple(1 if axis is None else shape[axis] for axis in axes):
                return axes
    elif out == shape:
        return tuple(range(rank))
    elif out is not None and len(out) == rank and _stretches(out, shape):
        return tuple(a if e == shape[a] else None for a, e in enumerate(out))
    elif span.columns and out == span.dropped(shape):
        return span.dropped(tuple(range(rank)))
    elif not span.columns and out is not None and out == shape[: len(out)]:
        return tuple(range(len(out)))
    elif out == (1,):
        return (None,)
    raise GraphoptError(f"{node.label}: its output {node.type} does not lie in {shape}")


def _stretches(shape: Sequence[int | None], space: Sequence[int]) -> bool:
    return all(extent in (1, full) for extent, full in zip(shape, space, strict=True))


def broadcast_axes(
    node: Node, position: int, graph: Graph, shape: tuple[int, ...], span: Span = NO_SPAN
) -> tuple[int | None, ...] | None:
    """The axes of the iteration space that each dimension of an input runs along.

    Args:
        node: of an operator in :data:`POINTWISE` or :data:`ROWS`.
        position: which of its inputs.
        graph: that the node belongs to.
        shape: extents of the iteration space.
        span: the axes that are reduced in the region of the node.

    Returns:
        ``None`` for a dimension that is stretched, ``None`` for all if the input does not fit.
    """
    given = graph.type_of(node.inputs[position]).shape
    if given is None:
        return None
    name = canonical(node.op)
    frame: Axes | None
    axes: Axes
    if name in ROWS:
        if position == 0:
            return tuple(range(len(shape))) if given == shape else None
        frame, axes = shape, tuple(range(len(shape)))
    else:
        try:
            frame, axes = node.type.shape, output_axes(node, shape, span)
        except GraphoptError:
            return None
    if frame is None or len(given) > len(frame):
        return None
    places: Axes | None = tuple(range(len(frame) - len(given), len(frame)))
    if name == "LeakyReLU" and position == 1:
        places = prelu_axes(node, graph)
    if name == "InstanceNorm" and position:
        places = (1,)
    if name == "LayerNorm" and position:
        places = ROWS[name].axes(node.attrs, len(shape))
    if places is None:
        return None
    found: list[int | None] = []
    for extent, place in zip(given, places, strict=True):
        if place is None or extent != frame[place]:
            if extent != 1:
                return None
            found.append(None)
        else:
            found.append(axes[place])
    return tuple(found)


def region_spec(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    without_gradient: Collection[Value] = (),
    *,
    precise: bool = False,
) -> KernelSpec:
    """The kernel that computes a region of a graph.

    Args:
        graph: with all types static in the region.
        nodes: the region in topological order, of operators in :data:`POINTWISE` or :data:`ROWS`.
        inputs: what the nodes read from outside, each value once; the inputs of the kernel.
        outputs: first outputs of nodes; the outputs of the kernel.
        without_gradient: those of them that no gradient comes to.
        precise: round each float16 value, not only those that are written or become others.

    Raises:
        GraphoptError: the region is no kernel; the message names the node and the reason.
    """
    region = _Region(graph, nodes)
    inner, columns = region.span
    emit = Builder(region.dtype, len(region.shape), inner, columns=columns)
    values: dict[Value, Arg] = {}
    for value in inputs:
        values[value] = emit.input(_operand(graph, value, region.reads.get(value)))
    rounded = _rounded(nodes, precise=precise)
    for node in nodes:
        name = canonical(node.op)
        build = POINTWISE[name].build if name in POINTWISE else ROWS[name].build
        for value in node.inputs:
            if value not in values:
                raise GraphoptError(f"{node.label}: the region has no input for {value}")
        args = [values[value] for value in node.inputs]
        made = build(emit, args, prepared(node, graph))
        values[node.out()] = emit("half", made) if node.out() in rounded else made
    for value in outputs:
        if value not in region.writes:
            raise GraphoptError(f"{value} is no first output of a node of the region")
        if is_number(graph[value.node]) and region.extents(value) != region.shape:
            raise GraphoptError(f"{value} is a number, which others read as well")
    written = [
        emit("stop", values[value]) if value in without_gradient else values[value]
        for value in outputs
    ]
    return emit.build(
        [
            (arg, _operand(graph, value, region.writes[value]))
            for arg, value in zip(written, outputs, strict=True)
        ]
    )


def _rounded(nodes: Sequence[Node], *, precise: bool) -> set[Value]:
    """Float16 values that float32 arithmetic is to round: what overflows there is infinite."""
    halves = {n.out() for n in nodes if n.type.dtype == "float16" and n.op not in CASTS}
    if precise:
        return halves
    return halves & {value for n in nodes if n.type.dtype != "float16" for value in n.inputs}


def is_number(node: Node) -> bool:
    """Whether a node is one number that is known beforehand: a literal of kernels."""
    return not node.inputs and node.type.size == 1 and canonical(node.op) in POINTWISE


def _operand(graph: Graph, value: Value, axes: Axes | None) -> Operand:
    node, type_ = graph[value.node], graph.type_of(value)
    if axes is None:
        raise GraphoptError(f"{node.label}: no node of the region reads it")
    if type_.dtype not in STORAGE_DTYPES:
        raise GraphoptError(f"{node.label}: kernels cannot read {type_.dtype}")
    return Operand(type_.dtype, axes)


class _Region:
    """What the nodes of a region have in common, and the axes of every value they touch."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.graph = graph
        for node in nodes:
            self._check(node)
        touched = [v for n in nodes for v in (*n.inputs, n.out())]
        shapes = {self.extents(value) for value in touched}
        self.shape = max(shapes, key=lambda shape: (math.prod(shape), len(shape)))
        self.dtype = self._compute_dtype(touched)
        self.span = self._span(nodes)
        #: Axes of what nodes read and of what they write.
        self.reads: dict[Value, Axes] = {}
        self.writes: dict[Value, Axes] = {}
        for node in nodes:
            for position in range(len(node.inputs)):
                self._read(node, position)
            self.writes[node.out()] = self._written(node)

    def _check(self, node: Node) -> None:
        name = canonical(node.op)
        if name not in POINTWISE and name not in ROWS:
            raise GraphoptError(f"{node.label}: kernels have no such operator")
        for type_ in (*map(self.graph.type_of, node.inputs), node.type):
            if not type_.is_static or type_.size == 0:
                raise GraphoptError(f"{node.label}: an operand has type {type_}")
        check = POINTWISE[name].check if name in POINTWISE else ROWS[name].check
        reason = check(node, self.graph)
        if reason is not None:
            raise GraphoptError(f"{node.label}: {reason}")

    def extents(self, value: Value) -> tuple[int, ...]:
        return tuple(e for e in self.graph.type_of(value).shape or () if e is not None)

    def _compute_dtype(self, touched: Iterable[Value]) -> str:
        dtypes = {self.graph.type_of(value).dtype for value in touched} & set(FLOATS)
        if dtypes == {"float64"}:
            return "float64"
        if "float64" in dtypes:
            raise GraphoptError("the region mixes float64 with narrower floating dtypes")
        return "float32"

    def _span(self, nodes: Sequence[Node]) -> Span:
        found = {
            ROWS[canonical(node.op)].span(node, self.graph): node
            for node in nodes
            if canonical(node.op) in ROWS
        }
        if len(found) > 1:
            told = " and ".join(node.label for node in found.values())
            raise GraphoptError(f"{told} run over different axes")
        return next(iter(found), NO_SPAN)

    def _read(self, node: Node, position: int) -> None:
        value = node.inputs[position]
        axes = broadcast_axes(node, position, self.graph, self.shape, self.span)
        if axes is None:
            raise GraphoptError(
                f"{node.label}: input {position} ({self.graph.type_of(value)}) does not fit"
                f" the region's {self.shape}"
            )
        known = self.writes.get(value, self.reads.get(value))
        if known is None:
            self.reads[value] = axes
            return
        # A dimension of extent 1 runs along whatever it likes.
        for extent, new, old in zip(self.extents(value), axes, known, strict=True):
            if extent != 1 and new != old:
                raise GraphoptError(f"{node.label}: input {position} is read along other axes")

    def _written(self, node: Node) -> Axes:
        if node.type.shape != self.shape and is_number(node):
            return (None,) * (node.type.rank or 0)
        axes = output_axes(node, self.shape, self.span)
        if node.type.shape == self.shape:
            return axes
        # One value per row: inner axes, if any, are there with extent 1.
        rows = self.span.dropped(tuple(range(len(self.shape))))
        axes = tuple(a if a in rows else None for a in axes)
        missing = [a for a in rows if a not in axes and self.shape[a] != 1]
        size = math.prod(self.shape[a] for a in rows)
        if not self.span.inner or missing or node.type.size != size:
            raise GraphoptError(
                f"{node.label}: its output {node.type} is neither all of {self.shape}"
                " nor one value per row"
            )
        return axes
