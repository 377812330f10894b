"""Unrolled recurrences rolled up again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.passes.recurrence.anchors import anchor_classes, apart
from graphopt.passes.recurrence.chains import Chain, find_chain
from graphopt.passes.recurrence.dropout import draw_outside
from graphopt.passes.recurrence.feeds import Feeds
from graphopt.passes.recurrence.loop_roller import LoopRoller
from graphopt.passes.recurrence.paths import path_anchors
from graphopt.passes.recurrence.readers import with_readers
from graphopt.passes.recurrence.roller import Roller
from graphopt.pipeline.base import Pass, PassContext

#: Nodes looked through for paths that turn out to be no recurrence: about a second.
_MOST_IN_VAIN: Final = 200_000
_Members = tuple[NodeId, ...]


@dataclass(frozen=True)
class RerollRecurrence(Pass):
    """Equal steps of an unrolled cell become one recurrence.

    Found by structure, not by name: nodes that apply one operator to the same weight, each
    depending on the one before, count the steps; a step is compared with the next node by node.
    Where no state meets a weight, as in SRU, QRNN and moving averages, equal operators on the way
    of a state count them. LSTM, GRU and plain cells, stacks of them, both directions, and cells
    that no library knows are all the same here. What a step reads may be slices of one array or
    anything else; what it hands out may be read step by step, joined again, or only at the end.
    Values of a step may have any number of axes behind that of the batch, as those of a CRF have.
    First and last steps that differ stay unrolled, and so does a chain whose steps kernels cannot
    compute.

    Args:
        min_steps: chains of fewer steps stay.
        leave_to_fusion: chains without weights on their states stay where one kernel computes all
            of their steps, and bare sums of columns or of arrays that lie apart.

    Example::

        // before, and so on for every step
        %x = SliceChannel(%data) {axis=0, num_outputs=40, squeeze_axis=True}
        %a1 = FullyConnected(%x, %w) %b1 = FullyConnected(%h0, %u) %s1 = elemwise_add(%a1, %b1)
        %h1 = tanh(%s1)
        %a2 = FullyConnected(%x#1, %w) %b2 = FullyConnected(%h1, %u) %s2 = elemwise_add(%a2, %b2)
        %h2 = tanh(%s2)
        %y = stack(%h1, %h2)
        // after
        %y = graphopt_recurrence(%data, %h0, %w, %u) {spec="recurrence f32 (57) (128)
          (128x57, 128x128) () ;; 128 = x0 @ m0' + s0 @ m1' ;; 128 = t0 -> f32[a,b] (f32[a,b])
          { %1 = tanh %0; return %1:f32[a,b] } ;; next t1 ;; emit t1"}
    """

    name: ClassVar[str] = "reroll-recurrence"

    min_steps: int = 4
    leave_to_fusion: bool = True

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Roll up chain after chain; near-linear for each."""
        why = self._refusal(cx)
        edited = graph.copy()
        refused: dict[str, Node] = {}
        seen: set[_Members] = set()
        failed: set[_Members] = set()
        vain: list[int] = []
        done = 0
        while True:
            for members, roll in self._attempts(edited, seen, vain, why):
                seen.add(members)
                first = edited[members[0]]
                try:
                    message = roll()
                except GraphoptError as error:
                    failed.add(members)
                    refused.setdefault(str(error), first)
                    continue
                if message:
                    cx.passed(message, first)
                    cx.count("recurrences")
                    done += 1
                    # What is one node now may have been in the way of other chains; and it may
                    # not have been the chain of these anchors.
                    seen -= {*failed, members}
                    failed.clear()
                    refused.clear()
                    break
            else:
                break
        for reason, node in refused.items():
            cx.missed(f"a chain of steps stays unrolled: {reason}", node)
        if sum(vain) >= _MOST_IN_VAIN:
            cx.missed("paths of operators that repeat are too many to look at all of them")
        return edited if done else graph

    def _attempts(
        self, graph: Graph, seen: Collection[_Members], vain: list[int], why: str | None
    ) -> Iterator[tuple[_Members, Callable[[], str]]]:
        """Anchors not seen yet, and how to roll up what they belong to.

        Weights tell the steps of most cells; paths are looked at when they tell nothing more, the
        longest first. Each takes time linear in the graph, so there is an end to those in vain.
        """
        fresh = [found for found in map(tuple, anchor_classes(graph)) if found not in seen]
        for members in fresh:
            yield members, partial(self._roll_one, graph, members, fresh, why)
        for members in map(tuple, path_anchors(graph)):
            if members not in seen and sum(vain) < _MOST_IN_VAIN:
                yield members, partial(self._roll_path, graph, members, why)
                vain.append(len(graph))

    def _roll_one(
        self,
        graph: Graph,
        members: tuple[NodeId, ...],
        others: Sequence[tuple[NodeId, ...]],
        why: str | None,
    ) -> str:
        """Roll up one of the chains that have these anchors; says what was done, if anything.

        Raises:
            GraphoptError: there is one, and it has to stay; ``why`` is why all of them do.
        """
        problem: GraphoptError | None = None
        for anchors in apart(graph, members):
            try:
                chain = find_chain(graph, anchors)
                if chain is None or len(chain.steps) < self.min_steps:
                    continue
                if why is not None:
                    raise GraphoptError(why)
                anchors, chain = self._innermost(graph, anchors, chain, others)
                return self._rolled_anyhow(graph, anchors, chain)
            except GraphoptError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return ""

    def _roll_path(self, graph: Graph, anchors: _Members, why: str | None) -> str:
        """Roll up the chain of a path, if it is one; else nothing is said, as paths are many.

        Raises:
            GraphoptError: it is one and has to stay; ``why`` is why all of them do.
        """
        # The first steps may have another role than the others.
        for members in (anchors[start:] for start in range(3)):
            chain = self._steps_of(graph, members)
            if chain is not None:
                return self._roll_steps(graph, members, chain, why)
        return ""

    def _steps_of(self, graph: Graph, anchors: _Members) -> Chain | None:
        """The chain of a path, if it is one whose steps read the same of other data.

        Else it is a sum of branches with weights of their own, or an iteration.
        """
        if len(anchors) < self.min_steps:
            return None
        try:
            chain = find_chain(graph, anchors)
        except GraphoptError:
            return None
        if chain is None or len(chain.steps) < self.min_steps:
            return None
        varies = any(len(set(slot)) > 1 for slot in chain.slots)
        return chain if varies and Feeds(graph).are_alike(chain.slots) else None

    def _roll_steps(self, graph: Graph, anchors: _Members, chain: Chain, why: str | None) -> str:
        if why is not None:
            raise GraphoptError(why)
        if self.leave_to_fusion:
            left = Roller(graph, with_readers(graph, chain)).why_left()
            if left is not None:
                raise GraphoptError(left)
        try:
            return self._rolled(graph, anchors, chain, with_outputs=True)
        except GraphoptError:  # perhaps because of what is computed besides the states
            return self._rolled(graph, anchors, chain)

    def _rolled_anyhow(self, graph: Graph, anchors: Sequence[NodeId], chain: Chain) -> str:
        """Roll up a chain of matrices, or of what is one in memory."""
        try:
            return self._rolled(graph, anchors, chain)
        except GraphoptError as problem:
            try:
                return self._rolled(graph, anchors, chain, roller=LoopRoller)
            except GraphoptError as other:
                raise GraphoptError(f"{problem}; as the body of a loop: {other}") from None

    def _rolled(
        self,
        graph: Graph,
        anchors: Sequence[NodeId],
        chain: Chain,
        *,
        with_outputs: bool = False,
        roller: type[Roller] = Roller,
    ) -> str:
        """Roll up a chain; ``with_outputs`` takes what steps compute besides their states."""
        with graph.edit():
            if draw_outside(graph, chain):
                drawn = find_chain(graph, anchors)
                assert drawn is not None
                chain = drawn
            return roller(graph, with_readers(graph, chain) if with_outputs else chain).roll()

    def _innermost(
        self,
        graph: Graph,
        anchors: Sequence[NodeId],
        chain: Chain,
        others: Sequence[tuple[NodeId, ...]],
    ) -> tuple[Sequence[NodeId], Chain]:
        """The smallest chain that is within the steps of this one.

        A decoder makes steps of all its layers together out of steps of each: rolled up by
        themselves, layers have their projections in front of the loop.
        """
        step = set(chain.steps[0])
        within = (members for members in others if step.intersection(members))
        for inner in (inner for members in within for inner in apart(graph, members)):
            if list(inner) == list(anchors):
                continue
            try:
                found = find_chain(graph, inner)
            except GraphoptError:
                continue
            is_long = found is not None and len(found.steps) >= self.min_steps
            if found is not None and is_long and len(found.sources) < len(chain.sources):
                anchors, chain = inner, found
        return anchors, chain

    def _refusal(self, cx: PassContext) -> str | None:
        if cx.settings.precise:
            return "sums would be rounded in another order"
        return None if cx.target is None else cx.target.why_no_kernels(cx.settings.device)
