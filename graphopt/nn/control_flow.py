"""Control flow that MXNet differentiates in its Python, but not as a node of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import Gradient, canonical, info
from graphopt.kernels import bridge

#: MXNet leaves gradients of their inputs unwritten, which the bridge mends.
_MENDED = frozenset({"_cond", "_while_loop"})
#: Their gradients for ``grad_req="add"``, as captured values of loops have it, are random numbers.
_READS_WHAT_IT_ADDS_TO = frozenset({"_linalg_gemm", "_linalg_gemm2"})


def require_gradients(graph: Graph) -> None:
    """Refuse a graph whose gradients would not be those of the Block's Python.

    Raises:
        UnsupportedError: a node has no such gradients; the message names it.
    """
    for node in with_nested(graph):
        why = _why_no_gradients(node)
        if why:
            raise UnsupportedError(f"{node.name!r} ({node.op}) has no gradients in a graph: {why}")


def require_steps(graph: Graph) -> None:
    """Refuse to learn through a loop that may take no step, where Python of a Block may.

    What such a loop emits has no shape, of which MXNet's graphs compute no gradients; Python that
    reads it fails as well.

    Raises:
        UnsupportedError: nobody reads what a loop emits; the message names it.
    """
    for node in graph:
        for nested in node.graphs:
            require_steps(nested)
        if node.op != "_while_loop":
            continue
        emitted = [Value(node.id, at) for at in range(int(node.attrs["num_out_data"]))]
        if emitted and not any(graph.users(v) or graph.is_output(v) for v in emitted):
            why = "it emits what nobody reads, and may take no step"
            raise UnsupportedError(f"{node.name!r} ({node.op}) has no gradients in a graph: {why}")


def require_open_loops(graph: Graph) -> None:
    """Refuse to learn through loops whose gradients are wrong as MXNet's graphs compute them.

    Asked of an optimized graph: loops that became recurrences are none any more.

    Raises:
        UnsupportedError: the message names the loop.
    """
    for node in with_nested(graph):
        why = _why_not_open(node)
        if why:
            raise UnsupportedError(f"{node.name!r} ({node.op}) has no gradients in a graph: {why}")


def _why_not_open(loop: Node) -> str | None:
    if loop.op == "_foreach":
        (body,) = loop.graphs
        if not all(_has_gradient(body, value) for value in body.outputs):
            # MXNet's graph of the gradients lacks an input then.
            return "its body computes what has none"
    if loop.op in ("_foreach", "_while_loop"):
        for node in (node for body in loop.graphs for node in with_nested(body)):
            if canonical(node.op) in _READS_WHAT_IT_ADDS_TO:
                return f"MXNet does not add up the gradients of {node.name!r} ({node.op})"
    return None


def _has_gradient(body: Graph, value: Value) -> bool:
    """Whether a gradient of that value comes to an input."""
    seen, stack = set(), [value.node]
    while stack:
        node = body[stack.pop()]
        if node.is_input:
            return True
        if node.id not in seen and info(node.op, node.attrs).gradient is not Gradient.NONE:
            stack += [read.node for read in node.inputs]
        seen.add(node.id)
    return False


def _why_no_gradients(node: Node) -> str | None:
    if node.op == "_while_loop" and _has_inputs_of_condition(node):
        return "its condition reads what its body does not"
    return bridge.why_not(import_mxnet()) if node.op in _MENDED else None


def _has_inputs_of_condition(loop: Node) -> bool:
    """Whether some inputs are the condition's alone: MXNet's backward counts them as the body's."""
    places = loop.attrs["func_input_locs"]
    return len(loop.inputs) != (len(places) if isinstance(places, tuple) else 1)


def with_nested(graph: Graph) -> Iterator[Node]:
    """All nodes of a graph, and of those that its nodes have."""
    for node in graph:
        yield node
        for nested in node.graphs:
            yield from with_nested(nested)
