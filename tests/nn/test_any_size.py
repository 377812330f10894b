"""Sizes that a net was not compiled for are run by a graph that was compiled for others."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import choosing
from graphopt.backend.any_size import REGIONS
from graphopt.backend.choice import CONVOLUTION_KERNELS
from graphopt.compat import import_mxnet
from graphopt.nn import any_size
from tests.nn.any_size_nets import NETS
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn


@pytest.fixture(autouse=True)
def sizes_are_compiled() -> None:
    """Not here."""


SIZES = [(4, 6), (3, 5), (5, 7), (2, 9), (4, 4), (7, 3), (3, 6)]


def net_and_plain(name: str, mode: str = "auto") -> tuple[Any, Any]:
    make, _ = NETS[name]
    plain = make()
    plain.initialize(mx.init.Normal(0.4), force_reinit=True)
    return graphopt.optimize(plain, mode=mode), plain


def compiled(net: Any) -> int:
    return len(net._graphopt_entries())


def tried(net: Any) -> list[any_size.AnySize]:
    return net.graphopt_state.compiled.other_sizes.graphs


def calls(net: Any) -> int:
    return sum(graph.calls for graph in tried(net))


def assert_right(net: Any, plain: Any, call: tuple[Any, ...]) -> None:
    expected, found = plain(*call).asnumpy(), net(*call).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("preferred")
@pytest.mark.parametrize(
    ("mode", "name"), one_of(3, itertools.product(["auto", "inference"], NETS))
)
def test_two_sizes_do_for_all(name: str, mode: str) -> None:
    net, plain = net_and_plain(name, mode)
    _, call = NETS[name]
    for _ in range(2):
        for size in SIZES:
            assert_right(net, plain, call(*size))
    assert compiled(net) == 2
    assert calls(net) == 2 * (len(SIZES) - 2)
    assert "ran a graph for any size, 0 as in MXNet" in net.explain()
    assert_right(net, plain, call(1, 6))  # never seen with a batch of one
    assert_right(net, plain, call(1, 1))


class Regions(mx.gluon.HybridBlock):
    """Two regions of convolutions, with something between them that has none in it."""

    def __init__(self) -> None:
        super().__init__(prefix="regions_")
        with self.name_scope():
            self.first = nn.Conv2D(16, 3, padding=1, in_channels=3)
            self.second = nn.Conv2D(24, 3, padding=1, strides=2, in_channels=16)
            self.norm = nn.BatchNorm(in_channels=24)
            self.side = nn.Conv2D(24, 1, strides=2, in_channels=16)
            self.last = nn.Conv2D(8, 3, in_channels=24)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = F.relu(self.first(x))
        x = F.relu(self.norm(self.second(x)) + self.side(x))
        x = F.broadcast_mul(x, F.softmax(F.mean(x, axis=1, keepdims=True), axis=3))
        return F.Pooling(self.last(x), kernel=(2, 2), stride=(2, 2), pool_type="max")


@pytest.fixture
def in_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions run in blocked layout."""
    monkeypatch.setattr(
        choosing, "race", lambda engines, *_: {n: float(n != CONVOLUTION_KERNELS) for n in engines}
    )
    monkeypatch.setattr(choosing, "remembered", lambda _key: None)
    monkeypatch.setattr(choosing, "remember", lambda *_: None)


def image(batch: int, height: int, width: int) -> Any:
    rng = np.random.default_rng(batch + 10 * height + 1000 * width)
    return mx.nd.array(rng.normal(size=(batch, 3, height, width)))


IMAGES = [(1, 20, 24), (2, 23, 31), (1, 40, 25), (3, 17, 60), (2, 64, 64), (1, 21, 22)]


@pytest.mark.usefixtures("preferred", "in_regions")
def test_regions_of_convolutions_are_made_for_each_size() -> None:
    plain = Regions()
    plain.initialize(mx.init.Normal(0.3))
    net = graphopt.optimize(plain)
    for _ in range(2):
        for size in IMAGES:
            assert_right(net, plain, (image(*size),))
    assert compiled(net) == 2
    assert calls(net) == 2 * (len(IMAGES) - 2)
    assert REGIONS in net.explain()
    (entry,) = (graph._entry for graph in tried(net))
    made = entry.lowered.at_any_size._by_size
    assert {shapes[0] for shapes in made} >= {image(*size).shape for size in IMAGES[2:]}
    with pytest.raises((mx.MXNetError, graphopt.errors.GraphoptError)):
        net(image(1, 2, 2)).asnumpy()
    assert_right(net, plain, (image(2, 30, 30),))


