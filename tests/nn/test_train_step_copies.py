"""Copies of training steps, and of what they train: pickled, deep and shallow."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.train_step_support import (
    SMALL,
    Plain,
    assert_same,
    by_hand,
    layers,
    learned,
    noise,
    start,
)

mx = import_mxnet()
loss = mx.gluon.loss


@pytest.mark.parametrize("again", [copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_copies_learn_on(again: Callable[[Any], Any]) -> None:
    x, y = noise(4, 6), noise(4, 3, seed=1)
    for make in (layers, Plain):
        net = make()
        start(net)
        net.collect_params(".*bias").setattr("lr_mult", 0.1)
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
        step = graphopt.train_step(net, loss.L2Loss(), trainer)
        for _ in range(3):
            step(x, y)
        before = net.collect_params()
        before = {name: p.data().asnumpy() for name, p in before.items()}
        twin = again(step)
        told = [twin(x, y).asnumpy() for _ in range(3)]
        for name, p in net.collect_params().items():
            np.testing.assert_array_equal(p.data().asnumpy(), before[name])
        assert_same(told, [step(x, y).asnumpy() for _ in range(3)])
        assert (SMALL in twin.explain()) == (SMALL in step.explain()) == (make is layers)


def test_nets_and_losses_are_pickled_after_steps() -> None:
    net, x, y = layers(), noise(4, 6), noise(4, 3, seed=1)
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    l2 = loss.L2Loss()
    graphopt.train_step(net, l2, trainer)(x, y)
    twins = [pickle.loads(pickle.dumps(block)) for block in (net, l2)]
    want, found = (by[1](by[0](x), y).asnumpy() for by in ((net, l2), twins))
    np.testing.assert_array_equal(found, want)


def test_a_shallow_copy_has_the_same_net_and_trainer() -> None:
    net, x, y = layers(), noise(4, 6), noise(4, 3, seed=1)
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    step = graphopt.train_step(net, loss.L2Loss(), trainer)
    step(x, y)
    found = [learned(net, trainer, each(x, y)) for each in (copy.copy(step), step)]
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    by_hand(net, loss.L2Loss(), trainer, [x], [y])
    for each in found:
        losses = by_hand(net, loss.L2Loss(), trainer, [x], [y])
        assert_same(each, learned(net, trainer, losses))
