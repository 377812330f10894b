"""Recorded values have a gradient to what they have one to call by call, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.recording.nets import array, block, programs

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd

WAYS = [{"record": True}, {}]


def compared(make: Callable[[], Any], train: Callable[[Any], list[Any]], **settings: Any) -> Any:
    """What training leaves behind is what it does without graphopt; gives the optimized net."""
    found = []
    for is_fast in (False, True):
        mx.random.seed(3)
        net = make()
        call = graphopt.optimize(net, **settings) if is_fast else net
        left = train(call)
        left += [p.data() for p in net.collect_params().values()]
        found.append([array.asnumpy() for array in left])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    return call


def moving() -> Any:
    """A layer that keeps a mean of all that it saw."""

    def forward(self, x):
        y = self.dense(x)
        mean = y.mean(axis=0, keepdims=True)
        self.mean = 0.9 * self.mean + 0.1 * mean
        return self.last(y - mean)

    net = block(forward, dense=nn.Dense(4, in_units=5), last=nn.Dense(2, in_units=4))
    net.mean = mx.nd.zeros((1, 4))
    return net


@pytest.mark.parametrize("settings", WAYS, ids=str)
@pytest.mark.parametrize("forwards", [1, 2])
def test_a_mean_that_is_kept_from_call_to_call(settings: dict[str, Any], forwards: int) -> None:
    kept = []

    def make() -> Any:
        net = moving()
        for parameter in net.collect_params().values():
            parameter.grad_req = "add"
        kept.append(net)
        return net

    def train(call: Any) -> list[Any]:
        trainer = mx.gluon.Trainer(call.collect_params(), "sgd", {"learning_rate": 0.01})
        for _ in range(14):
            with autograd.record():
                losses = [(call(array(3, 5) * (n + 1)) ** 2).sum() for n in range(forwards)]
            for loss in losses:
                loss.backward()
            trainer.step(1)
            call.collect_params().zero_grad()
        return [kept[-1].mean]

    fast = compared(make, train, **settings)
    if settings:
        assert len(programs(fast).entries) in (1, 2)


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_a_state_that_is_handed_on_detached(settings: dict[str, Any]) -> None:
    def forward(self, x, h):
        y = mx.nd.tanh(self.dense(mx.nd.concat(x, h, dim=1)))
        return y, y.detach()

    def train(call: Any) -> list[Any]:
        trainer = mx.gluon.Trainer(call.collect_params(), "sgd", {"learning_rate": 0.1})
        for parameter in call.collect_params().values():
            parameter.grad_req = "add"
        h = mx.nd.zeros((2, 4))
        for _ in range(12):
            losses = []
            with autograd.record():
                for _ in range(3):
                    y, h = call(array(2, 4), h)
                    losses.append((y**2).sum())
            for loss in losses:
                loss.backward()
            trainer.step(1)
            call.collect_params().zero_grad()
        return [h]

    compared(lambda: block(forward, dense=nn.Dense(4, in_units=8)), train, **settings)


def test_writes_to_arrays_that_were_made_within() -> None:
    def forward(self, x):
        fixed, moved = mx.nd.zeros((2, 4)), x * 2
        y = self.dense(x)
        fixed[0] = y[0].detach()
        fixed[:, :2] += 1
        moved += 1
        return y * fixed + moved

    def train(call: Any) -> list[Any]:
        for _ in range(3):
            with autograd.record():
                loss = call(array(2, 4)).sum()
            loss.backward()
        return [p.grad() for p in call.collect_params().values()]

    compared(lambda: block(forward, dense=nn.Dense(4, in_units=4)), train, record=True)


def test_results_of_different_arrays() -> None:
    def forward(self, query, key, value):
        weights = mx.nd.softmax(mx.nd.dot(self.query(query), self.key(key), transpose_b=True))
        self.weights = weights
        return mx.nd.dot(weights, self.value(value)), self.value(value * 2)

    def train(call: Any) -> list[Any]:
        sources = [mx.nd.ones((4, 4)) * n for n in (1, 2, 3)]
        for source in sources:
            source.attach_grad()
        left = []
        for wanted in (0, 1):
            with autograd.record():
                given = [mx.nd.sin(source) * array(4, 4) for source in sources]
                if wanted:  # these are used up
                    given[0].sum().backward()
                    given[1].sum().backward()
                loss = (call(*given)[wanted] ** 2).sum()
            loss.backward()
            left += [source.grad.copy() for source in sources]
        return left

    layers = ("query", "key", "value")
    compared(
        lambda: block(forward, **{name: nn.Dense(4, in_units=4) for name in layers}),
        train,
        record=True,
    )


@pytest.mark.parametrize("settings", WAYS, ids=str)
def test_a_detached_input_whose_history_is_used_up(settings: dict[str, Any]) -> None:
    def train(call: Any) -> list[Any]:
        source = mx.nd.ones((2, 4))
        source.attach_grad()
        for _ in range(12):
            with autograd.record():
                given = mx.nd.sin(source)
                other = given * 2
                other.sum().backward()
                loss = call(other, array(2, 4)).sum()
            loss.backward()
        return [p.grad() for p in call.collect_params().values()] + [source.grad]

    def forward(self, x, y):
        return self.dense(x.detach()) + y

    compared(lambda: block(forward, dense=nn.Dense(4, in_units=4)), train, **settings)
