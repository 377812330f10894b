"""Types of all values of a graph, by MXNet's own shape and type inference."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from graphopt.backend.symbol import first_line, to_symbol
from graphopt.compat import import_mxnet
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, DATA, Node, NodeId
from graphopt.ir.ops import canonical, info
from graphopt.ir.types import DTYPES, Shape, TensorType, dtype_name

Types = dict[NodeId, tuple[TensorType, ...]]


#: Operators that write wrong shapes, or shapes with gaps, where their inputs' stood: these always,
_STACKS: Final = frozenset({"_npi_column_stack", "_npi_dstack", "_npi_hstack"})
#: and these that of a flat array where they have no axis; the axis that they have by default.
_FLAT: Final[Mapping[str, int | None]] = {
    "_npi_concatenate": 0,
    "_npi_insert_scalar": None,
    "_npi_insert_slice": None,
    "_npi_insert_tensor": None,
}
#: Operators whose results have shapes that are known once they were computed.
VALUE_SHAPED: Final = frozenset(
    {"_contrib_boolean_mask", "_npi_bincount", "_npi_delete", "_npi_unique", "_npx_nonzero"}
)
#: Operators that hand operators of their own to MXNet's engine as they run.
LOOPS: Final = frozenset({"_foreach", "_while_loop", "_cond", "_CachedOp", "_CachedOpThreadSafe"})

#: MXNet's inference is given this dtype as attribute of a variable only.
_STATED_ONLY: Final = "bfloat16"


def infer_types(graph: Graph) -> Types:
    """Infer from the types of the graph's inputs; what cannot be inferred stays unknown.

    Inputs whose dtype nothing determines are float32, as in MXNet's executor. Linear.

    Raises:
        RefusedError: the input types contradict each other; the message names the node.
    """
    graph = _shielded(graph)
    internals = to_symbol(_numbered(graph)).get_internals()
    outputs = internals.list_outputs()
    shapes = _shapes(graph, internals)
    dtypes = _dtypes(graph, internals)
    collected: dict[NodeId, list[TensorType]] = {}
    met: dict[tuple[str | None, Shape | None], TensorType] = {}  # a graph has few types
    for name, shape, dtype in zip(outputs, shapes, dtypes, strict=True):
        type_ = met.get((dtype, shape))
        if type_ is None:
            type_ = met[dtype, shape] = TensorType(dtype, shape)
        collected.setdefault(int(name.split("_")[0]), []).append(type_)
    known = {node.id: node.types for node in graph if node.is_input}
    return known | {node: tuple(types) for node, types in collected.items()}


class ShapeInference:
    """Types of the values of one graph, for inputs of several shapes; dtypes are as they are."""

    def __init__(self, graph: Graph) -> None:
        """Of a graph with types."""
        self._graph = _shielded(graph)
        self._internals = to_symbol(_numbered(self._graph)).get_internals()
        self._nodes = [int(name.split("_")[0]) for name in self._internals.list_outputs()]

    def types(self, shapes: Mapping[NodeId, Shape]) -> Types:
        """With other shapes of some inputs, by their ids.

        Raises:
            RefusedError: they do not fit; the message names the node.
        """
        given = self._graph.copy()
        for node_id, shape in shapes.items():
            node = given[node_id]
            given.update(node.but(types=(TensorType(node.type.dtype, tuple(shape)),)))
        found: dict[NodeId, list[TensorType]] = {node.id: [] for node in given}
        for node_id, extents in zip(self._nodes, _shapes(given, self._internals), strict=True):
            types, own = found[node_id], given[node_id].types
            dtype = own[len(types)].dtype if len(types) < len(own) else None
            types.append(TensorType(dtype, extents))
        return {n: tuple(types) or given[n].types for n, types in found.items()}


def with_types(graph: Graph) -> Graph:
    """A copy in which every node carries the inferred types (and so its number of outputs).

    Raises:
        RefusedError: they contradict each other, or a reshape changes the number of elements.
    """
    types = infer_types(graph)
    typed = graph.copy()
    for node in graph:
        found = types.get(node.id, node.types)
        attrs = _resolved(node, found)
        _check_reshape(graph, node, found, types)
        if found != node.types or attrs is not node.attrs:
            typed.update(node.but(types=found, attrs=attrs))
    return typed


def _check_reshape(graph: Graph, node: Node, found: tuple[TensorType, ...], types: Types) -> None:
    """Raise where a reshape changes the number of elements: MXNet would corrupt its memory.

    Raises:
        RefusedError: one does.
    """
    if not node.inputs or node.graphs or not info(node.op, node.attrs).view:
        return
    source = node.inputs[0]
    before = types.get(source.node, graph[source.node].types)[source.index]
    if before.size is not None and found[0].size is not None and before.size != found[0].size:
        from graphopt.backend.refused import RefusedError  # takes MXNet

        raise RefusedError(
            f"node {node.name!r} ({node.op} {node.attrs.text}) cannot reshape {before},"
            f" {before.size} elements, to {found[0]}, {found[0].size} elements"
        )


def _resolved(node: Node, types: tuple[TensorType, ...]) -> Attrs:
    """Attributes with the inferred shape where the node leaves extents open.

    ``zeros((1, 0, 8))``, the begin state of a Gluon RNN layer, gets its batch size from the node
    that reads it, which may be in another graph once parameters are frozen.
    """
    stated = node.attrs.get("shape")
    if node.inputs or node.is_input or not isinstance(stated, tuple) or 0 not in stated:
        return node.attrs
    if not types[0].is_static or types[0].shape == stated:
        return node.attrs
    return Attrs({**node.attrs, "shape": types[0].shape})


def shape_spoilers(graph: Graph) -> list[Node]:
    """Operators of which MXNet learns shapes as it runs only, too late for a static CachedOp."""
    return [node for node in graph if _spoils(node)]


def _spoils(node: Node) -> bool:
    op = canonical(node.op)
    return op in _STACKS or (op in _FLAT and node.attrs.get("axis", _FLAT[op]) is None)


def has_loops(graph: Graph) -> bool:
    """Whether operators of it run operators of their own."""
    return any(canonical(node.op) in LOOPS for node in graph)


def _shielded(graph: Graph) -> Graph:
    """The graph with copies of what operators read that spoil its shape; the copies get spoiled."""
    readers = shape_spoilers(graph)
    if not readers:
        return graph
    twin = graph.copy()
    for node in readers:
        copies = [twin.add("_copy", (v,), types=(graph.type_of(v),)).out() for v in node.inputs]
        twin.update(node.but(inputs=tuple(copies)))
    return twin


def _numbered(graph: Graph) -> Graph:
    """The same graph with ids for names, so that MXNet's listing can be mapped back."""
    twin = graph.copy()
    for node in graph:
        attrs = node.attrs
        if node.is_input and node.type.dtype == _STATED_ONLY:
            attrs = attrs.set(__dtype__=DTYPES[_STATED_ONLY][2])
        twin.update(node.but(name=str(node.id), attrs=attrs))
    return twin


