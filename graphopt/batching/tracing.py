"""Graphs of child Blocks, and the proof that they keep rows apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphopt.analysis.effects import is_pure
from graphopt.analysis.sparse import makes_sparse
from graphopt.batching.layout import Layout, layout_of, regroup
from graphopt.batching.rules import NotRowwiseError, roles
from graphopt.batching.signature import broadcasting
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, UnsupportedError
from graphopt.frontend.alone import traced_alone
from graphopt.frontend.blocks import all_parameters
from graphopt.frontend.composing import composing_graphs
from graphopt.frontend.gluon import noting_calls, typed_of
from graphopt.frontend.questions import draws_without_shape
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node
from graphopt.ir.ops import canonical, info
from graphopt.ir.types import dtype_name
from graphopt.nn.steady import once_for_all_calls

if TYPE_CHECKING:
    from graphopt.batching.lazy import Lazy

#: Rows of two probes: what holds for both (other primes) holds for any number.
PROBES = (3, 5)
_BATCH_NORMS = ("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_BatchNormWithReLU")


def trace_rows(block: Any, layout: Layout, names: Sequence[str]) -> tuple[Any, Layout]:
    """The Symbol of a Block for inputs of such names, and how its results are nested.

    Raises:
        NotRowwiseError: its code cannot be given Symbols.
    """
    mx = import_mxnet()
    symbols = iter([mx.sym.var(name) for name in names])
    leaves: list[Any] = []
    try:
        with traced_alone(block):
            if _is_graph(block):
                with composing_graphs(block):
                    found = block.forward(*regroup(layout, symbols))
            else:
                found = _of_python(block, regroup(layout, symbols))
        results = layout_of(found, leaves)
        if any(isinstance(leaf, mx.sym.np._Symbol) for leaf in leaves):
            raise NotRowwiseError("an output is of mx.np")
        if any(len(leaf.list_outputs()) != 1 for leaf in leaves):
            raise NotRowwiseError("an output is a list as one Symbol")
        return _drawing_enough(block, mx.sym.Group(leaves)), results
    except UnsupportedError as error:
        raise NotRowwiseError(str(error)) from error
    except NotRowwiseError:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        reason = text[0] if text else ""
        raise NotRowwiseError(f"it cannot be traced: {type(error).__name__}: {reason}") from error


def _is_graph(block: Any) -> bool:
    """Whether MXNet runs its Python once."""
    return bool(getattr(block, "_active", False))


def _drawing_enough(block: Any, group: Any) -> Any:
    if not _is_graph(block) and draws_without_shape(group):
        raise NotRowwiseError("it draws numbers and does not say how many")
    return group


def _of_python(block: Any, symbols: Any) -> Any:
    """What a Block that is not hybridized makes of Symbols, if that is what its calls make.

    Raises:
        NotRowwiseError: its Python has to run in every call.
        UnsupportedError: likewise.
    """
    with once_for_all_calls(block), composing_graphs(block), noting_calls(block) as every_time:
        found = block.forward(*symbols)
    if every_time:
        raise NotRowwiseError(every_time[0])
    return found


def parameters_of(
    block: Any, symbol: Any, names: Sequence[str], values: Sequence[Lazy]
) -> dict[str, Any]:
    """The Block's parameters that its graph reads, initialized for good."""
    try:
        known = all_parameters(block)
    except UnsupportedError as error:
        raise NotRowwiseError(str(error)) from error
    read = [n for n in symbol.list_inputs() if n not in names]
    stray = [n for n in read if n not in known]
    if stray:
        raise NotRowwiseError(f"it reads {stray[0]!r}, which is no parameter of it")
    params = {n: known[n] for n in read}
    deferred = [p for p in params.values() if p._deferred_init]
    if deferred:
        shapes = {n: x.shape for n, x in zip(names, values, strict=True)}
        arg_shapes, _, aux_shapes = symbol.infer_shape_partial(**shapes)
        found = dict(zip(symbol.list_arguments(), arg_shapes, strict=True))
        found |= dict(zip(symbol.list_auxiliary_states(), aux_shapes, strict=True))
        for parameter in deferred:
            parameter.shape = found[parameter.name]
            parameter._finish_deferred_init()
    return params


