"""Apply rules until none fits any more.

A worklist holds the nodes to look at, first all of them in topological order. A rewrite puts its
new nodes, the readers of the replaced value and whatever became the only reader of something back
onto the list, and every match is made anew, so none is stale. A rule may look further up than that;
therefore sweeps over the whole graph follow until one changes nothing. The number of rewrites is
bounded: rules that undo each other raise instead of running on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from graphopt.errors import GraphError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.rewrite.edit import Edit
from graphopt.rewrite.rule import Mismatch, Replacement, Rule

#: Rewrites allowed per node of the graph; each of graphopt's rules lowers a cost.
BUDGET_PER_NODE = 16
MAX_SWEEPS = 8
#: Names of nodes in one remark.
MAX_NAMES = 8


class Options(Protocol):
    """The part of a pipeline's settings that rules depend on."""

    @property
    def precise(self) -> bool:
        """Whether every bit has to stay."""


class Context(Protocol):
    """Where remarks and statistics go; :class:`graphopt.pipeline.base.PassContext` is one."""

    @property
    def settings(self) -> Options:
        """What may be assumed."""

    @property
    def training(self) -> bool:
        """Whether gradients have to stay exact."""

    def passed(self, message: str, *nodes: Node | str) -> None:
        """Tell what was done."""

    def missed(self, message: str, *nodes: Node | str) -> None:
        """Tell what was not done, and why."""

    def count(self, what: str, times: int = 1) -> None:
        """Add to a statistic."""


def apply_rules(
    graph: Graph, rules: Sequence[Rule], cx: Context, *, budget: int | None = None
) -> Graph:
    """Rewrite a graph with ``rules``, of which the first that fits a node wins.

    Args:
        graph: not written to.
        rules: in order of preference.
        cx: settings; gets one remark per rule that was applied and per reason to refuse.
        budget: the most rewrites allowed; default: in proportion to the graph's size.

    Returns:
        ``graph`` itself if no rule fits, else a rewritten copy.

    Raises:
        GraphError: the budget is spent, or a rule changed the type of a value.
    """
    driver = _Driver(graph, rules, cx, budget)
    driver.run()
    driver.report()
    return driver.edit.graph if driver.rewrites else graph


class _Driver:
    def __init__(
        self, graph: Graph, rules: Sequence[Rule], cx: Context, budget: int | None
    ) -> None:
        self.edit = Edit(graph, training=cx.training, precise=cx.settings.precise)
        self.cx = cx
        self.rules: dict[str, list[Rule]] = {}
        for rule in rules:
            for op in rule.ops:
                self.rules.setdefault(op, []).append(rule)
        self.budget = BUDGET_PER_NODE * (len(graph) + 4) if budget is None else budget
        self.rewrites = 0
        self.done: dict[str, list[str]] = {}
        self.missed: dict[tuple[str, str], dict[NodeId, str]] = {}
        self.work: deque[NodeId] = deque()
        self.queued: set[NodeId] = set()

    def run(self) -> None:
        for _ in range(MAX_SWEEPS):
            before = self.rewrites
            self.missed.clear()  # the last sweep refuses again whatever is still refused
            self.push(node.id for node in self.edit.graph.topological())
            self.drain()
            if self.rewrites == before:
                return

    def drain(self) -> None:
        while self.work:
            name = self.work.popleft()
            self.queued.discard(name)
            if name in self.edit.graph:
                self.visit(self.edit.graph[name])

    def push(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            if node not in self.queued:
                self.queued.add(node)
                self.work.append(node)

    def visit(self, node: Node) -> None:
        rules = self.rules.get(canonical(node.op), ())
        if not rules or not self.edit.is_movable(node):
            return
        for rule in rules:
            self.edit.added = []
            try:
                values = _as_tuple(rule.rewrite(self.edit, node))
                if values:
                    self.check(rule, node, values)
            except Mismatch as mismatch:
                values = ()
                self.missed.setdefault((rule.name, mismatch.reason), {})[node.id] = node.name
            if values:
                self.accept(rule, node, values)
                return
            self.edit.erase_unused(self.edit.added)

    def check(self, rule: Rule, node: Node, values: tuple[Value, ...]) -> None:
        """Refuse what no rule may do."""
        assert len(values) == len(node.types), f"{rule.name} gives {len(values)} values"
        for old, new in zip(node.values, values, strict=True):
            before, after = self.edit.type(old), self.edit.type(new)
            if before.is_static and after.is_static and before != after:
                raise GraphError(f"{rule.name} made {after} of {node.name!r}, which is {before}")
            if not self.edit.graph.is_output(old):
                continue
            if self.edit.node(new).is_input or self.edit.node(new).op == CONSTANT:
                raise Mismatch("the graph would return its own input")
            if self.edit.graph.is_output(new):
                # MXNet's backward keeps one head gradient where a value is returned twice.
                raise Mismatch("two outputs would become one, whose gradient MXNet gets wrong")

    def accept(self, rule: Rule, node: Node, values: tuple[Value, ...]) -> None:
        self.rewrites += 1
        if self.rewrites > self.budget:
            raise GraphError(
                f"{self.budget} rewrites did not come to an end; the last was {rule.name}"
                f" at node {node.name!r}"
            )
        self.done.setdefault(rule.name, []).append(node.name)
        edit = self.edit
        readers = [use.node for use in edit.graph.node_users(node.id)]
        returned = edit.graph.is_output(node.out()) and not edit.graph.is_output(values[0])
        for old, new in zip(node.values, values, strict=True):
            edit.replace(old, new)
        gone = edit.erase_unused([node.id])
        self.keep_name(node, values, gone, returned=returned)
        self.push(edit.added)
        self.push(value.node for value in values)
        self.push(readers)
        self.push(self.lonely(gone))

    def keep_name(
        self, node: Node, values: tuple[Value, ...], gone: list[Node], *, returned: bool
    ) -> None:
        """A new node, or one that is now the graph's output, takes the name of what it replaces."""
        if values[0].node not in self.edit.graph:  # nothing read either of them
            return
        heir = self.edit.node(values[0])
        if len(values) != 1 or len(heir.types) != 1 or node.id in self.edit.graph:
            return
        if heir.id in self.edit.added:
            self.edit.rename(heir.id, node.name, tuple(o for n in gone for o in n.origin))
        elif returned:
            self.edit.rename(heir.id, node.name)

    def lonely(self, gone: Iterable[Node]) -> Iterable[NodeId]:
        """Nodes that are now the only readers of something an erased node read too."""
        for node in gone:
            for value in node.inputs:
                if value.node in self.edit.graph and self.edit.uses(value) == 1:
                    yield from (use.node for use in self.edit.graph.users(value))

    def report(self) -> None:
        for name, places in self.done.items():
            self.cx.count(name, len(places))
            times = f", {len(places)} times" if len(places) > 1 else ""
            self.cx.passed(f"applied {name}{times}", *places[:MAX_NAMES])
        for (name, reason), refused in self.missed.items():
            left = [label for node, label in refused.items() if node in self.edit.graph]
            if left:
                times = f", {len(left)} times" if len(left) > 1 else ""
                self.cx.missed(f"{name}: {reason}{times}", *left[:MAX_NAMES])


def _as_tuple(found: Replacement) -> tuple[Value, ...]:
    if found is None:
        return ()
    return (found,) if isinstance(found, Value) else found
