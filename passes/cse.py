"""Value numbering: what is computed twice is computed once."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes, is_loss, written_values
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId, Value
from graphopt.ir.ops import Gradient, OpInfo, canonical, info
from graphopt.ir.types import TensorType
from graphopt.pipeline.base import Pass, PassContext
from graphopt.pipeline.remarks import counted
from graphopt.rewrite.edit import MAX_ORIGIN
from graphopt.rewrite.substitute import substitute, substitute_outputs

_NAMED = 5

#: Attributes that belong to MXNet's Python side but say where an operator runs.
_PLACEMENT: Final = frozenset({"__ctx_group__"})

#: Where both inputs are equal, all of the gradient goes to the first one.
_ONE_SIDED_TIES: Final = frozenset(
    {"_maximum", "_minimum", "broadcast_maximum", "broadcast_minimum"}
)

_Key = tuple[str, tuple[Value, ...], str, tuple[TensorType, ...]]


@dataclass(frozen=True)
class EliminateCommonSubexpressions(Pass):
    """No two operators of the result are known to compute the same from the same inputs.

    Equal are: one operator (by any alias), the same inputs (swapped ones too where it commutes) and
    the same attributes. Dunder attributes other than ``__ctx_group__`` do not count, nor do names;
    the first node's stay, unless only the second is a graph output. Of two outputs each keeps its
    name: the second is a copy of the first, where an operator has one result.

    Never merged: what is random, mutating or opaque in this mode; creation operators without a
    static type, as MXNet completes their shapes from their users; readers of states that another
    operator writes; nodes with nested graphs or control dependencies. In training also not: losses,
    whose backward ignores the head gradients that merging adds up; maximum and minimum with swapped
    inputs, for a tie sends the gradient to the first one; and with ``precise`` nothing that has a
    gradient, as the sum is then rounded earlier, and no constants or creation operators, as MXNet
    would take what reads them for equal.

    Example::

        // before
        graph net(%x: f32[8], %y: f32[8]) {
          %a = elemwise_add(%x, %y) : f32[8]
          %b = elemwise_add(%y, %x) : f32[8]
          %c = elemwise_mul(%a, %b) : f32[8]
          return %c
        }
        // after
        graph net(%x: f32[8], %y: f32[8]) {
          %a = elemwise_add(%x, %y) : f32[8]
          %c = elemwise_mul(%a, %a) : f32[8]
          return %c
        }
    """

    name: ClassVar[str] = "eliminate-common-subexpressions"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """One walk in topological order, looking every node up by what it computes."""
        merged = graph.copy()
        outputs = {value.node for value in graph.outputs}
        held = held_nodes(graph)
        written = written_values(graph, training=cx.training)
        first: dict[_Key, NodeId] = {}
        new: dict[Value, Value] = {}
        latest: dict[NodeId, NodeId] = {}  # copy of a node that is a graph output
        copied: list[Node] = []
        twins: dict[NodeId, list[Node]] = defaultdict(list)
        refused: dict[str, list[Node]] = defaultdict(list)
        for original in graph:
            node = substitute(merged, original, new)
            if node.is_input or node.id in held or node.graphs or node.after:
                continue
            key = _key(node, training=cx.training)
            kept = first.setdefault(key, node.id)
            if kept == node.id:
                continue
            reason = _refusal(node, written, cx)
            are_outputs = kept in outputs and node.id in outputs
            if not reason and are_outputs and len(node.types) != 1:
                reason = "each is a graph output with a name of its own"
            if reason:
                refused[reason].append(node)
                continue
            new.update((value, Value(kept, value.index)) for value in node.values)
            if are_outputs:
                copy = _copy(node, latest.get(kept, kept), first)
                latest[kept] = merged.update(copy).id
                copied.append(node)
                continue
            if node.id in outputs:
                outputs.add(kept)
            twins[kept].append(node)
        own = {node.id for node in copied}
        substitute_outputs(merged, {v: kept for v, kept in new.items() if v.node not in own})
        _report(cx, [*chain.from_iterable(twins.values()), *copied], refused)
        return _finish(graph, merged, twins) if twins or copied else graph


def _key(node: Node, *, training: bool) -> _Key:
    """What determines the value of a node; equal keys are equal values unless refused."""
    op, inputs = canonical(node.op), node.inputs
    swappable = info(op, node.attrs).commutative and not (training and op in _ONE_SIDED_TIES)
    if swappable and len(inputs) == 2:
        inputs = (min(inputs), max(inputs))
    ignored = [k for k in node.attrs if k.startswith("__") and k not in _PLACEMENT]
    attrs = node.attrs.without(*ignored) if ignored else node.attrs
    return op, inputs, attrs.text, node.types


def _copy(node: Node, kept: NodeId, first: dict[_Key, NodeId]) -> Node:
    """In place of a node with one result, which is an output by its name, a copy of an equal one.

    Two equal nodes that are outputs MXNet's executors take for one, but differentiate both: the
    second runs without a place for its result, which ``Embedding`` refuses. No two copies are of
    one node, as these would be equal again.
    """
    attrs = {key: value for key, value in node.attrs.items() if key.startswith("__")}
    while True:
        copy = node.but(op="_copy", inputs=(Value(kept),), attrs=Attrs(attrs))
        found = first.setdefault(_key(copy, training=False), node.id)
        if found == node.id:
            return copy
        kept = found


def _refusal(node: Node, written: frozenset[Value], cx: PassContext) -> str:
    """Why a node must stay although an earlier one has its key, or nothing."""
    is_precise_step = cx.training and cx.settings.precise
    if is_precise_step and not node.inputs:
        return "MXNet would take what reads them for equal, and precise=True forbids that"
    if node.op == CONSTANT:
        return ""
    facts = info(node.op, node.attrs)
    if not facts.is_pure(training=cx.training):
        return _impurity(facts)
    if not node.inputs and not all(type_.is_static for type_ in node.types):
        return "their shape is not known, and their users may give them different ones"
    if not written.isdisjoint(node.inputs):
        return "they read a state that another operator writes in between"
    if not cx.training:
        return ""
    if is_loss(node):
        return "a loss ignores the gradients that merging would add up"
    if is_precise_step and facts.gradient is not Gradient.NONE:
        return "merging would round gradients differently, and precise=True forbids that"
    return ""


def _impurity(facts: OpInfo) -> str:
    if facts.random:
        return "they draw random numbers in this mode"
    if facts.mutates or facts.hidden_writes:
        return "they write their inputs in this mode"
    return "the operator is opaque and may have effects"


def _finish(graph: Graph, merged: Graph, twins: dict[NodeId, list[Node]]) -> Graph:
    """Erase the nodes that were merged away; what survives remembers their origins."""
    outputs = {value.node for value in graph.outputs}
    gone = {node.id for nodes in twins.values() for node in nodes}
    for node in reversed(graph.topological()):
        if node.id in gone:
            merged.erase(node.id)
    names = Counter(node.name for node in merged)
    for kept, nodes in twins.items():
        survivor = merged[kept]
        origins = dict.fromkeys((*survivor.origin, *(o for n in nodes for o in n.origin)))
        wanted = next((node.name for node in nodes if node.id in outputs), survivor.name)
        # MXNet names an output after its node, so the name that users see has to survive.
        name = survivor.name if names[wanted] else wanted
        names[name] += 1
        merged.update(survivor.but(name=name, origin=(*origins,)[:MAX_ORIGIN]))
    return merged


def _report(cx: PassContext, gone: list[Node], refused: dict[str, list[Node]]) -> None:
    if gone:
        cx.count("merged", len(gone))
        cx.passed(f"merged {counted(len(gone), 'operators')} into equal ones", *gone[:_NAMED])
    for reason, nodes in refused.items():
        cx.missed(f"{len(nodes)} repeated operators stay: {reason}", *nodes[:_NAMED])
