"""Results with infinite slopes that no loss reads: zero times infinity is in no gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.batching.operators import handle
from graphopt.compat import import_mxnet
from graphopt.recording.calls import Call
from graphopt.recording.parts import MOST, shares

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd


@pytest.fixture(params=["nd", "np"])
def numbers(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An interface, and everything else as it wants it."""
    if request.param == "np":
        mx.npx.set_np()
    yield getattr(mx, request.param)
    mx.npx.reset_np()


class Net(mx.gluon.Block):
    """Scores, and beside them something that is a root of zero for a row of zeros."""

    def __init__(self, numbers: Any, beside: Callable[..., Any], **more: Any) -> None:
        super().__init__(**more)
        self.numbers, self.beside = numbers, beside
        with self.name_scope():
            self.trunk = nn.Dense(2, in_units=2, use_bias=False)
            self.out = nn.Dense(1, in_units=2)

    def forward(self, x: Any) -> Any:
        return self.beside(self, self.numbers, x * 1, self.trunk(x))


def root(numbers: Any, h: Any) -> Any:
    return numbers.sqrt((h * h).sum(axis=-1))


def kept(net: Net, numbers: Any, x: Any, h: Any) -> Any:
    net.norm = root(numbers, h)
    return net.out(h)


def returned(net: Net, numbers: Any, x: Any, h: Any) -> Any:
    return net.out(h), root(numbers, h)


def kept_ones(net: Net, numbers: Any, x: Any, h: Any) -> Any:
    net.norms = [root(numbers, h * number) for number in range(1, MOST + 3)]
    return net.out(h)


def of_data(net: Net, numbers: Any, x: Any, h: Any) -> Any:
    return net.out(h) + x.sum(), root(numbers, x), x * 2


def looked_at(net: Net, numbers: Any, x: Any, h: Any) -> Any:
    norm, doubled = root(numbers, h), h * 2
    return net.out(doubled if norm.asnumpy().sum() > 0 else h), doubled, norm


def beside_what_is_lost(net: Net, numbers: Any, x: Any, h: Any) -> Any:
    root(numbers, net.trunk(h))
    return net.out(h), h


@pytest.mark.parametrize(
    "beside", [kept, returned, kept_ones, of_data, looked_at, beside_what_is_lost]
)
def test_gradients_beside_an_infinite_slope(numbers: Any, beside: Callable[..., Any]) -> None:
    found = []
    for is_optimized in (False, True):
        net = Net(numbers, beside, prefix="net_")
        net.initialize(mx.init.Constant(0.5))
        called = graphopt.optimize(net, record=True) if is_optimized else net
        for _ in range(4):
            x = numbers.array([[1.0, 2.0], [0.0, 0.0]])
            x.attach_grad()
            with autograd.record():
                made = called(x)
                scores = made[0] if isinstance(made, tuple) else made
                loss = (scores * scores).sum()
            loss.backward()
            found.append([x.grad.asnumpy(), net.trunk.weight.grad().asnumpy()])
    for got in found[1:]:
        for one, other in zip(got, found[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("read", [0, 1])
def test_without_parameters(numbers: Any, read: int) -> None:
    class Norms(mx.gluon.Block):
        def forward(self, x: Any) -> Any:
            h = x * 1
            return h * 2 + x, root(numbers, h)

    found = []
    for block in (Norms(), graphopt.optimize(Norms(), record=True)):
        for _ in range(3):
            x = numbers.array([[1.0, 2.0], [3.0, 0.0]] if read else [[1.0, 2.0], [0.0, 0.0]])
            x.attach_grad()
            with autograd.record():
                loss = block(x)[read].sum()
            loss.backward()
            found.append(x.grad.asnumpy())
    for got in found[1:]:
        np.testing.assert_allclose(got, found[0], rtol=1e-5, atol=1e-6)


def test_many_norms_beside_a_head_that_is_lost() -> None:
    class Heads(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.trunk = nn.Dense(3, in_units=3)
                self.lost = nn.BatchNorm(in_channels=3)
                self.out = nn.Dense(2, in_units=3)

        def forward(self, x: Any) -> Any:
            h = self.trunk(x)
            other = self.lost(h)
            self.norms = [mx.nd.norm(h * number) for number in range(1, MOST)]
            h.wait_to_read()
            return self.out(h), other

    x = mx.nd.array([[1, 2, 3], [3, 4, 5]])
    for is_optimized in (False, True):
        net = Heads()
        net.initialize(mx.init.One())
        called = graphopt.optimize(net, record=True) if is_optimized else net
        for _ in range(3):
            net.lost.gamma.grad()[:] = 7
            with autograd.record():
                loss = called(x)[0].sum()
            loss.backward()
        np.testing.assert_allclose(net.lost.gamma.grad().asnumpy(), 7, atol=1e-6)
        np.testing.assert_allclose(net.lost.running_mean.data().asnumpy(), 0, atol=1e-6)


def call(*args: int, op: str = "tanh") -> Call:
    return Call(handle(op), (), (), args, 1)


def test_a_root_that_is_kept_is_apart() -> None:
    trunk, square, kept, head = call(-1, -2), call(0), call(1, op="sqrt"), call(0, -3)
    found = shares([trunk, square, kept, head], (2, 3), [False, True, True], {3})
    assert found == [((0, 3), (0, 3)), ((1, 2), (2,))]


def test_a_root_that_leads_to_all_results_is_not() -> None:
    trunk, inner, kept, head = call(-1, -2), call(0, op="sqrt"), call(1), call(1, -3)
    assert shares([trunk, inner, kept, head], (2, 3), [False, True, True], {3}) is None


def test_slopes_behind_drawn_numbers_alone_do_not_count() -> None:
    trunk, noise, drawn = call(-1, -2), call(op="_random_uniform"), call(1, op="log")
    scores, noisy = call(0, -3), call(3, 2, op="elemwise_add")
    calls = [trunk, noise, drawn, scores, noisy]
    assert shares(calls, (3, 4), [False, True, True], {3, 4}) is None


def test_slopes_do_not_keep_draws_from_one_program() -> None:
    noise, trunk = call(op="_random_uniform"), call(-1, -2)
    noisy, kept = call(1, 0, op="elemwise_add"), call(1, op="sqrt")
    other = call(op="_random_uniform")
    beside, head = call(3, 4, op="elemwise_add"), call(2, -3)
    calls = [noise, trunk, noisy, kept, other, beside, head]
    assert shares(calls, (5, 6), [False, True, True], {6}) is None
