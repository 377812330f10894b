"""MXNet as the target of a pipeline: inference of types, and running graphs to compare them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.analysis.lookups import numbers_of_rows
from graphopt.backend.draws import same_draws
from graphopt.backend.engines import CachedOpEngine, quiet_binding
from graphopt.backend.findings import Place
from graphopt.backend.infer import Types, infer_types
from graphopt.backend.keeping import keeping
from graphopt.backend.measured import once
from graphopt.backend.random_feeds import quick_feeds
from graphopt.backend.retiring import bound_executor
from graphopt.backend.stacks import without_stacks
from graphopt.backend.stored import with_stored
from graphopt.backend.symbol import constants, first_line, to_symbol
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA
from graphopt.kernels import bridge
from graphopt.kernels.convolutions import native
from graphopt.kernels.convolutions.marked import Times, Ways, direction_times_ms
from graphopt.kernels.convolutions.single import Layer
from graphopt.kernels.products import dense_means, is_tiled, packed_size
from graphopt.kernels.waiting import wait_for_all

#: Graphs are timed against each other so often, or so often at least until this is spent.
_MOST_ROUNDS, _FEWEST_ROUNDS = 5, 3
_PATIENCE_MS = 400.0
_GRADIENT_DTYPES = ("float16", "float32", "float64")
#: MXNet refuses to differentiate by their first inputs.


class MXNetTarget:
    """MXNet on the CPU."""

    def infer_types(self, graph: Graph) -> Types:
        """See :func:`graphopt.backend.infer.infer_types`."""
        return infer_types(graph)

    def evaluate(
        self,
        graph: Graph,
        feeds: Mapping[str, np.ndarray[Any, Any]],
        *,
        training: bool = False,
        gradients: bool = False,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Run the graph once, with nothing of MXNet's own graph rewrites.

        Args:
            graph: what to run.
            feeds: array per input name; unread inputs may be left out.
            training: MXNet's ``is_train``; if the graph draws random numbers, every call does the
                same ones, and the user's stream goes on from one number of its own.
            gradients: also backward, with fixed pseudo-random head gradients.

        Returns:
            ``output0`` ..., and with gradients ``grad:<input>`` for every float input, but for
            those that become indices of an Embedding (and, in training, ``aux:<input>`` for the
            auxiliary states afterwards).

        Raises:
            GraphoptError: MXNet raised; the message is its first line.
        """
        mx = import_mxnet()
        try:
            return _run(mx, graph, feeds, training=training or gradients, gradients=gradients)
        except mx.MXNetError as error:
            raise GraphoptError(
                f"MXNet cannot run graph {graph.name!r}: {first_line(error)}"
            ) from None

    def why_no_kernels(self, device: str) -> str | None:
        """Why fused kernels cannot run on ``device`` here, or ``None`` if they can."""
        if device != "cpu":
            return "these kernels run on CPUs only"
        return bridge.why_not(import_mxnet())

    def why_no_fused_kernels(self, device: str) -> str | None:
        """The same of pointwise operators and reductions, whose kernels are for GPUs as well."""
        if device == "gpu":
            return bridge.why_not_on_gpu(import_mxnet())
        return self.why_no_kernels(device)

    def block_lanes(self) -> int:
        """See :func:`graphopt.kernels.convolutions.native.lanes`."""
        return native.lanes(import_mxnet())

    def dense_means(self) -> str | None:
        """See :func:`graphopt.kernels.products.dense_means`."""
        return dense_means(import_mxnet())

    def packed_product(self, rows: int, depth: int, units: int) -> tuple[int, bool]:
        """See :func:`graphopt.kernels.products.packed_size`."""
        mx = import_mxnet()
        tiled = is_tiled(mx, rows, depth, units)
        return packed_size(mx, depth, units, tiled=tiled), tiled

    def layer_times_ms(self, layer: Layer, algorithms: Sequence[str]) -> dict[str, float]:
        """See :func:`graphopt.kernels.convolutions.native.layer_times_ms`."""
        return native.layer_times_ms(import_mxnet(), layer, algorithms)

    def direction_times_ms(self, layer: Layer, ways: Ways) -> Times:
        """See :func:`graphopt.kernels.convolutions.marked.direction_times_ms`."""
        return direction_times_ms(import_mxnet(), layer, ways)

    def measured_once(
        self, parts: Sequence[str], measure: Callable[[], Any], place: Place = ()
    ) -> Any:
        """See :mod:`graphopt.backend.measured`."""
        return once(parts, measure, place)

    def times_ms(self, graphs: Sequence[Graph], *, training: bool = False) -> list[float]:
        """Milliseconds of one call of each on random values: the best of some, in turns.

        With ``training`` forward and backward, by all inputs.
        """
        wait_for_all(import_mxnet())  # nothing else is to run beside
        calls = [_caller(graph, training=training) for graph in graphs]
        with same_draws(*graphs, training=training):
            return _best_times(calls)


