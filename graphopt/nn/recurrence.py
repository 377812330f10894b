"""Message passing over forests and acyclic graphs as a Gluon layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.backend.arrays import array_of
from graphopt.backend.invoke import compose, invoke
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError, UnsupportedError
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, RECURRENCE, TREE, Value
from graphopt.ir.types import TensorType, dtype_name
from graphopt.kernels import bridge
from graphopt.kernels.tree.spec import reduction
from graphopt.nn.legacy import current, legacy, with_legacy
from graphopt.passes.recurrence.trees import Learned, TreeBody, translate_tree
from graphopt.rewrite.substitute import transplant

mx = import_mxnet()

_ROWS = "rows"
#: So many times as many numbers as nodes may be looked at to tell which are words in use.
_DENSE = 64


class Recurrence(mx.gluon.HybridBlock):  # type: ignore[name-defined]
    """Message passing from children to parents, all trees of a batch at once.

    ``layer(x, parents)``: ``x`` (nodes, columns) holds the nodes of all trees, ``parents`` (nodes,)
    int32 the number of each node's parent, -1 for a root. ``layer(x, edges)`` with ``edges``
    (count, 2) int32 runs over any acyclic graph, from column 0 to column 1. It returns the states
    of all nodes, (nodes, columns) each, in the order of ``x``, and what else ``update`` computes.

    Every node gets a *message* of each of its children, computed from the node's own row and the
    child's states; messages are put together by *reduce*, zeros where there are none; *update*
    computes the node's states from its row and that. Nodes of one height are computed together, and
    what needs rows alone is computed before, for all nodes together. Forward and backward run in a
    kernel that is made from the two functions, in float32 or float64.

    Gilmer et al., Neural Message Passing for Quantum Chemistry (2017); Looks et al., Deep Learning
    with Dynamic Computation Graphs (2017).

    Args:
        message: ``message(F, x, *states)``, or a HybridBlock called with ``(x, *states)``; returns
            one or several messages (edges, columns).
        reduce: ``"sum"``, ``"mean"``, ``"max"``, or ``"concat2"``, ``"concat3"`` ... which puts the
            messages of at most so many children side by side, in the order of edges, or of the
            children's numbers where parents are given; one for all messages or one for each.
        update: ``update(F, x, *reduced)``, or a HybridBlock; returns the node's states, and behind
            them what else the layer is to return.
        state_sizes: columns of each state; default: as many states as ``message`` takes, each as
            wide as ``x``.
        embedding: a Block that makes rows of words, ``gluon.nn.Embedding`` or the like. ``x`` then
            are words, (nodes,) of an integer dtype, and each word in use is looked up, and what
            needs its row alone is computed, once.

    Raises:
        UnsupportedError: kernels cannot compute the functions; the message names the operator.
        InputError: arrays have other shapes or dtypes than they need.
        MXNetError: parents form a cycle or lie outside of the nodes (when results are read).
    """

    def __init__(
        self,
        message: Any,
        reduce: str | Sequence[str],
        update: Any,
        state_sizes: Sequence[int] | None = None,
        *,
        embedding: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._embedding = embedding
        if embedding is not None:
            self.register_child(embedding, "embedding")
        self._functions = {"message": message, "update": update}
        self._reduce = reduce
        self._state_sizes = None if state_sizes is None else tuple(state_sizes)
        self._bodies: dict[Any, TreeBody] = {}
        self._like: tuple[int, str] | None = None  # columns and dtype of the last rows
        for name, part in self._functions.items():
            if isinstance(part, mx.gluon.HybridBlock):
                self.register_child(part, name)
            elif not callable(part):
                raise InputError(
                    f"{name} is a {type(part).__name__}, not a function or a HybridBlock"
                )

    def forward(self, x: Any, structure: Any) -> Any:
        """Compute the states of all nodes.

        Args:
            x: (nodes, columns), float32 or float64; with an embedding (nodes,), integers.
            structure: parents (nodes,) or edges (count, 2), int32.
        """
        if isinstance(x, mx.nd.NDArray):
            (_check_rows if self._embedding is None else _check_words)(x)
            _check_structure(structure, x.shape[0])
            if 0 in structure.shape:  # which MXNet takes for a shape it does not know
                structure = current(mx.nd.full(x.shape[0], -1, x.context, np.int32))
        return super().forward(x, structure)

    def hybrid_forward(self, F: Any, x: Any, structure: Any, **params: Any) -> Any:
        """The states of all nodes, and what else ``update`` returns."""
        return with_legacy(self._states, F, x, structure, params)

    def _states(self, F: Any, x: Any, structure: Any, params: Mapping[str, Any]) -> Any:
        index: list[Any] = []
        if self._embedding is not None:
            x, index = self._look_up(F, x)
        body = self._body(x if F is mx.nd else None)
        own = {self._reg_params[name].name: value for name, value in params.items()}
        known = own | self._children_parameters(F, x)
        run = invoke if F is mx.nd else compose
        stash = bool(mx.autograd.is_recording())
        rows = [x]
        if body.prepare is not None:
            reads = [x, *_learned(F, body.prepared, known)]
            attrs = {"spec": body.texts[0], "flat": True, "zero_states": True, "stash": stash}
            rows = [*list(run(RECURRENCE, reads, attrs))[: len(body.prepare.emit)], x]
        reads = [*(rows[n] for n in (*body.node_rows, *body.edge_rows)), *index, structure]
        reads += [*_learned(F, body.message, known), *_learned(F, body.update, known)]
        attrs = {"spec": body.texts[1], "indexed": bool(index), "stash": stash}
        found = list(run(TREE, reads, attrs))[: len(body.spec.emitted)]
        return found[0] if len(found) == 1 else tuple(found)

    def _look_up(self, F: Any, words: Any) -> tuple[Any, list[Any]]:
        """Rows of words, and which of them is each node's unless there is a row for each."""
        if F is not mx.nd:
            return legacy(self._embedding(current(words))), []
        distinct, index = _distinct(words.asnumpy())
        rows = self._embedding(current(array_of(distinct, words.ctx)))
        return legacy(rows), [array_of(index, words.ctx)]

    @property
    def looks_up_words(self) -> bool:
        """Whether it has an embedding, of which it asks for the rows of words in use."""
        return self._embedding is not None

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridize the Blocks within; the layer is one operator, and needs no graph."""
        mx.gluon.Block.hybridize(self, active, **kwargs)
        if self._embedding is not None:
            # Batches differ in their number of words, and static memory is planned for each anew.
            planned = ("static_alloc", "static_shape")
            more = {name: value for name, value in kwargs.items() if name not in planned}
            self._embedding.hybridize(active, **more)

    def infer_shape(self, x: Any, *_others: Any) -> None:
        """Learn the shapes of parameters from an array."""
        if self._embedding is not None:
            x = self._embedding(x[:1])
        trace = _Trace(self, int(x.shape[1]), _dtype(x))
        for name, shape in trace.shapes.items():
            trace.parameters[name].shape = shape

    # Functions

    def _message(self, F: Any, x: Any, *states: Any) -> Any:
        return self._call("message", F, x, states)

    def _update(self, F: Any, x: Any, *reduced: Any) -> Any:
        return self._call("update", F, x, reduced)

    def _call(self, name: str, F: Any, x: Any, others: Sequence[Any]) -> Any:
        function = self._functions[name]
        x, others = current(x), current(tuple(others))
        if isinstance(function, mx.gluon.HybridBlock):
            return legacy(function(x, *others))
        return legacy(function(F, x, *others))

    def _sizes(self, columns: int) -> tuple[int, ...]:
        if self._state_sizes is not None:
            return self._state_sizes
        return (columns,) * _count_states(self._functions["message"])

    def _body(self, x: Any) -> TreeBody:
        """The functions translated, for arrays like ``x``; ``None``: like the last ones."""
        why = bridge.why_not(mx)
        if why is not None:
            raise UnsupportedError(f"{self.name}: trees need graphopt's kernels: {why}")
        if x is not None:
            self._like = (int(x.shape[1]), _dtype(x))
        elif self._like is None:
            self._like = self._expected()
        if self._like is None:
            raise UnsupportedError(f"{self.name}: call the net once before hybridize()")
        if self._like not in self._bodies:
            trace = _Trace(self, *self._like)
            try:
                self._bodies[self._like] = translate_tree(
                    trace.message, trace.update, trace.reduce, trace.sizes
                )
            except GraphoptError as error:
                raise UnsupportedError(f"{self.name}: {error}") from error
        return self._bodies[self._like]

    def _expected(self) -> tuple[int, str] | None:
        """Columns and dtype of rows as far as they are known before the first call."""
        return None

    def _children_parameters(self, F: Any, x: Any) -> dict[str, Any]:
        """Those of the functions' Blocks, by name."""
        blocks = [part for part in self._functions.values() if isinstance(part, mx.gluon.Block)]
        found = {p.name: p for block in blocks for p in block.collect_params().values()}
        if F is mx.nd:
            return {name: legacy(p.data(x.context)) for name, p in found.items()}
        return {name: legacy(p.var()) for name, p in found.items()}


