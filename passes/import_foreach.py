"""MXNet's foreach loops as recurrences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.body import translate
from graphopt.passes.recurrence.build import Chain, Operands, add_recurrence
from graphopt.passes.recurrence.dropout import draw_sequences
from graphopt.passes.recurrence.invariants import hoist
from graphopt.passes.recurrence.sequences import extents
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite.substitute import transplant


@dataclass(frozen=True)
class ImportForeach(Pass):
    """``F.contrib.foreach`` becomes a recurrence where kernels can compute its body.

    MXNet runs the body as a graph of its own for every step, from C++. As a recurrence it is one
    kernel for all steps. What its body computes of captured values alone is computed once, in
    front; so are masks of Dropout drawn. Bodies with other random or with unknown operators, and
    loops over anything but rows (steps, batch, columns), stay.

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
                with edited.edit():
                    _Loop(edited, edited[node.id], cx).roll()
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


class _Loop:
    """One loop, taken apart."""

    def __init__(self, graph: Graph, node: Node, cx: PassContext) -> None:
        self.graph, self.node, self.cx = graph, node, cx
        self.data = _places(node, "in_data_locs")
        self.fed = len(self.data)
        self.states = _places(node, "in_state_locs")
        self.rest = _places(node, "remain_locs")
        shapes = [extents(graph, value) for value in node.inputs]
        if not all(graph.type_of(value).is_static for value in node.inputs):
            raise GraphoptError("a shape or dtype is not known")
        if any(len(shape) != 3 for shape in shapes[: len(self.data)]) or not self.data:
            raise GraphoptError("it does not run over (steps, batch, columns)")
        self.steps, self.batch = shapes[0][0], shapes[0][1]

    def roll(self) -> None:
        node, graph = self.node, self.graph
        body = self._typed_body()
        sequences = self._sequences(body)
        given = node.inputs[self.fed : self.fed + len(self.states)]
        rest = self._captured(body)
        count = len(self.data)
        # What has a row for every sequence is handed on from step to step as it is.
        is_row = [self._is_row(body, place) for place in self.rest]
        rows = [n for n, yes in enumerate(is_row) if yes]
        learned = [n for n, yes in enumerate(is_row) if not yes]
        order = [*self.data, *self.states, *(self.rest[n] for n in [*rows, *learned])]
        emitted = int(node.attrs["num_out_data"])
        step = self._step(body, order, len(rows), emitted)
        parts = _split_emitted(step, emitted)
        states = len(self.states) + len(rows)
        translated = translate(step, count, states)
        places = {count + states + at: rest[n] for at, n in enumerate(learned)}
        made = add_recurrence(
            graph,
            step,
            translated,
            Chain(self.steps, self.batch),
            sequences,
            [Operands([*given, *(rest[n] for n in rows)], places)],
            name=graph.unique_name(f"{node.name}_rolled"),
            origin=node.origin or (node.name,),
        )
        leaving = [made.out(n) for n in range(sum(parts) + len(self.states))]
        for n, count in enumerate([*parts, *(1 for _ in self.states)]):
            graph.replace_uses(node.out(n), self._joined(leaving[:count]))
            leaving = leaving[count:]
        graph.erase(node.id)

    def _joined(self, values: list[Value]) -> Value:
        """Sequences side by side."""
        if len(values) == 1:
            return values[0]
        types = [self.graph.type_of(value) for value in values]
        width = sum((type_.shape or (0,))[-1] or 0 for type_ in types)
        whole = TensorType(types[0].dtype, (self.steps, self.batch, width))
        attrs = {"dim": 2, "num_args": len(values)}
        name = self.graph.unique_name(f"{self.node.name}_joined")
        return self.graph.add("Concat", values, attrs, [whole], name).out()

    def _typed_body(self) -> Graph:
        """The body with the types its operands have here."""
        body = self.node.graphs[0].copy()
        types = [self.graph.type_of(value) for value in self.node.inputs]
        for n, place in enumerate([*self.data, *self.states, *self.rest]):
            found = types[n]
            if n < len(self.data):
                found = TensorType(found.dtype, (found.shape or ())[1:])
            body.update(body.inputs[place].but(types=(found,)))
        assert self.cx.target is not None
        inferred = self.cx.target.infer_types(body)
        for node in tuple(body):
            node = node.but(types=inferred.get(node.id, node.types))
            body.update(_as_dot(node) if _is_dot(body, node) else node)
        return body

    def _sequences(self, body: Graph) -> list[Value]:
        """What the body reads row by row: masks of its Dropout, too, for places after ``data``."""
        masks = draw_sequences(self.graph, body, self.steps, training=self.cx.training)
        first = len(body.inputs) - len(masks)
        self.data = (*self.data, *range(first, len(body.inputs)))
        return [*self.node.inputs[: self.fed], *masks.values()]

    def _captured(self, body: Graph) -> list[Value]:
        """Values that are the same in all steps; ``rest`` gets the places of those that are new."""
        given = list(self.node.inputs[self.fed + len(self.states) :])
        captured = {
            body.inputs[place].out(): value for place, value in zip(self.rest, given, strict=True)
        }
        made = hoist(self.graph, body, captured, training=self.cx.training)
        first = len(body.inputs) - len(made)
        self.rest = (*self.rest, *range(first, len(body.inputs)))
        return [*given, *made.values()]

    def _is_row(self, body: Graph, place: int) -> bool:
        node = body.inputs[place]
        shape = extents(body, node.out())
        is_matrix = any(
            use.position == 1 and body[use.node].op in ("FullyConnected", "dot")
            for use in body.node_users(node.id)
        )
        is_read = bool(body.node_users(node.id)) or body.is_output(node.out())
        return is_read and not is_matrix and len(shape) == 2 and shape[0] == self.batch != 1

    def _step(self, body: Graph, order: list[int], rows: int, emitted: int) -> Graph:
        """The body with inputs and outputs in a recurrence's order."""
        step = Graph("step")
        fed = len(order) - (len(self.rest) - rows)
        new: dict[Value, Value] = {}
        for at, place in enumerate(order):
            node = body.inputs[place]
            made = step.add_input(node.name, DATA if at < fed else PARAM, node.type)
            new[node.out()] = made.out()
        for node in body:
            if not node.is_input:
                transplant(step, node, new)
        outputs = [new[value] for value in body.outputs]
        kept = [new[body.inputs[place].out()] for place in order[fed - rows : fed]]
        step.set_outputs([*outputs[emitted:], *kept, *outputs[:emitted]])
        return step


def _split_emitted(step: Graph, emitted: int) -> list[int]:
    """Return the parts of what a step emits in its place, as no kernel puts them side by side.

    Returns:
        How many parts each has.
    """
    states = len(step.outputs) - emitted
    split = [_parts(step, value) for value in step.outputs[states:]]
    step.set_outputs([*step.outputs[:states], *(part for parts in split for part in parts)])
    return [len(parts) for parts in split]


def _parts(step: Graph, value: Value) -> list[Value]:
    node = step[value.node]
    if canonical(node.op) != "Concat" or int(node.attrs.get("dim", 1)) % 2 != 1:
        return [value]
    return [part for source in node.inputs for part in _parts(step, source)]


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


def _places(node: Node, key: str) -> tuple[int, ...]:
    found = node.attrs.get(key, ())
    return tuple(found) if isinstance(found, tuple) else (int(found),)