def _best_times(calls: Sequence[Callable[[], None]]) -> list[float]:
    best = [float("inf")] * len(calls)
    for call in calls:
        call()  # compiles
    spent = 0.0
    for done in range(1, _MOST_ROUNDS + 1):
        times = [_timed(call) for call in calls]
        best = [min(pair) for pair in zip(best, times, strict=True)]
        spent += sum(times)
        if done >= _FEWEST_ROUNDS and spent > _PATIENCE_MS:
            break
    return best


def _caller(graph: Graph, *, training: bool) -> Callable[[], None]:
    """A call of the graph on random values that returns when it is done."""
    mx = import_mxnet()
    symbol = to_symbol(with_stored(graph) if training else keeping(graph))
    feeds = quick_feeds(graph)
    arrays = [mx.nd.array(feeds[name], dtype=feeds[name].dtype) for name in symbol.list_inputs()]
    engine = CachedOpEngine(symbol, {node.name for node in graph.role(DATA)})
    indices = numbers_of_rows(graph)
    for name, array in zip(engine.inputs, arrays, strict=True) if training else ():
        if name not in indices:
            array.attach_grad()
    gradients = [array.grad for array in arrays if array.grad is not None]

    def call() -> None:
        with mx.autograd.record() if training else mx.autograd.pause(train_mode=False):
            outputs = engine(arrays)
        if training:
            mx.autograd.backward(outputs)
        for array in (*outputs, *gradients):
            array.wait_to_read()

    return call


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def _run(
    mx: Any,
    graph: Graph,
    feeds: Mapping[str, np.ndarray[Any, Any]],
    *,
    training: bool,
    gradients: bool,
) -> dict[str, np.ndarray[Any, Any]]:
    symbol = to_symbol(without_stacks(graph))
    fixed = constants(graph)
    arrays = {}
    for name in symbol.list_inputs():
        value = fixed.get(name, feeds.get(name))
        if value is None:
            raise InputError(f"input {name!r} of graph {graph.name!r} has no value")
        arrays[name] = mx.nd.array(value, dtype=value.dtype)
    with same_draws(graph, training=training):
        if gradients:
            unread = {name: value for name, value in feeds.items() if name not in arrays}
            plain = {*fixed, *numbers_of_rows(graph)}
            return _backward(mx, symbol, arrays, plain) | _of_unread(graph, unread)
        # Not the executor: its oneDNN subgraphs get some graphs wrong.
        with mx.autograd.pause(train_mode=training):
            outputs = CachedOpEngine(symbol, symbol.list_inputs())(list(arrays.values()))
        return {f"output{i}": output.asnumpy() for i, output in enumerate(outputs)}


def _backward(
    mx: Any, symbol: Any, arrays: Mapping[str, Any], plain: set[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Forward and backward, by all inputs of float types but the plain ones."""
    args = {name: arrays[name] for name in symbol.list_arguments()}
    aux = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    wanted = [n for n in args if n not in plain and args[n].dtype.__name__ in _GRADIENT_DTYPES]
    with quiet_binding():
        executor = bound_executor(
            symbol,
            mx.cpu(),
            args,
            args_grad={name: mx.nd.zeros_like(args[name]) for name in wanted},
            grad_req={name: "write" if name in wanted else "null" for name in args},
            aux_states=aux,
        )
    with mx.autograd.pause():  # while autograd records, MXNet runs no nested graph backward
        outputs = executor.forward(is_train=True)
        found = {f"output{i}": output.asnumpy() for i, output in enumerate(outputs)}
        executor.backward([_head_gradient(mx, output, i) for i, output in enumerate(outputs)])
    found |= {f"grad:{name}": executor.grad_dict[name].asnumpy() for name in wanted}
    return found | {f"aux:{name}": array.asnumpy() for name, array in aux.items()}


def _of_unread(
    graph: Graph, feeds: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """What backward leaves of inputs that MXNet drops: gradients of zero, states as they were."""
    found = {}
    for node in graph.inputs:
        value = feeds.get(node.name)
        if value is not None and node.op == AUX:
            found[f"aux:{node.name}"] = value
        elif value is not None and value.dtype.name in _GRADIENT_DTYPES:
            found[f"grad:{node.name}"] = np.zeros_like(value)
    return found


def _head_gradient(mx: Any, output: Any, number: int) -> Any:
    rng = np.random.default_rng(number)
    return mx.nd.array(rng.standard_normal(output.shape), dtype=output.dtype)
