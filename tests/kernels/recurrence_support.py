"""What tests of recurrences share: calls, what is expected of them, and graphs of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    by_vectors: bool = False
    chosen: tuple[int, ...] = ()

    @property
    def flags(self) -> dict[str, bool]:
        names = ("reverse", "lengths", "batch_major", "bidirectional", "zero_states", "indexed")
        return {name: getattr(self, name) for name in names}

    def ends(self) -> Any:
        """The chosen lengths, or all from the number of steps down to zero, in no order."""
        if self.chosen:
            return np.array(self.chosen, "int32")
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
    attrs = {"spec": str(spec), "stash": stash, "by_vectors": call.by_vectors, **call.flags}
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


def cell(width: int = 5, units: int = 6, dtype: str = "float64", mode: str = "lstm") -> Any:
    made = Cell(mode, width, units)
    return translate(body_of(made, ROWS, dtype), 1, len(made.states)).spec
