from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
import graphopt.nn
from graphopt.api.lifting import lift
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.backend.unroll import unroll
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import RECURRENCE
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()

BEFORE = "import-rnn{measure=False}"
PASS = f"{BEFORE},hoist-lookups{{always=True}},eliminate-dead-code"
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


def net(
    mode: str = "lstm",
    *,
    steps: int = 5,
    batch: int = 3,
    words: int = 6,
    columns: int = 4,
    units: int = 5,
    layers: int = 1,
    bidirectional: bool = False,
    dtype: str = "f32",
    tokens: str = "i32",
    embedding: str = "",
    around: str = "",
) -> Graph:
    """An RNN node over embedded tokens; ``around`` are nodes between %e and its input %x."""
    directions, size, width = 1 + bidirectional, 0, columns
    for _ in range(layers):
        rows = GATES[mode] * units
        size += directions * (rows * (width + units) + 2 * rows)
        width = directions * units
    state = f"{dtype}[{layers * directions},{batch},{units}]"
    states = "%h, %c" if mode == "lstm" else "%h"
    cell = f", %c: {state}" if mode == "lstm" else ""
    types = [f"{dtype}[{steps},{batch},{width}]"]
    rows = f"{dtype}[{steps},{batch},{columns}]"
    lookup, x = ("%e", "%x") if around else ("%x", "%x")
    return parse(
        f"""graph g(%t: {tokens}[{steps},{batch}], param %w: {dtype}[{words},{columns}],
                   param %p: {dtype}[{size}], %h: {state}{cell}) {{
          {lookup} = Embedding(%t, %w) {{input_dim={words}, output_dim={columns}{embedding}}}
               : {rows}
          {around}
          %r = RNN({x}, %p, {states}) {{mode="{mode}", num_layers={layers}, state_size={units},
               bidirectional={bidirectional}}} : {types[0]}
          return %r
        }}"""
    )


def hoisted(graph: Graph, pipeline: str = PASS, **settings: object) -> Result:
    return run_pass(graph, pipeline, target=MXNetTarget(), **settings)


def recurrences(graph: Graph) -> list[Any]:
    return [node for node in graph if node.op == RECURRENCE]


def is_hoisted(graph: Graph) -> bool:
    """Whether a recurrence reads a table, and nothing looks up rows any more."""
    found = any(node.attrs.flag("indexed") for node in recurrences(graph))
    assert found != any(node.op == "Embedding" for node in graph)
    return found


def why_not(result: Result) -> str:
    return "\n".join(r.message for r in result.remarks if r.pass_name == "hoist-lookups")


def outside(graph: Graph) -> dict[str, Any]:
    """Tokens of which some are in no table."""
    (tokens,) = (node for node in graph.inputs if node.name == "t")
    shape = tuple(extent or 0 for extent in tokens.type.shape or ())
    rng = np.random.default_rng(3)
    return {"t": rng.integers(-3, 10, shape).astype(str(tokens.type.dtype))}


# -- what is computed ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("mode", sorted(GATES))
def test_equals_mxnet(mode: str, dtype: str) -> None:
    graph = net(mode, dtype=dtype)
    result = hoisted(graph, mode="training")
    assert is_hoisted(result.graph)
    for training in (False, True):
        assert_equivalent(graph, result.graph, training=training, feeds=outside(graph))


@pytest.mark.parametrize(("layers", "bidirectional"), [(1, True), (2, False), (2, True)])
@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_layers_and_directions(mode: str, layers: int, bidirectional: bool) -> None:
    graph = net(mode, layers=layers, bidirectional=bidirectional)
    result = hoisted(graph, mode="training")
    assert [n.attrs.flag("indexed") for n in recurrences(result.graph)] == [
        layer == 0 for layer in range(layers)
    ]
    assert_equivalent(graph, result.graph, training=True, feeds=outside(graph))


