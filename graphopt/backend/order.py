"""Orders of operators that need less memory, realised in MXNet.

MXNet runs a graph depth first from its outputs, inputs before control dependencies, and plans its
memory in that order. Where each operator has the one to run before it as a control dependency,
there is one order only, for CachedOp as for the executor.
"""

from __future__ import annotations

import heapq
import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.backend.documents import document_of
from graphopt.backend.engines import InferenceEngine, bind_as_is
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.ir.graph import Graph
from graphopt.ir.node import WITH_SPEC
from graphopt.memory.listing import allocated
from graphopt.memory.order import orders
from graphopt.memory.schedule import forward_schedule

_MIB = 1 << 20
#: MXNet counts in whole MiB, so below this there is nothing to see.
_WORTH = 2 * _MIB
#: Binding takes longer than in proportion; graphs of more operators keep their order.
_MOST = 3000
#: Inputs, and what MXNet marks as backward operators: it takes what such a one waits for for its
#: forward operator, and reads past the end of that one's inputs.
_NEVER_WAITING = frozenset({"null", "gather_nd", "scatter_nd"})
#: For how long orders are tried.
_LIMIT_S = 1.0

Names = tuple[str, ...]


@dataclass(frozen=True)
class Reordered:
    """A symbol whose operators run in another order; what MXNet allocates, before and after."""

    symbol: Any
    before: int
    after: int

    def __str__(self) -> str:
        """What was done, as ``explain()`` tells it."""
        return (
            f"operators run in an order for which MXNet allocates {self.after} MiB"
            f" instead of {self.before}"
        )


def other_orders(graph: Graph) -> list[Names]:
    """Orders of the graph's operators worth trying, by name, the most promising first."""
    try:
        schedule = forward_schedule(graph)
    except InputError:
        return []  # types are not static
    names = [operation.name for operation in schedule.operations]
    if schedule.total < _WORTH or len(names) > _MOST or len(set(names)) < len(names):
        return []
    return [tuple(names[at] for at in order) for order in orders(schedule)]


def in_less_memory(
    engine: InferenceEngine, graph: Graph, arrays: Mapping[str, Any], ctx: Any
) -> Reordered | None:
    """What an engine runs, in an order for which MXNet allocates less, if one is found.

    Args:
        engine: oneDNN's rewrites may have made one operator of several.
        graph: it runs; with types.
        arrays: all it reads, by name; they are not touched.
        ctx: where it runs.
    """
    start = time.perf_counter()
    if any(node.op == "RNN" or (node.graphs and node.op not in WITH_SPEC) for node in graph):
        return None  # MXNet's own loops keep more where there is a gradient, see bind_as_is
    others = other_orders(graph)
    if not others:
        return None
    symbol = engine.rewritten()
    document = document_of(symbol)
    try:
        before = _megabytes(symbol, arrays, ctx)
    except import_mxnet().MXNetError:
        return None  # it has no gradient, see bind_as_is
    found: dict[str, Any] = {}
    for names in others:
        other = in_order(document, names)
        text = json.dumps(other, ensure_ascii=False)
        if text not in found and any("control_deps" in node for node in other["nodes"]):
            found[text] = import_mxnet().sym.load_json(text)
    best = Reordered(symbol, before, before)
    for candidate in found.values():
        if time.perf_counter() - start > _LIMIT_S:
            break
        try:
            after = _megabytes(candidate, arrays, ctx)
        except import_mxnet().MXNetError:
            continue  # MXNet merges equal operators, and then these wait for each other
        if after < best.after:
            best = Reordered(candidate, before, after)
    return best if best.after < before else None


def in_order(
    document: Mapping[str, Any], names: Sequence[str], free: Collection[str] = ()
) -> dict[str, Any]:
    """Symbol JSON whose operators run in an order, as far as what they read allows.

    Args:
        document: Symbol JSON.
        names: operators in the order wanted. One with a subgraph has the place of the last of those
            that were made into it, one that is not named follows what it reads.
        free: operators that are neither to wait nor to be waited for.
    """
    nodes = document["nodes"]
    place = _places(nodes, {name: at for at, name in enumerate(names)})
    order = _by_place(nodes, place)
    new = {old: at for at, old in enumerate(order)}
    made: list[dict[str, Any]] = []
    last: int | None = None
    for old in order:
        node = dict(nodes[old])
        node["inputs"] = [[new[source], *rest] for source, *rest in node["inputs"]]
        after = [new[source] for source in node.pop("control_deps", ())]
        if node["op"] not in _NEVER_WAITING and node["name"] not in free:
            if last is not None and last not in (*after, *(read[0] for read in node["inputs"])):
                after.append(last)
            last = len(made)
        made.append(node | ({"control_deps": after} if after else {}))
    rest = {key: value for key, value in document.items() if key != "node_row_ptr"}
    return rest | {
        "nodes": made,
        "arg_nodes": sorted(new[at] for at in document["arg_nodes"]),
        "heads": [[new[head[0]], *head[1:]] for head in document["heads"]],
    }


def _places(nodes: Sequence[Mapping[str, Any]], known: Mapping[str, int]) -> list[int]:
    found: list[int] = []
    for node in nodes:
        inner = [one["name"] for graph in node.get("subgraphs", ()) for one in graph["nodes"]]
        places = [known[name] for name in (node["name"], *inner) if name in known]
        if not places:
            places = [found[source] for source, *_ in node["inputs"]]
        found.append(max(places, default=-1))
    return found


def _by_place(nodes: Sequence[Mapping[str, Any]], place: Sequence[int]) -> list[int]:
    """A topological order: of what can run, the first by place."""
    before = [
        {*(source for source, *_ in node["inputs"]), *node.get("control_deps", ())}
        for node in nodes
    ]
    readers: list[list[int]] = [[] for _ in nodes]
    for at, sources in enumerate(before):
        for source in sources:
            readers[source].append(at)
    waiting = [len(sources) for sources in before]
    ready = [(place[at], at) for at, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, at = heapq.heappop(ready)
        order.append(at)
        for reader in readers[at]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, (place[reader], reader))
    return order


def _megabytes(symbol: Any, arrays: Mapping[str, Any], ctx: Any) -> int:
    """What MXNet allocates to run the symbol forward, rounded down."""
    return allocated(bind_as_is(symbol, arrays, ctx).debug_str())