class _Trace:
    """The functions of a layer as graphs of MXNet's operators.

    Attributes:
        message: as :func:`translate_tree` wants it.
        update: the same.
        reduce: of each message.
        sizes: columns of each state.
        shapes: of parameters, by name.
    """

    def __init__(self, layer: Recurrence, columns: int, dtype: str) -> None:
        self.layer, self.dtype = layer, dtype
        self.parameters = {p.name: p for p in layer.collect_params().values()}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sizes = layer._sizes(columns)
        states = {f"state{n}": width for n, width in enumerate(self.sizes)}
        # One manager, so that no two operators have the same name.
        with mx.name.NameManager():
            self.message = self._graph(layer._message, {_ROWS: columns} | states)
            widths = _columns(self.message)
            self.reduce = _each(layer._reduce, len(widths))
            reduced = {
                f"reduced{n}": width * reduction(kind)[1]
                for n, (width, kind) in enumerate(zip(widths, self.reduce, strict=True))
            }
            self.update = self._graph(layer._update, {_ROWS: columns} | reduced)
        made = _columns(self.update)
        if tuple(made[: len(self.sizes)]) != self.sizes:
            raise InputError(
                f"{layer.name}: update returns {made} columns; the first {len(self.sizes)} are the"
                f" states, of {list(self.sizes)} columns (state_sizes=)"
            )

    def _graph(self, function: Callable[..., Any], widths: Mapping[str, int]) -> Graph:
        found = function(mx.sym, *map(mx.sym.var, widths))
        outputs = list(found) if isinstance(found, (list, tuple)) else [found]
        symbol = mx.sym.Group(outputs)
        known = set(symbol.list_inputs())
        stray = sorted(known - set(widths) - set(self.parameters))
        if stray:
            raise UnsupportedError(
                f"{self.layer.name}: {stray[0]!r} is no parameter of the layer; give message and"
                " update as HybridBlocks where they have parameters"
            )
        # Two rows: one could be taken for something that is stretched.
        shapes = {name: (2, width) for name, width in widths.items()}
        shapes |= {
            name: p.shape for name, p in self.parameters.items() if p.shape and min(p.shape) > 0
        }
        lifted = lift_symbol(
            symbol,
            {name: shape for name, shape in shapes.items() if name in known},
            dict.fromkeys(known, self.dtype),
            data=set(widths),
        )
        self._learn(lifted)
        return _with_inputs(lifted, widths, self.dtype)

    def _learn(self, graph: Graph) -> None:
        for node in graph.inputs:
            if node.op == PARAM and node.type.is_static:
                self.shapes[node.name] = tuple(n or 0 for n in node.type.shape or ())