@pytest.mark.parametrize("tokens", ["f32", "f64", "i32", "i64"])
def test_dtypes_of_tokens(tokens: str) -> None:
    graph = net(tokens=tokens)
    result = hoisted(graph)
    assert is_hoisted(result.graph)
    assert_equivalent(graph, result.graph, feeds=outside(graph))


@pytest.mark.parametrize(
    ("steps", "batch", "words", "units"),
    [(1, 1, 1, 1), (17, 1, 3, 5), (3, 70, 300, 33), (9, 40, 2, 16), (4, 3, 9, 40)],
)
def test_sizes(steps: int, batch: int, words: int, units: int) -> None:
    """One word; more words than tokens; tails of tiles, several chunks and slices."""
    graph = net("lstm", steps=steps, batch=batch, words=words, units=units, columns=units)
    result = hoisted(graph, mode="training")
    assert is_hoisted(result.graph)
    assert_equivalent(graph, result.graph, training=True, feeds=outside(graph))


@settings(max_examples=10)
@given(
    st.sampled_from(sorted(GATES)),
    *([st.integers(1, 6)] * 5),
    st.booleans(),
    st.sampled_from(["f32", "f64"]),
)
def test_any_small_net(
    mode: str,
    steps: int,
    batch: int,
    words: int,
    columns: int,
    units: int,
    both: bool,
    dtype: str,
) -> None:
    graph = net(
        mode,
        steps=steps,
        batch=batch,
        words=words,
        columns=columns,
        units=units,
        bidirectional=both,
        dtype=dtype,
    )
    result = hoisted(graph, mode="training")
    assert is_hoisted(result.graph)
    assert_equivalent(graph, result.graph, training=True, feeds=outside(graph), seeds=(0,))


def test_axes_that_are_swapped_between_lookup_and_steps() -> None:
    swap = "%x = SwapAxis(%e) {dim1=0, dim2=1} : f32[5,3,4]"
    graph = parse(
        str(net(around=swap))
        .replace("%t: i32[5,3]", "%t: i32[3,5]")
        .replace("output_dim=4} : f32[5,3,4]", "output_dim=4} : f32[3,5,4]")
    )
    result = hoisted(graph, mode="training")
    assert is_hoisted(result.graph)
    assert_equivalent(graph, result.graph, training=True, feeds=outside(graph))


class Tagger(mx.gluon.HybridBlock):
    """Words, an unrolled cell or a layer, and the words again by their vectors if ``tied``."""

    def __init__(self, layout: str, unrolled: bool, tied: bool = False):
        super().__init__()
        self.layout, self.unrolled, self.tied = layout, unrolled, tied
        with self.name_scope():
            self.embed = mx.gluon.nn.Embedding(9, 5)
            if unrolled:
                self.cell = mx.gluon.rnn.GRUCell(5, input_size=5)
            else:
                self.lstm = mx.gluon.rnn.LSTM(5, input_size=5, layout=layout)
            if tied:
                params = self.embed.collect_params()
                self.out = mx.gluon.nn.Dense(9, flatten=False, use_bias=False, params=params)

    def hybrid_forward(self, F: Any, tokens: Any) -> Any:
        x = self.embed(tokens)
        if self.unrolled:
            x, _ = self.cell.unroll(6, x, layout=self.layout, merge_outputs=True)
        else:
            x = self.lstm(x)
        return self.out(x) if self.tied else x


def lifted(block: Any, shape: tuple[int, int]) -> Graph:
    symbol = block(mx.sym.var("t", dtype="int32"))
    return lift(symbol, {"t": shape})


FULL = "infer-types,eliminate-dead-code,eliminate-common-subexpressions,reroll-recurrence"


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_layers_and_cells_of_gluon(layout: str, unrolled: bool, tied: bool) -> None:
    shape = (6, 4) if layout == "TNC" else (4, 6)
    graph = lifted(Tagger(layout, unrolled, tied), shape)
    result = hoisted(graph, f"{FULL},{PASS}", mode="training")
    assert is_hoisted(result.graph), why_not(result)
    assert_equivalent(graph, result.graph, training=True)


