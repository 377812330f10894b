"""Graphs of child Blocks as one call of MXNet, for any number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphopt.backend.passing import without_passed_inputs
from graphopt.backend.symbol import to_symbol
from graphopt.batching.operators import handle
from graphopt.batching.recorder import RECORDING, TRAINING
from graphopt.batching.signature import Run, numbers_detached
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import to_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED, Node
from graphopt.ir.ops import canonical

if TYPE_CHECKING:
    from graphopt.batching.library import Library

#: What makes a graph of the user's faster without knowing the number of rows.
_FUSE = "infer-types,fuse-reduction,fuse-pointwise"


def run_graph(
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
    return run_symbol(_fused(library, graph, ctx, state), names, params, ctx)


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


def differentiable(graph: Graph) -> Graph:
    """The graph as a CachedOp that autograd differentiates as it does the operators by themselves.

    Inputs that it returns are copied, and embeddings do what :func:`numbers_detached` does.
    """
    found = without_passed_inputs(graph).copy()
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
        graph = differentiable(graph)
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


def run_symbol(symbol: Any, names: Sequence[str], params: dict[str, Any], ctx: Any) -> Run:
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