def _distinct(words: Any) -> tuple[Any, Any]:
    """The distinct words in ascending order, and which of them each word is, as int32."""
    if not len(words) or words.min() < 0 or words.max() > _DENSE * len(words):
        distinct, index = np.unique(words, return_inverse=True)
        return distinct, index.astype(np.int32)
    # Without sorting, where there is not much between the smallest and the largest.
    seen = np.bincount(words) > 0
    distinct = np.flatnonzero(seen).astype(words.dtype)
    return distinct, (np.cumsum(seen, dtype=np.int32) - 1)[words]


def _columns(graph: Graph) -> list[int]:
    """Of each output."""
    shapes = [graph.type_of(value).shape or () for value in graph.outputs]
    return [shape[-1] or 0 if len(shape) == 2 else 0 for shape in shapes]


def _with_inputs(graph: Graph, widths: Mapping[str, int], dtype: str) -> Graph:
    """The same with all data inputs in their order, those it does not read too."""
    made = Graph(graph.name)
    known = {node.name: node for node in graph.inputs}
    new: dict[Value, Value] = {}
    for name, width in widths.items():
        value = made.add_input(name, DATA, TensorType(dtype, (2, width))).out()
        if name in known:
            new[known[name].out()] = value
    for node in graph.inputs:
        if node.name not in widths:
            new[node.out()] = made.add_input(node.name, node.op, node.type).out()
    for node in graph:
        if not node.is_input:
            transplant(made, node, new)
    made.set_outputs(new[value] for value in graph.outputs)
    return made


