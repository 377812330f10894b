"""Packed weights of recurrences: one copy for all, made anew after every write, and never stale."""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
import graphopt.nn
from graphopt.backend import choosing, keeping, reference
from graphopt.backend.choice import CACHED_OP, KERNELS
from graphopt.backend.infer import with_types
from graphopt.backend.lower import lower
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.symbol import to_symbol
from graphopt.compat import import_mxnet
from graphopt.ir.node import KEEPING, RECURRENCE
from graphopt.ir.parser import parse
from graphopt.kernels import bridge
from tests.tiers import one_of

mx = import_mxnet()
gluon = mx.gluon

pytestmark = pytest.mark.usefixtures("small_heap")

STEPS, BATCH, INPUTS, UNITS = 5, 3, 4, 6
PASSES = "import-rnn{measure=False}"
SPEC = (
    "recurrence f32 (8) (8) (8x8, 8x8) (8) ;; 8 = x0 @ m0' + s0 @ m1' ;; 8 = v0 t0 -> f32[a,b]"
    " (f32[b], f32[a,b]) { %2 = add %1 %0; %3 = tanh %2; return %3:f32[a,b] } ;; next t1 ;; emit t1"
)


def packs() -> int:
    """How many directions have packed weights, once nothing is left of engines that are gone."""
    gc.collect()
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_count_packs())


@pytest.fixture(autouse=True)
def _nothing_else_kept() -> Any:
    assert packs() == 0
    yield
    assert packs() == 0


