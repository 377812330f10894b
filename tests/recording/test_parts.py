"""Programs of which a loss reads some results: what it does not reach stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.batching.operators import handle
from graphopt.compat import import_mxnet
from graphopt.recording.calls import Call
from graphopt.recording.parts import MOST, shares

mx = import_mxnet()
nn, nd, autograd = mx.gluon.nn, mx.nd, mx.autograd


class TwoHeads(mx.gluon.Block):
    """A trunk; a head; a BatchNorm and a head."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.trunk = nn.Dense(4, in_units=3)
            self.norm = nn.BatchNorm(in_channels=4)
            self.a, self.b = nn.Dense(2, in_units=4), nn.Dense(2, in_units=4)

    def forward(self, x: Any) -> Any:
        h = nd.relu(self.trunk(x))
        return self.a(h), self.b(self.norm(h))


class ToLookAt(mx.gluon.Block):
    """Scores, and probabilities whose gradient hangs on no loss."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.trunk = nn.Dense(4, in_units=3)

    def forward(self, x: Any) -> Any:
        h = self.trunk(x)
        return h, nd.SoftmaxOutput(h, nd.zeros((x.shape[0],)))


class Decoded(mx.gluon.Block):
    """Words' scores, and a state."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.trunk, self.out = nn.Dense(4, in_units=3), nn.Dense(5, in_units=4)

    def forward(self, x: Any) -> Any:
        state = nd.tanh(self.trunk(x))
        return self.out(state), state


class Layers(mx.gluon.Block):
    """Keeps what each of many layers makes, to look at."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.layers = nn.Sequential()
            for _ in range(MOST + 3):
                self.layers.add(nn.Dense(3, in_units=3, activation="tanh"))

    def forward(self, x: Any) -> Any:
        self.kept = []
        for layer in self.layers:
            x = layer(x)
            self.kept.append(nd.softmax(x))
        return x, x * 2


class ApartBehind(mx.gluon.Block):
    """A head that reads the other one's result, detached."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.a, self.b = nn.Dense(4, in_units=3), nn.Dense(2, in_units=4)

    def forward(self, x: Any) -> Any:
        h = self.a(x)
        return h, self.b(h.detach())


def steps(kind: Callable[..., Any], wrap: Callable[[Any], Any], read: str) -> list[Any]:
    """What parameters and gradients are behind steps whose losses read one result each."""
    net = kind(prefix="net_")
    net.initialize(mx.init.Constant(0.1))
    called = wrap(net)
    rates = {"learning_rate": 0.01, "momentum": 0.9, "wd": 0.1}
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", rates)
    rng = np.random.default_rng(0)
    for result in read:
        x = nd.array(rng.normal(size=(5, 3)))
        with autograd.record():
            loss = (called(x)[int(result)] ** 2).sum()
        loss.backward()
        trainer.step(1, ignore_stale_grad=True)
    parameters = net.collect_params().values()
    found = [p.data().asnumpy() for p in parameters]
    return found + [p.grad().asnumpy() for p in parameters if p.grad_req != "null"]