def checked(
    block: Any,
    symbol: Any,
    data: dict[str, tuple[Any, str]],
    params: dict[str, Any],
    *,
    training: bool,
) -> tuple[Graph, list[tuple[tuple[int, ...], str]]]:
    """The graph, and types of the outputs' rows, if no operator mixes rows.

    Raises:
        NotRowwiseError: one does, or nobody knows.
        UnsupportedError: BatchNorm in training.
    """
    from graphopt.backend.infer import with_types

    graphs = []
    for rows in PROBES:
        shapes = {n: (rows, *tail) for n, (tail, _) in data.items()}
        dtypes = {n: dtype for n, (_, dtype) in data.items()}
        for name, parameter in params.items():
            typed = typed_of(parameter)
            shapes[name], dtypes[name] = tuple(typed.shape), dtype_name(typed.dtype)
        try:
            graph = lift_symbol(symbol, shapes, dtypes, data=set(data), name=block.name)
            graphs.append(with_types(graph))
        except GraphoptError as error:
            raise NotRowwiseError(f"its types are unknown: {error}") from error
    return graphs[0], _check_graphs(graphs[0], graphs[1], training=training)


def _check_graphs(first: Graph, second: Graph, *, training: bool) -> list[Any]:
    batched: set[Any] = set()
    for node in first.topological():
        if makes_sparse(node.op, node.attrs):
            raise NotRowwiseError(f"{node.name!r} ({node.op}) makes a sparse array")
        if node.is_input:
            if node.op == DATA:
                batched.add(node.id)
            continue
        if any(v.node in batched for v in node.inputs):
            _check_node(first, second, node, batched, training=training)
            batched.add(node.id)
        elif not is_pure(node, training=training):
            raise NotRowwiseError(
                f"{node.name!r} ({node.op}) reads no rows, and does something in every call"
            )
    outs = []
    for value in first.outputs:
        if value.node not in batched:
            raise NotRowwiseError("an output does not depend on its inputs")
        type_ = first.type_of(value)
        assert type_.shape is not None  # _check_node looked
        outs.append((tuple(type_.shape[1:]), type_.dtype))
    return outs


def _check_node(
    first: Graph, second: Graph, node: Node, batched: set[Any], *, training: bool
) -> None:
    name = f"{node.name!r} ({node.op})"
    fixed = str(node.attrs.get("use_global_stats", False)).lower() in ("true", "1")
    if canonical(node.op) in _BATCH_NORMS and training and not fixed:
        raise UnsupportedError(
            f"{name} in training takes statistics over the samples of one call, which batching"
            " would change: use use_global_stats=True, LayerNorm, or graphopt.batch(net,"
            " debug=True)"
        )
    twin = second[node.id]
    for type_, other in zip(node.types, twin.types, strict=True):
        _same_tail(name, type_.shape, other.shape)
    flags = [v.node in batched for v in node.inputs]
    shapes = [first.type_of(v).shape for v in node.inputs]
    if any(shape is None for shape in shapes):
        raise NotRowwiseError(f"{name} has inputs of unknown shape")
    facts = info(node.op, node.attrs)
    if facts.view and not facts.loss and flags[0]:
        return  # the same elements in the same order, and as many rows: the same rows
    try:
        wanted = roles(node.op, node.attrs, shapes, training=training)  # type: ignore[arg-type]
    except NotRowwiseError as error:
        raise NotRowwiseError(f"{name}: {error}") from None
    rank = max(len(s) for s in shapes if s is not None)
    for role, has_rows, shape in zip(wanted, flags, shapes, strict=True):
        assert shape is not None
        if role == "s" and has_rows:
            raise NotRowwiseError(f"{name}: its weights are computed from rows")
        if role == "r" and not has_rows:
            widens = broadcasting(node.op) == canonical(node.op)
            if not widens or (len(shape) == rank and shape[0] != 1):
                raise NotRowwiseError(f"{name}: a fixed array stands where rows should")
        if role == "r" and has_rows and len(shape) != rank and broadcasting(node.op):
            raise NotRowwiseError(f"{name}: its arguments differ in rank")


def _same_tail(name: str, shape: Any, other: Any) -> None:
    rows, more = PROBES
    if (
        shape is None
        or other is None
        or not shape
        or not other
        or shape[0] != rows
        or other[0] != more
        or shape[1:] != other[1:]
    ):
        raise NotRowwiseError(f"{name}: its output has no rows like its input's")
