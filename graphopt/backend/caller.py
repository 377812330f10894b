"""An engine for graphs of some small nodes: the thread that calls them runs them.

MXNet's executor hands every graph to a thread of its engine, which takes 20 to 30 us to wake; a
layer of some thousand weights takes one. See kernels/bridge/small_graph.h.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from graphopt.backend.arrays import Alike
from graphopt.backend.engines import unlocked_in_children
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs, to_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, FUSED, PRODUCT, Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.kernels import bridge
from graphopt.passes.fusion.fuse import alone
from graphopt.passes.pack_products import PackProducts
from graphopt.pipeline.base import Settings
from graphopt.pipeline.manager import run_passes

#: The most nodes, elements of all arrays that they write, and multiplications: at more, several
#: threads would be faster.
_MOST_NODES: Final = 64
_MOST_ELEMENTS: Final = 1 << 17
_MOST_MULTIPLICATIONS: Final = 1 << 22
#: The most kernels that are compiled for this alone.
_MOST_ALONE: Final = 4
#: The same numbers in another shape.
_VIEWS: Final = frozenset({"Reshape", "Flatten", "expand_dims", "squeeze"})


def runs_by_caller(graph: Graph) -> bool:
    """Whether the thread that calls a graph for inference may run it. Linear."""
    nodes = [node for node in graph if not node.is_input and node.op != CONSTANT]
    if not 0 < len(nodes) <= _MOST_NODES or not all(_fits(graph, node) for node in nodes):
        return False
    written = [type_.size or 0 for node in nodes for type_ in node.types]
    work = sum(_multiplications(graph, node) for node in nodes)
    if sum(written) > _MOST_ELEMENTS or work > _MOST_MULTIPLICATIONS:
        return False
    roots = [_root(graph, value) for value in graph.outputs]
    # What a call returns is computed there, in an array that nothing else is in.
    return len({*roots}) == len(roots) and not any(_is_read_only(graph, root) for root in roots)


def in_kernels(graph: Graph) -> Graph:
    """A frozen graph whose dense layers are products of ours, and other operators kernels.

    By themselves some are slower than MXNet's, or worth no kernel; but with one operator of MXNet's
    in it, the whole graph would need a thread of MXNet's engine. What comes has no form in MXNet's
    operators. Linear; graphs of too many nodes stay.
    """
    if len(graph) > _MOST_NODES + len(graph.inputs):
        return graph
    copy = run_passes(graph, (PackProducts(),), Settings("inference", frozen=True), None).graph
    graph, copy = copy, copy.copy()
    made: set[str] = set()
    for node in graph:
        if node.is_input or node.op in (CONSTANT, FUSED, PRODUCT) or node.after:
            continue
        spec = str(alone(graph, node) or "")
        if spec and len(made | {spec}) <= _MOST_ALONE:
            made.add(spec)
            inputs = tuple(dict.fromkeys(node.inputs))
            copy.update(node.but(op=FUSED, inputs=inputs, attrs=Attrs(spec=spec)))
    return copy


def _fits(graph: Graph, node: Node) -> bool:
    types = (*map(graph.type_of, node.inputs), *node.types)
    if node.after or not all(type_.is_static and type_.size and type_.rank for type_ in types):
        return False
    if node.op == PRODUCT:
        return all(type_.dtype == "float32" for type_ in types)
    return node.op == FUSED or (canonical(node.op) in _VIEWS and len(node.inputs) == 1)


def _multiplications(graph: Graph, node: Node) -> int:
    if node.op != PRODUCT:
        return 0
    units = (node.type.shape or (1,))[-1] or 1
    depth = (graph.type_of(node.inputs[0]).size or 0) * units // (node.type.size or 1)
    return (node.type.size or 0) * depth


def _root(graph: Graph, value: Value) -> Value:
    """What a value is a view of."""
    while canonical(graph[value.node].op) in _VIEWS:
        value = graph[value.node].inputs[0]
    return value


def _is_read_only(graph: Graph, value: Value) -> bool:
    return graph[value.node].is_input or graph[value.node].op == CONSTANT


class CallerEngine:
    """Runs a graph that :func:`runs_by_caller` allows.

    One call at a time runs, and returns when it is done.
    """

    def __init__(
        self,
        graph: Graph,
        arrays: Mapping[str, Any],
        data: Collection[str],
        ctx: Any,
        name: str,
        *,
        numpy: bool,
    ) -> None:
        """Lay out a graph.

        Args:
            graph: its products read packed weights.
            arrays: an NDArray for each of its inputs and constants, by name.
            data: names of those that change from call to call.
            ctx: a CPU.
            name: of the engine.
            numpy: results are to be ``mx.np`` arrays.

        Raises:
            GraphoptError: the bridge has no such graph.
        """
        self.name = name
        read = {value.node for node in graph for value in node.inputs}
        leaves = [n for n in graph if (n.is_input or n.op == CONSTANT) and n.id in read]
        self.inputs: Sequence[str] = [leaf.name for leaf in leaves]
        self._library = _functions()
        self._graph = self._library.graphopt_graph_new()
        self._run = self._library.graphopt_graph_run
        weakref.finalize(self, self._library.graphopt_graph_free, self._graph)
        self._numbers: dict[Value, int] = {}
        self._at = [at for at, leaf in enumerate(leaves) if leaf.name in data]
        self._fixed = [arrays[leaf.name] for leaf in leaves if leaf.name not in data]
        for leaf in leaves:
            self._add_leaf(leaf, None if leaf.name in data else arrays[leaf.name])
        made = [_root(graph, value) for value in graph.outputs]
        self._makers = [Alike(_of_type(graph.type_of(v), ctx, numpy=numpy)) for v in graph.outputs]
        for value in made:
            self._numbers[value] = self._array(graph.type_of(value), None, is_given=True)
        for node in graph.topological():
            if not (node.is_input or node.op == CONSTANT):
                self._add(graph, node)
        self._handles = ctypes.c_void_p * (len(self._at) + len(made))
        self._lock = threading.RLock()  # not Lock: a signal handler may call the net again
        unlocked_in_children(self)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on arrays in the order of ``inputs``."""
        found = [make() for make in self._makers]
        given = [arrays[at].handle for at in self._at] + [array.handle for array in found]
        with self._lock:
            failed = self._run(self._graph, self._handles(*given), len(self._at))
        if failed:
            raise GraphoptError(self._library.graphopt_error().decode())
        return found

    def forget_threads(self) -> None:
        """In a forked child: whoever was in a call is no more."""
        self._lock = threading.RLock()

    def _add_leaf(self, leaf: Node, array: Any) -> None:
        handle = None if array is None else array.handle
        self._numbers[leaf.out()] = self._array(leaf.type, handle, is_given=array is None)

    def _array(self, type_: TensorType, handle: Any, *, is_given: bool) -> int:
        codes = import_mxnet().ndarray.ndarray._DTYPE_NP_TO_MX
        code, extents = codes[np.dtype(type_.dtype).type], _extents(type_)
        add = self._library.graphopt_graph_array
        return int(add(self._graph, code, extents, len(extents), handle, is_given))

    def _add(self, graph: Graph, node: Node) -> None:
        if canonical(node.op) in _VIEWS:
            extents, of = _extents(node.type), self._numbers[node.inputs[0]]
            self._numbers[node.out()] = self._library.graphopt_graph_view(
                self._graph, of, extents, len(extents)
            )
            return
        values = [node.out(at) for at in range(len(node.types))]
        for value in values:
            if value not in self._numbers:
                self._numbers[value] = self._array(graph.type_of(value), None, is_given=False)
        texts = {key: to_mxnet(value) for key, value in node.attrs.items()}
        if self._library.graphopt_graph_node(
            self._graph,
            node.op == PRODUCT,
            node.name.encode(),
            _texts(texts),
            _texts(texts.values()),
            len(texts),
            *self._listed(node.inputs),
            *self._listed(values),
        ):
            raise GraphoptError(self._library.graphopt_error().decode())

    def _listed(self, values: Sequence[Value]) -> tuple[Any, int]:
        numbers = [self._numbers[value] for value in values]
        return (ctypes.c_int64 * len(numbers))(*numbers), len(numbers)