@pytest.fixture(autouse=True)
def _kernels_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen nets run on kernels, whatever is fastest here."""

    def race(engines: Mapping[str, Any], *_: Any) -> dict[str, float]:
        return {name: 1.0 if name == CACHED_OP + KERNELS else 9.0 for name in engines}

    monkeypatch.setattr(choosing, "race", race)
    monkeypatch.setattr(choosing, "_LONG_S", float("inf"))  # a busy machine tries fewer engines
    monkeypatch.setattr(choosing, "remembered", lambda _: None)
    monkeypatch.setattr(choosing, "remember", lambda *_: None)


def noise(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return mx.nd.array(np.random.default_rng(seed).uniform(-1, 1, shape), dtype=dtype)


def layer(kind: str = "LSTM", module: Any = gluon.rnn, dtype: str = "float32", **more: Any) -> Any:
    made = getattr(module, kind)(UNITS, input_size=INPUTS, dtype=dtype, **more)
    made.initialize()
    refill(made)
    return made


def refill(net: Any, seed: int = 0) -> None:
    """Other values in the same arrays."""
    for n, parameter in enumerate(net.collect_params().values(), seed):
        parameter.set_data(noise(*parameter.shape, seed=n, dtype=parameter.dtype))


def optimized(net: Any, **more: Any) -> Any:
    return graphopt.optimize(net, passes=PASSES, strict=True, **more)


def equal(found: Any, wanted: Any) -> None:
    pairs = [(found, wanted)]
    for got, want in pairs:
        if isinstance(got, (list, tuple)):
            pairs += zip(got, want, strict=True)
        else:
            np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)


def operators(entry: Any) -> list[str]:
    return [node["op"] for node in json.loads(entry.lowered.symbol.tojson())["nodes"]]


LAYERS = [
    ("GRU", True, "float32", True),
    ("GRU", False, "float64", False),
    ("RNN", True, "float64", True),
    ("RNN", False, "float32", False),
    *product(["LSTM"], [False, True], ["float32", "float64"], [False, True]),
]


@pytest.mark.parametrize(
    ("kind", "bidirectional", "dtype", "is_given", "mode"),
    one_of(5, [(*made, mode) for made, mode in product(LAYERS, ["auto", "inference"])]),
)
def test_equals_mxnet_and_the_reference(
    kind: str, bidirectional: bool, dtype: str, is_given: bool, mode: str
) -> None:
    net = layer(kind, dtype=dtype, bidirectional=bidirectional, num_layers=2)
    fast = optimized(net, mode=mode)
    x = noise(STEPS, BATCH, INPUTS, seed=40, dtype=dtype)
    states = []
    if is_given:
        shapes = [info["shape"] for info in net.state_info(BATCH)]
        states = [noise(*shape, seed=50 + n, dtype=dtype) for n, shape in enumerate(shapes)]
    args = (x, states) if is_given else (x,)
    for seed in (0, 100):
        refill(net, seed)
        if mode == "inference":
            fast.reset()
        for _ in range(2):
            equal(fast(*args), net(*args))
    (entry,) = fast.graphopt_state.compiled.entries
    assert operators(entry).count(KEEPING) == 2
    # Where MXNet's own layer is beyond the tolerance (ReLU in float64), frozen nets run on that.
    is_kept = entry.lowered.choice.engine == CACHED_OP + KERNELS
    assert is_kept or (kind, dtype, mode) == ("RNN", "float64", "inference")
    assert packs() == is_kept * (4 if bidirectional else 2)
    graph, values = entry.lowered.graph, {p.name: p.data() for p in net.collect_params().values()}
    data = dict(zip(entry.traced.names, [x, *states], strict=True))
    feeds = {name: array.asnumpy() for name, array in (values | data).items()}
    got = fast(*args)
    flat = [got[0], *got[1]] if is_given else [got]
    for mine, want in zip(flat, reference.run(graph, feeds), strict=True):
        np.testing.assert_allclose(mine.asnumpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_lengths(bidirectional: bool, layout: str) -> None:
    net = layer("LSTM", graphopt.nn, bidirectional=bidirectional, layout=layout)
    twin = layer("LSTM", bidirectional=bidirectional, layout=layout)

    class Net(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def hybrid_forward(self, F: Any, x: Any, lengths: Any) -> Any:
            return self.inner(x, None, lengths)

    fast = graphopt.optimize(Net(), strict=True)
    lengths = [5, 0, 3]
    x = noise(*((STEPS, BATCH) if layout == "TNC" else (BATCH, STEPS)), INPUTS, seed=40)
    for seed in (0, 100):
        refill(net, seed)
        refill(twin, seed)
        found = fast(x, mx.nd.array(lengths)).asnumpy()
        found = found if layout == "TNC" else found.swapaxes(0, 1)
        rows = x if layout == "TNC" else x.swapaxes(0, 1)
        for b, length in enumerate(lengths):
            assert (found[length:, b] == 0).all()
            if length:
                alone = rows[:length, b : b + 1]
                want = twin(alone if layout == "TNC" else alone.swapaxes(0, 1)).asnumpy()
                want = want if layout == "TNC" else want.swapaxes(0, 1)
                np.testing.assert_allclose(found[:length, b], want[:, 0], rtol=1e-5, atol=1e-6)
    assert packs() == (2 if bidirectional else 1)


def test_words_of_a_table() -> None:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Embedding(20, 64), gluon.rnn.LSTM(UNITS, input_size=64))
    net.initialize()
    refill(net)
    fast = graphopt.optimize(net, passes=f"{PASSES}, hoist-lookups", strict=True)
    numbers = mx.nd.array(np.random.default_rng(0).integers(0, 20, (STEPS, 30)))
    for seed in (0, 100):
        refill(net, seed)
        equal(fast(numbers), net(numbers))
    (entry,) = fast.graphopt_state.compiled.entries
    (node,) = (node for node in entry.lowered.graph if node.op == RECURRENCE)
    assert node.attrs.flag("indexed")
    assert packs() == 1


def refill_in_place(net: Any) -> None:
    for parameter in net.collect_params().values():
        parameter.data()[:] = 0.25


def refill_a_row(net: Any) -> None:
    net.l0_h2h_weight.data()[1:2] = 3


def refill_an_element(net: Any) -> None:
    net.l0_i2h_weight.data()[2, 3] = 7


def refill_from_numpy(net: Any) -> None:
    net.l0_i2h_weight.data()[:] = np.full((4 * UNITS, INPUTS), 0.125, np.float32)


def refill_by_an_operator(net: Any) -> None:
    weight = net.l0_h2h_weight.data()
    mx.nd.elemwise_mul(weight, weight, out=weight)


def refill_in_bulk(net: Any) -> None:
    with mx.engine.bulk(100):
        refill_in_place(net)


def train(net: Any) -> None:
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    with mx.autograd.record():
        loss = net(noise(STEPS, BATCH, INPUTS)).sum()
    loss.backward()
    trainer.step(1)


def initialize_anew(net: Any) -> None:
    net.initialize(mx.init.Uniform(0.9), force_reinit=True)


@pytest.mark.parametrize(
    "change",
    [
        refill,
        refill_in_place,
        refill_a_row,
        refill_an_element,
        refill_from_numpy,
        refill_by_an_operator,
        refill_in_bulk,
        train,
        initialize_anew,
    ],
)
def test_parameters_that_change_between_calls(change: Callable[[Any], None]) -> None:
    net = layer(bidirectional=True)
    refill(net, 7)
    fast = optimized(net)
    x = noise(STEPS, BATCH, INPUTS, seed=40)
    for _ in range(3):
        fast(x)
        change(net)
        equal(fast(x), net(x))
        refill(net, 30)
    equal(fast(x), net(x))
    assert packs() == 2


def test_writes_that_the_caller_holds_back() -> None:
    net = layer()
    fast = optimized(net)
    x = noise(STEPS, BATCH, INPUTS, seed=40)
    fast(x).wait_to_read()
    with mx.engine.bulk(100):
        for value in (0.5, -0.25, 0.125):
            for parameter in net.collect_params().values():
                parameter.data()[:] = value
            found = fast(x)
            equal(found, net(x))


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_weights_that_stay_are_packed_once(mode: str) -> None:
    net = layer()
    fast = optimized(net, mode=mode)
    x = noise(STEPS, BATCH, INPUTS, seed=40)
    first = [fast(x) for _ in range(2)][1]  # the second call looks at weights, as binding counts
    first.wait_to_read()
    weight = net.l0_h2h_weight.data()
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(weight.handle, ctypes.byref(address)))
    # Behind the engine's back, so that nothing notices it.
    ctypes.memset(address.value, 0, weight.size * 4)
    for _ in range(3):
        equal(fast(x), first)
    weight[:] = weight * 1
    equal(fast(x), net(x))
    assert abs(fast(x) - first).max().asscalar() > 1e-3


def test_shapes_and_views_share_what_is_packed() -> None:
    net = layer()
    views = [optimized(net), optimized(net)]
    feeds = [noise(STEPS, batch, INPUTS, seed=batch) for batch in (1, BATCH, 9)]
    for fast in views:
        for x in feeds:
            equal(fast(x), net(x))
            assert packs() == 1
    views.append(optimized(net, mode="inference"))
    views[-1](feeds[0])
    # MXNet's executor, which it was tried on, counts as a write to what it is bound to.
    for fast in views:
        for x in feeds if fast is not views[-1] else feeds[:1]:
            equal(fast(x), net(x))
    assert packs() == 1
    other = layer()  # of the same values
    fast = optimized(other)
    equal(fast(x), other(x))
    assert packs() == 1
    refill(other, 30)
    equal(fast(x), other(x))
    assert packs() == 2
    del fast, other
    assert packs() == 1
    for view in views:
        view.reset()
    assert packs() == 0


def test_contexts_share_what_is_packed() -> None:
    net = gluon.rnn.LSTM(UNITS, input_size=INPUTS)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    fast = optimized(net)
    for at in (0, 1):
        x = noise(STEPS, BATCH, INPUTS).as_in_context(mx.cpu(at))
        equal(fast(x), net(x))
    assert packs() == 1


def test_threads_that_call_one_net() -> None:
    net = layer()
    fast = optimized(net)
    feeds = [noise(STEPS, BATCH, INPUTS, seed=n) for n in range(6)]
    wanted = [net(x).asnumpy() for x in feeds]
    fast(feeds[0])
    errors: list[BaseException] = []

    def work(x: Any, want: Any) -> None:
        try:
            for _ in range(20):
                np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-5, atol=1e-6)
        except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(feeds, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert packs() == 1


def graph_of(text: str) -> Any:
    return with_types(
        parse(
            "graph g(%x: f32[5,3,8], param %h: f32[3,8], param %wx: f32[8,8],"
            f" param %wh: f32[8,8], param %b: f32[8]) {{ {text} }}"
        )
    )


def recurrence(wx: str = "%wx", h: str = "%h") -> str:
    return f'%y = {RECURRENCE}(%x, {h}, {wx}, %wh, %b) {{spec="{SPEC}"}}'


def test_matrices_that_the_graph_computes_are_packed_in_every_call() -> None:
    graph = graph_of(f"%w2 = _mul_scalar(%wx) {{scalar=0.5}} {recurrence('%w2')} return %y")
    feeds = random_feeds(graph)
    params = {name: value for name, value in feeds.items() if name != "x"}
    for frozen in (False, True):
        function = lower(graph, params, frozen=frozen)
        (found,) = function(x=feeds["x"])
        np.testing.assert_allclose(
            found.asnumpy(), reference.run(graph, feeds)[0], rtol=1e-5, atol=1e-6
        )
        # Frozen, they are parameters like others.
        assert keeping.runs_keeping(function.symbol) is frozen
        assert packs() == int(frozen)
        del function


def test_matrices_that_the_graph_writes_are_packed_in_every_call() -> None:
    graph = graph_of(f"{recurrence()} %u = sgd_mom_update(%wh, %wh, %wx) {{lr=0.1}} return %y, %u")
    assert not any(keeping.keeps(node) for node in keeping.keeping(graph))


def test_graphs_without_static_engines_keep_nothing() -> None:
    graph = graph_of(f"{recurrence()} return %y, %x")
    feeds = random_feeds(graph)
    params = {name: value for name, value in feeds.items() if name != "x"}
    assert not keeping.runs_keeping(lower(graph, params, frozen=False).symbol)
    assert not keeping.runs_keeping(lower(graph, params, training=True).symbol)


def test_other_builds_of_mxnet_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "fit", lambda _: False)
    graph = graph_of(f"{recurrence()} return %y")
    assert keeping.keeping(graph) is graph


def test_mxnet_plans_no_memory_for_kept_weights() -> None:
    graph = graph_of(f"{recurrence()} return %y")
    sizes = []
    for form in (graph, keeping.keeping(graph)):
        _, shapes, _ = to_symbol(form).get_internals().infer_shape(x=(5, 3, 8))
        sizes.append(shapes[-1][0])
    packed = bridge.load(mx).graphopt_kept_bytes(SPEC.encode(), 0, 0, 0) // 4
    assert packed >= 2 * 8 * 8
    assert sizes[0] - sizes[1] == packed


def test_a_spec_that_is_none_is_refused() -> None:
    library = bridge.load(mx)
    assert library.graphopt_kept_bytes(b"recurrence f32 nonsense", 0, 0, 0) == -1
    assert b"nonsense" in library.graphopt_error()


def test_gradients_of_a_frozen_net() -> None:
    net = layer()
    fast = optimized(net, mode="inference")
    x, y = noise(STEPS, BATCH, INPUTS), noise(STEPS, BATCH, INPUTS)
    for array, function in ((x, fast), (y, net)):
        array.attach_grad()
        with mx.autograd.record(train_mode=False):
            out = (function(array) ** 2).sum()
        out.backward()
    equal(x.grad, y.grad)


def test_explain_tells() -> None:
    net = layer(num_layers=2)
    fast = optimized(net)
    assert "packed once" not in fast.explain()
    fast(noise(STEPS, BATCH, INPUTS))
    assert "  weights: those of 2 recurrences are packed once and kept in 0.0" in fast.explain()
    assert "and packed again when they were written to" in fast.explain()


_LOADS = """
import sys
import graphopt, numpy as np, mxnet as mx
x = mx.nd.array(np.load(sys.argv[1]))
for prefix in sys.argv[2:]:
    files = prefix + "-symbol.json", ["data"], prefix + "-0000.params"
    np.save(prefix, mx.gluon.SymbolBlock.imports(*files)(x).asnumpy())
"""


def test_exported_files_keep_nothing(tmp_path: Path) -> None:
    net = layer(bidirectional=True)
    fast = optimized(net, mode="inference")
    x = noise(STEPS, BATCH, INPUTS, seed=40)
    want = fast(x).asnumpy()
    given, prefixes = tmp_path / "x.npy", [tmp_path / "plain", tmp_path / "kernels"]
    for prefix in prefixes:
        kernels = prefix.name == "kernels"
        fast.export(prefix, kernels=kernels)
        text = prefix.with_name(f"{prefix.name}-symbol.json").read_text()
        assert KEEPING not in text
        assert (RECURRENCE in text) is kernels
    np.save(given, x.asnumpy())
    subprocess.run([sys.executable, "-c", _LOADS, given, *prefixes], check=True)
    for prefix in prefixes:
        np.testing.assert_allclose(np.load(f"{prefix}.npy"), want, rtol=1e-5, atol=1e-6)
