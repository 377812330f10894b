from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.api.lifting import lift
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE, Value
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.passes import PIPELINES
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass
from tests.tiers import one_of

mx = import_mxnet()
rnn = mx.gluon.rnn

PASSES = "eliminate-dead-code,eliminate-common-subexpressions,reroll-recurrence,eliminate-dead-code"
STEPS, BATCH, COLUMNS = 6, 3, 5


class Unrolled(mx.gluon.HybridBlock):
    """A cell applied to every step of a sequence."""

    def __init__(self, cell: Any, layout: str = "TNC", merge: bool = True, steps: int = STEPS):
        super().__init__()
        self.cell, self.layout, self.merge, self.steps = cell, layout, merge, steps

    def hybrid_forward(self, F, x):
        outputs, states = self.cell.unroll(
            self.steps, x, layout=self.layout, merge_outputs=self.merge
        )
        return (outputs if self.merge else outputs[-1]), states[0]


class LeakyGated(rnn.HybridRecurrentCell):
    """A cell no library knows: a leak and a gate, one state."""

    def __init__(self, units: int, two_products: bool = False):
        super().__init__()
        self.units, self.two_products = units, two_products
        with self.name_scope():
            self.gate = mx.gluon.nn.Dense(units, flatten=False)
            self.new = mx.gluon.nn.Dense(units, flatten=False)
            self.back = mx.gluon.nn.Dense(units, flatten=False, use_bias=False)

    def state_info(self, batch_size=0):
        return [{"shape": (batch_size, self.units), "__layout__": "NC"}]

    def hybrid_forward(self, F, x, states):
        (state,) = states
        gate = F.sigmoid(self.gate(F.concat(x, state, dim=1)))
        seen = gate * state if self.two_products else state
        new = F.tanh(self.new(x) + self.back(seen))
        state = 0.9 * (1 - gate) * state + gate * new
        return F.relu(state) + 0.1 * new, [state]

    def reset(self):
        """Without asking the children, which are no cells."""
        self._init_counter = self._counter = -1


def stack(*cells: Any) -> Any:
    whole = rnn.HybridSequentialRNNCell()
    for cell in cells:
        whole.add(cell)
    return whole


def traced(net: Any, layout: str = "TNC", steps: int = STEPS) -> Graph:
    net.initialize()
    net.hybridize()
    shape = (steps, BATCH, COLUMNS) if layout == "TNC" else (BATCH, steps, COLUMNS)
    net(mx.nd.ones(shape))
    return lift(net, shapes={"data": shape})


def rerolled(graph: Graph, **settings: Any) -> Result:
    settings.setdefault("mode", "training")
    return run_pass(graph, PASSES, target=MXNetTarget(), **settings)


def count(graph: Graph) -> int:
    return sum(node.op == RECURRENCE for node in graph)


def remarks(result: Result) -> str:
    return "\n".join(map(str, result.remarks))


CELLS: dict[str, tuple[Callable[[], Any], int]] = {
    "lstm": (lambda: rnn.LSTMCell(4), 1),
    "gru": (lambda: rnn.GRUCell(4), 1),
    "rnn": (lambda: rnn.RNNCell(4, activation="relu"), 1),
    "stacked": (lambda: stack(rnn.LSTMCell(4), rnn.GRUCell(6), rnn.RNNCell(3)), 3),
    "both ways": (lambda: rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.LSTMCell(4)), 2),
    "stacked both ways": (
        lambda: stack(
            rnn.BidirectionalCell(rnn.GRUCell(4), rnn.GRUCell(4)),
            rnn.BidirectionalCell(rnn.LSTMCell(4), rnn.LSTMCell(4)),
        ),
        4,
    ),
    "residual": (lambda: stack(rnn.ResidualCell(rnn.GRUCell(COLUMNS))), 1),
    "projected": (lambda: mx.gluon.contrib.rnn.LSTMPCell(6, 4), 1),
    "custom": (lambda: LeakyGated(4), 1),
    "custom, gated before the product": (lambda: LeakyGated(4, two_products=True), 1),
}


