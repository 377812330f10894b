"""Graphs with other names: equal graphs are the same once neither names its nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from graphopt.ir.graph import Graph

_MARK: Final = "@"
_PLACEHOLDER: Final = re.compile(f"{_MARK}[0-9]+{_MARK}")


def renamed(graph: Graph, rename: Callable[[str], str]) -> Graph:
    """A copy with other names, also of nested graphs and of what nodes stem from."""
    made = graph.copy(rename(graph.name))
    for node in graph:
        made.update(
            node.but(
                name=rename(node.name),
                origin=tuple(map(rename, node.origin)),
                graphs=tuple(renamed(nested, rename) for nested in node.graphs),
            )
        )
    return made


class Placeholders:
    """Numbers for the names in a graph, in the order in which they appear.

    Passes make names of names, and tell them in sentences: a placeholder is found in either.

    Attributes:
        order: the placeholders, in the order of the names in the graph.
    """

    def __init__(self, graph: Graph) -> None:
        """Number the names of ``graph``."""
        names = list(_names(graph))
        given = dict.fromkeys(filter(None, names))
        stay = any(_MARK in name for name in given)  # they might be taken for placeholders
        self._placeholders = {
            name: name if stay else f"{_MARK}{number}{_MARK}" for number, name in enumerate(given)
        }
        self._made = {"": "", **{made: name for name, made in self._placeholders.items()}}
        self._taken = set(given)
        self.order = " ".join(map(self.placeholder, names))

    def placeholder(self, name: str) -> str:
        """What stands for a name of the graph."""
        return self._placeholders.get(name, name)

    def name(self, made: str) -> str:
        """What a name is that was made of placeholders: different ones stay different."""
        if made not in self._made:
            name, count = self.text(made), 0
            while name in self._taken:
                count += 1
                name = f"{self.text(made)}_{count}"
            self._made[made] = name
            self._taken.add(name)
        return self._made[made]

    def text(self, made: str) -> str:
        """A sentence with the names that the placeholders in it stand for."""
        return _PLACEHOLDER.sub(lambda found: self._made.get(found[0], found[0]), made)


def _names(graph: Graph) -> Iterator[str]:
    yield graph.name
    for node in (*graph.inputs, *graph):
        yield node.name
    for node in graph:
        yield from node.origin
        for nested in node.graphs:
            yield from _names(nested)
