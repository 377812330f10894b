"""graphopt.batch: a Tree-LSTM on trees of every shape, against running it sample by sample."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import check, initialized, rand, same

mx = import_mxnet()
nn = mx.gluon.nn


class Update(mx.gluon.HybridBlock):
    """Child-sum Tree-LSTM, a node."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        with self.name_scope():
            self.x = nn.Dense(3 * hidden, in_units=width)
            self.h = nn.Dense(3 * hidden, in_units=hidden, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        enter, leave, update = F.split(self.x(x) + self.h(h), num_outputs=3, axis=1)
        c = F.sigmoid(enter) * F.tanh(update) + c
        return F.sigmoid(leave) * F.tanh(c), c


class Forget(mx.gluon.HybridBlock):
    """Child-sum Tree-LSTM, an edge."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        with self.name_scope():
            self.x = nn.Dense(hidden, in_units=width)
            self.h = nn.Dense(hidden, in_units=hidden, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        return F.sigmoid(self.x(x) + self.h(h)) * c


class Node:
    def __init__(self, x: Any) -> None:
        self.x = x
        self.children: list[Node] = []


class TreeLSTM(mx.gluon.Block):
    def __init__(self, width: int = 6, hidden: int = 4) -> None:
        super().__init__()
        self.hidden = hidden
        with self.name_scope():
            self.update, self.forget = Update(width, hidden), Forget(width, hidden)
            self.score = nn.Dense(3, in_units=2 * hidden)

    def visit(self, node: Node) -> tuple[Any, Any]:
        below = [self.visit(child) for child in node.children]
        if below:
            h = mx.nd.add_n(*[h for h, _ in below])
            c = mx.nd.add_n(*[self.forget(node.x, h, c) for h, c in below])
        else:
            h = c = mx.nd.zeros((1, self.hidden))
        return self.update(node.x, h, c)

    def forward(self, left: Node, right: Node) -> Any:
        a, b = self.visit(left)[0], self.visit(right)[0]
        return self.score(mx.nd.concat(mx.nd.abs(a - b), a * b, dim=1))


def tree(rng: random.Random, size: int, width: int = 6) -> Node:
    nodes = [Node(rand(1, width)) for _ in range(size)]
    for at in range(1, size):
        nodes[rng.randrange(at)].children.append(nodes[at])
    return nodes[0]


def trees(count: int, seed: int = 0) -> list[tuple[Node, Node]]:
    rng = random.Random(seed)
    np.random.seed(seed)
    return [(tree(rng, rng.randint(1, 9)), tree(rng, rng.randint(1, 9))) for _ in range(count)]


@pytest.fixture
def lstm() -> Any:
    return initialized(TreeLSTM())


@pytest.mark.parametrize("hybridize", [False, True])
def test_recursive_tree_lstm(hybridize: bool) -> None:
    net = initialized(TreeLSTM())
    if hybridize:
        net.hybridize()
    batched = check(net, trees(7))
    assert batched.statistics.groups < 60
    assert "not batched" not in batched.explain()


def test_every_order_of_samples(lstm: Any) -> None:
    batched = graphopt.batch(lstm)
    samples = trees(4)
    each = [lstm(*sample) for sample in samples]
    for order in itertools.permutations(range(4)):
        found = batched([samples[at] for at in order])
        same(found, mx.nd.concat(*[each[at] for at in order], dim=0), 1e-5)


def test_one_sample_and_the_same_sample_many_times(lstm: Any) -> None:
    samples = trees(1)
    check(lstm, samples)
    batched = check(lstm, samples * 5)
    assert batched.statistics.mean_batch > 5


def test_no_sample(lstm: Any) -> None:
    assert graphopt.batch(lstm)([]) == []
    assert graphopt.batch(lstm, debug=True)([]) == []


def test_a_smaller_and_a_larger_batch_in_turn(lstm: Any) -> None:
    batched = graphopt.batch(lstm)
    for count in (3, 1, 6, 3):
        samples = trees(count, seed=count)
        same(batched(samples), graphopt.batch(lstm, debug=True)(samples), 1e-5)


def test_trainer_and_loss_outside(lstm: Any) -> None:
    batched = graphopt.batch(lstm)
    samples, labels = trees(6), mx.nd.array([0, 1, 2, 0, 1, 2])
    trainer = mx.gluon.Trainer(lstm.collect_params(), "adam", {"learning_rate": 0.05})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for _ in range(12):
        with mx.autograd.record():
            loss = loss_of(batched(samples), labels)
        loss.backward()
        trainer.step(6)
        losses.append(float(loss.mean().asscalar()))
    assert losses[-1] < 0.5 * losses[0]
    assert batched.statistics.cache_hits == 1


def test_nothing_is_left_behind(lstm: Any) -> None:
    register, autograd = mx.ndarray.register, mx.autograd
    before = (
        register._imperative_invoke,
        autograd.set_recording,
        mx.nd.NDArray.__setitem__,
        mx.gluon.HybridBlock.__call__,
    )
    graphopt.batch(lstm)(trees(2))
    after = (
        register._imperative_invoke,
        autograd.set_recording,
        mx.nd.NDArray.__setitem__,
        mx.gluon.HybridBlock.__call__,
    )
    assert before == after