def test_a_lookup_with_other_readers_stays_for_them() -> None:
    graph = parse(str(net("gru")).replace("return %r", "%z = exp(%x) : f32[5,3,4]\n return %r, %z"))
    result = hoisted(graph, mode="training")
    assert recurrences(result.graph)[0].attrs.flag("indexed")
    assert any(node.op == "Embedding" for node in result.graph)
    assert_equivalent(graph, result.graph, training=True, feeds=outside(graph))


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_is_put_back(mode: str) -> None:
    """As the layer it was; a cell's steps are unrolled behind the lookup."""
    graph = net(mode)
    result = hoisted(graph, mode="training")
    plain = unfuse(result.graph)
    assert not recurrences(plain)
    assert any(node.op == "RNN" for node in plain)
    assert_equivalent(graph, plain, training=True, feeds=outside(graph))
    steps = result.graph.copy()
    (node,) = recurrences(steps)
    for index, value in enumerate(unroll(steps, node)):
        steps.replace_uses(node.out(index), value)
    steps.erase(node.id)
    assert_equivalent(graph, steps, training=True, feeds=outside(graph))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("both", [False, True])
def test_sequences_of_different_lengths(kind: str, both: bool) -> None:
    """Rows behind an end are not in use, and have no part in gradients."""

    class Words(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.embed = mx.gluon.nn.Embedding(8, 4)
                layer = getattr(graphopt.nn, kind)
                self.layer = layer(5, input_size=4, layout="NTC", bidirectional=both)

        def hybrid_forward(self, F: Any, tokens: Any, lengths: Any) -> Any:
            return self.layer(self.embed(tokens), sequence_length=lengths)

    block = Words()
    block.initialize(mx.init.Uniform(0.4))
    tokens = mx.nd.array(np.random.default_rng(0).integers(-1, 9, (5, 7)), dtype="int32")
    lengths = mx.nd.array([7, 0, 3, 5, 1], dtype="int32")
    fast = graphopt.optimize(block, passes=f"{BEFORE},hoist-lookups{{always=True}}", strict=True)

    def found(run: Any) -> list[Any]:
        with mx.autograd.record():
            y = run(tokens, lengths)
        y.backward(mx.nd.array(np.random.default_rng(1).uniform(0.5, 1, y.shape)))
        return [y.asnumpy(), *(p.grad().asnumpy() for p in block.collect_params().values())]

    want = found(block)
    for got, right in zip(found(fast), want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
    (entry,) = fast._graphopt_entries()
    assert is_hoisted(entry.result.graph)


def test_sparse_gradients_do_not_matter_for_inference() -> None:
    assert is_hoisted(hoisted(net(embedding=", sparse_grad=True")).graph)


# -- where it is done ------------------------------------------------------------------------------


def refused(graph: Graph, pipeline: str = PASS, **settings: object) -> str:
    result = hoisted(graph, pipeline, **settings)
    assert not any(node.attrs.flag("indexed") for node in recurrences(result.graph))
    return why_not(result)


def test_refusals() -> None:
    sparse = net(embedding=", sparse_grad=True")
    assert "sparse_grad=True asks" in refused(sparse, mode="training")
    drop, swap = "Dropout({}) {{p=0.5}}", "SwapAxis({}) {{dim1=1, dim2=0}}"
    for first, second in ((drop, swap), (swap, drop)):
        around = f"%f = {first.format('%e')} : f32[4,4,4]\n %x = {second.format('%f')} : f32[4,4,4]"
        dropped = net(steps=4, batch=4, around=around)
        assert "has a Dropout of its own" in refused(dropped, mode="training")
    residual = net(around="%x = relu(%e) : f32[5,3,4]")
    assert refused(residual) == ""


def test_steps_that_read_rows_themselves_too() -> None:
    kernel = "f32[a,b] (f32[a,b], f32[a,b]) { %2 = add %1 %0; return %2:f32[a,b] }"
    spec = f"recurrence f32 (4) (4) () () ;; 4 = x0 s0 -> {kernel} ;; next t0 ;; emit t0"
    graph = parse(
        f"""graph g(%t: i32[5,3], param %w: f32[6,4]) {{
          %x = Embedding(%t, %w) {{input_dim=6, output_dim=4}} : f32[5,3,4]
          %r = graphopt_recurrence(%x) {{spec="{spec}", zero_states=True}} : (f32[5,3,4], f32[3,4])
          return %r
        }}"""
    )
    assert "the step reads the rows themselves too" in refused(graph, mode="training")


def test_work_decides() -> None:
    pipeline = f"{BEFORE},hoist-lookups"
    few = net(steps=2, batch=2, words=1000, columns=64, units=64)
    told = refused(few, pipeline)
    assert "1.3 times the work" in told
    assert "4 of the table's 1000 rows, not 4 tokens" in told
    many = hoisted(net(steps=40, batch=10, words=9, columns=64, units=64), pipeline)
    assert is_hoisted(many.graph)
    assert "9 of the table's 9 rows, not 400 tokens" in why_not(many)
    assert many.receipts[-1].stats == {"lookups": 1}
    narrow = net(steps=40, batch=10, words=9, columns=4)
    assert "times the work" in refused(narrow, pipeline)


def test_no_words_at_all() -> None:
    assert "there are 15 tokens and 0 rows" in refused(net(words=0))
    empty = str(hoisted(net(), BEFORE).graph).replace("i32[5,3]", "i32[5,0]")
    assert "there are 0 tokens and 6 rows" in refused(parse(empty), "hoist-lookups")


def test_nothing_is_done_twice() -> None:
    once = hoisted(net(), mode="training").graph
    assert run_pass(once, "hoist-lookups{always=True}", mode="training").graph is once


# -- in nets ---------------------------------------------------------------------------------------


def words_net() -> tuple[Any, Any]:
    """A net for which the pass sees that it is worth it, and tokens."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(9, 64), mx.gluon.rnn.LSTM(16, input_size=64))
    net.initialize(mx.init.Xavier())
    return net, mx.nd.array(np.random.default_rng(0).integers(0, 9, (6, 8)))


NET = f"infer-types,eliminate-dead-code,{BEFORE},hoist-lookups"


def learned(run: Any, net: Any, tokens: Any) -> list[Any]:
    with mx.autograd.record():
        y = run(tokens)
    y.backward(mx.nd.array(np.random.default_rng(1).uniform(0.5, 1, y.shape)))
    return [y.asnumpy(), *(p.grad().asnumpy() for p in net.collect_params().values())]


def test_training_within_a_budget() -> None:
    net, tokens = words_net()
    want = learned(net, net, tokens)
    fast = graphopt.optimize(net, passes=NET, memory="1GB", strict=True)
    for _ in range(2):
        for got, right in zip(learned(fast, net, tokens), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)
    assert is_hoisted(fast._graphopt_entries()[0].result.graph)


def test_frozen_nets_and_what_they_export(tmp_path: Path) -> None:
    net, tokens = words_net()
    want = net(tokens).asnumpy()
    fast = graphopt.optimize(net, passes=NET, mode="inference", strict=True)
    np.testing.assert_allclose(fast(tokens).asnumpy(), want, rtol=1e-4, atol=1e-5)
    assert is_hoisted(fast._graphopt_entries()[0].result.graph)
    for kernels in (False, True):
        fast.export(str(tmp_path / "net"), kernels=kernels)
        symbol = mx.sym.load(str(tmp_path / "net-symbol.json"))
        arrays = mx.nd.load(str(tmp_path / "net-0000.params"))
        read = {name.partition(":")[2]: array for name, array in arrays.items()}
        (again,) = symbol.bind(mx.cpu(), {**read, "data": tokens}).forward()
        np.testing.assert_allclose(again.asnumpy(), want, rtol=1e-4, atol=1e-5)
        text = (tmp_path / "net-symbol.json").read_text()
        assert ("graphopt_recurrence" in text) == kernels
        assert ('"RNN"' in text) != kernels
