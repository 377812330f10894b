"""The table itself, put together from the topic modules once, at import."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from graphopt.ir.ops import arrays, fused, neural, numpy_like, opaque, pointwise, sampling, vision
from graphopt.ir.ops.aliases import read_aliases
from graphopt.ir.ops.facts import UNKNOWN, OpInfo
from graphopt.ir.ops.narrow import RULES, Attributes

_TOPICS = (pointwise, arrays, neural, vision, sampling, numpy_like, opaque, fused)


def _build() -> dict[str, OpInfo]:
    aliases = read_aliases()
    entries = [entry for topic in _TOPICS for entry in topic.OPERATORS]
    table = {entry.name: replace(entry, aliases=aliases.get(entry.name, ())) for entry in entries}
    assert len(table) == len(entries), "an operator stands in two topics"
    assert aliases.keys() <= table.keys(), "an alias names no operator"
    return table


_TABLE = _build()
_CANONICAL = {alias: entry.name for entry in _TABLE.values() for alias in entry.aliases}
#: By all names: what is known, and what attributes change of it.
_FACTS = {
    name: (entry, RULES.get(entry.name))
    for entry in _TABLE.values()
    for name in (entry.name, *entry.aliases)
}


def canonical(op: str) -> str:
    """The name MXNet saves for ``op``; a name that is no known alias stands for itself."""
    return _CANONICAL.get(op, op)


def is_known(op: str) -> bool:
    """Whether the table has an entry for ``op``, which may say that the operator is opaque."""
    return canonical(op) in _TABLE


def names() -> tuple[str, ...]:
    """All canonical names, sorted."""
    return tuple(sorted(_TABLE))


def info(op: str, attrs: Attributes | None = None) -> OpInfo:
    """Facts about ``op``, an alias or a canonical name.

    Without ``attrs`` they hold for every setting of the attributes; with them, for this one.
    An unknown operator is opaque and impure.
    """
    known, rule = _FACTS.get(op) or (_unknown(op), None)
    if rule is None or attrs is None:
        return known
    # As isinstance() of Hashable would tell, which takes longer than all the rest.
    is_hashable = type(attrs).__hash__ is not None
    return _narrowed(known.name, attrs) if is_hashable else rule(known, attrs)


@lru_cache(maxsize=4096)
def _narrowed(name: str, attrs: Any) -> OpInfo:
    """The same again and again: layers of a net have few settings."""
    return RULES[name](_TABLE[name], attrs)


@lru_cache(maxsize=1024)
def _unknown(name: str) -> OpInfo:
    return replace(UNKNOWN, name=name)