@pytest.mark.usefixtures("preferred", "in_regions")
def test_regions_of_other_sizes_follow_parameters() -> None:
    plain = Regions()
    plain.initialize(mx.init.Normal(0.3))
    net = graphopt.optimize(plain)
    for size in IMAGES:
        assert_right(net, plain, (image(*size),))
    for parameter in plain.collect_params().values():
        parameter.set_data(parameter.data() * 1.1)
    for _ in range(12):
        for size in IMAGES[2:4]:
            assert_right(net, plain, (image(*size),))


def test_a_second_size_is_worth_what_calls_of_all_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where compiling takes long, one of a kind is compiled; two may show a graph for all."""
    net, plain = net_and_plain("mlp")
    _, call = NETS["mlp"]
    assert_right(net, plain, call(*SIZES[0]))
    rule = net.graphopt_state.compiled.renting.rule
    monkeypatch.setattr(rule, "_compiling", 100.0)
    for size in SIZES[1:4]:
        assert_right(net, plain, call(*size))
    assert compiled(net) == 1
    ((kind, seconds),) = rule._kinds.items()
    assert seconds > 0
    monkeypatch.setitem(rule._kinds, kind, 100.0)
    assert_right(net, plain, call(*SIZES[4]))
    assert compiled(net) == 2
    assert not rule._kinds


def test_what_compiling_saves_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that others use misleads once; the middle of several looks counts."""
    told = iter([0.5, 0.6, 0.98, 0.97, 0.99])  # of the time, by what is compiled

    def in_turns(ways: Mapping[str, Any], _arrays: Sequence[Any]) -> dict[str, float]:
        if "compiled" in ways:
            return {name: next(told) if name == "compiled" else 1.0 for name in ways}
        return {name: 1 - at / 10 for at, name in enumerate(ways)}

    monkeypatch.setattr(any_size, "_in_turns", in_turns)
    monkeypatch.setattr(any_size, "CALLS_OF_A_TRIAL", 0)
    net, plain = net_and_plain("encoder")
    _, call = NETS["encoder"]
    saved = []
    for batch in range(2, 10):
        assert_right(net, plain, call(batch, 5))
        saved += [graph.saved for graph in tried(net)]
    np.testing.assert_allclose(saved, [0.4, 0.4, *[0.03] * (len(saved) - 2)], atol=1e-9)
    assert len(saved) >= 5
    assert compiled(net) < 8
    assert "compiled saves 3%" in net.explain()


def test_what_is_made_for_a_size_has_to_pay() -> None:
    rule = any_size._BySize.of({REGIONS: 1.0, "kernels": 3.0}, 3.0, {REGIONS: 6.0})
    assert rule is not None
    assert [rule.is_due((1, size)) for size in (5, 7, 5, 7, 5, 9)] == [False] * 4 + [True, False]
    assert any_size._BySize.of({REGIONS: 1.0, "kernels": 1.05}, 1.05, {REGIONS: 6.0}) is None
    assert any_size._BySize.of({"kernels": 1.0}, 1.0, {}) is None


