"""A HybridBlock as one operator: its graph, the proof that it keeps rows apart, its CachedOp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from graphopt.backend.symbol import to_symbol
from graphopt.batching.kinds import kind
from graphopt.batching.native.programs import Block
from graphopt.batching.operators import handle
from graphopt.batching.recorder import RECORDING, TRAINING
from graphopt.batching.rules import NotRowwiseError, roles
from graphopt.batching.signature import Run, Signature, broadcasting, numbers_detached
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, UnsupportedError
from graphopt.frontend.gluon import composing_copies, descendants, describe, typed_of
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.attrs import to_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, FUSED, Node
from graphopt.ir.ops import canonical, info
from graphopt.ir.types import dtype_name

if TYPE_CHECKING:
    from graphopt.batching.lazy import Lazy
    from graphopt.batching.library import Library

#: How nested arguments or results are laid out: 0 is an array, None is None, else (type, parts).
Layout = Any

#: Rows of two probes: what holds for both (other primes) holds for any number.
_PROBES = (3, 5)
#: What makes a graph of the user's faster without knowing the number of rows.
_FUSE = "infer-types,fuse-reduction,fuse-pointwise"
_BATCH_NORMS = ("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_BatchNormWithReLU")


@dataclass(frozen=True)
class Unit:
    """A child Block ready to be recorded."""

    signature: Signature
    results: Layout
    flat: Any = None

    def __post_init__(self) -> None:
        """Several results that are not nested need no more than a conversion."""
        results = self.results
        is_flat = isinstance(results, tuple) and len(results[1]) > 1 and not any(results[1])
        object.__setattr__(self, "flat", results[0] if is_flat and None not in results[1] else None)


def layout_of(nested: Any, leaves: list[Any]) -> Layout:
    """The layout of nested lists and tuples; ``leaves`` gets what is in them.

    Raises:
        TypeError: there is something else than arrays, Symbols and Nones.
    """
    mx = import_mxnet()
    if isinstance(nested, (mx.nd.NDArray, mx.sym.Symbol)):
        leaves.append(nested)
        return 0
    if nested is None:
        return None
    if type(nested) not in (list, tuple):
        raise TypeError(type(nested).__name__)
    return (type(nested), tuple(layout_of(item, leaves) for item in nested))


def regroup(layout: Layout, leaves: Iterator[Any]) -> Any:
    """The inverse of :func:`layout_of`."""
    if layout == 0:
        return next(leaves)
    if layout is None:
        return None
    return layout[0](regroup(part, leaves) for part in layout[1])


def make_unit(
    library: Library,
    block: Any,
    values: Sequence[Lazy],
    layout: Layout,
    state: int,
) -> Unit:
    """Trace a Block for inputs of these types.

    Raises:
        NotRowwiseError: it cannot be traced, or mixes rows.
        UnsupportedError: it takes statistics over the batch.
    """
    mx = import_mxnet()
    if isinstance(block, mx.gluon.rnn.ModifierCell):
        raise NotRowwiseError("modifier cells keep state between calls")
    hooked = next(
        (b for b in descendants(block)[1:] if b._forward_hooks or b._forward_pre_hooks), None
    )
    if hooked is not None:
        raise NotRowwiseError(f"{describe(hooked)} has forward hooks")
    names = [f"data{at}" for at in range(len(values))]
    symbol, results = _trace(block, layout, names)
    params = _parameters(block, symbol, names, values)
    data = {n: (x.kind.tail, x.kind.dtype) for n, x in zip(names, values, strict=True)}
    graph, outs = _check(block, symbol, data, params, training=bool(state & TRAINING))
    ctx = values[0].kind.ctx
    signature = library.signature(
        (id(block), layout, tuple(x.kind for x in values), len(library.units)),
        describe(block),
        len(values),
        [kind(tail, dtype, ctx) for tail, dtype in outs],
        state,
        _run_graph(library, graph, names, params, ctx, state),
        source=Block(graph, tuple(names), params),
    )
    return Unit(signature, results)


@dataclass(frozen=True)
class Rented(Unit):
    """A child Block for inputs of one kind, call by call, and a number for each of these."""

    calls: Iterator[int] = field(default_factory=lambda: count(1))


class Family:
    """A child Block for inputs of one rank and dtype, whatever their shapes.

    Proofs, kernels and a CachedOp for a shape take as long as dozens of calls. By the ski-rental
    rule (see graphopt/nn/ski_rental.py) all but the first ones are called that often before, one by
    one, in a CachedOp of the family's. That needs no proof, and no more than shapes of outputs.
    """

    def __init__(self) -> None:
        """Of no shape so far."""
        self.units = 0
        self._symbol: Any = None

    def rent(
        self, library: Library, block: Any, values: Sequence[Lazy], layout: Layout, state: int
    ) -> Rented | None:
        """For inputs of these types, or None where outputs' rows would not be like the inputs'.

        Raises:
            NotRowwiseError: the Block cannot be traced, or mixes rows.
        """
        if self._symbol is None:
            self._prepare(block, values, layout, state)
        tails = self._tails([x.kind.tail for x in values])
        if tails is None:
            return None
        library.note(f"{describe(block)} runs call by call on shapes that are new")
        ctx = values[0].kind.ctx
        signature = library.signature(
            ("rented", id(block), layout, tuple(x.kind for x in values), len(library.units)),
            describe(block),
            len(values),
            [kind(tail, dtype, ctx) for tail, dtype in zip(tails, self._dtypes, strict=True)],
            state,
            self._run,
            form="single",
        )
        return Rented(signature, self._results)

    def _prepare(self, block: Any, values: Sequence[Lazy], layout: Layout, state: int) -> None:
        self._names = [f"data{at}" for at in range(len(values))]
        symbol, self._results = _trace(block, layout, self._names)
        params = _parameters(block, symbol, self._names, values)
        data = {n: (x.kind.tail, x.kind.dtype) for n, x in zip(self._names, values, strict=True)}
        graph, outs = _check(block, symbol, data, params, training=bool(state & TRAINING))
        self._dtypes = [dtype for _, dtype in outs]
        self._shapes = {name: tuple(typed_of(p).shape) for name, p in params.items()}
        self._symbol = to_symbol(_numbers_stopped(graph) if state & RECORDING else graph)
        self._run = _run_symbol(self._symbol, self._names, params, values[0].kind.ctx)

    def _tails(self, tails: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
        """Of the outputs' rows."""
        found = []
        for rows in _PROBES:
            given = {n: (rows, *tail) for n, tail in zip(self._names, tails, strict=True)}
            try:
                _, shapes, _ = self._symbol.infer_shape(**given, **self._shapes)
            except import_mxnet().MXNetError:
                return None
            if not shapes or any(not s or s[0] != rows or 0 in s for s in shapes):
                return None
            found.append([tuple(shape[1:]) for shape in shapes])
        return found[0] if found[0] == found[1] else None


