"""Patterns: an expression to look for, written as it reads.

``Op("sqrt", Op("square", Var("x")))`` matches a sqrt of a square that nothing else reads. Operators
whose inputs may be swapped, by :mod:`graphopt.ir.ops`, match either way round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphopt.ir.attrs import AttrValue
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical, info
from graphopt.rewrite.edit import Edit
from graphopt.rewrite.rule import Mismatch, Replacement, Rule

Bindings = dict[str, Value]


@dataclass(frozen=True)
class Var:
    """Any value; the same name twice has to be the same value."""

    name: str


class Op:
    """An operator over patterns, with the attributes it must have.

    An attribute is given as the value it must equal or as a predicate. An interior node must be
    read by the match alone, since it would else stay and nothing be gained; ``only_user=False``
    drops this.
    """

    def __init__(
        self, op: str, *inputs: Pattern, only_user: bool = True, **attrs: AttrValue
    ) -> None:
        """Match ``op``, a canonical name."""
        self.op = op
        self.inputs = inputs
        self.only_user = only_user
        self.attrs = attrs

    def accepts(self, node: Node) -> bool:
        """Whether operator, number of inputs and attributes fit; says nothing about the inputs."""
        if canonical(node.op) != self.op or len(node.inputs) != len(self.inputs):
            return False
        for key, wanted in self.attrs.items():
            found = node.attrs.get(key)
            if not (wanted(found) if callable(wanted) else found == wanted):
                return False
        return True


Pattern = Var | Op


@dataclass(frozen=True)
class Match:
    """Where a pattern was found: its root, and a value per variable."""

    root: Node
    values: Bindings = field(default_factory=dict)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]


def match(edit: Edit, pattern: Op, root: Node) -> Match | None:
    """Match a pattern at a node.

    Raises:
        Mismatch: it would match if an interior value were not read elsewhere too.
    """
    if not pattern.accepts(root):
        return None
    found = _inputs(edit, pattern, root, {})
    if found is None:
        return None
    values, shared = found
    if shared is not None:
        raise Mismatch(f"{shared!r}, a part of it, is read elsewhere too")
    return Match(root, values)


#: Bindings so far, and the name of a matched interior node that has other readers.
_Found = tuple[Bindings, str | None]


def _inputs(edit: Edit, pattern: Op, node: Node, bound: Bindings) -> _Found | None:
    """Match the inputs; recursion is as deep as the pattern, never as deep as the graph."""
    orders = [node.inputs]
    if len(node.inputs) == 2 and info(node.op).commutative:
        orders.append(node.inputs[::-1])
    near: _Found | None = None
    for order in orders:
        found = _in_order(edit, pattern, order, bound)
        if found is not None and found[1] is None:
            return found
        near = near or found
    return near


def _in_order(edit: Edit, pattern: Op, values: tuple[Value, ...], bound: Bindings) -> _Found | None:
    found: _Found = (dict(bound), None)
    for part, value in zip(pattern.inputs, values, strict=True):
        step = _value(edit, part, value, found[0])
        if step is None:
            return None
        found = (step[0], found[1] or step[1])
    return found


def _value(edit: Edit, pattern: Pattern, value: Value, bound: Bindings) -> _Found | None:
    if isinstance(pattern, Var):
        if bound.setdefault(pattern.name, value) != value:
            return None
        return bound, None
    node = edit.producer(value, (pattern.op,), only_user=False)
    if node is None or not pattern.accepts(node):
        return None
    found = _inputs(edit, pattern, node, bound)
    if found is None:
        return None
    shared = node.name if pattern.only_user and edit.uses(value) > 1 else None
    return found[0], found[1] or shared


def PatternRule(  # noqa: N802 - reads as the kind of rule it makes
    name: str, pattern: Op, build: Callable[[Edit, Match], Replacement]
) -> Rule:
    """A rule that starts from a pattern; ``build`` may still refuse the match."""

    def rewrite(edit: Edit, node: Node) -> Replacement:
        found = match(edit, pattern, node)
        return None if found is None else build(edit, found)

    return Rule(name, (pattern.op,), rewrite)
