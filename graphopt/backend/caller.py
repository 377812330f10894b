"""Engines for graphs of some small nodes: the thread that calls them runs them.

MXNet's executor hands every graph to a thread of its engine, which takes 20 to 30 us to wake; a
layer of some thousand weights takes one. See kernels/bridge/small_graph.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from graphopt.backend.arrays import Alike
from graphopt.backend.draws import Draws
from graphopt.backend.lifetimes import release_with
from graphopt.backend.retiring import free_retired
from graphopt.backend.small import KINDS, SEED, VIEWS, root_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.forking import lock
from graphopt.ir.attrs import to_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, DENSE, DROPOUT, Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.kernels import bridge

#: What a graph's arrays are for; see kernels/bridge/small_graph.h.
_OWN, _READ, _MADE = range(3)


class _Layout:
    """A graph of the bridge: its arrays by number, and its nodes."""

    def __init__(self, graph: Graph, fixed: Mapping[str, Any], *, learns: bool) -> None:
        """Lay out a graph.

        Args:
            graph: what is to run.
            fixed: leaves that every call reads, by name, and their arrays.
            learns: for :class:`LearningEngine`.

        Raises:
            GraphoptError: the bridge has no such graph.
        """
        read = {value.node for node in graph for value in node.inputs}
        self.leaves = [n for n in graph if (n.is_input or n.op == CONSTANT) and n.id in read]
        self.seeds = [n for n in graph if n.op == SEED]  # behind the leaves: what a call draws
        self.library, self._learns = _functions(), learns
        self.handle = self.library.graphopt_graph_new(learns)
        self._numbers: dict[Value, int] = {}
        for leaf in (*self.leaves, *self.seeds):
            array = fixed.get(leaf.name)
            handle = None if array is None else array.handle
            self._numbers[leaf.out()] = self._array(leaf.type, _READ, handle)
        for value in (root_of(graph, value) for value in graph.outputs):
            self._numbers[value] = self._array(graph.type_of(value), _MADE)
        for node in graph.topological():
            if not (node.is_input or node.op in (CONSTANT, SEED)):
                self._add(graph, node)
        self.outputs = [self._numbers[value] for value in graph.outputs]

    def _array(self, type_: TensorType, role: int, fixed: Any = None) -> int:
        codes = import_mxnet().ndarray.ndarray._DTYPE_NP_TO_MX
        code, extents = codes[np.dtype(type_.dtype).type], _extents(type_)
        add = self.library.graphopt_graph_array
        return int(add(self.handle, code, extents, len(extents), role, fixed))

    def _add(self, graph: Graph, node: Node) -> None:
        if canonical(node.op) in VIEWS:
            extents, of = _extents(node.type), self._numbers[node.inputs[0]]
            self._numbers[node.out()] = self.library.graphopt_graph_view(
                self.handle, of, extents, len(extents)
            )
            return
        values = [node.out(at) for at in range(len(node.types))]
        for value in values:
            if value not in self._numbers:
                self._numbers[value] = self._array(graph.type_of(value), _OWN)
        numbers = [self._numbers[value] for value in values]
        if canonical(node.op) == "BatchNorm":  # what backward reads besides
            channels = graph.type_of(node.inputs[1])
            one = TensorType(channels.dtype, (1,))
            numbers += [self._array(type_, _OWN) for type_ in (channels, channels, one)]
        if node.op == DROPOUT:
            numbers.append(self._array(TensorType("float32", (1,)), _OWN))
        texts = _attributes(graph, node)
        if self.library.graphopt_graph_node(
            self.handle,
            KINDS[canonical(node.op)],
            node.name.encode(),
            _texts(texts),
            _texts(texts.values()),
            len(texts),
            *_listed([self._numbers[value] for value in node.inputs]),
            *_listed(numbers),
            self._learns,
        ):
            raise GraphoptError(self.library.graphopt_error().decode())


class CallerEngine:
    """Runs a graph that :func:`graphopt.backend.small.runs_by_caller` allows.

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
        fixed = {name: array for name, array in arrays.items() if name not in data}
        layout = _Layout(graph, fixed, learns=False)
        self._library, self._graph = layout.library, layout.handle
        self._run = self._library.graphopt_graph_run
        base = import_mxnet().base
        self._check, self._wait = base.check_call, base._LIB.MXNDArrayWaitToRead
        release_with(self, self._library.graphopt_graph_free, self._graph)
        self.inputs: Sequence[str] = [leaf.name for leaf in layout.leaves]
        self._at = [at for at, leaf in enumerate(layout.leaves) if leaf.name in data]
        self._fixed = [arrays[name] for name in self.inputs if name not in data]  # kept alive
        self._makers = [Alike(_of_type(graph.type_of(v), ctx, numpy=numpy)) for v in graph.outputs]
        self._handles = ctypes.c_void_p * (len(self._at) + len(self._makers))
        self._lock = lock()

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on arrays in the order of ``inputs``."""
        free_retired()
        found = [make() for make in self._makers]
        given = [arrays[at].handle for at in self._at]
        for handle in given:  # before others wait: an operator of theirs may make it
            self._check(self._wait(handle))
        given += [array.handle for array in found]
        with self._lock:
            failed = self._run(self._graph, self._handles(*given), len(self._at))
        if failed:
            raise GraphoptError(self._library.graphopt_error().decode())
        return found


class LearningEngine:
    """Runs a graph that :func:`graphopt.backend.small.learns_at_once` allows.

    Autograd, when it records, has one operator of it, and its gradients another
    (kernels/bridge/small_operator.h). Of a graph that ``learns_by_caller`` allows the thread that
    calls MXNet runs them where their arrays are there.
    """

    def __init__(self, graph: Graph, name: str, *, numpy: bool, is_small: bool = True) -> None:
        """Lay out a graph.

        Args:
            graph: what is to run.
            name: of the engine.
            numpy: results are to be ``mx.np`` arrays.
            is_small: the calling thread may run it.

        Raises:
            GraphoptError: the bridge has no such graph.
        """
        self.name, self.is_small = name, is_small
        layout = _Layout(graph, {}, learns=True)
        self.inputs: Sequence[str] = [leaf.name for leaf in layout.leaves]
        outputs = (ctypes.c_int64 * len(layout.outputs))(*layout.outputs)
        number = layout.library.graphopt_graph_finish(
            layout.handle, outputs, len(outputs), is_small
        )
        release_with(self, layout.library.graphopt_graph_release, int(number))
        #: Of the graph in the bridge, and what a call returns.
        self.number, self.types = int(number), [graph.type_of(value) for value in graph.outputs]
        mx = import_mxnet()
        self._base, self._is_recording = mx.base, mx.autograd.is_recording
        self._class = mx.np.ndarray if numpy else mx.nd.NDArray
        self._operator = _operator()
        keys = (ctypes.c_char_p * 2)(b"graph", b"learns")
        self._texts = [
            (keys, (ctypes.c_char_p * 2)(str(number).encode(), learns))
            for learns in (b"False", b"True")
        ]
        #: What random numbers a call reads, behind its inputs.
        self.draws = [Draws(node) for node in layout.seeds]
        self._handles = ctypes.c_void_p * (len(self.inputs) + len(self.draws))

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on arrays in the order of ``inputs``."""
        if self.draws:
            arrays = [*arrays, *(draw(arrays[0].ctx) for draw in self.draws)]
        keys, values = self._texts[self._is_recording()]
        count, outputs = ctypes.c_int(0), ctypes.POINTER(ctypes.c_void_p)()
        kinds = ctypes.POINTER(ctypes.c_int)()
        self._base.check_call(
            self._base._LIB.MXImperativeInvokeEx(
                self._operator,
                len(arrays),
                self._handles(*[array.handle for array in arrays]),
                ctypes.byref(count),
                ctypes.byref(outputs),
                len(keys),
                keys,
                values,
                ctypes.byref(kinds),
            )
        )
        made = self._base.NDArrayHandle
        return [self._class(made(outputs[at])) for at in range(count.value)]


