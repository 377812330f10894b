"""What a Block's Python does besides calling operators happens between the same of their calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import HigherOrderError
from graphopt.kernels.bridge import memory, versions

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd

STEPS = 5


class Called(mx.gluon.Block):
    """Calls a function with itself and its argument."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(prefix="net_")
        self.function = function
        with self.name_scope():
            self.dense = nn.Dense(3, in_units=3)
        self.state = mx.nd.ones((4, 3))
        self.kept: Any = None

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def gradients_of_each_loss(net: Any, x: Any) -> Any:
    with autograd.record():
        losses = [(net.dense(x) * (k + 1)).sum() for k in range(3)]
    norms = []
    for loss in losses:
        loss.backward(retain_graph=True)
        norms.append(net.dense.weight.grad().norm())
    return mx.nd.concat(*norms, dim=0)


def steps_of_a_trainer(net: Any, x: Any) -> Any:
    if net.kept is None:
        net.kept = graphopt.optimize(
            mx.gluon.Trainer(net.dense.collect_params(), "sgd", {"learning_rate": 0.1})
        )
    with autograd.record():
        loss = net.dense(x).sum()
    loss.backward()
    gradient = net.dense.weight.grad() * 1
    graphopt.clip_global_norm([net.dense.weight.grad()], 0.5)
    before = net.dense.weight.data() * 1
    net.kept.step(1)
    return mx.nd.concat(gradient, before, net.dense.weight.data() * 1, dim=0)


def pulled_values(net: Any, x: Any) -> Any:
    if net.kept is None:
        net.kept = mx.kv.create("local")
        net.kept.init(3, net.state)
    net.kept.push(3, x.mean() * mx.nd.ones((4, 3)))
    found = net.state * 1
    net.kept.pull(3, out=net.state)
    return found


def seeds(net: Any, x: Any) -> Any:
    found = []
    for _ in range(2):
        mx.random.seed(7)
        found.append(mx.nd.random.uniform(shape=(2, 3)) + x[:2])
    return mx.nd.concat(*found, dim=0)


def values_of_numpy(net: Any, x: Any) -> Any:
    found = net.state * 2
    net.state._sync_copyfrom(np.full((4, 3), 5, np.float32))
    return found + x


@pytest.mark.parametrize("record", [True, None])
@pytest.mark.parametrize(
    "function",
    [gradients_of_each_loss, steps_of_a_trainer, pulled_values, seeds, values_of_numpy],
)
def test_order(function: Any, record: bool | None) -> None:
    found = []
    for optimize in (lambda net: net, lambda net: graphopt.optimize(net, record=record)):
        net = Called(function)
        net.initialize(mx.init.Constant(0.3))
        called = optimize(net)
        found.append([called(mx.nd.ones((4, 3)) * step).asnumpy() for step in range(STEPS)])
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def row_of_a_state(net: Any, x: Any) -> Any:
    with autograd.pause():
        row = net.state[0]
    found = mx.nd.tanh(net.dense(x) - row)
    with autograd.pause():
        net.state[0] = net.state[0] * 0.5 + x.mean(axis=0) * 0.5
    return found


def written_through_a_view(net: Any, x: Any) -> Any:
    found = mx.nd.tanh(net.dense(x) - net.state)
    with autograd.pause():
        rows = net.state[0:2]
        rows[:] = rows * 0.5 + x[:2] * 0.5
    return found


def state_of_numpy(net: Any, x: Any) -> Any:
    found = mx.nd.tanh(net.dense(x) - net.state)
    net.state._sync_copyfrom(x.asnumpy())
    return found


def state_of_an_optimizer(net: Any, x: Any) -> Any:
    found = mx.nd.tanh(net.dense(x) - net.state)
    if net.kept is None:
        net.kept = mx.nd.zeros((4, 3))
    with autograd.pause():
        mx.nd.sgd_mom_update(net.kept, x, net.state, lr=0.1, momentum=0.5, out=net.kept)
    return found


@pytest.mark.parametrize("record", [True, None])
@pytest.mark.parametrize(
    "function", [row_of_a_state, written_through_a_view, state_of_numpy, state_of_an_optimizer]
)
def test_gradients_of_two_calls(function: Any, record: bool | None) -> None:
    found = []
    for optimize in (lambda net: net, lambda net: graphopt.optimize(net, record=record)):
        net = Called(function)
        net.initialize(mx.init.Constant(0.3))
        called, gradients = optimize(net), []
        for step in range(2 * STEPS):
            x = mx.nd.arange(12).reshape((4, 3)) / (10 + step)
            with autograd.record():
                loss = called(x).sum() + called(x * 3).sum()
            loss.backward()
            gradients.append(net.dense.weight.grad().asnumpy())
        found.append(gradients)
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_memory_is_known_before_anything_is_recorded() -> None:
    """Whether this MXNet tells it is tried out on arrays, once in a process."""
    versions._is_laid_out.cache_clear()
    memory._functions.cache_clear()
    test_gradients_of_two_calls(written_through_a_view, record=True)
    assert memory._functions(mx) is not None or not versions.fit(mx)


