from __future__ import annotations

import itertools

import numpy as np
import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE
from graphopt.ir.parser import parse
from graphopt.kernels.recurrence import interpret
from graphopt.kernels.recurrence.spec import parse as parse_spec
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass
from tests.tiers import one_of

PASS = "import-rnn{measure=False}"
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def net(
    mode: str,
    *,
    steps: int = 5,
    batch: int = 3,
    inputs: int = 4,
    units: int = 6,
    layers: int = 1,
    bidirectional: bool = False,
    projection: int | None = None,
    dropout: float = 0.0,
    dtype: str = "f32",
    lengths: bool = False,
) -> Graph:
    """One RNN node that reads a vector of parameters and returns all it has."""
    directions, hidden = 1 + bidirectional, projection or units
    size, width = 0, inputs
    for _ in range(layers):
        rows = GATES[mode] * units
        cell = rows * (width + hidden) + 2 * rows + (projection or 0) * units
        size += directions * cell
        width = directions * hidden
    count = layers * directions
    state = f"{dtype}[{count},{batch},{hidden}]"
    cell_state = f", %c: {dtype}[{count},{batch},{units}]" if mode == "lstm" else ""
    ends = f", %n: i32[{batch}]" if lengths else ""
    reads = "%x, %p, %h" + (", %c" if cell_state else "") + (", %n" if lengths else "")
    types = [f"{dtype}[{steps},{batch},{directions * hidden}]", state]
    types += [f"{dtype}[{count},{batch},{units}]"] * bool(cell_state)
    outputs = ", ".join(["%r", *(f"%r#{n}" for n in range(1, len(types)))])
    more = f", projection_size={projection}" if projection else ""
    more += ", use_sequence_length=True" if lengths else ""
    return parse(
        f"""graph g(%x: {dtype}[{steps},{batch},{inputs}], param %p: {dtype}[{size}],
                   %h: {state}{cell_state}{ends}) {{
          %r = RNN({reads}) {{mode="{mode}", num_layers={layers}, state_size={units},
               bidirectional={bidirectional}, p={dropout}, state_outputs=True{more}}}
               : ({", ".join(types)})
          return {outputs}
        }}"""
    )


def imported(graph: Graph, **settings: object) -> Result:
    return run_pass(graph, PASS, target=MXNetTarget(), **settings)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if not node.is_input]


@pytest.mark.parametrize(
    ("mode", "dtype", "training"),
    one_of(3, itertools.product(sorted(GATES), ["f32", "f64"], [False, True])),
)
def test_equals_mxnet(mode: str, dtype: str, training: bool) -> None:
    graph = net(mode, dtype=dtype)
    result = imported(graph, mode="training" if training else "inference")
    assert ops(result.graph).count(RECURRENCE) == 1
    assert_equivalent(graph, result.graph, training=training)
    again = unfuse(result.graph)
    assert ops(again).count("RNN") == 1
    assert_equivalent(graph, again, training=training)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, True), (2, False), (3, True)])
def test_layers_and_directions(mode: str, layers: int, bidirectional: bool) -> None:
    graph = net(mode, layers=layers, bidirectional=bidirectional)
    result = imported(graph, mode="training")
    assert ops(result.graph).count(RECURRENCE) == layers
    assert_equivalent(graph, result.graph, training=True)
    assert_equivalent(graph, unfuse(result.graph), training=True)


@pytest.mark.parametrize(
    ("steps", "batch", "units"), [(1, 1, 1), (17, 1, 5), (3, 70, 33), (40, 9, 16)]
)
def test_sizes(steps: int, batch: int, units: int) -> None:
    """Tails of tiles, more chunks than threads, a ring that wraps around."""
    graph = net("lstm", steps=steps, batch=batch, units=units)
    assert_equivalent(graph, imported(graph, mode="training").graph, training=True)


def test_parameters_that_were_joined_are_read_as_they_are() -> None:
    graph = parse(
        """graph g(%x: f32[5,3,4], param %a: f32[6,4], param %b: f32[6,6], param %c: f32[6],
                   param %d: f32[6], %h: f32[1,3,6]) {
          %fa = Reshape(%a) {shape=(-1,)} : f32[24]
          %fb = Reshape(%b) {shape=(-1,)} : f32[36]
          %p = _rnn_param_concat(%fa, %fb, %c, %d) {dim=0, num_args=4} : f32[72]
          %r = RNN(%x, %p, %h) {mode="rnn_tanh", num_layers=1, state_size=6} : f32[5,3,6]
          return %r
        }"""
    )
    result = run_pass(graph, f"{PASS},eliminate-dead-code", target=MXNetTarget(), mode="training")
    assert ops(result.graph) == ["Reshape", "add_n", RECURRENCE]
    assert_equivalent(graph, result.graph, training=True)


def test_a_decoder_that_begins_with_the_encoders_state() -> None:
    graph = parse(
        """graph g(%x: f32[5,3,4], %y: f32[7,3,4], param %p: f32[72], param %q: f32[72],
                   %h: f32[1,3,6]) {
          %e = RNN(%x, %p, %h) {mode="rnn_tanh", num_layers=1, state_size=6, state_outputs=True}
               : (f32[5,3,6], f32[1,3,6])
          %d = RNN(%y, %q, %e#1) {mode="rnn_tanh", num_layers=1, state_size=6, state_outputs=True}
               : (f32[7,3,6], f32[1,3,6])
          return %d, %d#1
        }"""
    )
    result = imported(graph, mode="training")
    assert ops(result.graph).count(RECURRENCE) == 2
    assert_equivalent(graph, result.graph, training=True)