def _feeds(graph: Graph, symbol: Any) -> dict[str, TensorType]:
    """Types of the variables MXNet lists, by their numbered names."""
    known = {str(node.id): node.type for node in graph if node.is_input or node.op == CONSTANT}
    return {name: known[name] for name in symbol.list_inputs()}


def _shapes(graph: Graph, internals: Any) -> list[Shape | None]:
    unknown = -1 if import_mxnet().util.is_np_shape() else 0
    feeds = {
        name: tuple(unknown if extent is None else extent for extent in type_.shape)
        for name, type_ in _feeds(graph, internals).items()
        if type_.shape is not None
    }
    found = _infer(graph, internals._infer_shape_impl, feeds)
    return [_shape(shape) for shape in found]


def _shape(found: tuple[int, ...] | None) -> Shape | None:
    """MXNet's shape; without np_shape an extent of 0 and a rank of 0 mean unknown."""
    np_shape = import_mxnet().util.is_np_shape()
    if found is None or (not found and not np_shape):
        return None
    unknown = -1 if np_shape else 0
    return tuple(None if extent == unknown else int(extent) for extent in found)


def _dtypes(graph: Graph, internals: Any) -> list[str | None]:
    known = {name: type_.dtype for name, type_ in _feeds(graph, internals).items()}
    feeds = {name: d for name, d in known.items() if d not in (None, _STATED_ONLY)}
    # Some operators refuse to infer from nothing, so data goes first; a parameter may yet get its
    # dtype from what reads it.
    for name in known.keys() - feeds.keys():
        node = graph[int(name)]
        if node.op == DATA and known[name] is None and "__dtype__" not in node.attrs:
            feeds[name] = "float32"
    found = _infer(graph, internals._infer_type_impl, feeds)
    by_name = dict(zip(internals.list_outputs(), found, strict=True))
    untyped = [name for name in known if by_name[name] is None]
    if untyped:
        feeds.update(dict.fromkeys(untyped, "float32"))
        found = _infer(graph, internals._infer_type_impl, feeds)
    return [None if dtype is None else dtype_name(dtype) for dtype in found]


def _infer(graph: Graph, infer: Any, feeds: Mapping[str, Any]) -> list[Any]:
    mx = import_mxnet()
    try:
        _, outputs, _ = infer(True, **feeds)
    except (mx.MXNetError, ValueError, TypeError, KeyError) as error:
        from graphopt.backend.refused import RefusedError  # takes MXNet

        raise RefusedError(_explain(graph, first_line(error))) from None
    return list(outputs)


_OPERATOR = re.compile(r"Error in operator (\d+)(?:_\w+)?: (?:\[[^\]]*\] )?(?:\S+: )?(.*)")


def _explain(graph: Graph, message: str) -> str:
    match = _OPERATOR.search(message)
    if match is None or int(match[1]) not in graph:
        return f"types of graph {graph.name!r} cannot be inferred: {message}"
    node = graph[int(match[1])]
    reads = ", ".join(str(graph.type_of(value)) for value in node.inputs)
    known = f": ({reads})" if reads.strip("?, ") else ""
    return f"inputs of node {node.name!r} ({node.op}) do not fit{known}; MXNet: {match[2]}"
