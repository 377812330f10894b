"""A training step within a memory budget: marks for MXNet's executor to compute values again.

MXNet computes again, in backward, what is marked ``__force_mirroring__``. Which marks bring what is
asked of MXNet itself: an executor is bound with them, which takes milliseconds and touches no
memory, and lists what it planned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graphopt.analysis.effects import is_pure
from graphopt.backend.costs import measure_costs
from graphopt.backend.step import MATCHES, allocated, bind
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT
from graphopt.ir.ops import canonical
from graphopt.memory.recompute import Cost, Plan, Search, Work
from graphopt.memory.sizes import print_size

_MARK = "__force_mirroring__"
_REPEATED = re.compile(r"^Op:\S+, Name=(.+)_mirror$", re.MULTILINE)
_MIB = 1 << 20
#: Operators that update their states in backward only, and compute the same again.
_REPEATABLE = frozenset({"BatchNorm"})


@dataclass(frozen=True)
class Fitted:
    """A training graph as it keeps within its budget.

    Attributes:
        symbol: with marks.
        plan: what is marked, and what that comes to.
        plain: the plan without marks.
        held: bytes of inputs, parameters, states and gradients, which no plan changes.
        forward: seconds of the forward, by its operators.
        operators: how many there are.
    """

    symbol: Any
    plan: Plan
    plain: Plan
    held: int
    forward: float
    operators: int

    def __str__(self) -> str:
        """What was done, as ``explain()`` tells it."""
        after, before = (print_size(self.held + p.cost.nbytes) for p in (self.plan, self.plain))
        if not self.plan.marks:
            return f"a step takes {after}, and keeps all values"
        again = len(self.plan.cost.repeated)
        share = self.plan.seconds / self.forward if self.forward else 0.0
        return (
            f"a step takes {after} instead of {before}: {again} of {self.operators} operators are"
            f" computed again in backward, {share:.0%} of the time of forward"
        )


class StepMemory:
    """Plans for the training step of one graph on one context.

    Args:
        graph: lowered for training.
        symbol: of the graph.
        arrays: all it reads, by name; gradients are wanted for those that have one.
        ctx: where it runs.
    """

    def __init__(self, graph: Graph, symbol: Any, arrays: Mapping[str, Any], ctx: Any) -> None:
        """Nothing is measured yet."""
        self._graph, self._symbol, self._arrays, self._ctx = graph, symbol, arrays, ctx
        self._document = json.loads(symbol.tojson())
        learned = [n for n in symbol.list_arguments() if arrays[n].grad is not None]
        self._gradients = {name: arrays[name].grad for name in learned}
        self.held = sum(_nbytes(array) for array in arrays.values())
        self.held += sum(_nbytes(array) for array in self._gradients.values())

    @cached_property
    def search(self) -> Search:
        """Over this graph; operators that were not measured before are measured now."""
        return Search(_work_of(self._graph, measure_costs(self._graph, self._ctx)), self._evaluate)

    def fit(self, budget: int | None) -> Fitted:
        """Marks so that a step takes at most ``budget`` bytes, at the least time.

        Raises:
            BudgetError: there are none; the message has the least that is possible.
        """
        nothing: frozenset[str] = frozenset()
        plain = Plan(nothing, self._evaluate(nothing), 0.0)
        if budget is None or self.held + plain.cost.nbytes <= budget:
            return Fitted(self._symbol, plain, plain, self.held, 0.0, 0)
        plan = self.search.plan(budget - self.held)
        if plan is None:
            least = self.held + self.search.least().cost.nbytes
            raise BudgetError(
                f"a training step of {self._graph.name!r} cannot run in {print_size(budget)}: the"
                f" least is {print_size(least, up=True)}, of which {print_size(self.held)} are"
                " inputs, parameters and their gradients"
            )
        work = self.search.work
        forward = sum(one.seconds for one in work)
        symbol = marked(self._document, plan.marks)
        return Fitted(symbol, plan, plain, self.held, forward, len(work))

    def _evaluate(self, marks: frozenset[str]) -> Cost:
        symbol = marked(self._document, marks)
        states = set(symbol.list_auxiliary_states())
        arguments = {n: self._arrays[n] for n in symbol.list_arguments()}
        aux = {n: self._arrays[n] for n in states}
        found: list[Cost] = []
        for match in MATCHES:
            executor = bind(symbol, self._ctx, arguments, self._gradients, aux, match=match)
            listing = executor.debug_str()
            nbytes = (allocated(executor, listing) + 1) * _MIB  # MXNet rounds down
            found.append(Cost(nbytes, frozenset(_REPEATED.findall(listing)), match))
        return min(found, key=lambda cost: cost.nbytes)


def marked(document: Mapping[str, Any], names: Collection[str]) -> Any:
    """The Symbol of a document in which the named nodes are to be computed again."""
    nodes = [
        node | {"attrs": {**node.get("attrs", {}), _MARK: "True"}}
        if node["op"] != "null" and node["name"] in names
        else node
        for node in document["nodes"]
    ]
    return import_mxnet().sym.load_json(json.dumps({**document, "nodes": nodes}))


def _work_of(graph: Graph, seconds: Mapping[str, float]) -> list[Work]:
    results = {value.node for value in graph.outputs}
    place: dict[int, int] = {}
    found: list[Work] = []
    for node in graph:
        if node.is_input or node.op == CONSTANT:
            continue
        sources = sorted({place[v.node] for v in node.inputs if v.node in place})
        again = is_pure(node, training=True) or canonical(node.op) in _REPEATABLE
        place[node.id] = len(found)
        found.append(
            Work(
                node.name,
                sum(kind.nbytes or 0 for kind in node.types),
                seconds[node.name],
                again and node.id not in results,
                tuple(sources),
            )
        )
    return found


def _nbytes(array: Any) -> int:
    return int(array.size * np.dtype(array.dtype).itemsize)
