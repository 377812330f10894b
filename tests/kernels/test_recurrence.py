"""Recurrences: the operator against what the numpy interpreter makes of a spec."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from graphopt.backend import reference
from graphopt.backend.invoke import invoke
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, Node, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.recurrence import interpret
from graphopt.kernels.recurrence.lookup import project
from graphopt.kernels.recurrence.spec import RecurrenceSpec, parse
from graphopt.passes.recurrence.body import Body, translate
from graphopt.passes.recurrence.cells import Cell, body_of
from tests.kernels.test_recurrence_text import ELMAN

mx = import_mxnet()

#: Rows of the batch in graphs of a step; specs do not depend on it.
ROWS = 2

#: Rows of a table that steps read by number.
TABLE = 5


# -- running ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """How a spec is applied."""

    steps: int = 3
    batch: int = 3
    reverse: bool = False
    lengths: bool = False
    batch_major: bool = False
    bidirectional: bool = False
    zero_states: bool = False
    indexed: bool = False

    @property
    def flags(self) -> dict[str, bool]:
        names = ("reverse", "lengths", "batch_major", "bidirectional", "zero_states", "indexed")
        return {name: getattr(self, name) for name in names}

    def ends(self) -> Any:
        """All lengths from the number of steps down to zero, in no order."""
        ends = np.arange(self.batch) % (self.steps + 1)
        return np.random.default_rng(5).permutation(ends[::-1]).astype("int32")

    def numbers(self) -> Any:
        """Numbers of rows, some of them outside of the table."""
        shape = (self.batch, self.steps) if self.batch_major else (self.steps, self.batch)
        return np.random.default_rng(6).integers(-2, TABLE + 2, shape).astype("int32")


def inputs_of(spec: RecurrenceSpec, call: Call, dtype: str | None = None) -> list[Any]:
    rng = np.random.default_rng(0)
    outer = (call.batch, call.steps) if call.batch_major else (call.steps, call.batch)
    directions = range(2 if call.bidirectional else 1)
    states = () if call.zero_states else spec.states
    shapes: list[tuple[int, ...]] = [(*outer, width) for width in spec.sequences]
    if call.indexed:
        shapes[0] = (TABLE, spec.sequences[0])
    shapes += [(call.batch, width) for _ in directions for width in states]
    shapes += [shape for _ in directions for shape in spec.matrices]
    matrices = range(len(shapes) - len(directions) * len(spec.matrices), len(shapes))
    shapes += [(width,) for _ in directions for width in spec.vectors]
    found = [rng.uniform(-1, 1, shape) for shape in shapes]
    for n in matrices:  # wide ones are smaller, or states would be chaos
        found[n] *= min(1.0, (32 / shapes[n][-1]) ** 0.5)
    found = [array.astype(dtype or spec.dtype) for array in found]
    found += [call.numbers()] if call.indexed else []
    return [*found, call.ends()] if call.lengths else found


def expect(spec: RecurrenceSpec, inputs: Sequence[Any], call: Call) -> list[Any]:
    return interpret.run(spec, inputs, **call.flags)


def heads_of(outputs: Sequence[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    return [rng.uniform(0.5, 1, out.shape).astype(out.dtype) for out in outputs]


def operator(
    spec: RecurrenceSpec,
    inputs: Sequence[Any],
    call: Call,
    *,
    stash: bool = False,
    wrt: Sequence[int] = (),
    read: Sequence[int] | None = None,
    grad_req: str = "write",
) -> tuple[list[Any], list[Any]]:
    """Outputs of the operator, and gradients of the inputs ``wrt`` for the heads of ``read``."""
    arrays = [mx.nd.array(array, dtype=array.dtype) for array in inputs]
    for n in wrt:
        arrays[n].attach_grad(grad_req)
    attrs = {"spec": str(spec), "stash": stash, **call.flags}
    if not wrt:
        return [out.asnumpy() for out in own(spec, call, invoke(RECURRENCE, arrays, attrs))], []
    with mx.autograd.record():
        outputs = own(spec, call, invoke(RECURRENCE, arrays, attrs))
    heads = heads_of(outputs)
    chosen = range(len(outputs)) if read is None else read
    for _ in range(2 if grad_req == "add" else 1):
        mx.autograd.backward(
            [outputs[n] for n in chosen],
            [mx.nd.array(heads[n], dtype=heads[n].dtype) for n in chosen],
            retain_graph=True,
        )
    return [out.asnumpy() for out in outputs], [arrays[n].grad.asnumpy() for n in wrt]


def own(spec: RecurrenceSpec, call: Call, outputs: Sequence[Any]) -> list[Any]:
    """Outputs without the stash."""
    return list(outputs[: len(spec.emit) + (2 if call.bidirectional else 1) * len(spec.states)])


def near(got: Any, want: Any, tolerance: float, what: str = "") -> None:
    assert got.shape == want.shape, what
    scale = tolerance * (1 + np.abs(want).max(initial=0))
    np.testing.assert_allclose(got, want, rtol=0, atol=scale, err_msg=what)


def in_double(array: Any) -> Any:
    return array.astype(float) if array.dtype == np.float32 else array


def check_forward(spec: RecurrenceSpec, call: Call, *, stash: bool = False) -> None:
    tolerance = {"float32": 2e-5, "float64": 1e-10}[spec.dtype]
    inputs = inputs_of(spec, call)
    found, _ = operator(spec, inputs, call, stash=stash)
    # In float64: float32 in numpy's order is as far from what is right as any other.
    want = expect(spec, [*map(in_double, inputs)], call)
    assert len(found) == len(want)
    for n, (got, right) in enumerate(zip(found, want, strict=True)):
        near(got, right, tolerance, f"output {n} of {spec} for {call}")


def check_gradients(
    spec: RecurrenceSpec, call: Call, *, stash: bool, read: Sequence[int] | None = None
) -> None:
    """Gradients in the direction of a random change are what that change makes."""
    inputs = inputs_of(spec, call, "float64")
    wrt = range(len(inputs) - call.lengths - call.indexed)
    outputs, gradients = operator(spec, inputs, call, stash=stash, wrt=wrt, read=read)
    heads = heads_of(outputs)
    chosen = range(len(outputs)) if read is None else read

    def loss(changed: Sequence[Any]) -> float:
        found = expect(spec, changed, call)
        return float(sum((heads[n] * found[n]).sum() for n in chosen))

    rng = np.random.default_rng(3)
    for n, gradient in zip(wrt, gradients, strict=True):
        towards = 1e-5 * rng.choice([-1.0, 1.0], gradient.shape)
        # Four points: with two, long chains bend too much between them.
        one, two = (
            loss([*inputs[:n], inputs[n] + far * towards, *inputs[n + 1 :]])
            - loss([*inputs[:n], inputs[n] - far * towards, *inputs[n + 1 :]])
            for far in (1, 2)
        )
        slope, found = (8 * one - two) / 12e-5, float((gradient * towards).sum()) / 1e-5
        scale = 1 + np.abs(gradient).sum()
        assert abs(slope - found) < 1e-8 * scale, (
            f"gradient of input {n} of {spec} for {call}: {found}, by differences {slope}"
        )


def check(spec: RecurrenceSpec, call: Call) -> None:
    """Forward and gradients, with the stash and with backward computing it again."""
    for stash in (False, True):
        check_forward(spec, call, stash=stash)
        check_gradients(spec, call, stash=stash)


# -- graphs of steps -------------------------------------------------------------------------------


@dataclass
class Step:
    """The graph of a step under construction: sequences and states first, then parameters."""

    dtype: str = "float64"
    graph: Graph = field(default_factory=lambda: Graph("step"))
    n_sequences: int = 0
    n_states: int = 0

    def width(self, value: Value) -> int:
        return self.graph.type_of(value).shape[-1]

    def sequence(self, width: int) -> Value:
        self.n_sequences += 1
        return self._input("x", (ROWS, width))

    def state(self, width: int) -> Value:
        self.n_states += 1
        return self._input("s", (ROWS, width))

    def parameter(self, *shape: int) -> Value:
        return self._input("w", shape, "param")

    def _input(self, kind: str, shape: tuple[int, ...], role: str = "data") -> Value:
        name = f"{kind}{len(self.graph.inputs)}"
        return self.graph.add_input(name, role, TensorType(self.dtype, shape)).out()

    def node(self, op: str, inputs: Sequence[Value], widths: Sequence[int], **attrs: Any) -> Node:
        types = [TensorType(self.dtype, (ROWS, width)) for width in widths]
        return self.graph.add(op, inputs, attrs, types, self.graph.unique_name(op.lower()))

    def op(self, op: str, *inputs: Value, width: int | None = None, **attrs: Any) -> Value:
        wide = max(map(self.width, inputs)) if width is None else width
        return self.node(op, inputs, [wide], **attrs).out()

    def dense(self, source: Value, weight: Value) -> Value:
        rows = self.graph.type_of(weight).shape[0]
        attrs = {"num_hidden": rows, "no_bias": True, "flatten": False}
        return self.op("FullyConnected", source, weight, width=rows, **attrs)

    def product(self, source: Value, width: int) -> Value:
        """A product with a matrix of its own."""
        return self.dense(source, self.parameter(width, self.width(source)))

    def add(self, *values: Value) -> Value:
        total = values[0]
        for value in values[1:]:
            total = self.op("elemwise_add", total, value)
        return total

    def act(self, source: Value, kind: str = "tanh") -> Value:
        return self.op("Activation", source, act_type=kind)

    def cut(self, source: Value, begin: int, end: int) -> Value:
        attrs = {"axis": 1, "begin": begin, "end": end}
        return self.op("slice_axis", source, width=end - begin, **attrs)

    def concat(self, *values: Value) -> Value:
        width = sum(map(self.width, values))
        return self.op("Concat", *values, width=width, dim=1, num_args=len(values))

    def body(self, next_: Sequence[Value], emit: Sequence[Value]) -> Body:
        self.graph.set_outputs([*next_, *emit])
        return translate(self.graph, self.n_sequences, self.n_states)


def check_body(step: Step, body: Body) -> None:
    """The spec computes what the graph does, applied once."""
    rng = np.random.default_rng(1)
    feeds = {
        node.name: rng.uniform(-1, 1, [e or 0 for e in node.type.shape or ()])
        for node in step.graph.inputs
    }
    want = reference.run(step.graph, feeds)
    arrays = list(feeds.values())
    rows = step.n_sequences + step.n_states
    given = [array[None] for array in arrays[: step.n_sequences]] + arrays[step.n_sequences : rows]
    given += [arrays[n] for n in body.matrices]
    given += [sum(arrays[n].ravel() for n in group) for group in body.vectors]
    found = interpret.run(body.spec, given)
    emitted = len(body.spec.emit)
    found = found[emitted:] + [sequence[0] for sequence in found[:emitted]]
    for got, right in zip(found, want, strict=True):
        near(got, right, 1e-12, f"{step.graph} as {body.spec}")


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


def in_single(spec: RecurrenceSpec) -> RecurrenceSpec:
    """The same recurrence in float32."""
    return parse(str(spec).replace("f64", "f32"))


def is_projected(spec: RecurrenceSpec) -> bool:
    """Whether nothing but products reads the first sequence."""
    try:
        project(spec)
    except GraphoptError:
        return False
    return True


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


# -- chosen steps ----------------------------------------------------------------------------------


def cell(width: int = 5, units: int = 6, dtype: str = "float64", mode: str = "lstm") -> Any:
    made = Cell(mode, width, units)
    return translate(body_of(made, ROWS, dtype), 1, len(made.states)).spec


def flags() -> list[Call]:
    """All that go together."""
    found = []
    for reverse, lengths, batch_major, both, zero in itertools.product([False, True], repeat=5):
        if not (reverse and both):
            found.append(Call(3, 4, reverse, lengths, batch_major, both, zero))
    return found


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_all_flags(mode: str) -> None:
    spec = cell(3, 4, mode=mode)
    for call in flags():
        check(spec, call)
        if mode == "lstm":
            check(spec, replace(call, indexed=True))


def two_steps_back(step: Step) -> Body:
    """A state that is the old value of another one."""
    x, near_, far = step.sequence(4), step.state(6), step.state(6)
    new = step.act(step.add(*(step.product(value, 6) for value in (x, near_, far))))
    return step.body([new, near_], [new])


def swapped(step: Step) -> Body:
    """States that take turns."""
    x, a, b = step.sequence(3), step.state(5), step.state(5)
    return step.body([b, a], [step.act(step.add(step.product(x, 5), step.product(a, 5)))])


def fixed(step: Step) -> Body:
    """A state that stays as it is."""
    x, a, kept = step.sequence(3), step.state(5), step.state(5)
    mixed = step.op("elemwise_mul", step.product(a, 5), kept)
    return step.body([step.act(step.add(step.product(x, 5), mixed)), kept], [a, kept])


def emitted_slice(step: Step) -> Body:
    x, s = step.sequence(7), step.state(9)
    new = step.act(step.add(step.product(x, 9), step.product(s, 9)))
    return step.body([new], [step.cut(new, 2, 5), step.cut(x, 1, 4)])


def state_slice(step: Step) -> Body:
    """A state that is some columns of a value, another one columns of a product."""
    x, s, r = step.sequence(7), step.state(4), step.state(3)
    both = step.product(step.concat(x, s, r), 9)
    new = step.act(both)
    return step.body([step.cut(new, 5, 9), step.cut(both, 0, 3)], [new])


def one_matrix_twice(step: Step) -> Body:
    x, s = step.sequence(6), step.state(6)
    weight = step.parameter(6, 6)
    read = step.act(step.add(step.dense(x, weight), step.dense(s, weight)))
    back = step.op("dot", read, weight, width=6)
    return step.body([step.act(back)], [read])


def emitted_twice(step: Step) -> Body:
    """One value as both states and two emitted sequences."""
    x, s, r = step.sequence(4), step.state(6), step.state(6)
    new = step.act(step.add(step.product(x, 6), step.product(s, 6), r))
    return step.body([new, new], [new, new])


def emitted_product(step: Step) -> Body:
    """Products leave the step as they are, one of them as a state too."""
    x, s = step.sequence(4), step.state(6)
    new = step.add(step.product(x, 6), step.product(step.act(s), 6))
    logits = step.product(new, 11)
    return step.body([new], [logits, new])


def unread(step: Step) -> Body:
    """Sequences, states and parameters nobody reads."""
    x, _y, s, r = step.sequence(4), step.sequence(3), step.state(5), step.state(2)
    step.parameter(3, 3)
    new = step.act(step.product(x, 5))
    return step.body([new, r], [step.op("elemwise_mul", s, s)])


def only_states(step: Step) -> Body:
    """Nothing is emitted but a sequence as it came."""
    x, s = step.sequence(4), step.state(4)
    return step.body([step.op("elemwise_mul", step.act(x), s)], [x])


def shared_columns(step: Step) -> Body:
    """Gradients of overlapping columns, of a value that is read as a whole too."""
    x, s = step.sequence(4), step.state(6)
    new = step.act(step.add(step.product(x, 10), step.product(s, 10)))
    parts = [step.cut(new, begin, begin + 6) for begin in (0, 2, 4)]
    mixed = step.op("elemwise_mul", step.product(parts[0], 6), step.product(parts[1], 6))
    return step.body([step.act(step.add(mixed, parts[2]))], [new, step.product(new, 2)])


def gate_and_rows(step: Step) -> Body:
    x, s = step.sequence(5), step.state(8)
    gate = step.act(step.product(s, 1), "sigmoid")
    weights = step.op("softmax", step.add(step.product(x, 8), step.product(s, 8)), axis=-1)
    mixed = step.op("broadcast_mul", weights, gate)
    norm = [step.add(mixed, s), step.parameter(8), step.parameter(8)]
    return step.body([step.op("LayerNorm", *norm, width=8, axis=-1, eps=0.125)], [weights, gate])


def bias_of_one_column(step: Step) -> Body:
    """One column everywhere, and a row of a single number."""
    x, s = step.sequence(1), step.state(1)
    new = step.op("broadcast_add", step.add(step.product(x, 1), s), step.parameter(1))
    return step.body([step.act(new)], [new])


def dense_with_bias(step: Step) -> Body:
    x, s = step.sequence(3), step.state(4)
    attrs = {"num_hidden": 4, "no_bias": False, "flatten": False}
    reads = [x, step.parameter(4, 3), step.parameter(4)]
    new = step.op("FullyConnected", *reads, width=4, **attrs)
    return step.body([step.act(step.add(new, s))], [new])


CHOSEN = [
    two_steps_back,
    swapped,
    fixed,
    emitted_slice,
    state_slice,
    one_matrix_twice,
    emitted_twice,
    emitted_product,
    unread,
    only_states,
    shared_columns,
    gate_and_rows,
    bias_of_one_column,
]


@pytest.mark.parametrize("make", CHOSEN, ids=lambda make: make.__name__)
def test_chosen_steps(make: Callable[[Step], Body]) -> None:
    step = Step()
    body = make(step)
    check_body(step, body)
    assert parse(str(body.spec)) == body.spec
    for call in (
        Call(3, 3),
        Call(1, 1),
        Call(3, 4, lengths=True),
        Call(3, 4, lengths=True, batch_major=True, bidirectional=True, zero_states=True),
        Call(2, 3, reverse=True, zero_states=True),
    ):
        check(body.spec, call)
    check_forward(in_single(body.spec), Call(7, 9))


def test_a_bias_is_computed_or_refused() -> None:
    step = Step()
    try:
        body = dense_with_bias(step)
    except GraphoptError:
        return
    check_body(step, body)


@pytest.mark.parametrize("make", [emitted_slice, emitted_twice, two_steps_back])
@pytest.mark.parametrize("lengths", [False, True])
def test_outputs_nobody_reads(make: Callable[[Step], Body], lengths: bool) -> None:
    spec = make(Step()).spec
    call = Call(3, 3, lengths=lengths)
    for read in range(len(spec.emit) + len(spec.states)):
        for stash in (False, True):
            check_gradients(spec, call, stash=stash, read=[read])


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_gradients_that_are_added_or_not_wanted(lengths: bool, indexed: bool) -> None:
    spec, call = cell(), Call(4, 5, lengths=lengths, bidirectional=True, indexed=indexed)
    inputs = inputs_of(spec, call)
    wrt = range(len(inputs) - lengths - indexed)
    _, want = operator(spec, inputs, call, stash=True, wrt=wrt)
    _, twice = operator(spec, inputs, call, stash=True, wrt=wrt, grad_req="add")
    for once, both in zip(want, twice, strict=True):
        near(both, 2 * once, 1e-13)
    for n in wrt:
        for stash in (False, True):
            _, (alone,) = operator(spec, inputs, call, stash=stash, wrt=[n])
            np.testing.assert_array_equal(alone, want[n])


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
def test_dtypes_of_lengths(kind: str) -> None:
    spec, call = cell(), Call(4, 5, lengths=True)
    inputs = inputs_of(spec, call)
    want = expect(spec, inputs, call)
    found, _ = operator(spec, [*inputs[:-1], inputs[-1].astype(kind)], call)
    for got, right in zip(found, want, strict=True):
        near(got, right, 1e-12)


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
def test_numbers_of_rows(kind: str) -> None:
    """Of any dtype; they have a gradient of zeros, and what is between two numbers is the lower."""
    spec, call = cell(), Call(4, 3, indexed=True)
    *others, numbers = inputs_of(spec, call)
    want = expect(spec, [*others, numbers], call)
    given_ = numbers.astype(kind)
    if kind.startswith("float"):
        given_ += 0.75
        given_[numbers < 0] = np.nan
        given_[numbers > TABLE] = np.inf
    found, (gradient,) = operator(spec, [*others, given_], call, wrt=[len(others)])
    for got, right in zip(found, want, strict=True):
        near(got, right, 1e-12)
    assert not gradient.any()


def test_numbers_that_rows_of_large_tables_have_in_single_precision() -> None:
    rows = (1 << 24) + 2  # the last one's number is no float32
    spec = parse("recurrence f32 (1) () (1x1) () ;; 1 = x0 @ m0' ;; next ;; emit t0")
    table = (np.arange(rows) % 1000).astype("float32")[:, None]
    numbers = np.array([[0, 1000, (1 << 24) - 1, 1 << 24, (1 << 24) + 4]], "float32")
    call = Call(1, numbers.size, indexed=True)
    (found,), _ = operator(spec, [table, np.ones((1, 1), "float32"), numbers], call)
    at = [0, 1000, (1 << 24) - 1, 1 << 24, rows - 1]
    np.testing.assert_array_equal(found[0], table[at])


def test_tables_that_do_not_fit() -> None:
    spec, call = cell(), Call(4, 3, indexed=True)
    inputs = inputs_of(spec, call)
    wrong = {0: (TABLE, 6), 1: (2, 6), len(inputs) - 1: (3, 4)}
    for n, shape in wrong.items():
        arrays = [*inputs[:n], np.zeros(shape), *inputs[n + 1 :]]
        with pytest.raises(mx.MXNetError, match=rf"input {n} of|and \d+ sequences"):
            operator(spec, arrays, call)
    with pytest.raises(mx.MXNetError, match=r"input 0 of .* has 3 axes, not 2"):
        operator(spec, [np.zeros((4, 3, 5)), *inputs[1:]], call)
    with pytest.raises(mx.MXNetError, match="numbers of rows are float32, float64, int32 or int64"):
        operator(spec, [*inputs[:-1], inputs[-1].astype("uint8")], call)
    elementwise = parse(ELMAN.replace("x0 @ m0' + ", ""))
    with pytest.raises(mx.MXNetError, match="no matrix is multiplied with the rows"):
        operator(elementwise, inputs_of(elementwise, call), call)
    both = parse(ELMAN.replace("emit t1[1:3], x1", "emit x0"))
    with pytest.raises(mx.MXNetError, match="the step reads the rows themselves too"):
        operator(both, inputs_of(both, call), call)


def test_all_sequences_are_empty() -> None:
    spec, call = cell(), Call(4, 5, lengths=True)
    inputs = [*inputs_of(spec, call)[:-1], np.zeros(5, "int32")]
    outputs, gradients = operator(spec, inputs, call, stash=True, wrt=range(len(inputs) - 1))
    assert not outputs[0].any()
    for state, given_ in zip(outputs[1:], inputs[1:3], strict=True):
        np.testing.assert_array_equal(state, given_)
    heads = heads_of(outputs)
    for n, gradient in enumerate(gradients):
        np.testing.assert_array_equal(gradient, heads[n] if n in (1, 2) else 0 * gradient)


@pytest.mark.parametrize(
    ("length", "told"), [(-1, "-1"), (5, "5"), (1.5, "1.5"), (np.nan, "nan"), (np.inf, "inf")]
)
def test_lengths_that_are_none(length: float, told: str) -> None:
    spec, call = cell(), Call(4, 5, lengths=True)
    ends = np.array([4, 2, 0, length, 1], "float32")
    with pytest.raises(mx.MXNetError, match=f"sequence 3 has length {told}.*to the number of st"):
        operator(spec, [*inputs_of(spec, call)[:-1], ends], call)


def test_shapes_that_do_not_fit() -> None:
    spec, call = cell(5, 6), Call(4, 3)
    inputs = inputs_of(spec, call)
    wrong = {0: (4, 3, 6), 1: (2, 6), 2: (3, 7), 3: (24, 6), 5: (23,)}
    for n, shape in wrong.items():
        arrays = [*inputs[:n], np.zeros(shape), *inputs[n + 1 :]]
        with pytest.raises(mx.MXNetError, match=rf"input {n} of|3 and 2 sequences"):
            operator(spec, arrays, call)
    with pytest.raises(mx.MXNetError, match="has 2 axes, not 3"):
        operator(spec, [inputs[0][0], *inputs[1:]], call)
    with pytest.raises(mx.MXNetError, match=r"input 1 of .* type code"):
        operator(spec, [inputs[0], inputs[1].astype("float32"), *inputs[2:]], call)
