"""MXNet's foreach loops as recurrences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.recurrence.ahead import compute_ahead
from graphopt.passes.recurrence.dropout import draw_sequences
from graphopt.passes.recurrence.invariants import hoist
from graphopt.passes.recurrence.layout import Layout
from graphopt.passes.recurrence.loops import Loop, add_loop
from graphopt.passes.recurrence.sequences import extents
from graphopt.pipeline.base import Pass, PassContext


@dataclass(frozen=True)
class ImportForeach(Pass):
    """``F.contrib.foreach`` becomes a recurrence where kernels can compute its body.

    MXNet runs the body as a graph of its own for every step, from C++. As a recurrence it is one
    kernel for all steps. What its body computes of captured values alone is computed once, in
    front; so are masks of Dropout drawn, and numbers that are data looked up in tables. Values may
    have any number of axes behind that of the batch, or no batch at all: what only moves their
    elements takes no time. A state that is put together of others becomes as many. Bodies with
    other random or with unknown operators stay, as do those that mix sequences of the batch.

    Example::

        // before
        %y = _foreach(%x, %h, %w, %u) {in_data_locs=(0,), in_state_locs=(1,), remain_locs=(2, 3)}
          [ graph body(%row, %state, %w, %u) { ... return %next, %next } ]
        // after
        %y = graphopt_recurrence(%x, %h, %w, %u)
          {spec="recurrence f32 (8) (16) (16x8, 16x16) () ;; ... ;; next t1 ;; emit t1"}
    """

    name: ClassVar[str] = "import-foreach"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace loops one by one; linear."""
        found = [node for node in graph if node.op == "_foreach"]
        if not found:
            return graph
        why = self._refusal(cx)
        edited = graph.copy()
        held = held_nodes(graph)
        done = 0
        for node in found:
            try:
                if why is not None:
                    raise GraphoptError(why)
                if node.id in held or node.after:
                    raise GraphoptError("other nodes are ordered around it")
                _rolled(edited, edited[node.id], cx)
            except GraphoptError as error:
                cx.missed(f"foreach stays: {error}", node)
                continue
            cx.passed("became a recurrence", node)
            cx.count("recurrences")
            done += 1
        return edited if done else graph

    def _refusal(self, cx: PassContext) -> str | None:
        if cx.settings.precise:
            return "sums would be rounded in another order"
        if cx.target is None:
            return "the types in its body are not known"
        return cx.target.why_no_kernels(cx.settings.device)


def _rolled(graph: Graph, node: Node, cx: PassContext) -> None:
    """Put a recurrence in the place of a loop.

    Raises:
        GraphoptError: kernels cannot compute it; the message says why.
    """
    problem: GraphoptError | None = None
    for batched in _layouts(graph, node):
        try:
            with graph.edit():
                _Loop(graph, node, cx, batched=batched).roll()
        except GraphoptError as error:
            problem = problem or error
        else:
            return
    assert problem is not None
    raise problem


def _layouts(graph: Graph, node: Node) -> list[bool]:
    """Whether values may have the batch along their first axis, the likelier first."""
    data, states = (
        {graph.type_of(value).rank for value in values} for values in _operands(node)[:2]
    )
    if data != {2}:
        return [True]
    return [False, True] if states <= {1} else [True, False]


def _operands(node: Node) -> list[tuple[Value, ...]]:
    """What a loop reads: data, states, and what is the same in all steps."""
    data = len(_places(node, "in_data_locs"))
    states = data + len(_places(node, "in_state_locs"))
    return [node.inputs[:data], node.inputs[data:states], node.inputs[states:]]


class _Loop:
    """One loop, taken apart."""

    def __init__(self, graph: Graph, node: Node, cx: PassContext, *, batched: bool) -> None:
        self.graph, self.node, self.cx = graph, node, cx
        if not all(graph.type_of(value).is_static for value in node.inputs):
            raise GraphoptError("a shape or dtype is not known")
        operands = _operands(node)
        shapes = [extents(graph, value) for value in operands[0]]
        if not shapes or min(map(len, shapes)) < 2:
            raise GraphoptError("it does not run over (steps, batch, columns)")
        self.layout = Layout(shapes[0][0], shapes[0][1] if batched else 1, batched)
        self.body = body = self._typed_body()
        #: Inputs of the body, and what they are in the graph.
        self.data, self.states, self.rest = (
            {body.inputs[at].out(): value for at, value in zip(own, values, strict=True)}
            for own, values in zip(_all_places(node), operands, strict=True)
        )

    def roll(self) -> None:
        graph, node = self.graph, self.node
        self._compute_ahead()
        loop = Loop(self.body, self.layout, self.data, self.states, self.rest)
        name, origin = graph.unique_name(f"{node.name}_rolled"), node.origin or (node.name,)
        leaving = add_loop(graph, loop, name, origin)
        for old, new in zip(node.values, leaving, strict=True):
            graph.replace_uses(old, new)
        graph.erase(node.id)

    def _typed_body(self) -> Graph:
        """The body with the types its operands have here."""
        body = self.node.graphs[0].copy()
        for n, (places, values) in enumerate(
            zip(_all_places(self.node), _operands(self.node), strict=True)
        ):
            for place, value in zip(places, values, strict=True):
                found = self.graph.type_of(value)
                if n == 0:
                    found = found.with_shape((found.shape or ())[1:])
                body.update(body.inputs[place].but(types=(found,)))
        assert self.cx.target is not None
        inferred = self.cx.target.infer_types(body)
        for node in tuple(body):
            node = node.but(types=inferred.get(node.id, node.types))
            body.update(_as_dot(node) if _is_dot(body, node) else node)
        return body

    def _compute_ahead(self) -> None:
        """Take out of the body what is computed for all steps at once, or is the same in all."""
        graph, body, steps = self.graph, self.body, self.layout.steps
        training = self.cx.training
        self.data |= draw_sequences(graph, body, steps, training=training)
        self.rest |= hoist(graph, body, self.rest, training=training)
        self.data |= compute_ahead(graph, body, self.data, self.rest, steps, training=training)


def _is_dot(body: Graph, node: Node) -> bool:
    """Whether a node multiplies two matrices, under another name than ``dot``."""
    return (
        canonical(node.op) == "_linalg_gemm2"
        and all(body.type_of(value).rank == 2 for value in node.inputs)
        and float(node.attrs.get("alpha", 1)) == 1
    )


def _as_dot(node: Node) -> Node:
    kept = ("transpose_a", "transpose_b")
    return node.but(op="dot", attrs=Attrs({key: node.attrs.flag(key) for key in kept}))


def _all_places(node: Node) -> list[tuple[int, ...]]:
    """Which inputs of the body are data, states, and the same in all steps."""
    return [_places(node, key) for key in ("in_data_locs", "in_state_locs", "remain_locs")]


def _places(node: Node, key: str) -> tuple[int, ...]:
    found = node.attrs.get(key, ())
    return tuple(found) if isinstance(found, tuple) else (int(found),)
