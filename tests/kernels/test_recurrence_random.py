"""Recurrences of random steps: the operator against the numpy interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from graphopt.errors import GraphoptError
from graphopt.ir.node import Value
from graphopt.kernels.recurrence.spec import parse
from graphopt.passes.recurrence.body import Body
from tests.kernels.recurrence_support import (
    Call,
    Step,
    check_body,
    check_forward,
    check_gradients,
    in_single,
    is_projected,
)


class RandomStep:
    """A step of random products, slices and kernels, all of them smooth."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.draw = draw
        self.step = Step()
        width = st.integers(1, 20)
        # Few widths, so that values fit each other.
        self.widths = [draw(width), draw(width)]
        self.weights: list[Value] = []
        self.rows: list[Value] = []
        self.values = [self.step.sequence(self.wide()) for _ in range(draw(st.integers(1, 2)))]
        self.states = [self.step.state(self.wide()) for _ in range(draw(st.integers(1, 3)))]
        self.values += self.states
        for _ in range(draw(st.integers(3, 10))):
            self.values.append(getattr(self, draw(st.sampled_from(self.KINDS)))())

    KINDS = (
        *("product",) * 5,
        *("unary", "binary", "biased", "summed") * 2,
        *("slice", "split", "concat", "gated", "row"),
    )

    def wide(self) -> int:
        return self.draw(st.sampled_from(self.widths))

    def any(self) -> Value:
        return self.draw(st.sampled_from(self.values))

    def of_width(self, width: int) -> Value:
        """A value with so many columns: one that is there, or else a product."""
        fits = [value for value in self.values if self.step.width(value) == width]
        if fits and self.draw(st.booleans()):
            return self.draw(st.sampled_from(fits))
        return self.product(width)

    def product(self, width: int | None = None) -> Value:
        step, source, width = self.step, self.any(), width or self.wide()
        kind = self.draw(st.sampled_from(["dense", "dot", "dot transposed"]))
        shape = (step.width(source), width) if kind == "dot" else (width, step.width(source))
        old = [w for w in self.weights if step.graph.type_of(w).shape == shape]
        if old and self.draw(st.booleans()):
            weight = self.draw(st.sampled_from(old))
        else:
            weight = step.parameter(*shape)
            self.weights.append(weight)
        if kind == "dense":
            return step.dense(source, weight)
        return step.op("dot", source, weight, width=width, transpose_b=kind != "dot")

    def unary(self) -> Value:
        kind = self.draw(st.sampled_from(["tanh", "sigmoid", "act", "scaled", "rest"]))
        if kind == "act":
            return self.step.act(self.any(), "sigmoid")
        if kind == "scaled":
            return self.step.op("_mul_scalar", self.any(), scalar=0.5)
        if kind == "rest":
            return self.step.op("_rminus_scalar", self.any(), scalar=1.0)
        return self.step.op(kind, self.any())

    def binary(self) -> Value:
        a = self.any()
        op = self.draw(st.sampled_from(["elemwise_add", "elemwise_mul", "broadcast_sub"]))
        return self.step.op(op, a, self.of_width(self.step.width(a)))

    def summed(self) -> Value:
        """What becomes one product: a sum of several."""
        width = self.wide()
        return self.step.act(self.step.add(*(self.product(width) for _ in range(2))))

    def biased(self) -> Value:
        a = self.any()
        width = self.step.width(a)
        old = [row for row in self.rows if self.step.width(row) == width]
        if not old or self.draw(st.booleans()):
            old = [self.step.parameter(*self.draw(st.sampled_from([(width,), (1, width)])))]
            self.rows += old
        op = self.draw(st.sampled_from(["broadcast_add", "broadcast_mul"]))
        return self.step.op(op, a, self.draw(st.sampled_from(old)))

    def slice(self) -> Value:
        a = self.any()
        begin = self.draw(st.integers(0, self.step.width(a) - 1))
        end = self.draw(st.integers(begin + 1, self.step.width(a)))
        if self.draw(st.booleans()):
            return self.step.cut(a, begin, end)
        attrs = {"begin": (None, begin), "end": (None, end)}
        return self.step.op("slice", a, width=end - begin, **attrs)

    def split(self) -> Value:
        source = self.product(2 * self.wide())
        half = self.step.width(source) // 2
        parts = self.step.node("SliceChannel", [source], [half] * 2, num_outputs=2, axis=1)
        self.values.append(parts.out(0))
        return parts.out(1)

    def concat(self) -> Value:
        """Columns side by side, for a product: nothing else can read them."""
        both = self.step.concat(self.any(), self.any())
        return self.step.product(both, self.wide())

    def gated(self) -> Value:
        gate = self.step.act(self.step.product(self.any(), 1), "sigmoid")
        return self.step.op("broadcast_mul", self.any(), gate)

    def row(self) -> Value:
        step, a = self.step, self.any()
        kind = self.draw(st.sampled_from(["softmax", "LayerNorm", "sum"]))
        if kind == "sum":
            return step.op("sum", a, width=1, axis=1, keepdims=True)
        # The variance of very few numbers is next to nothing: differences would be all noise.
        if kind == "softmax" or step.width(a) < 4:
            return step.op("softmax", a, axis=-1)
        reads = [a, step.parameter(step.width(a)), step.parameter(step.width(a))]
        return step.op("LayerNorm", *reads, width=step.width(a), axis=-1, eps=0.125)

    def body(self) -> Body:
        """Its translation; states are kept from growing beyond all bounds."""
        after = [self.step.act(self.of_width(self.step.width(s))) for s in self.states]
        emit = [self.any() for _ in range(self.draw(st.integers(1, 2)))]
        return self.step.body(after, emit)


@settings(max_examples=5)
@given(st.data())
def test_random_bodies(data: st.DataObject) -> None:
    made = RandomStep(data.draw)
    try:
        body = made.body()
    except GraphoptError:
        assume(False)  # hypothesis complains if this is what most of them are
        raise
    note(str(made.step.graph))
    check_body(made.step, body)
    spec = body.spec
    assert parse(str(spec)) == spec
    truth = st.booleans()
    flags = {name: data.draw(truth, name) for name in Call().flags}
    flags["reverse"] &= not flags["bidirectional"]
    flags["indexed"] &= is_projected(spec)
    call = Call(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), **flags)
    stash = data.draw(truth, "stash")
    check_forward(spec, call, stash=stash)
    check_forward(in_single(spec), call, stash=stash)
    check_gradients(spec, call, stash=stash)
