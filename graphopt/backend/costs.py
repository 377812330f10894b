"""How long each operator of a graph takes, where it runs."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any

from graphopt.analysis.effects import is_noticed
from graphopt.backend.documents import document_of, symbol_of
from graphopt.backend.measured import once
from graphopt.backend.step import bind
from graphopt.backend.without_nodes import without_nodes
from graphopt.compat import import_mxnet
from graphopt.ir.fingerprint import fingerprint
from graphopt.ir.graph import Graph
from graphopt.kernels.waiting import wait_for_all


def measure_costs(
    graph: Graph, symbol: Any, arrays: Mapping[str, Any], ctx: Any
) -> dict[str, float]:
    """Seconds of each operator's forward in training, by name of its node.

    The graph runs forward twice, in memory of its own, and in the second run each operator is
    waited for. Alone, operators would take longer: oneDNN hands its own layouts from one to the
    next. Measured once for a graph on this machine (``GRAPHOPT_REMEMBER``).

    Operators that draw numbers, or are users', are left out, and zeros stand for their outputs: a
    seed and what users count are as if nothing was measured. None can be computed again.

    Args:
        graph: lowered for training.
        symbol: of the graph.
        arrays: all it reads, by name.
        ctx: where it runs.
    """
    names = (node.name for node in graph)
    found: dict[str, float] = once(
        ("operators", fingerprint(graph), *names, str(ctx)),
        lambda: _measure(graph, symbol, arrays, ctx),
    )
    return found


def _measure(graph: Graph, symbol: Any, arrays: Mapping[str, Any], ctx: Any) -> dict[str, float]:
    mx = import_mxnet()
    noticed = {node.name: node.types for node in graph if is_noticed(node, training=True)}
    if noticed:
        document, made = without_nodes(document_of(symbol), noticed)
        if not document["heads"]:
            return {}
        symbol = symbol_of(document)
        zeros = ((name, noticed[node][output]) for name, (node, output) in made.items())
        arrays = {**arrays, **{name: mx.nd.zeros(t.shape, ctx, t.dtype) for name, t in zeros}}
    arguments = {name: arrays[name] for name in symbol.list_arguments()}
    # Some operators update their states in forward, and the user's are not to change.
    states = {name: arrays[name].copy() for name in symbol.list_auxiliary_states()}
    executor = bind(symbol, ctx, arguments, {}, states)
    node_of = {name: node.name for name, node in _outputs(symbol)}
    seconds: dict[str, float] = {}
    last = 0.0

    def note(label: bytes, handle: Any) -> None:
        nonlocal last
        mx.nd.NDArray(ctypes.cast(handle, mx.base.NDArrayHandle), writable=False).wait_to_read()
        now = time.perf_counter()
        name = label.decode()
        node = node_of.get(name, name)
        seconds[node] = seconds.get(node, 0.0) + now - last
        last = now

    with mx.autograd.pause(train_mode=True):
        executor.forward(is_train=True)
        wait_for_all(mx)
        executor.set_monitor_callback(note)
        last = time.perf_counter()
        executor.forward(is_train=True)
        wait_for_all(mx)
    return seconds


def _outputs(symbol: Any) -> list[tuple[str, Any]]:
    """Every output of every node, by the name it has for MXNet's monitor."""
    internals = symbol.get_internals()
    return list(zip(internals.list_outputs(), internals, strict=True))