@pytest.mark.parametrize(
    ("name", "merge", "layout"),
    one_of(
        3,
        [
            (name, merge, layout)
            for layout, name, merge in itertools.product(["TNC", "NTC"], CELLS, [True, False])
            if merge or "both ways" not in name  # whose outputs Gluon joins itself
        ],
    ),
)
def test_cells(name: str, merge: bool, layout: str) -> None:
    make, chains = CELLS[name]
    graph = traced(Unrolled(make(), layout, merge), layout)
    result = rerolled(graph)
    assert count(result.graph) == chains
    assert not any("FullyConnected" in node.op for node in result.graph)
    assert_equivalent(graph, result.graph, training=True)
    plain = unfuse(result.graph)
    assert count(plain) == 0
    assert_equivalent(graph, plain, training=True)


def test_old_symbols() -> None:
    """mx.rnn unrolls with slices and joins of its own."""
    cell = mx.rnn.SequentialRNNCell()
    cell.add(mx.rnn.LSTMCell(4, prefix="a_"))
    cell.add(mx.rnn.GRUCell(3, prefix="b_"))
    outputs, _ = cell.unroll(STEPS, mx.sym.var("data"), layout="NTC", merge_outputs=True)
    graph = lift(outputs, shapes={"data": (BATCH, STEPS, COLUMNS)})
    result = rerolled(graph)
    assert count(result.graph) == 2
    assert_equivalent(graph, result.graph, training=True)


def test_states_given_from_outside_and_every_step_read() -> None:
    class Net(Unrolled):
        def hybrid_forward(self, F, x):
            begin = [F.mean(x, axis=0), F.max(x, axis=0)]
            outputs, states = self.cell.unroll(
                self.steps, x, begin, layout="TNC", merge_outputs=False
            )
            odd = F.add_n(*outputs[1::2])
            return F.concat(odd, outputs[0], *states, dim=1), outputs[2]

    graph = traced(Net(rnn.LSTMCell(COLUMNS)))
    result = rerolled(graph)
    assert count(result.graph) == 1
    assert_equivalent(graph, result.graph, training=True)


def test_some_steps_of_a_longer_sequence() -> None:
    class Net(Unrolled):
        def hybrid_forward(self, F, x):
            return super().hybrid_forward(F, F.slice_axis(x, axis=0, begin=1, end=-1))

    graph = traced(Net(rnn.GRUCell(4), steps=STEPS), steps=STEPS + 2)
    result = rerolled(graph)
    assert count(result.graph) == 1
    assert_equivalent(graph, result.graph, training=True)


def test_a_decoder_that_reads_its_own_output() -> None:
    class Decoder(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.cell = rnn.GRUCell(4, input_size=COLUMNS)
                self.out = mx.gluon.nn.Dense(COLUMNS, in_units=4)

        def hybrid_forward(self, F, x):
            (state,) = self.cell.begin_state(func=F.zeros, batch_size=BATCH)
            row, found = F.slice_axis(x, axis=0, begin=0, end=1).reshape((-3, -2)), []
            for step in range(STEPS):
                noise = F.slice_axis(x, axis=0, begin=step, end=step + 1).reshape((-3, -2))
                hidden, (state,) = self.cell(row + noise, [state])
                row = F.softmax(self.out(hidden))
                found.append(row)
            return F.stack(*found, axis=1)

    graph = traced(Decoder())
    result = rerolled(graph)
    assert count(result.graph) == 1
    assert_equivalent(graph, result.graph, training=True)


def test_the_numpy_reference_agrees() -> None:
    graph = traced(Unrolled(rnn.LSTMCell(4)))
    assert_equivalent(graph, rerolled(graph, mode="inference").graph)


# -- what stays ----------------------------------------------------------------------------------


class Odd(rnn.HybridRecurrentCell):
    """Cells that are not the same in all steps, by ``kind``."""

    def __init__(self, kind: str, rate: float = 0.5):
        super().__init__()
        self.kind, self.rate = kind, rate
        with self.name_scope():
            self.inner = mx.gluon.nn.Dense(COLUMNS, flatten=False)

    def state_info(self, batch_size=0):
        return [{"shape": (batch_size, COLUMNS), "__layout__": "NC"}]

    def reset(self):
        """Without asking the children, which are no cells."""
        self._init_counter = self._counter = -1

    def unroll(self, length, inputs, *_args, **_kwargs):
        F = mx.sym if isinstance(inputs, mx.sym.Symbol) else mx.nd
        rows = F.split(inputs, axis=0, num_outputs=length, squeeze_axis=1)
        first = F.slice_axis(inputs, axis=1, begin=0, end=1)
        first = F.split(first, axis=0, num_outputs=length, squeeze_axis=1)
        before = state = F.zeros((BATCH, COLUMNS))
        for step in range(length):
            if self.kind == "two steps back":
                state, before = F.tanh(self.inner(rows[step] + state)) * before, state
            elif self.kind == "counts":
                state = F.tanh(self.inner(rows[step] + state) * (step + 1))
            elif self.kind == "used twice":
                state = F.tanh(self.inner(F.tanh(self.inner(rows[step] + state))))
            elif self.kind == "a row for all":
                state = F.tanh(self.inner(F.broadcast_add(state, first[step])))
            elif self.kind == "dropout":
                state = F.Dropout(F.tanh(self.inner(rows[step] + state)), p=self.rate)
            else:
                seen = F.cumsum(rows[step] + state, axis=1)
                state = F.tanh(
                    self.inner(F.Dropout(seen, p=0.5) if "dropout" in self.kind else seen)
                )
        return state, [state]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("counts", "is not like"),
        ("cumsum", "a recurrence cannot compute it"),
        ("a row for all", "differ in how many rows they have"),
    ],
)
def test_refusals(kind: str, why: str) -> None:
    graph = traced(Unrolled(Odd(kind)))
    result = rerolled(graph)
    assert count(result.graph) == 0
    assert why in remarks(result)
    assert_equivalent(graph, result.graph, training=True)