def test_dropout_between_layers_only_in_training() -> None:
    graph = net("gru", layers=2, dropout=0.5)
    assert "Dropout" not in ops(imported(graph).graph)
    assert ops(imported(graph, mode="training").graph).count("Dropout") == 1
    assert_equivalent(graph, imported(graph).graph)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_sequences_of_different_lengths(bidirectional: bool) -> None:
    """What MXNet refuses on the CPU: each sequence is as if it were run alone."""
    rng = np.random.default_rng(0)
    graph = net("lstm", steps=6, batch=4, bidirectional=bidirectional, lengths=True)
    result = imported(graph)
    feeds = {
        node.name: rng.uniform(-1, 1, [e or 0 for e in node.type.shape or ()]).astype("f")
        for node in graph.inputs
    }
    feeds["n"] = lengths = np.array([6, 2, 0, 3], "i4")
    found = MXNetTarget().evaluate(result.graph, feeds)
    for row, length in enumerate(lengths):
        assert not found["output0"][length:, row].any()
        if not length:
            assert np.array_equal(found["output1"][:, row], feeds["h"][:, row])
            continue
        alone = net("lstm", steps=length, batch=1, bidirectional=bidirectional)
        part = {name: value[:, row : row + 1] for name, value in feeds.items() if name in "hc"}
        part |= {"x": feeds["x"][:length, row : row + 1], "p": feeds["p"]}
        expected = MXNetTarget().evaluate(alone, part)
        assert np.allclose(found["output0"][:length, row], expected["output0"][:, 0], atol=1e-6)
        for state in ("output1", "output2"):
            assert np.allclose(found[state][:, row], expected[state][:, 0], atol=1e-6)


def test_spec_is_what_runs() -> None:
    """The numpy interpreter of the spec agrees with the operator, lengths and all."""
    rng = np.random.default_rng(0)
    result = imported(net("gru", steps=6, batch=4, lengths=True))
    (node,) = (n for n in result.graph if n.op == RECURRENCE)
    spec = parse_spec(node.attrs["spec"])
    assert parse_spec(str(spec)) == spec
    alone = Graph("alone")
    feeds = {}
    reads = []
    for n, value in enumerate(node.inputs):
        type_ = result.graph.type_of(value)
        reads.append(alone.add_input(f"in{n}", "data", type_))
        feeds[f"in{n}"] = rng.uniform(-1, 1, type_.shape or ()).astype("f")
    feeds[f"in{len(reads) - 1}"] = np.array([6, 2, 1, 3], "i4")
    alone.set_outputs(alone.add(node.op, reads, node.attrs, node.types).values)
    found = MXNetTarget().evaluate(alone, feeds)
    expected = interpret.run(spec, list(feeds.values()), lengths=True)
    for n, array in enumerate(expected):
        assert np.allclose(found[f"output{n}"], array, atol=1e-6)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("lstm_state_clip_min=-1.0, lstm_state_clip_max=1.0", "its cell state is clipped"),
    ],
)
def test_refusals(more: str, why: str) -> None:
    text = str(net("lstm")).replace("state_outputs=True", f"state_outputs=True, {more}")
    graph = parse(text)
    result = imported(graph)
    assert result.graph.is_unchanged_from(graph)
    assert why in "\n".join(map(str, result.remarks))


def test_float16_stays() -> None:
    result = imported(net("lstm", dtype="f16"))
    assert "RNN" in ops(result.graph)
    assert "it computes in float16" in "\n".join(map(str, result.remarks))


def test_not_where_every_bit_counts() -> None:
    graph = net("lstm")
    result = imported(graph, precise=True)
    assert result.graph.is_unchanged_from(graph)


class Clock(MXNetTarget):
    """A target on which one of the two is faster."""

    def __init__(self, fast: str) -> None:
        self.fast = fast

    def measured_once(self, parts, measure, place=()):
        return measure()

    def times_ms(self, graphs, *, training: bool = False) -> list[float]:
        return [1.0 if self.fast in ops(graph) else 2.0 for graph in graphs]


@pytest.mark.parametrize("fast", ["RNN", RECURRENCE])
def test_the_faster_one_stays(fast: str) -> None:
    result = run_pass(net("lstm"), "import-rnn", target=Clock(fast))
    assert fast in ops(result.graph)
    assert "2 ms" in "\n".join(map(str, result.remarks))


@pytest.mark.parametrize("zeros", ["_zeros() {shape=(2, 3, 6)}", "zeros_like(%c)"])
@pytest.mark.parametrize("is_first", [True, False])
def test_one_state_of_zeros_is_read_like_the_other(zeros: str, is_first: bool) -> None:
    graph = parse(
        f"""graph g(%x: f32[5,3,4], param %p: f32[624], %c: f32[2,3,6]) {{
          %z = {zeros} : f32[2,3,6]
          %r = RNN(%x, %p, {"%z, %c" if is_first else "%c, %z"})
               {{mode="lstm", num_layers=2, state_size=6, state_outputs=True}}
               : (f32[5,3,6], f32[2,3,6], f32[2,3,6])
          return %r, %r#1, %r#2
        }}"""
    )
    result = imported(graph, mode="training")
    (first, *_) = nodes = [node for node in result.graph if node.op == RECURRENCE]
    assert len(nodes) == 2
    assert [result.graph.type_of(value).shape for value in first.inputs[1:3]] == [(3, 6)] * 2
    assert_equivalent(graph, result.graph, training=True)