def _learned(F: Any, learned: Learned, known: Mapping[str, Any]) -> list[Any]:
    """The arrays of a part's parameters."""
    found = [known[name] for name in learned.matrices]
    for group in learned.vectors:
        rows = [
            F.reshape(known[name], shape=(-1,)) if name in learned.rows else known[name]
            for name in group
        ]
        # Not elemwise_add: with grad_req="add" for both, MXNet adds the second gradient twice.
        found.append(rows[0] if len(rows) == 1 else F.add_n(*rows))
    return found


def _check_rows(x: Any) -> None:
    if len(x.shape) != 2:
        raise InputError(f"x has shape {x.shape}, not (nodes, columns)")
    if _dtype(x) not in ("float32", "float64"):
        raise InputError(f"x is {_dtype(x)}, not float32 or float64")


def _check_words(x: Any) -> None:
    if len(x.shape) != 1:
        raise InputError(f"words have shape {x.shape}, not (nodes,)")
    if _dtype(x) not in ("int32", "int64", "uint8", "int8"):
        raise InputError(f"words are {_dtype(x)}, not of an integer dtype")


def _check_structure(structure: Any, nodes: int) -> None:
    if not isinstance(structure, mx.nd.NDArray):
        raise InputError(f"parents are a {type(structure).__name__}, not an NDArray")
    if _dtype(structure) != "int32":
        raise InputError(f"parents are {_dtype(structure)}, not int32")
    shape = structure.shape
    if shape != (nodes,) and not (len(shape) == 2 and shape[1] == 2):
        raise InputError(
            f"parents have shape {shape}; {nodes} nodes need ({nodes},), or edges (count, 2)"
        )


def _dtype(array: Any) -> str:
    return dtype_name(array.dtype)


def _each(reduce: str | Sequence[str], count: int) -> tuple[str, ...]:
    found = (reduce,) * count if isinstance(reduce, str) else tuple(reduce)
    if len(found) != count:
        raise InputError(f"{len(found)} reductions for {count} messages")
    return found


def _count_states(message: Any) -> int:
    """How many states a message takes, by its arguments."""
    is_block = isinstance(message, mx.gluon.HybridBlock)
    function = message.hybrid_forward if is_block else message
    learned = message._reg_params if is_block else ()
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise InputError("message takes any number of states: state_sizes= says how many there are")
    given = [p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in learned]
    count = len(given) - 2
    if count < 1:
        raise InputError("message takes no states: it is message(F, x, *states)")
    return count