def rolled_by_pipeline(graph: Graph, mode: str) -> Graph:
    pipeline = PIPELINES[mode].partition("import-foreach")[0].rstrip(",")
    return run_pass(graph, pipeline, mode=mode, target=MXNetTarget()).graph


#: Rates at which Dropout leaves everything, and nothing: what it computes is no matter of chance.
NOTHING, EVERYTHING = 1e-12, 1 - 1e-7


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("rate", [NOTHING, 0.5])
def test_dropout_in_a_step_is_drawn_outside(rate: float, mode: str) -> None:
    graph = traced(Unrolled(Odd("dropout", rate)))
    found = rolled_by_pipeline(graph, mode)
    assert count(found) == 1
    drawn = [found[node.inputs[0].node].op for node in found if node.op == "Dropout"]
    # The last step, whose result nobody adds anything to, is not like the others.
    assert drawn == ([] if mode == "inference" else ["_ones"] * (STEPS - 1) + ["tanh"])
    if mode == "inference" or rate == NOTHING:
        assert_equivalent(graph, found, training=mode == "training")


def test_dropout_stays_where_the_step_does() -> None:
    graph = traced(Unrolled(Odd("dropout and cumsum")))
    result = rerolled(graph)
    assert count(result.graph) == 0
    assert "a recurrence cannot compute it" in remarks(result)
    assert not any(node.op == "_ones" for node in result.graph), "what was begun is undone"


@pytest.mark.parametrize(
    ("make", "outputs", "states", "mode"),
    one_of(
        3,
        [
            (make, *shares, mode)
            for make in (rnn.LSTMCell, rnn.GRUCell)
            for shares in ((NOTHING, 0.0), (0.0, NOTHING), (EVERYTHING, NOTHING), (0.5, 0.5))
            for mode in ("inference", "training")
        ],
    ),
)
def test_zoneout(make: Any, outputs: float, states: float, mode: str) -> None:
    cell = rnn.ZoneoutCell(make(4), zoneout_outputs=outputs, zoneout_states=states)
    graph = traced(Unrolled(cell))
    found = rolled_by_pipeline(graph, mode)
    # Outputs that stay what they were a step before are states that meet no weight.
    assert count(found) == (2 if outputs else 1)
    # The last step of an LSTM lacks the mask of a state that nobody reads.
    assert sum(node.op == "FullyConnected" for node in found) <= 2
    if mode == "inference" or 0.5 not in (outputs, states):
        assert_equivalent(graph, found, training=mode == "training")