def test_gradients_that_are_added_up() -> None:
    def clipped(net: Any, x: Any) -> Any:
        weight = net.dense.weight.data()
        with autograd.pause():
            mx.nd.clip(weight, -0.2, 0.2, out=weight)
        return net.dense(x)

    net = Called(clipped)
    net.initialize(mx.init.One())
    net.collect_params().setattr("grad_req", "add")
    fast = graphopt.optimize(net, record=True)
    for _ in range(STEPS):
        with autograd.record():
            loss = fast(mx.nd.ones((2, 3))).sum()
        loss.backward()
    assert (net.dense.weight.grad().asnumpy() == 2 * STEPS).all()


@pytest.mark.parametrize("settings", [{}, {"record": True}])
def test_what_a_block_raises_is_raised_once(settings: dict[str, Any]) -> None:
    def queued(net: Any, x: Any) -> Any:
        net.kept = [*(net.kept or []), x * 2]
        if len(net.kept) < 4:
            raise ValueError("four are needed")
        return mx.nd.concat(*net.kept[-4:], dim=0).mean()

    fast = graphopt.optimize(Called(queued), **settings)
    for step in range(3):
        with pytest.raises(ValueError, match="four are needed"):
            fast(mx.nd.ones((1, 3)) * step)
    assert fast(mx.nd.ones((1, 3)) * 3).asscalar() == 3


def test_what_is_kept_by_a_call_that_raises() -> None:
    def kept(net: Any, x: Any) -> Any:
        raise LookupError(net.dense(x))

    net = Called(kept)
    net.initialize(mx.init.One())
    fast = graphopt.optimize(net, record=True)
    with pytest.raises(LookupError) as caught, autograd.record():
        fast(mx.nd.ones((2, 3)))
    (found,) = caught.value.args
    net.dense.weight.set_data(mx.nd.zeros((3, 3)))
    found.backward()
    assert (found.asnumpy() == 3).all()
    assert (net.dense.weight.grad().asnumpy() == 2).all()


def test_operators_without_a_gradient() -> None:
    def shuffled(net: Any, x: Any) -> Any:
        return net.dense(x) + mx.nd.shuffle(mx.nd.arange(4)).sum()

    net = Called(shuffled)
    net.initialize(mx.init.One())
    fast = graphopt.optimize(net, record=True)
    for _ in range(2):
        with autograd.record():
            loss = fast(mx.nd.ones((2, 3))).sum()
        loss.backward()
        assert loss.asscalar() == 2 * 3 * (3 + 6)
        assert (net.dense.weight.grad().asnumpy() == 2).all()


def test_a_scope_of_shapes_within() -> None:
    @mx.util.use_np
    class Scaled(mx.gluon.Block):
        def forward(self, x: Any) -> Any:
            return x * x.sum() + 1

    fast = graphopt.optimize(Scaled(), record=True)
    x = mx.np.array([[1.0, 2.0]])
    x.attach_grad()
    assert fast(x).tolist() == [[4, 7]]
    with autograd.record():
        y = fast(x)
    with mx.util.np_shape(True):
        y.backward()
    assert x.grad.tolist() == [[6, 6]]


def penalized(net: Any, x: Any) -> Any:
    """A critic's score, and the penalty of WGAN-GP."""
    x = x.copy()
    x.attach_grad()
    with autograd.record():
        score = mx.nd.sigmoid(net.dense(x))
        (slope,) = autograd.grad(score, [x], create_graph=True, retain_graph=True)
        return score.mean() + ((slope**2 - 1) ** 2).mean()


def test_gradients_of_gradients() -> None:
    found = []
    for optimize in (lambda net: net, graphopt.optimize):
        net = Called(penalized)
        net.initialize(mx.init.Constant(0.3))
        called, gradients = optimize(net), []
        for step in range(STEPS):
            with autograd.record():
                loss = called(mx.nd.arange(12).reshape((4, 3)) / (10 + step))
            loss.backward()
            gradients.append(net.dense.weight.grad().asnumpy())
        found.append(gradients)
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    assert "as it fails recorded: autograd.grad(create_graph=True)" in called.explain()
    with pytest.raises(HigherOrderError, match="within a recorded Block"), autograd.record():
        graphopt.optimize(net, record=True)(mx.nd.ones((4, 3)))


def test_threads_that_a_block_starts() -> None:
    def pooled(net: Any, x: Any) -> Any:
        h = net.dense(x)
        tasks = [pool.submit(lambda k: mx.nd.tanh(h * k).sum(axis=1), k) for k in range(1, 5)]
        y = h + 1
        for _ in range(20):
            y = y * 1.01
        return mx.nd.stack(*[task.result() for task in tasks]).sum(axis=0).expand_dims(1) + y

    net = Called(pooled)
    net.initialize(mx.init.Constant(0.3))
    fast = graphopt.optimize(net, record=True)
    with ThreadPoolExecutor(4) as pool:
        for step in range(60):
            x = mx.nd.ones((4, 3)) * step / 60
            np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-5)