def _listed(numbers: Sequence[int]) -> tuple[Any, int]:
    return (ctypes.c_int64 * len(numbers))(*numbers), len(numbers)


def _attributes(graph: Graph, node: Node) -> dict[str, str]:
    """What the bridge has to know of a node."""
    op = canonical(node.op)
    if op not in ("Concat", "SliceChannel", "slice_axis"):
        given = {key: to_mxnet(value) for key, value in node.attrs.items()}
        return given | ({"by_best": "True"} if op == DENSE else {})
    shape = (node.type if op == "Concat" else graph.type_of(node.inputs[0])).shape or ()
    axis = int(node.attrs.get("dim" if op == "Concat" else "axis", 1))
    sizes = [extent or 0 for extent in shape]
    begin = int(node.attrs["begin"]) if op == "slice_axis" else 0
    if begin < 0:
        begin += sizes[axis]
    axis %= len(sizes)
    return {"outer": str(prod(sizes[:axis])), "begin": str(begin * prod(sizes[axis + 1 :]))}


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
    library.graphopt_graph_new.argtypes = [count]
    library.graphopt_graph_free.restype = None
    library.graphopt_graph_free.argtypes = [pointer]
    library.graphopt_graph_array.restype = number
    library.graphopt_graph_array.argtypes = [pointer, count, pointer, count, count, pointer]
    library.graphopt_graph_view.restype = number
    library.graphopt_graph_view.argtypes = [pointer, number, pointer, count]
    library.graphopt_graph_node.argtypes = [
        *(pointer, count, ctypes.c_char_p, pointer, pointer, count),
        *(pointer, count, pointer, count, count),
    ]
    library.graphopt_graph_finish.restype = number
    library.graphopt_graph_finish.argtypes = [pointer, pointer, count, count]
    library.graphopt_graph_release.restype = None
    library.graphopt_graph_release.argtypes = [number]
    library.graphopt_graph_run.argtypes = [pointer, pointer, number]
    return library


@cache
def _operator() -> Any:
    base = import_mxnet().base
    found = ctypes.c_void_p()
    base.check_call(base._LIB.NNGetOpHandle(b"graphopt_small", ctypes.byref(found)))
    return found
