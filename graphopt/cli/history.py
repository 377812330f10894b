"""The story of one node through a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.printer import print_node

if TYPE_CHECKING:
    from graphopt.api.inspecting import Step
    from graphopt.pipeline.remarks import Remark


@dataclass(frozen=True)
class Event:
    """What one pass did to a node: a word, the texts of what it became, and what was remarked."""

    pass_text: str
    what: str
    lines: tuple[str, ...]
    remarks: tuple[Remark, ...]

    def as_dict(self) -> dict[str, object]:
        """A form for JSON."""
        return {
            "pass": self.pass_text,
            "what": self.what,
            "became": self.lines,
            "remarks": [remark.as_dict() for remark in self.remarks],
        }


def history(name: str, steps: Sequence[Step]) -> list[Event]:
    """The passes that changed a node, or remarked on it or on what was made of it."""
    events = []
    for step in steps:
        names = {name, *(node.name for node in _heirs(step.before, name))}
        names |= {node.name for node in _heirs(step.after, name)}
        remarks = tuple(r for r in step.remarks if names.intersection(r.nodes))
        what = _what(name, step)
        if what or remarks:
            lines = fate(name, step.after) if what else ()
            events.append(Event(step.receipt.pass_text, what or "left it", tuple(lines), remarks))
    return events


def fate(name: str, graph: Graph) -> list[str]:
    """The text of every node of a graph that is the node of that name, or stems from it."""
    return [print_node(graph, node.id).strip() for node in _family(graph, name)]


def lines_of(graph: Graph, name: str) -> list[str]:
    """The text of the nodes of that name."""
    return [print_node(graph, node.id).strip() for node in graph if node.name == name]


def _heirs(graph: Graph, name: str) -> list[Node]:
    """Nodes of other names that stem from the node."""
    return [node for node in graph if name in node.origin and node.name != name]


def _family(graph: Graph, name: str) -> list[Node]:
    return [node for node in graph if node.name == name or name in node.origin]


def _what(name: str, step: Step) -> str:
    """What the pass did to the node and its heirs; nothing if it did not touch them."""
    if step.receipt.status != "changed":
        return ""
    before, after = fate(name, step.before), fate(name, step.after)
    if before == after:
        return ""
    if not after:
        return "removed it"
    if not before:
        return "made it"
    alive = any(node.name == name for node in step.after)
    return "changed it" if alive else "made this of it"