@pytest.mark.parametrize("kind", [TwoHeads, ToLookAt, Decoded, ApartBehind])
@pytest.mark.parametrize("read", ["000001", "110100", "01" * 8])
def test_heads_learn_in_turns(kind: Callable[..., Any], read: str) -> None:
    wanted = steps(kind, lambda net: net, read)
    found = steps(kind, lambda net: graphopt.optimize(net, record=True), read)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_what_is_kept_of_many_layers_does_not_take_a_program_each() -> None:
    fast: list[Any] = []

    def optimized(net: Any) -> Any:
        fast.append(graphopt.optimize(net, record=True))
        return fast[0]

    wanted = steps(Layers, lambda net: net, "0000")
    for got, want in zip(steps(Layers, optimized, "0000"), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert "1 of them compiled first" in fast[0].explain()


def call(*args: int, op: str = "tanh") -> Call:
    return Call(handle(op), (), (), args, 1)


def test_one_result_is_one_program() -> None:
    assert shares([call(-1, -2), call(0, -3)], (1,), [False, True, True]) is None


def test_where_nothing_shows_no_program_is_cut() -> None:
    dense, left, right = call(-1, -2), call(0), call(0)
    assert shares([dense, left, right], (1, 2), [False, True]) is None


def test_calls_go_with_what_they_read() -> None:
    trunk, between, left, right = call(-1, -2), call(0), call(1, -3), call(1, -4)
    found = shares([trunk, between, left, right], (2, 3), [False, True, True, True])
    assert found == [((0, 1), (1,)), ((2,), (2,)), ((3,), (3,))]


def test_parts_that_read_each_other_run_call_by_call() -> None:
    first, second = (call(n, op="BlockGrad")._replace(is_detach=True) for n in (0, 2))
    calls = [call(-1, -2), first, call(1, -3), second]
    calls += [call(0, 3, -2)]  # leads to the last, as the first call, and reads the third
    assert shares(calls, (2, 4), [False, True, True]) == []


def test_what_is_only_kept_makes_no_parts() -> None:
    trunk, kept, head = call(-1, -2), call(0, op="softmax"), call(1, -3)
    learned = [False, True, True]
    assert shares([trunk, kept, head], (1, 2), learned, {2}) is None
    found = shares([trunk, kept, head], (1, 2), learned, {1, 2})
    assert found == [((0, 1), (1,)), ((2,), (2,))]


def test_a_kept_result_that_all_returned_ones_miss_makes_parts() -> None:
    trunk, left, right = call(-1, -2), call(0, -3), call(0, -4)
    found = shares([trunk, left, right], (1, 2), [False, True, True, True], {1})
    assert found is not None
    assert len(found) == 3


class Views(Decoded):
    """Scores, and its state seen another way."""

    def forward(self, x: Any) -> Any:
        scores, state = super().forward(x)
        return scores, state.reshape((-1, 2))


class Behind(ApartBehind):
    """One result, of which no gradient comes to what is detached."""

    def forward(self, x: Any) -> Any:
        return (self.b(self.a(x).detach()),)


class Pyramid(mx.gluon.Block):
    """Returns what each of many layers makes."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.layers = nn.Sequential()
            for _ in range(MOST + 2):
                self.layers.add(nn.Dense(3, in_units=3, activation="tanh"))

    def forward(self, x: Any) -> Any:
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        return found


class Blocked(ApartBehind):
    """A head behind ``BlockGrad``, which lets zeros through."""

    def forward(self, x: Any) -> Any:
        h = self.a(x)
        return h, self.b(nd.BlockGrad(h))


class NoParameters(mx.gluon.Block):
    """Of what it is given a result, and one whose gradient hangs on no loss."""

    def forward(self, h: Any) -> Any:
        return h * 2, nd.SoftmaxOutput(h, nd.zeros((h.shape[0],)))


@pytest.mark.filterwarnings("ignore:Gradient of Parameter")
def test_what_is_detached_keeps_its_gradients() -> None:
    found = []
    for wrap in (lambda net: net, lambda net: graphopt.optimize(net, record=True)):
        net = Behind(prefix="net_")
        net.initialize(mx.init.Constant(0.1))
        net.a.weight.grad()[:] = 7
        called = wrap(net)
        for _ in range(4):
            with autograd.record():
                loss = (called(nd.ones((5, 3)))[0] ** 2).sum()
            loss.backward()
        found.append([net.a.weight.grad().asnumpy(), net.b.weight.grad().asnumpy()])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("kind", [Views, Pyramid, Blocked])
@pytest.mark.parametrize("read", ["0000", "010110"])
def test_results_that_are_hard_to_tell_apart(kind: Callable[..., Any], read: str) -> None:
    wanted = steps(kind, lambda net: net, read)
    found = steps(kind, lambda net: graphopt.optimize(net, record=True), read)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_block_without_parameters_behind_a_trunk() -> None:
    found = []
    for wrap in (lambda block: block, lambda block: graphopt.optimize(block, record=True)):
        trunk, inner = nn.Dense(4, in_units=3), wrap(NoParameters())
        trunk.initialize(mx.init.Constant(0.1))
        for _ in range(3):
            with autograd.record():
                loss = (inner(trunk(nd.ones((5, 3))))[0] ** 2).sum()
            loss.backward()
        found.append(trunk.weight.grad().asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-5)
