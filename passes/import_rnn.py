"""MXNet's RNN operator as recurrences, which kernels of our own compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphopt.analysis.effects import held_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node, Value
from graphopt.ir.types import TensorType
from graphopt.passes.recurrence.body import Body, translate
from graphopt.passes.recurrence.build import ZEROS, Chain, Operands, add_recurrence
from graphopt.passes.recurrence.cells import GATES, Cell, body_of
from graphopt.passes.recurrence.operator import Layer, layer_graph
from graphopt.passes.select_recurrence import SelectRecurrence
from graphopt.pipeline.base import Pass, PassContext
from graphopt.pipeline.remarks import in_ms
from graphopt.rewrite.substitute import transplant


@dataclass(frozen=True)
class ImportRnn(Pass):
    """``RNN`` becomes one recurrence for each layer, with both directions in it.

    A recurrence runs in a kernel generated from its step: threads take sequences of the batch and
    walk through all steps without waiting for each other, weights are packed once for all steps,
    and sequences end where they end. Layers, directions, projection, dropout between layers,
    initial and final states and ``use_sequence_length``, which MXNet refuses on the CPU, are
    carried over.

    Args:
        measure: time both on this machine, and keep the faster.

    Example::

        // before
        %y = RNN(%x, %all, %h) {mode="rnn_tanh", num_layers=1, state_size=8}
        // after: %wx, %wh, %bx and %bh were joined in %all
        %h_row = Reshape(%h) {shape=(-3, -2)}
        %b = add_n(%bx, %bh)
        %y = graphopt_recurrence(%x, %h_row, %wx, %wh, %b) {spec="recurrence f32 (8) (8)
          (8x8, 8x8) (8) ;; 8 = x0 @ m0' + s0 @ m1' ;; 8 = v0 t0 -> f32[a,b] (f32[b], f32[a,b])
          { %2 = add %1 %0; %3 = tanh %2; return %3:f32[a,b] } ;; next t1 ;; emit t1"}
    """

    name: ClassVar[str] = "import-rnn"

    measure: bool = True

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace nodes one by one; linear."""
        found = [node for node in graph if node.op == "RNN"]
        why = self._refusal(cx) if found else None
        if why is not None:
            cx.missed(f"RNN stays: {why}", found[0])
            return graph
        edited = graph.copy()
        held = held_nodes(graph)
        done = 0
        for each in found:
            node = edited[each.id]  # it may read the states that another one's recurrence left
            try:
                if node.id in held or node.after:
                    raise GraphoptError("other nodes are ordered around it")
                layers = _Layers(edited, node)
                faster = self._is_faster(edited, node, layers, cx)
            except GraphoptError as error:
                cx.missed(f"RNN stays: {error}", node)
                continue
            if not faster:
                continue
            with edited.edit():
                layers.write(edited, training=cx.training)
            done += 1
            cx.count("recurrences", layers.layers)
        return edited if done else graph

    def _refusal(self, cx: PassContext) -> str | None:
        if cx.settings.precise:
            return "its sums would be rounded in another order"
        return None if cx.target is None else cx.target.why_no_kernels(cx.settings.device)

    def _is_faster(self, graph: Graph, node: Node, layers: _Layers, cx: PassContext) -> bool:
        """Measure both, where there is something to run them on; says which it was."""
        many = f"{layers.layers} recurrences" if layers.layers > 1 else "a recurrence"
        if layers.has_lengths:
            cx.passed(f"became {many} over sequences of different lengths", node)
            return True
        # MXNet's operator keeps what backward needs in memory that nobody plans.
        if cx.target is None or not self.measure or cx.settings.plans_memory:
            cx.passed(f"became {many}", node)
            return True
        plain = _alone(graph, node)
        ours = plain.copy()
        (alone,) = (other for other in ours if other.op == "RNN")
        _Layers(ours, alone).write(ours, training=cx.training)
        target, training = cx.target, cx.training

        def measure() -> list[float]:
            best = SelectRecurrence().run(ours, PassContext(cx.settings, target))
            return target.times_ms([plain, best], training=training)

        parts = ("rnn", *_measured_parts(node, layers), *_roles(plain), str(training))
        theirs, mine = target.measured_once(parts, measure, (node.name,))
        told = f"{in_ms(mine)}, MXNet's operator {in_ms(theirs)}"
        if mine > theirs:
            cx.missed(f"RNN stays, as it is faster: as {many} it takes {told}", node)
            return False
        cx.passed(f"became {many}: {told}", node)
        return True


def _measured_parts(node: Node, layers: _Layers) -> tuple[str, ...]:
    """What the choice depends on; numbers of steps within a factor of two count as one."""
    chain = layers.chain
    steps = 1 << (chain.steps - 1).bit_length()
    sizes = (steps, chain.batch, *(cell.inputs for cell in layers.cells))
    return (node.attrs.text, layers.dtype, *map(str, sizes))


def _roles(graph: Graph) -> tuple[str, ...]:
    """Of the inputs: weights that are parameters are not packed in every call."""
    return tuple(node.op for node in graph.inputs)


def _alone(graph: Graph, node: Node) -> Graph:
    """The node as a graph of its own, with what joins its parameters."""
    alone = Graph("rnn")
    new: dict[Value, Value] = {}

    def enter(value: Value) -> None:
        if value not in new:
            role = PARAM if graph[value.node].op == PARAM else DATA
            new[value] = alone.add_input(f"in{len(new)}", role, graph.type_of(value)).out()

    joining = graph[node.inputs[1].node]
    pieces = [graph[v.node] for v in joining.inputs if graph[v.node].op == "Reshape"]
    around = [*pieces, joining] if joining.op == "_rnn_param_concat" else []
    inside = {other.id for other in around}
    for other in (*around, node):
        for value in other.inputs:
            if value.node not in inside:
                enter(value)
        transplant(alone, other, new)
    alone.set_outputs(new[value] for value in node.values)
    return alone


class _Layers:
    """An RNN node taken apart: a cell for each layer and direction, and its parameters."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        attrs = node.attrs
        self.mode = str(attrs.get("mode"))
        if self.mode not in GATES:
            raise GraphoptError(f"mode={self.mode!r} is not known")
        if any(
            attrs.get(key) is not None for key in ("lstm_state_clip_min", "lstm_state_clip_max")
        ):
            raise GraphoptError("its cell state is clipped")
        types = [graph.type_of(value) for value in node.inputs]
        if not all(found.is_static for found in types):
            raise GraphoptError("a shape or dtype is not known")
        self.dtype = str(types[0].dtype)
        if self.dtype not in ("float32", "float64"):
            raise GraphoptError(f"it computes in {self.dtype}")
        steps, batch, inputs = (int(extent or 0) for extent in types[0].shape or ())
        if not steps or not batch:
            raise GraphoptError("it has no steps or no sequences")
        self.units = int(attrs["state_size"])
        self.layers = int(attrs["num_layers"])
        self.directions = 2 if node.attrs.flag("bidirectional") else 1
        self.projected = int(attrs.get("projection_size") or 0)
        self.dropout = float(attrs.get("p") or 0)
        n_states = 2 if self.mode == "lstm" else 1
        self.states = list(node.inputs[2 : 2 + n_states])
        self.has_lengths = node.attrs.flag("use_sequence_length")
        lengths = node.inputs[2 + n_states] if self.has_lengths else None
        self.chain = Chain(steps, batch, lengths=lengths)
        self.cells = []
        width = inputs
        for _ in range(self.layers):
            self.cells += [Cell(self.mode, width, self.units, self.projected)] * self.directions
            width = (self.projected or self.units) * self.directions
        self.bodies: dict[Cell, tuple[Graph, Body]] = {}
        for cell in dict.fromkeys(self.cells):
            step = body_of(cell, batch, self.dtype)
            self.bodies[cell] = (step, translate(step, 1, len(cell.states)))

    def layer(self, cell: Cell, *, zero: bool) -> Layer:
        """What one layer's operator is made of."""
        lengths = self.chain.lengths
        type_ = None if lengths is None else self.graph.type_of(lengths)
        return Layer(
            cell, self.chain, self.directions, self.dtype, self.node.attrs, type_, zero_states=zero
        )

    def write(self, graph: Graph, *, training: bool) -> None:
        """Put the recurrences into ``graph``, which has the node, in its place."""
        node = graph[self.node.id]
        writer = _Writer(graph, node, self)
        parameters = writer.parameters()
        x = node.inputs[0]
        finals: list[list[Value]] = []
        n_states, count = len(self.states), self.directions
        for layer in range(self.layers):
            if layer and self.dropout and training:
                x = writer.dropout(x, self.dropout)
            made = writer.recurrence(layer, x, parameters[layer * count : (layer + 1) * count])
            x = made.out()
            finals += [
                [made.out(1 + direction * n_states + n) for n in range(n_states)]
                for direction in range(count)
            ]
        graph.replace_uses(node.out(), x)
        for n in range(1, len(node.types)):
            value = node.out(n)
            if graph.users(value) or graph.is_output(value):
                parts = [writer.stacked(final[n - 1]) for final in finals]
                graph.replace_uses(value, parts[0] if len(parts) == 1 else writer.concat(parts, 0))
        graph.erase(node.id)


class _Writer:
    """Adds nodes in the place of an RNN node."""

    def __init__(self, graph: Graph, node: Node, layers: _Layers) -> None:
        self.graph, self.node, self.layers = graph, node, layers
        self.base = node.name or "rnn"

    def _op(
        self, op: str, inputs: Sequence[Value], extents: Sequence[int], what: str, **attrs: object
    ) -> Value:
        made = self.graph.add(
            op,
            inputs,
            attrs,
            [TensorType(self.layers.dtype, tuple(extents))],
            self.graph.unique_name(f"{self.base}_{what}"),
            origin=self.node.origin or (self.node.name,),
        )
        return made.out()

    def parameters(self) -> list[dict[str, Value]]:
        """For each cell its parameters: cut out of the vector, or as they were before joined."""
        cells = self.layers.cells
        wanted = [
            (number, name, shape)
            for kind in ("weight", "bias")
            for number, cell in enumerate(cells)
            for name, shape in cell.parameters.items()
            if name.endswith(kind)
        ]
        joined = self._joined([shape for _, _, shape in wanted])
        found: list[dict[str, Value]] = [{} for _ in cells]
        at = 0
        for place, (number, name, shape) in enumerate(wanted):
            size = shape[0] * (shape[1] if len(shape) > 1 else 1)
            if joined is not None:
                found[number][name] = joined[place]
            else:
                found[number][name] = self._cut(self.node.inputs[1], at, size, shape, name)
            at += size
        return found

    def _joined(self, shapes: Sequence[tuple[int, ...]]) -> list[Value] | None:
        """The parameters themselves, where the vector is nothing but these laid side by side."""
        graph = self.graph
        source = graph[self.node.inputs[1].node]
        if source.op not in ("_rnn_param_concat", "Concat") or len(source.inputs) != len(shapes):
            return None
        found = []
        for value, shape in zip(source.inputs, shapes, strict=True):
            node = graph[value.node]
            if graph.type_of(value).shape == shape:
                found.append(value)
            elif node.op == "Reshape" and graph.type_of(node.inputs[0]).shape == shape:
                found.append(node.inputs[0])
            else:
                return None
        return found

    def _cut(self, vector: Value, at: int, size: int, shape: tuple[int, ...], what: str) -> Value:
        part = self._op(
            "slice_axis", [vector], (size,), f"{what}_part", axis=0, begin=at, end=at + size
        )
        if len(shape) == 1:
            return part
        return self._op("Reshape", [part], shape, what, shape=shape)

    def state(self, value: Value, number: int) -> Value:
        """The state of one cell, (batch, columns), of all cells' states.

        Where all are zeros they are as they are: nobody reads them.
        """
        if self._is_zero():
            return value
        shape = self.graph.type_of(value).shape or ()
        count, batch, width = (int(extent or 0) for extent in shape)
        if count > 1:
            value = self._op(
                "slice_axis",
                [value],
                (1, batch, width),
                f"state{number}",
                axis=0,
                begin=number,
                end=number + 1,
            )
        return self._op("Reshape", [value], (batch, width), "state", shape=(-3, -2))

    def recurrence(self, layer: int, x: Value, parameters: Sequence[dict[str, Value]]) -> Node:
        """One layer, in all its directions."""
        layers = self.layers
        cell = layers.cells[layer * layers.directions]
        step, body = layers.bodies[cell]
        directions = []
        for direction, own in enumerate(parameters):
            number = layer * layers.directions + direction
            states = [self.state(value, number) for value in layers.states]
            places = {n: own[name] for n, name in enumerate(cell.parameters, 1 + len(cell.states))}
            directions.append(Operands(states, places))
        name = self.base if layers.layers == 1 else f"{self.base}_l{layer}"
        return add_recurrence(
            self.graph,
            step,
            body,
            layers.chain,
            [x],
            directions,
            name=self.graph.unique_name(name),
            origin=self.node.origin or (self.node.name,),
            whole=layer_graph(layers.layer(cell, zero=self._is_zero()), body),
        )

    def _is_zero(self) -> bool:
        return all(self.graph[value.node].op in ZEROS for value in self.layers.states)

    def dropout(self, x: Value, p: float) -> Value:
        shape = [int(extent or 0) for extent in self.graph.type_of(x).shape or ()]
        return self._op("Dropout", [x], shape, "dropout", p=p)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        shapes = [[int(e or 0) for e in self.graph.type_of(v).shape or ()] for v in values]
        shape = list(shapes[0])
        shape[axis] = sum(s[axis] for s in shapes)
        return self._op("Concat", values, shape, "concat", dim=axis, num_args=len(values))

    def stacked(self, state: Value) -> Value:
        """A final state with an axis for the cells."""
        shape = [int(extent or 0) for extent in self.graph.type_of(state).shape or ()]
        return self._op("expand_dims", [state], [1, *shape], "final", axis=0)