def _trace(block: Any, layout: Layout, names: Sequence[str]) -> tuple[Any, Layout]:
    mx = import_mxnet()
    symbols = iter([mx.sym.var(name) for name in names])
    leaves: list[Any] = []
    try:
        with composing_copies(block):
            found = block.forward(*regroup(layout, symbols))
        results = layout_of(found, leaves)
        if any(isinstance(leaf, mx.sym.np._Symbol) for leaf in leaves):
            raise NotRowwiseError("an output is of mx.np")
        if any(len(leaf.list_outputs()) != 1 for leaf in leaves):
            raise NotRowwiseError("an output is a list as one Symbol")
        return mx.sym.Group(leaves), results
    except NotRowwiseError:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()
        reason = text[0] if text else ""
        raise NotRowwiseError(f"it cannot be traced: {type(error).__name__}: {reason}") from error


def _parameters(
    block: Any, symbol: Any, names: Sequence[str], values: Sequence[Lazy]
) -> dict[str, Any]:
    """The Block's parameters that its graph reads, initialized for good."""
    known = block.collect_params()
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


def _check(
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
    for rows in _PROBES:
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
        if node.is_input:
            if node.op == DATA:
                batched.add(node.id)
            continue
        if any(v.node in batched for v in node.inputs):
            _check_node(first, second, node, batched, training=training)
            batched.add(node.id)
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
    if info(node.op, node.attrs).view and flags[0]:
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
    rows, more = _PROBES
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


def _run_graph(
    library: Library,
    graph: Graph,
    names: Sequence[str],
    params: dict[str, Any],
    ctx: Any,
    state: int,
) -> Run:
    """One call for any number of rows: an operator, or a CachedOp with fused kernels."""
    calls = [node for node in graph if not node.is_input]
    inputs = [graph[value.node] for node in calls for value in node.inputs]
    if len(calls) == 1 and all(node.is_input for node in inputs) and len(graph.outputs) == 1:
        return _run_alone(calls[0], [node.name for node in inputs], names, params, ctx)
    return _run_symbol(_fused(library, graph, ctx, state), names, params, ctx)


def _run_alone(
    node: Node, inputs: Sequence[str], names: Sequence[str], params: dict[str, Any], ctx: Any
) -> Run:
    """A graph of one operator: its call costs a third of a CachedOp's."""
    attrs = {key: to_mxnet(v) for key, v in node.attrs.items() if not key.startswith("__")}
    keys, texts, code = list(attrs), list(attrs.values()), handle(node.op)
    order: list[Any] = [list(names).index(n) if n in names else params[n] for n in inputs]
    invoke = import_mxnet().ndarray._internal._imperative_invoke

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        args = [arrays[o] if type(o) is int else o.data(ctx) for o in order]
        found: Sequence[Any] = invoke(code, args, keys, texts, None, False, True)
        return found if isinstance(found, list) else [found]

    return numbers_detached(run) if canonical(node.op) == "Embedding" else run


def _numbers_stopped(graph: Graph) -> Graph:
    """The graph with embeddings that do what :func:`numbers_detached` does."""
    found = graph.copy()
    for node in graph:
        if canonical(node.op) == "Embedding":
            numbers, *rest = node.inputs
            name = found.unique_name(f"{node.name}_numbers")
            stop = found.add("BlockGrad", (numbers,), {}, (graph.type_of(numbers),), name)
            found.update(node.but(inputs=(stop.out(), *rest)))
    return found


def _fused(library: Library, graph: Graph, ctx: Any, state: int) -> Any:
    """The Symbol of a graph, its pointwise parts as kernels where that is possible.

    Kernels do not know extents, so those made for few rows serve any number.
    """
    from graphopt.api.running import run
    from graphopt.kernels.library import prepare

    differentiates = bool(state & RECORDING)
    if differentiates:
        graph = _numbers_stopped(graph)
    plain = to_symbol(graph)
    mode: Any = "training" if differentiates or state & TRAINING else "inference"
    try:
        result = run(graph, _FUSE, mode=mode, frozen=False, device=ctx.device_type)
        specs = [str(node.attrs["spec"]) for node in result.graph if node.op == FUSED]
        if not specs:
            return plain
        prepare(specs, gradients=differentiates)
        return to_symbol(result.graph)
    except (GraphoptError, ImportError, OSError) as error:
        library.note(f"{graph.name} runs without fused kernels: {error}")
        return plain


def _run_symbol(symbol: Any, names: Sequence[str], params: dict[str, Any], ctx: Any) -> Run:
    """One CachedOp for any number of rows."""
    mx = import_mxnet()
    inputs = symbol.list_inputs()
    order: list[Any] = [list(names).index(n) if n in names else params[n] for n in inputs]
    data = [at for at, n in enumerate(inputs) if n in names]
    weights = [at for at, n in enumerate(inputs) if n not in names]
    op = mx.nd.CachedOp(symbol, [("data_indices", data), ("param_indices", weights)])

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        found = op(*[arrays[o] if type(o) is int else o.data(ctx) for o in order])
        return found if isinstance(found, list) else [found]

    return run
