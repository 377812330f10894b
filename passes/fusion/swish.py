"""Swish and hard swish, written out: a value times a function of itself between 0 and 1.

Ramachandran et al., "Searching for Activation Functions", 2017; Howard et al., "Searching for
MobileNetV3", 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical

#: Whether a node may become part of another: nothing orders it.
IsFree = Callable[[Node], bool]

_PRODUCTS: Final = ("elemwise_mul", "broadcast_mul")
#: How far apart a sixth may be that somebody wrote down.
_NEAR: Final = 1e-6
_LONGEST: Final = 3  # nodes of a gate: add, clip, divide


def swish_of(graph: Graph, value: Value, is_free: IsFree) -> tuple[str, list[Node]] | None:
    """The function that everything that reads ``value`` computes of it.

    Returns:
        ``"swish"`` or ``"hard_swish"``, and its nodes in topological order, of which the last one's
        output is the function; ``None`` if it is neither, or a node in between is read elsewhere.
    """
    readers = [graph[use.node] for use in graph.users(value)]
    products = [node for node in readers if canonical(node.op) in _PRODUCTS]
    gates = [node for node in readers if canonical(node.op) not in _PRODUCTS]
    if len(readers) != 2 or len(products) != 1 or len(gates) != 1:
        return None
    product, chain = products[0], [gates[0]]
    while (following := _only_reader(graph, chain[-1])) is not None and following is not product:
        chain.append(following)
        if len(chain) > _LONGEST:
            return None
    if set(product.inputs) != {value, chain[-1].out()} or following is not product:
        return None
    if any(graph.type_of(v) != product.type for v in product.inputs):
        return None
    members = [*chain, product]
    steps = [_step(node) for node in chain]
    if steps == ["+3", "clip 6"]:
        last = _only_reader(graph, product)
        if last is None or _step(last) != "/6":
            return None
        members.append(last)
    elif steps not in (["sigmoid"], ["hard_sigmoid"], ["+3", "clip 6", "/6"]):
        return None
    if not all(map(is_free, members)) or any(graph.is_output(n.out()) for n in members[:-1]):
        return None
    return ("swish" if steps == ["sigmoid"] else "hard_swish"), members


def _only_reader(graph: Graph, node: Node) -> Node | None:
    users = graph.users(node.out())
    return graph[next(iter(users)).node] if len(users) == 1 else None


def _step(node: Node) -> str:
    """A node of a gate by what it does."""
    op, attrs = canonical(node.op), node.attrs
    if op == "sigmoid" or (op == "Activation" and attrs.get("act_type") == "sigmoid"):
        return "sigmoid"
    if op == "hard_sigmoid":
        alpha, beta = (float(str(attrs.get(key, _HARD[key]))) for key in ("alpha", "beta"))
        is_sixth = abs(alpha - 1 / 6) < _NEAR and beta == 0.5
        return "hard_sigmoid" if is_sixth else "another slope"
    if op == "clip" and (attrs.get("a_min"), attrs.get("a_max")) == (0, 6):
        return "clip 6"
    number = attrs.get("scalar")
    if not isinstance(number, (int, float)):
        return op
    if op == "_plus_scalar" and number == 3:
        return "+3"
    if (op == "_div_scalar" and number == 6) or (
        op == "_mul_scalar" and abs(number - 1 / 6) < _NEAR
    ):
        return "/6"
    return op


#: MXNet's, of a hard sigmoid that does not tell.
_HARD: Final = {"alpha": 0.2, "beta": 0.5}