def _of_type(type_: TensorType, ctx: Any, *, numpy: bool) -> Any:
    mx = import_mxnet()
    made = mx.nd.empty(type_.shape, ctx, type_.dtype)
    return made.as_np_ndarray() if numpy else made


def _extents(type_: TensorType) -> Any:
    shape = [extent or 0 for extent in type_.shape or ()]
    return (ctypes.c_int64 * len(shape))(*shape)


def _texts(texts: Collection[str]) -> Any:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))


@cache
def _functions() -> ctypes.CDLL:
    library = bridge.load(import_mxnet())
    pointer, number, count = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    library.graphopt_graph_new.restype = pointer
    library.graphopt_graph_new.argtypes = []
    library.graphopt_graph_free.restype = None
    library.graphopt_graph_free.argtypes = [pointer]
    library.graphopt_graph_array.restype = number
    library.graphopt_graph_array.argtypes = [pointer, count, pointer, count, pointer, count]
    library.graphopt_graph_view.restype = number
    library.graphopt_graph_view.argtypes = [pointer, number, pointer, count]
    library.graphopt_graph_node.argtypes = [
        *(pointer, count, ctypes.c_char_p, pointer, pointer, count),
        *(pointer, count, pointer, count),
    ]
    library.graphopt_graph_run.argtypes = [pointer, pointer, number]
    return library