@pytest.mark.parametrize("make", [rnn.LSTMCell, rnn.GRUCell])
def test_chains_that_share_their_weights(make: Any) -> None:
    class Siamese(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.cell = make(4)

        def hybrid_forward(self, F, x):
            found = []
            for sentence in (x, F.flip(x, axis=0), F.tanh(x)):
                self.cell.reset()
                outputs, _ = self.cell.unroll(STEPS, sentence, layout="TNC", merge_outputs=True)
                found.append(F.mean(outputs, axis=0))
            return F.concat(*found, dim=1), found[0] * found[1]

    graph = traced(Siamese())
    result = rerolled(graph)
    assert count(result.graph) == 3
    # The first step multiplies zeros, once for all of them: it is the first chain's alone.
    assert sum(node.op == "FullyConnected" for node in result.graph) <= 4
    assert_equivalent(graph, result.graph, training=True)


def test_a_layer_in_front_of_one_that_comes_first() -> None:
    """The steps of the first layer are alike once those of the second are one node."""
    cell = stack(rnn.LSTMCell(4), rnn.LSTMCell(4))

    class Decoding(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.cell, self.out = cell, mx.gluon.nn.Dense(COLUMNS, flatten=False)

        def hybrid_forward(self, F, x):
            seen, states = self.cell.unroll(STEPS, x, layout="TNC", merge_outputs=False)
            found = seen[-1]
            for _ in range(2):
                found, states = self.cell(self.out(found), states)
            return found

    graph = traced(Decoding())
    result = rerolled(graph)
    assert count(result.graph) == 2
    assert_equivalent(graph, result.graph, training=True)


@pytest.mark.parametrize("kind", ["two steps back", "used twice"])
def test_odd_but_right(kind: str) -> None:
    graph = traced(Unrolled(Odd(kind)))
    assert_equivalent(graph, rerolled(graph).graph, training=True)


def test_too_short() -> None:
    graph = traced(Unrolled(rnn.LSTMCell(4), steps=3), steps=3)
    assert count(rerolled(graph).graph) == 0


def test_where_every_bit_counts() -> None:
    result = rerolled(traced(Unrolled(rnn.LSTMCell(4))), precise=True)
    assert count(result.graph) == 0
    assert "rounded in another order" in remarks(result)


def test_shared_weights_without_a_state_are_no_chain() -> None:
    class Net(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.inner = mx.gluon.nn.Dense(4, flatten=False)

        def hybrid_forward(self, F, x):
            rows = F.split(x, axis=0, num_outputs=STEPS, squeeze_axis=1)
            return F.add_n(*(F.tanh(self.inner(row)) for row in rows))

    graph = traced(Net())
    result = rerolled(graph)
    assert count(result.graph) == 0
    assert "unrolled" not in remarks(result)


# -- cells at random -----------------------------------------------------------------------------

_UNARY = ("tanh", "sigmoid", "relu", "negative", "square")
_BINARY = ("elemwise_add", "elemwise_mul", "elemwise_sub")


@st.composite
def unrolled(draw: st.DrawFn) -> Graph:
    """A cell of random wiring, unrolled over a random number of steps."""
    steps = draw(st.integers(4, 7))
    width, states = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    graph = Graph("net")
    wide = TensorType("float32", (BATCH, width))
    x = graph.add_input("x", "data", TensorType("float32", (steps, BATCH, width)))
    rows = graph.add(
        "SliceChannel", [x], {"num_outputs": steps, "axis": 0, "squeeze_axis": True}, [wide] * steps
    )
    zero = draw(st.booleans())
    begin = [
        graph.add("_zeros", (), {"shape": (BATCH, width), "dtype": "float32"}, [wide], f"z{n}")
        if zero
        else graph.add_input(f"s{n}", "data", wide)
        for n in range(states)
    ]
    weights = [
        graph.add_input(f"w{n}", "param", TensorType("float32", (width, width)))
        for n in range(draw(st.integers(1, 3)))
    ]
    bias = graph.add_input("b", "param", TensorType("float32", (width,)))
    # Each operation reads places of a list: the row, the states, then earlier results. The first
    # two make a state of a product with a state and of the row, so that there is something to find.
    plan = [("dense", [1, 1], 0), ("binary", [0, states + 1], 0)]
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(("dense", "unary", "binary", "binary", "bias")))
        places = [draw(st.integers(0, states + len(plan))) for _ in range(2)]
        plan.append((kind, places, draw(st.integers(0, 11))))
    after = [draw(st.integers(states + 1, states + len(plan))) for _ in range(states)]
    after[0] = states + 2
    emit = draw(st.integers(states + 1, states + len(plan)))
    values = [node.out() for node in begin]
    outputs: list[Value] = []

    def add(op: str, inputs: list[Value], **attrs: object) -> Value:
        return graph.add(op, inputs, attrs, [wide], graph.unique_name("n")).out()

    for step in range(steps):
        known = [rows.out(step), *values]
        for kind, (a, b), choice in plan:
            if kind == "dense":
                weight = weights[choice % len(weights)].out()
                made = add("FullyConnected", [known[a], weight], num_hidden=width, no_bias=True)
                made = add("tanh", [made])
            elif kind == "unary":
                made = add(_UNARY[choice % len(_UNARY)], [known[a]])
            elif kind == "binary":
                made = add(_BINARY[choice % len(_BINARY)], [known[a], known[b]])
                made = add("tanh", [made])
            else:
                made = add("broadcast_add", [known[a], bias.out()])
            known.append(made)
        values = [known[place] for place in after]
        outputs.append(known[emit])
    joined = TensorType("float32", (BATCH, steps, width))
    whole = graph.add("stack", outputs, {"axis": 1, "num_args": steps}, [joined], "joined")
    graph.set_outputs([whole.out(), *values])
    return graph


_rolled: list[bool] = []


@settings(max_examples=50)
@given(unrolled())
def test_random_cells(graph: Graph) -> None:
    result = rerolled(graph)
    assert_equivalent(graph, result.graph, training=True, seeds=(0,))
    _rolled.append(count(result.graph) > 0)


def test_many_random_cells_were_rolled() -> None:
    """Else the test above would say nothing."""
    if _rolled:
        assert sum(_rolled) > len(_rolled) / 4


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_large_weights_on_what_the_step_emits(mode: str) -> None:
    """Products with sequences come before their step, but not those with emitted values."""
    units = 300

    class Emits(LeakyGated):
        def __init__(self):
            rnn.HybridRecurrentCell.__init__(self)
            self.units = units
            with self.name_scope():
                self.gate = mx.gluon.nn.Dense(units, flatten=False)
                self.new = mx.gluon.nn.Dense(units, flatten=False)
                self.back = mx.gluon.nn.Dense(units, flatten=False)

        def hybrid_forward(self, F, x, states):
            out = F.sigmoid(self.gate(x) + self.back(states[0]))
            return out, [F.tanh(self.new(out))]

    graph = traced(Unrolled(Emits(), steps=20), steps=20)
    result = rerolled(graph, mode=mode)
    assert count(result.graph) == 1
    assert_equivalent(graph, result.graph, training=mode == "training")


def test_a_recurrence_prints_and_parses_back() -> None:
    graph = rerolled(traced(Unrolled(rnn.LSTMCell(4)))).graph
    assert str(parse(str(graph))) == str(graph)


class Rounding(LeakyGated):
    """A cell that rounds its state by way of integers, through which MXNet truncates gradients."""

    def __init__(self, inside: bool):
        super().__init__(4)
        self.inside = inside

    def hybrid_forward(self, F, x, states):
        def rounded(value):
            return F.cast(F.cast(8 * value, "int32"), "float32") / 8

        if self.inside:
            return super().hybrid_forward(F, x, [rounded(states[0])])
        return super().hybrid_forward(F, rounded(x), states)


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("inside", [True, False])
def test_steps_that_cast_to_integers(inside: bool, mode: str) -> None:
    graph = traced(Unrolled(Rounding(inside)))
    result = rerolled(graph, mode=mode)
    assert count(result.graph) == (0 if inside else 1)
    assert_equivalent(graph, result.graph, training=mode == "training")
    if inside:
        assert "a step computes in one of" in "\n".join(map(str, result.remarks))
