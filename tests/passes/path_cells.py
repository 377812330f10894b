"""Cells whose states meet no weight, unrolled."""

from __future__ import annotations

from typing import Any

from graphopt.api.lifting import lift
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE
from graphopt.pipeline.manager import Result
from graphopt.testing import run_pass

mx = import_mxnet()
nn = mx.gluon.nn

PASSES = (
    "eliminate-dead-code,eliminate-common-subexpressions,"
    "reroll-recurrence{leave_to_fusion=False},eliminate-dead-code"
)
STEPS, BATCH, COLUMNS = 6, 3, 4


class Cell(mx.gluon.HybridBlock):
    """A sequence (steps, batch, columns) and a state -> outputs, and the state behind them."""

    def __init__(self, steps: int = STEPS, last_only: bool = False):
        super().__init__()
        self.steps, self.last_only = steps, last_only
        with self.name_scope():
            self.make()

    def make(self) -> None:
        """Parameters and layers."""

    def rows(self, F, x, axis=0):
        return list(F.split(x, num_outputs=self.steps, axis=axis, squeeze_axis=True))

    def hybrid_forward(self, F, x, state, **params):
        outputs = self.unroll(F, x, state, **params)
        return outputs[-1] if self.last_only else F.stack(*outputs, axis=0)

    def unroll(self, F, x, state, **params) -> list[Any]:
        raise NotImplementedError


class Sru(Cell):
    """Simple recurrent units (Lei et al. 2018): all products are with the input."""

    def make(self):
        self.inner = nn.Dense(3 * COLUMNS, flatten=False, in_units=COLUMNS)

    def gates(self, F, x):
        return self.rows(F, self.inner(x))

    def unroll(self, F, x, state):
        found = []
        for gates, row in zip(self.gates(F, x), self.rows(F, x), strict=True):
            new, forget, reset = F.split(gates, num_outputs=3, axis=1)
            forget, reset = F.sigmoid(forget), F.sigmoid(reset)
            state = forget * state + (1 - forget) * new
            found.append(reset * F.tanh(state) + (1 - reset) * row)
        return found


class SruByStep(Sru):
    """The same with a product for each step."""

    def gates(self, F, x):
        return [self.inner(row) for row in self.rows(F, x)]


class SruFromNothing(SruByStep):
    """The same with no state in front of the first step."""

    def unroll(self, F, x, state):
        found, given, state = [], state, None
        for row in self.rows(F, x):
            new, forget, reset = F.split(self.inner(row), num_outputs=3, axis=1)
            forget, fresh = F.sigmoid(forget), (1 - F.sigmoid(forget)) * new
            state = fresh if state is None else forget * state + fresh
            found.append(F.sigmoid(reset) * F.tanh(state) + given)
        return found


class Qrnn(Cell):
    """Quasi-recurrent networks (Bradbury et al. 2017): gates by convolution, and pooling."""

    kind = "f"

    def make(self):
        self.inner = nn.Conv1D(4 * COLUMNS, 2, padding=1, in_channels=COLUMNS)

    def unroll(self, F, x, state):
        gates = F.transpose(self.inner(F.transpose(x, axes=(1, 2, 0))), axes=(2, 0, 1))
        gates = F.slice_axis(gates, axis=0, begin=0, end=self.steps)
        new, *gates = F.split(gates, num_outputs=4, axis=2)
        new, rest = self.rows(F, F.tanh(new)), [self.rows(F, F.sigmoid(gate)) for gate in gates]
        found = []
        for z, forget, out, enter in zip(new, *rest, strict=True):
            state = forget * state + (enter if self.kind == "ifo" else 1 - forget) * z
            found.append(state if self.kind == "f" else out * state)
        return found


class QrnnFo(Qrnn):
    kind = "fo"


class QrnnIfo(Qrnn):
    kind = "ifo"


class Average(Cell):
    """An exponential moving average."""

    def unroll(self, F, x, state):
        found = []
        for row in self.rows(F, x):
            state = 0.9 * state + 0.1 * row
            found.append(state)
        return found


class LearnedAverage(Cell):
    """The same with a decay that is learned, for each column."""

    def make(self):
        self.decay = self.params.get("decay", shape=(COLUMNS,))

    def unroll(self, F, x, state, decay):
        found, kept = [], F.sigmoid(decay)
        for row in self.rows(F, x):
            state = F.broadcast_mul(state, kept) + F.broadcast_mul(row, 1 - kept)
            found.append(state)
        return found


class OneDecay(LearnedAverage):
    """The same with one decay for all columns."""

    def make(self):
        self.decay = self.params.get("decay", shape=(1, 1))


class Leaky(Cell):
    """A leaky integrator over (batch, steps, columns), cut with slice_axis."""

    def unroll(self, F, x, state):
        found, x = [], F.transpose(x, axes=(1, 0, 2))
        for step in range(self.steps):
            row = F.slice_axis(x, axis=1, begin=step, end=step + 1).reshape((-3, -2))
            state = state + 0.1 * (F.tanh(row) - state)
            found.append(state)
        return found


class Sum(Cell):
    def unroll(self, F, x, state):
        found = []
        for row in self.rows(F, x):
            state = state + row
            found.append(state)
        return found


class Product(Cell):
    def unroll(self, F, x, state):
        found = []
        for row in self.rows(F, x):
            state = state * row
            found.append(state)
        return found


class Returns(Cell):
    """Discounted returns: from the last step to the first."""

    def unroll(self, F, x, state):
        found = []
        for row in self.rows(F, x)[::-1]:
            state = row + 0.99 * state
            found.append(state)
        return found if self.last_only else found[::-1]


class Independent(Cell):
    """IndRNN (Li et al. 2018): a vector is all that a state meets."""

    def make(self):
        self.inner = nn.Dense(COLUMNS, flatten=False, in_units=COLUMNS)
        self.back = self.params.get("back", shape=(COLUMNS,))

    def unroll(self, F, x, state, back):
        found = []
        for row in self.rows(F, x):
            state = F.relu(self.inner(row) + F.broadcast_mul(state, back))
            found.append(state)
        return found


class Coupled(Cell):
    """Two states that depend on each other, Dropout, and a mean of each row."""

    def unroll(self, F, x, state):
        found, other = [], F.tanh(state)
        for row in self.rows(F, x):
            mean = F.mean(row, axis=1, keepdims=True)
            dropped = F.Dropout(state, p=1e-12)
            state = F.tanh(F.broadcast_add(0.5 * dropped + other, mean))
            other = F.sigmoid(other) * state + row
            found.append(F.softmax(other) * state)
        return found


CELLS: tuple[type[Cell], ...] = (
    Sru,
    SruByStep,
    SruFromNothing,
    Qrnn,
    QrnnFo,
    QrnnIfo,
    Average,
    LearnedAverage,
    OneDecay,
    Leaky,
    Sum,
    Product,
    Returns,
    Independent,
    Coupled,
)


def traced(net: Any, steps: int = STEPS, batch: int = BATCH) -> Graph:
    net.initialize(mx.init.Uniform(0.7))
    net.hybridize()
    shapes = {"data0": (steps, batch, COLUMNS), "data1": (batch, COLUMNS)}
    net(*map(mx.nd.ones, shapes.values()))
    return lift(net, shapes=shapes)


def rerolled(graph: Graph, passes: str = PASSES, **settings: Any) -> Result:
    return run_pass(graph, passes, **{"target": MXNetTarget(), "mode": "training", **settings})


def count(graph: Graph) -> int:
    return sum(node.op == RECURRENCE for node in graph)


def remarks(result: Result) -> str:
    return "\n".join(map(str, result.remarks))
