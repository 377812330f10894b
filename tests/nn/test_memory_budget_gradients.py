"""Training within a budget: same values, gradients and states, whatever is computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.budgets import both, check, deep, image, least, near

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def test_a_step_has_the_same_gradients_and_states() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record():
            out = net(image())
            loss = (out**2).sum()
        loss.backward()
        return [out]

    check(both(deep(), run))


def test_several_steps_with_a_trainer() -> None:
    def run(net: Any) -> list[Any]:
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
        losses = []
        for step in range(3):
            with autograd.record():
                loss = (net(image(seed=step)) ** 2).sum()
            loss.backward()
            trainer.step(8)
            losses.append(loss)
        return losses

    check(both(deep(3), run))


def test_two_calls_before_one_backward() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record():
            one, two = net(image(seed=1)), net(image(seed=2))
            loss = (one * two).sum() + (one**2).sum()
        loss.backward()
        return [one, two]

    check(both(deep(3), run))


def test_gradients_of_inputs() -> None:
    net, x = deep(3), image()
    net(x)
    budget = least(net) + 2 * 4 * x.size
    x.attach_grad()

    def run(net: Any) -> list[Any]:
        with autograd.record():
            loss = (net(x * 2) ** 2).sum()
        loss.backward()
        return [x.grad]

    check(both(net, run, budget))


def test_gradients_that_are_added() -> None:
    net = deep(3)
    net(image())
    for p in net.collect_params().values():
        if p.grad_req == "write":
            p.grad_req = "add"

    def run(which: Any) -> list[Any]:
        for step in range(2):
            with autograd.record():
                loss = (which(image(seed=step)) ** 2).sum()
                loss = loss + which(image(seed=step + 5)).sum()
            loss.backward()
        return []

    check(both(net, run))


def test_frozen_parameters_get_no_gradient() -> None:
    net = deep(3)
    net(image())
    frozen = net[0].weight
    frozen.grad_req = "null"

    def run(which: Any) -> list[Any]:
        with autograd.record():
            loss = (which(image()) ** 2).sum()
        loss.backward()
        return []

    check(both(net, run))


def test_gradients_asked_for_by_name_leave_the_others() -> None:
    net = deep(3)
    net(image())
    weight = net[0].weight

    def run(which: Any) -> list[Any]:
        with autograd.record():
            loss = (which(image()) ** 2).sum()
        (gradient,) = autograd.grad(loss, [weight.data()])
        return [gradient]

    check(both(net, run))


def test_a_call_inside_another_record_scope() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record():
            one = net(image(seed=1))
            with autograd.pause():
                apart = net(image(seed=2))
            with autograd.record():
                two = net(image(seed=3))
            loss = (one * apart).sum() + (two**2).sum()
        loss.backward()
        return [one, apart, two]

    check(both(deep(3), run))


def test_recording_without_training() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record(train_mode=False):
            loss = (net(image()) ** 2).sum()
        loss.backward()
        return [loss]

    check(both(deep(3), run))


def test_dropout_has_one_mask_for_forward_and_backward() -> None:
    net = deep(3, dropout=0.5)
    net(image())
    fast = graphopt.optimize(net, memory=least(net))
    with autograd.record():
        out = fast(image())
    out.backward()
    # Linear in the last layer: its gradient is what came in, and that is not masked anew.
    last = net[-1]
    want = (out - last.bias.data()).asnumpy().sum()
    got = (last.weight.grad() * last.weight.data()).asnumpy().sum()
    assert got == pytest.approx(want, rel=1e-4)


def test_new_parameters_are_followed() -> None:
    net = deep(3)
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    for seed in range(3):
        mx.random.seed(seed)
        net.initialize(mx.init.Xavier(), force_reinit=True)
        with autograd.record():
            loss = (fast(image()) ** 2).sum()
            want = (net(image()) ** 2).sum()
        loss.backward()
        got = net[0].weight.grad().asnumpy().copy()
        want.backward()
        np.testing.assert_allclose(got, net[0].weight.grad().asnumpy(), rtol=1e-3, atol=5e-3)


def test_a_net_of_symbols_has_a_budget_too() -> None:
    net = deep(3)
    net(image())
    symbol = net(mx.sym.var("data"))
    params = {name: p.data().copy() for name, p in net.collect_params().items()}
    fast = graphopt.optimize(symbol, memory="1GB")
    for name, value in params.items():
        fast.params[name] = value
        if not name.endswith(("mean", "var")):
            value.attach_grad()
    fast._data = ["data"]
    with autograd.record():
        loss = (fast(image()) ** 2).sum()
        want = (net(image()) ** 2).sum()
    loss.backward()
    want.backward()
    name = net[0].weight.name
    np.testing.assert_allclose(
        params[name].grad.asnumpy(), net[0].weight.grad().asnumpy(), rtol=1e-3, atol=1e-4
    )


def test_one_array_under_two_names_gets_the_sum_of_its_gradients() -> None:
    x, a, b = (mx.sym.var(name) for name in ("data", "a", "b"))
    both_of = mx.sym.dot(mx.sym.tanh(mx.sym.dot(x, a)), b)
    weight = mx.nd.array(np.random.default_rng(0).normal(size=(4, 4)))
    weight.attach_grad()
    model = graphopt.optimize(both_of, memory="1GB")
    model.params |= {"a": weight, "b": weight}
    model._data = ["data"]
    rows = mx.nd.array(np.random.default_rng(1).normal(size=(3, 4)))
    found = []
    for run in (model, lambda x: mx.nd.dot(mx.nd.tanh(mx.nd.dot(x, weight)), weight)):
        with autograd.record():
            loss = (run(rows) ** 2).sum()
        loss.backward()
        found.append(weight.grad.asnumpy().copy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_inference_is_not_touched() -> None:
    net = deep(3)
    x = image()
    want = net(x).asnumpy()
    fast = graphopt.optimize(net, memory="1kB")
    np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-4, atol=1e-5)


def test_numpy_arrays_go_in_and_out() -> None:
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.Dense(2))
    net.initialize()
    with mx.util.np_array(True):
        x = mx.np.ones((3, 5))
        fast = graphopt.optimize(net, memory="1GB")
        with autograd.record():
            found = fast(x)
        found.backward()
    assert isinstance(found, mx.np.ndarray)


def test_a_budget_on_two_contexts() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = deep(3)
    net(image())
    net.collect_params().reset_ctx(contexts)
    parts = mx.gluon.utils.split_and_load(image(), contexts)
    fast = graphopt.optimize(net, memory=least(net, parts[0]))
    found = []
    for which in (net, fast):
        for _ in range(2):
            with autograd.record():
                losses = [(which(part) ** 2).sum() for part in parts]
            autograd.backward(losses)
        params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        found.append([array.asnumpy() for p in params for array in p.list_grad()])
    near((found[0], found[1]))
    assert fast.explain().count("computed again") == 2


def test_outputs_that_are_one_value_have_gradients_of_their_own() -> None:
    class Twice(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(4, in_units=6)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            y = F.tanh(self.dense(x))
            return y, y, x, x

    net = Twice()
    net.initialize()
    x = mx.nd.array(np.random.default_rng(0).normal(size=(5, 6)))
    x.attach_grad()
    found = []
    for which in (net, graphopt.optimize(net, memory="1GB")):
        with autograd.record():
            loss = sum((out**2).sum() * (n + 1) for n, out in enumerate(which(x)))
        loss.backward()
        found.append([x.grad.asnumpy().copy(), net.dense.weight.grad().asnumpy().copy()])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_training_mode_without_gradients_uses_statistics_of_the_batch() -> None:
    net = deep(layers=1)
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.train_mode():
        want, got = net(image()).asnumpy(), fast(image()).asnumpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


class Twice(mx.gluon.HybridBlock):
    """Equal results of equal operators, which MXNet's executors compute once."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.rows = mx.gluon.nn.Embedding(5, 3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = [self.rows(F.tanh(x) * 0 + x) for _ in range(3)]
        return (*rows, F.relu(self.rows(x)), F.relu(self.rows(x)))


@pytest.mark.parametrize(
    "options", [{"precise": True}, {"passes": "none"}, {}], ids=["precise", "none", "default"]
)
def test_equal_results_have_gradients_each(options: dict[str, Any]) -> None:
    net = Twice()
    net.initialize(mx.init.Xavier())
    fast = graphopt.optimize(net, memory="1GB", **options)
    x = mx.nd.array([1, 2, 4])
    found = []
    for which in (net, fast):
        with autograd.record():
            results = which(x)
            loss = sum((k * result**2).sum() for k, result in enumerate(results, 1))
        loss.backward()
        gradient = net.rows.weight.grad().asnumpy().copy()
        found.append([gradient, *(result.asnumpy() for result in results)])
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