@pytest.mark.usefixtures("preferred")
@pytest.mark.parametrize("name", NETS)
def test_gradients(name: str) -> None:
    net, plain = net_and_plain(name)
    _, call = NETS[name]
    for size in SIZES:
        given = call(*size)
        grads, x = [], given[0]
        x.attach_grad()
        for run in (plain, net):
            with mx.autograd.record():
                loss = (run(*given) ** 2).mean()
            loss.backward()
            learned = [p for p in plain.collect_params().values() if p.grad_req != "null"]
            grads.append([x.grad.asnumpy(), *(p.grad().asnumpy() for p in learned)])
        for mine, theirs in zip(grads[1], grads[0], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
    if name not in ("cnn", "mlp"):  # one operation each
        assert compiled(net) == 2
        assert calls(net) == len(SIZES) - 2


@pytest.mark.usefixtures("preferred")
def test_parameters_are_followed() -> None:
    net, plain = net_and_plain("encoder")
    _, call = NETS["encoder"]
    for size in SIZES:
        assert_right(net, plain, call(*size))
        for parameter in plain.collect_params().values():
            parameter.set_data(parameter.data() * 1.1)
    for parameter in plain.collect_params().values():  # other arrays
        parameter.reset_ctx(mx.cpu(0))
        parameter.initialize(mx.init.Normal(0.3), force_reinit=True)
    for size in SIZES:
        assert_right(net, plain, call(*size))
    assert calls(net) > 0


@pytest.mark.usefixtures("preferred")
def test_parameters_of_another_dtype_have_no_graph_given_up() -> None:
    plain = nn.HybridSequential()
    plain.add(nn.Embedding(7, 4), nn.Dense(3, flatten=False, in_units=4, activation="tanh"))
    plain.initialize()
    net = graphopt.optimize(plain)
    for dtype in ("float32", "float64", "float32"):
        plain.cast(dtype)  # words are float32 all the time
        for length in (6, 8, 7, 9, 11):
            assert_right(net, plain, (mx.nd.ones((2, length)),))
    assert calls(net) == 6
    assert "given up" not in net.explain()


@pytest.mark.usefixtures("preferred")
def test_one_that_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    net, plain = net_and_plain("encoder")
    _, call = NETS["encoder"]
    for size in SIZES[:3]:
        assert_right(net, plain, call(*size))
    assert calls(net) == 1

    def fails(*_: Any) -> Any:
        raise mx.MXNetError("no such size\nand a stack")

    monkeypatch.setattr(any_size.AnySize, "run", fails)
    for size in SIZES[:5]:
        assert_right(net, plain, call(*size))
    assert "at any size: given up: no such size" in net.explain()


class IgnoresMask(mx.gluon.HybridBlock):
    """Takes an argument that it does not read, as nets that share a signature do."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.out = nn.Dense(4, in_units=6)

    def hybrid_forward(self, F: Any, x: Any, mask: Any) -> Any:
        return F.tanh(self.out(x))


@pytest.mark.usefixtures("preferred")
@pytest.mark.parametrize("training", [False, True])
def test_arguments_that_are_not_read(training: bool) -> None:
    plain = IgnoresMask()
    plain.initialize(mx.init.Normal(0.5))
    net = graphopt.optimize(plain)
    for rows in (32, 16, 8, 4, 8):
        call = mx.nd.random.normal(shape=(rows, 6)), mx.nd.ones((rows + 1,))
        slopes = []
        for block in (net, plain):
            with mx.autograd.record(train_mode=training) if training else mx.autograd.pause():
                out = block(*call)
            if training:
                out.backward()
            slopes.append([out.asnumpy(), plain.out.weight.grad().asnumpy()])
        for found, expected in zip(*slopes, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert calls(net) == 3


@pytest.mark.usefixtures("preferred")
def test_wrong_arguments_give_up_nothing() -> None:
    net, plain = net_and_plain("encoder")
    _, call = NETS["encoder"]
    for size in SIZES[:2]:
        assert_right(net, plain, call(*size))
    wrong = mx.nd.ones((12, 5, 7))
    for _ in range(2):  # before it is tried, and after
        with pytest.raises((mx.MXNetError, graphopt.errors.GraphoptError)):
            net(wrong).asnumpy()
        for size in SIZES:
            assert_right(net, plain, call(*size))
    assert calls(net) == 2 * (len(SIZES) - 2)


@pytest.mark.usefixtures("preferred")
def test_mistaken_sizes_of_a_pair() -> None:
    class Sum(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
            return F.elemwise_add(x * 2, y)

    plain = Sum()
    net = graphopt.optimize(plain)

    def call(rows: int, others: int) -> tuple[Any, ...]:
        return mx.nd.ones((rows, 5)), mx.nd.ones((others, 5))

    for rows in (4, 6, 7):
        assert_right(net, plain, call(rows, rows))
    with pytest.raises((mx.MXNetError, graphopt.errors.GraphoptError)):
        net(*call(3, 5)).asnumpy()
    assert_right(net, plain, call(9, 9))
    assert calls(net) == 2


@pytest.mark.usefixtures("preferred")
def test_one_that_is_wrong_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run_once = any_size.run_once

    def wrong(way: Any, data: Any) -> Any:
        once = run_once(way, data)
        if way.name == any_size.PLAIN:
            return once
        return replace(once, values={k: a + 1 for k, a in once.values.items()})

    monkeypatch.setattr(any_size, "run_once", wrong)
    net, plain = net_and_plain("encoder")
    _, call = NETS["encoder"]
    for size in SIZES:
        assert_right(net, plain, call(*size))
    assert calls(net) == 0
    assert not any(graph.runs for graph in tried(net))
    assert "kernels: " in net.explain()


def test_one_that_is_slow_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_turns(ways: Mapping[str, Any], _arrays: Sequence[Any]) -> dict[str, float]:
        return {name: 0.1 if name == "compiled" else 1.0 for name in ways}

    monkeypatch.setattr(any_size, "_in_turns", in_turns)
    monkeypatch.setattr(any_size, "CALLS_OF_A_TRIAL", 0)
    net, plain = net_and_plain("encoder")
    _, call = NETS["encoder"]
    for size in SIZES:
        assert_right(net, plain, call(*size))
    assert compiled(net) == len(SIZES)
    assert calls(net) == 0


@pytest.mark.usefixtures("preferred")
def test_sizes_that_a_graph_has_in_it_are_no_others() -> None:
    class Wide(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
            return F.broadcast_add(x, y) * 2

    plain = Wide()
    net = graphopt.optimize(plain)

    def call(rows: int, other: int) -> tuple[Any, ...]:
        return mx.nd.ones((rows, 5)), mx.nd.arange(other * 5).reshape((other, 5))

    for rows, other in [(4, 4), (6, 6), (5, 1), (5, 5), (1, 7), (7, 7), (3, 1)]:
        assert_right(net, plain, call(rows, other))


@pytest.mark.usefixtures("preferred")
def test_loaded_models(tmp_path: Path) -> None:
    _, plain = net_and_plain("encoder")
    _, call = NETS["encoder"]
    plain.hybridize()
    plain(*call(*SIZES[0]))
    plain.export(str(tmp_path / "net"))
    model = graphopt.load(tmp_path / "net-symbol.json", tmp_path / "net-0000.params")
    for _ in range(2):
        for size in SIZES:
            assert_right(model, plain, call(*size))
    assert len(model.receipts()) == 2
    told = model.explain()
    more = len(SIZES) - 2
    assert f"{2 * more} calls with {more} more types of inputs" in told
    assert f"{2 * more} ran a graph for any size, 0 as in MXNet" in told
    assert "at any size: as in MXNet" in told
    for size in SIZES:
        assert_right(pickle.loads(pickle.dumps(model)), plain, call(*size))


@pytest.mark.usefixtures("preferred")
def test_loaded_models_without_their_labels() -> None:
    dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    model = graphopt.optimize(mx.sym.SoftmaxOutput(dense, name="softmax"))
    weight, bias = mx.nd.arange(12).reshape((3, 4)) / 10, mx.nd.array([1, 0, -1])
    model.params.update(fc_weight=weight, fc_bias=bias)
    for rows in (2, 5, 3, 7):
        x = mx.nd.arange(rows * 4).reshape((rows, 4)) / 10
        want = mx.nd.softmax(mx.nd.FullyConnected(x, weight, bias, num_hidden=3))
        np.testing.assert_allclose(model(x).asnumpy(), want.asnumpy(), rtol=1e-5)
    assert "at any size" in model.explain()


@pytest.mark.usefixtures("preferred")
def test_threads() -> None:
    net, plain = net_and_plain("lstm")
    _, call = NETS["lstm"]
    for size in SIZES[:3]:
        assert_right(net, plain, call(*size))
    wrong: list[int] = []

    def run(start: int) -> None:
        for steps in range(start, start + 20):
            given = call(3 + steps % 5, steps)
            found, expected = net(*given).asnumpy(), plain(*given).asnumpy()
            if not np.allclose(found, expected, rtol=1e-4, atol=1e-4):
                wrong.append(steps)

    threads = [threading.Thread(target=run, args=(2 + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert calls(net) > 0


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_random_numbers_are_those_of_the_seed(mode: str) -> None:
    class Noisy(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x + F.random.normal_like(x)) * 2 + F.tanh(x)

    plain = Noisy()
    net = graphopt.optimize(plain, mode=mode)
    found = []
    for called in (plain, net):
        mx.random.seed(7)
        outputs = [called(mx.nd.ones((rows, 5))).asnumpy() for rows in (4, 4, *range(5, 20), 4)]
        found.append(np.concatenate(outputs))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
