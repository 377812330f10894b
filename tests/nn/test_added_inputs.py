"""Gradients behind a sum with what needs none, which MXNet's static CachedOp would lose."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn, autograd, gluon = mx.gluon.nn, mx.autograd, mx.gluon

Reader = Callable[[Any, Any], Any]
READERS: dict[str, Reader] = {
    "dot": lambda F, h: F.dot(h, F.ones((4, 4))),
    "dense": lambda F, h: F.FullyConnected(h, F.ones((4, 4)), num_hidden=4, no_bias=True),
    "softmax": lambda F, h: F.softmax(h),
    "topk": lambda F, h: F.topk(h, k=2, ret_typ="value"),
    "cumsum": lambda F, h: F.cumsum(h, axis=0),
    "exp": lambda F, h: F.exp(h),
}


class Added(nn.HybridBlock):
    """What a layer computes plus an input or a parameter, read by others."""

    def __init__(self, *readers: Reader, fixed: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self.readers, self.fixed = readers, fixed
        with self.name_scope():
            self.enter = nn.Dense(4, in_units=4, flatten=False)
            if fixed == "constant":
                self.shift = self.params.get_constant("shift", np.eye(4, dtype=np.float32))
            elif fixed:
                self.shift = self.params.get("shift", shape=(4, 4), grad_req=fixed)

    def hybrid_forward(self, F: Any, x: Any, given: Any, shift: Any = None) -> Any:
        h = self.enter(x) + (shift if self.fixed else given)
        return sum((reader(F, h) ** 2).sum() for reader in self.readers)


class AsPython(nn.Block):
    """The same, for recording."""

    def __init__(self, net: Added) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any, given: Any) -> Any:
        return self.net(x, given)


class Attention(nn.HybridBlock):
    """Queries, keys and values of what is embedded and has its place added."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.enter, self.query, self.key, self.value = (
                nn.Dense(4, in_units=4, flatten=False) for _ in range(4)
            )

    def hybrid_forward(self, F: Any, x: Any, place: Any) -> Any:
        h = self.enter(x) + place
        F = F.npx
        scores = F.batch_dot(self.query(h), self.key(h), transpose_b=True)
        return F.batch_dot(F.softmax(scores), self.value(h))


def initialized(net: Any) -> Any:
    net.initialize()
    for seed, parameter in enumerate(net.collect_params().values()):
        if not isinstance(parameter, gluon.Constant):
            values = np.random.default_rng(seed).normal(size=parameter.shape)
            array = mx.np.array if mx.util.is_np_array() else mx.nd.array
            parameter.set_data(array(values))
    return net


def gradients(net: Any, run: Any, shape: tuple[int, ...] = (4, 4), steps: int = 2) -> list[Any]:
    array = mx.np.array if mx.util.is_np_array() else mx.nd.array
    random = np.random.default_rng(7)
    x, given = (array(random.normal(size=shape), dtype="float32") for _ in range(2))
    for _ in range(steps):
        with autograd.record():
            loss = (run(x, given) ** 2).mean()
        loss.backward()
    parameters = net.collect_params().values()
    return [p.grad().asnumpy() for p in parameters if p.grad_req != "null"]


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    scale = max(np.abs(gradient).max() for gradient in wanted)  # one of a shifted softmax is zero
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * scale)


@contextmanager
def numpy_arrays() -> Iterator[None]:
    mx.npx.set_np()
    try:
        yield
    finally:
        mx.npx.reset_np()


@pytest.mark.parametrize("names", [*READERS, *itertools.permutations(READERS, 2)], ids=str)
def test_readers_of_a_sum_with_an_input(names: Any) -> None:
    readers = [READERS[name] for name in ([names] if isinstance(names, str) else names)]
    plain, net = (initialized(Added(*readers)) for _ in range(2))
    assert_same(gradients(net, graphopt.optimize(net)), gradients(plain, plain))


@pytest.mark.parametrize("fixed", ["", "constant", "null", "add", "write"])
@pytest.mark.parametrize("settings", [{}, {"passes": "none"}, {"memory": "1GB"}], ids=str)
def test_addends_of_every_kind(fixed: str, settings: dict[str, Any]) -> None:
    readers = READERS["dot"], READERS["topk"]
    plain, net = (initialized(Added(*readers, fixed=fixed)) for _ in range(2))
    assert_same(gradients(net, graphopt.optimize(net, **settings)), gradients(plain, plain))


def test_recorded_blocks() -> None:
    plain, net = (initialized(AsPython(Added(READERS["dot"], READERS["topk"]))) for _ in range(2))
    fast = graphopt.optimize(net, record=True)
    assert_same(gradients(net, fast, steps=6), gradients(plain, plain))


def test_numpy_arrays() -> None:
    with numpy_arrays():
        plain, net = initialized(Attention()), initialized(Attention())
        wanted = gradients(plain, plain, (2, 7, 4))
        assert_same(gradients(net, graphopt.optimize(net), (2, 7, 4)), wanted)


@pytest.mark.parametrize("fixed", ["constant", "null", "write"])
def test_training_steps(fixed: str) -> None:
    x, given, label = mx.nd.ones((4, 4)), mx.nd.ones((4, 4)), mx.nd.zeros((1,))
    found = []
    for is_fast in (False, True):
        net = initialized(Added(READERS["dot"], READERS["topk"], fixed=fixed))
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0})
        loss = gluon.loss.L2Loss()
        if is_fast:
            graphopt.train_step(net, loss, trainer)((x, given), label)
        else:
            with autograd.record():
                value = loss(net(x, given), label)
            value.backward()
        found.append([p.grad().asnumpy() for p in net.collect_params().values() if p._grad])
    assert_same(found[1], found[0])
