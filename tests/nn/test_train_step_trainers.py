"""``graphopt.train_step`` with trainers that do more than their own updates, or know of others."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.train_step_support import SMALL, assert_same, by_hand, layers, learned, noise, start

mx = import_mxnet()
loss = mx.gluon.loss


def test_parameters_of_which_the_trainer_knows_others() -> None:
    """Then MXNet tells which gradient is old, or leaves some parameters as they are."""
    net = layers()
    start(net)
    other = mx.gluon.Parameter("other", shape=(2,))
    other.initialize()
    x, y = noise(4, 6), noise(4, 3, seed=1)
    more = mx.gluon.Trainer([*net.collect_params().values(), other], "sgd")
    with pytest.raises(UserWarning, match="other"):
        graphopt.train_step(net, loss.L2Loss(), more)(x, y)
    fewer = mx.gluon.Trainer(net[1].collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(net, loss.L2Loss(), fewer)
    before = [p.data().asnumpy() for p in (net[0].weight, net[1].weight)]
    for _ in range(3):
        step(x, y)
    assert_same([net[0].weight.data().asnumpy()], before[:1])
    assert np.abs(net[1].weight.data().asnumpy() - before[1]).max() > 1e-4
    assert SMALL not in step.explain()


def test_a_parameter_that_is_given_twice() -> None:
    """A step of ours tells of its gradient as MXNet does, however often it is taken."""
    found = []
    x, y = noise(4, 6), noise(4, 3, seed=1)
    for is_plain in (True, False):
        net = layers()
        start(net)
        params = [*net.collect_params().values()]
        trainer = mx.gluon.Trainer(params + params[:1], "sgd", {"learning_rate": 0.1})
        plain = partial(by_hand, net, loss.L2Loss(), trainer, [x], [y])
        fast = partial(graphopt.train_step(net, loss.L2Loss(), trainer), x, y)
        for _ in range(3):
            with pytest.raises(UserWarning, match=params[0].name):
                (plain if is_plain else fast)()
        found.append([p.data().asnumpy() for p in params])
    assert_same(found[1], found[0])


class Warming(mx.gluon.Trainer):  # type: ignore[misc, name-defined]
    """Sets its rate in every step."""

    steps = 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.steps += 1
        self.set_learning_rate(0.1 * self.steps)
        super().step(*args, **kwargs)


class Reducing(mx.gluon.Trainer):  # type: ignore[misc, name-defined]
    """Gets gradients from elsewhere, as Horovod's does."""

    def _allreduce_grads(self) -> None:
        for p in self._params:
            p.grad()[:] *= 3


@mx.kvstore.KVStoreBase.register
class Tripling(mx.kvstore.KVStoreBase):  # type: ignore[misc, name-defined]
    """Adds up gradients that three workers would have."""

    type, rank, num_workers = "tripling", 0, 1

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        pass

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        for array in value:
            array[:] *= 3

    @staticmethod
    def is_capable(capability: str) -> bool:
        return False


OWN_STEPS = [
    (Warming, {}, "the trainer has a method step of its own"),
    (Reducing, {}, "the trainer has a method _allreduce_grads of its own"),
    (mx.gluon.Trainer, {"kvstore": Tripling}, "the trainer has a key-value store"),
]


@pytest.mark.parametrize("is_optimized", [False, True], ids=["plain", "optimized"])
@pytest.mark.parametrize(("kind", "options", "reason"), OWN_STEPS, ids=["step", "reduce", "store"])
def test_what_a_trainers_step_does_besides(
    kind: Any, options: Any, reason: str, is_optimized: bool
) -> None:
    net, x, y = layers(), noise(4, 6), noise(4, 3, seed=1)
    results = []
    for is_fast in (False, True):
        start(net)
        given = {name: make() for name, make in options.items()}
        trainer = kind(net.collect_params(), "sgd", {"learning_rate": 0.1}, **given)
        if is_fast:
            given = graphopt.optimize(trainer) if is_optimized else trainer
            step = graphopt.train_step(net, loss.L2Loss(), given)
            found = [step(x, y) for _ in range(4)]
            assert reason in step.explain()
        else:
            found = [by_hand(net, loss.L2Loss(), trainer, [x], [y]) for _ in range(4)]
        results.append(learned(net, trainer, mx.nd.stack(*found)))
    assert_same(results[1], results[0])


def test_steps_and_stores_that_come_later() -> None:
    """Of a trainer whose steps were one operation."""
    net, x, y = layers(), noise(4, 6), noise(4, 3, seed=1)
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(net, loss.L2Loss(), trainer)
    for _ in range(3):
        step(x, y)
    assert SMALL in step.explain()
    trainer._kvstore_params |= {"kvstore": Tripling()}
    trainer._reset_kvstore()
    gradients = []
    for _ in range(2):
        before = net[0].weight.data().copy()
        step(x, y)
        gradients.append(net[0].weight.grad().copy())
        assert_same(
            [net[0].weight.data().asnumpy()], [(before - 0.1 / 4 * gradients[-1]).asnumpy()]
        )
    assert isinstance(trainer._kvstore, Tripling)
    calls: list[int] = []
    trainer.step = lambda size: calls.append(size)
    step(x, y)
    assert calls == [4]
    assert SMALL not in step.explain()


def test_what_the_trainer_does_not_have_gets_gradients_once_it_asks() -> None:
    net, found = layers(), []
    bias = net[0].bias
    for is_fast in (False, True):
        start(net)
        bias.grad_req = "null"
        learning = [p for p in net.collect_params().values() if p is not bias]
        trainer = mx.gluon.Trainer(learning, "sgd", {"learning_rate": 0.1})
        step = graphopt.train_step(net, loss.L2Loss(), trainer)
        if not is_fast:
            step = lambda x, y, t=trainer: by_hand(net, loss.L2Loss(), t, [x], [y])  # noqa: E731
        for turn in range(6):
            if turn == 3:
                assert not is_fast or SMALL in step.explain()
                bias.grad_req = "write"
            losses = step(noise(4, 6, seed=turn), noise(4, 3, seed=turn))
        found.append(learned(net, trainer, losses))
    assert_same(found[1], found[0])
