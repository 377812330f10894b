"""Gradients that MXNet hands on from an output to an input without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId
from graphopt.ir.ops import canonical

#: Operators whose gradient is, for some input, the gradient of their output.
_SUMS = (
    "elemwise_add",
    "broadcast_add",
    "_npi_add",
    "add_n",
    "elemwise_sub",
    "broadcast_sub",
    "_npi_subtract",
    "_plus_scalar",
    "_minus_scalar",
    "_npi_add_scalar",
    "_npi_subtract_scalar",
)
_VIEWS = (
    "_copy",
    "identity",
    "Reshape",
    "_npx_reshape",
    "Flatten",
    "expand_dims",
    "squeeze",
    "reshape_like",
    "amp_cast",
    "Cast",
)
_HAND_ON = frozenset((*_SUMS, *_VIEWS))
#: Operators of one input whose gradient MXNet takes to be that of their output, with no node of its
#: own; the only other one is ``elemwise_add``.
_CLONED = frozenset({"_contrib_round_ste", "_contrib_sign_ste"})


def hands_on_gradients(graph: Graph) -> bool:
    """Whether the gradient of an input may be that of an output, or a sum with it.

    MXNet's CachedOp with ``static_alloc`` lets the two share memory, and what it hands to another
    call is overwritten before that one has read it: a cell ``h + x`` that is called step after step
    gets wrong gradients. Linear.
    """
    pending = [value.node for value in graph.outputs]
    seen = set(pending)
    while pending:
        node = graph[pending.pop()]
        if node.is_input:
            return True
        if canonical(node.op) not in _HAND_ON:
            continue
        for value in node.inputs:
            if value.node not in seen:
                seen.add(value.node)
                pending.append(value.node)
    return False


def without_passed_inputs(graph: Graph) -> Graph:
    """The graph with copies of the inputs it returns.

    MXNet's CachedOp records nothing where there is no operator at all, and otherwise may lose the
    gradient of an output that is an input.
    """
    return _with_copies(graph, lambda node: node.is_input)


def symbol_without_passed_inputs(symbol: Any) -> Any:
    """A Symbol with copies of the inputs it returns, as :func:`without_passed_inputs` has them."""
    mx = import_mxnet()
    outputs = list(symbol.as_nd_ndarray())  # of mx.np, one that is alone cannot be listed
    passed = [output.get_children() is None and output.list_inputs() for output in outputs]
    if not any(passed):
        return symbol
    copied = [
        mx.sym.identity(output, name=f"{output.name}_returned") if is_passed else output
        for output, is_passed in zip(outputs, passed, strict=True)
    ]
    return mx.sym.Group(copied, type(symbol))


def without_kept_results(graph: Graph, kept: Container[str]) -> Graph:
    """The graph with copies of the constants, and of the inputs of some names, that it returns.

    Whoever called may write into what is returned, and these arrays are read by all calls.
    """
    return _with_copies(graph, lambda node: node.op == CONSTANT or node.name in kept)


def _with_copies(graph: Graph, is_chosen: Callable[[Node], bool]) -> Graph:
    if not any(is_chosen(graph[value.node]) for value in graph.outputs):
        return graph
    copied = graph.copy()
    copied.set_outputs(
        copied.add("_copy", (value,), types=(graph.type_of(value),)).out()
        if is_chosen(graph[value.node])
        else value
        for value in graph.outputs
    )
    return copied


def with_distinct_gradients(graph: Graph) -> Graph:
    """The graph with gradients of their own for inputs that are added element by element.

    MXNet takes the gradient of ``elemwise_add`` for that of both addends. Where one of them is an
    input, what is wanted of the input's gradient is done to it before others read it: it is not
    computed where the input needs none, and added to older ones where those are to be kept. Linear.
    """
    passed: set[NodeId] = set()  # whose gradient is an input's
    shared = []
    for node in graph:
        op, reads = canonical(node.op), {value.node for value in node.inputs}
        if node.is_input or op == CONSTANT or (op in _CLONED and reads <= passed):
            passed.add(node.id)
        elif op == "elemwise_add" and reads & passed:
            shared.append(node)
    if not shared:
        return graph
    copied = graph.copy()
    for node in shared:
        copied.update(node.but(op="broadcast_add"))
    return copied
