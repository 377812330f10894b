"""What a step computes along with what it makes: sums and functions of each number behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.kernels.convolutions.activations import Activation, gated, simplest, then, unary
from graphopt.kernels.convolutions.steps import Step
from graphopt.kernels.convolutions.windows import Pair, is_prelu, is_product, is_sum, stretch


class Taking:
    """Which nodes steps took along.

    Attributes:
        ready: values that steps so far have made.
        done: nodes that need no step.
    """

    def __init__(self, graph: Graph, number: Mapping[NodeId, int]) -> None:
        """Nothing is made; ``number`` tells where a node is among the inputs."""
        self.graph, self.number = graph, number
        self.ready: set[Value] = set()
        self.done: set[NodeId] = set()

    def only_user(self, value: Value) -> Node | None:
        """The one node that reads a value, if there is one and nothing else does."""
        users = self.graph.users(value)
        if len(users) != 1 or self.graph.is_output(value):
            return None
        return self.graph[next(iter(users)).node]

    def take_sum(self, value: Value) -> tuple[Value, Value | None]:
        """The sum that ``value`` goes into, and its other operand, if that is there already."""
        user = self.only_user(value)
        if user is None or not is_sum(user) or len(user.inputs) != 2:
            return value, None
        (other,) = (v for v in user.inputs if v != value) if value in user.inputs else (None,)
        if other is None or not (other in self.ready or self.graph[other.node].is_input):
            return value, None
        self.done.add(user.id)
        return user.out(), other

    def take_activations(self, value: Value, step: Step) -> tuple[Value, Step]:
        """The functions of each number that ``value`` goes into, and the step with them."""
        found = step.activation
        while (taken := self.take_gate(value, found) or self.take_unary(value, found)) is not None:
            value, found = taken
            user = self.graph[value.node]
            if is_prelu(user):
                step = replace(step, slopes=self.number[user.inputs[1].node])
        return value, replace(step, activation=simplest(found))

    def take_unary(self, value: Value, before: Activation) -> tuple[Value, Activation] | None:
        """The function that ``value`` goes into, behind another; if they are one together."""
        user = self.only_user(value)
        found = unary(user) if user is not None else None
        if user is None or found is None:
            return None
        both = then(before, found)
        if both is None:
            return None
        self.done.add(user.id)
        return user.out(), both

    def take_gate(self, value: Value, before: Activation) -> tuple[Value, Activation] | None:
        """The product of ``value`` with a function of it, as in Swish."""
        users = [self.graph[use.node] for use in self.graph.users(value)]
        if before != Activation() or len(users) != 2 or self.graph.is_output(value):
            return None
        product = next((user for user in users if is_product(user)), None)
        if product is None or all(map(is_product, users)):
            return None
        node = next(user for user in users if user is not product)
        gate: Activation | None = Activation()
        chain = [product.id]
        while gate is not None and node is not product:
            found = None if is_prelu(node) else unary(node)
            gate = then(gate, found) if found is not None else None
            chain.append(node.id)
            following = self.only_user(node.out())
            if following is None:
                return None
            node = following
        found = gated(gate) if gate is not None else None
        if found is None:
            return None
        self.done.update(chain)
        return product.out(), found

    def take_stretch(self, value: Value) -> tuple[Value, Pair]:
        """Repetitions that ``value`` goes into, one after the other."""
        times = (1, 1)
        while (user := self.only_user(value)) is not None:
            found = stretch(user)
            if found is None:
                break
            self.done.add(user.id)
            value, times = user.out(), (times[0] * found[0], times[1] * found[1])
        return value, times
