"""graphopt.train_step of nets that have largest shapes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, InputError
from tests.nn.train_step_support import assert_same, by_hand, layers, learned, noise, start

mx = import_mxnet()
nn = mx.gluon.nn


class Tagger(mx.gluon.HybridBlock):
    """Scores of each step of sequences."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.hidden = nn.Dense(8, in_units=6, flatten=False, activation="tanh")
            self.scores = nn.Dense(3, in_units=8, flatten=False)

    def hybrid_forward(self, F: Any, x: Any, mask: Any = None) -> Any:
        hidden = self.hidden(x)
        return self.scores(hidden if mask is None else F.broadcast_mul(hidden, mask))


class Apart(mx.gluon.HybridBlock):
    """A loss whose label shares no extent with the data but the samples."""

    def hybrid_forward(self, F: Any, scores: Any, label: Any) -> Any:
        return F.mean(F.square(scores), axis=(1, 2)) + F.sum(label, axis=1)


def compared(
    net: Any, loss_of: Any, batches: Any, limits: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Train by hand and by steps, within limits, on batches of data and labels; the step."""
    results = []
    for is_fast in (False, True):
        start(net)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        if is_fast:
            fast = graphopt.optimize(net, **options) if options else net
            step = graphopt.train_step(fast, loss_of, trainer, **limits or {})
            found = [step(*batch) for batch in batches]
        else:
            found = [by_hand(net, loss_of, trainer, *batch) for batch in batches]
        results.append(learned(net, trainer, mx.nd.concat(*found, dim=0)))
    assert_same(results[1], results[0])
    return step


def pools(step: Any) -> Any:
    (whole,) = step._wholes.values()
    return whole.graphopt_state.compiled._memory.pools(mx.cpu())


@pytest.mark.parametrize("options", [{}, {"memory": "50MB"}])
def test_the_net_s_input_is_called_as_in_its_own_calls(options: dict[str, Any]) -> None:
    batches = [([noise(n, 6, seed=n)], [noise(n, 3, seed=n + 9)]) for n in (4, 8, 2, 4)]
    loss_of = mx.gluon.loss.L2Loss()
    step = compared(layers(), loss_of, batches, max_shapes={"data": (8, 6)}, **options)
    assert len(pools(step)) == 1
    with pytest.raises(InputError, match=r"'data' has shape \(9, 6\).*nothing was run"):
        step(noise(9, 6), noise(9, 3))


def test_labels_grow_with_steps_and_samples() -> None:
    batches = [
        ([noise(n, t, 6, seed=n)], [noise(n, t, seed=t).round() % 3, noise(n, 1, 1, seed=n)])
        for n, t in ((4, 5), (8, 10), (2, 7))
    ]
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    compared(Tagger(), loss_of, batches, max_shapes={"data": (8, 10, 6)})


def test_labels_may_have_any_other_extents() -> None:
    batches = [
        ([noise(n, t, 6, seed=n)], [noise(n, width, seed=t)])
        for n, t, width in ((4, 5, 2), (8, 10, 9), (2, 7, 1))
    ]
    compared(Tagger(), Apart(), batches, max_shapes={"data": (8, 10, 6)})


def test_several_inputs_keep_their_names() -> None:
    batches = [
        ([noise(n, t, 6, seed=n), noise(n, t, 1, seed=t)], [noise(n, t, 3, seed=t)])
        for n, t in ((4, 5), (8, 10), (2, 7))
    ]
    limits = {"data0": (8, 10, 6), "data1": (8, 10, 1)}
    compared(Tagger(), mx.gluon.loss.L2Loss(), batches, max_shapes=limits)


class Halved(mx.gluon.HybridBlock):
    """A loss whose label has half as many columns as there are steps."""

    def hybrid_forward(self, F: Any, scores: Any, label: Any) -> Any:
        twice = F.repeat(label, repeats=2, axis=1)
        return F.mean(F.square(F.sum(scores, axis=2) - twice), axis=1)


def test_labels_that_grow_otherwise_are_asked_for_by_name() -> None:
    batches = [
        ([noise(n, 2 * t, 6, seed=n)], [noise(n, t, seed=t)]) for n, t in ((4, 2), (8, 5), (2, 3))
    ]
    with pytest.raises(InputError, match=r"others of 'label' \(\(8, 2\)\) vary, give the largest"):
        compared(Tagger(), Halved(), batches, max_shapes={"data": (8, 10, 6)})
    compared(Tagger(), Halved(), batches, max_shapes={"data": (8, 10, 6), "data1": (8, 5)})


HALVES = [
    ([noise(n, 2 * t, 6, seed=n)], [noise(n, t, seed=t)]) for n, t in ((4, 2), (8, 5), (2, 3))
]


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, {"max_shapes": {"data": (8, 10, 6), "label": (8, 5)}}),
        ({"max_shapes": {"data": (8, 10, 6)}}, {"max_shapes": {"label": (8, 5)}}),
        (
            {"memory": "1MB", "max_shapes": {"data": (8, 10, 6), "data1": (8, 9)}},
            {"memory": "50MB", "max_shapes": {"label": (8, 5)}},
        ),
    ],
)
def test_a_step_has_limits_of_its_own(options: dict[str, Any], limits: dict[str, Any]) -> None:
    step = compared(Tagger(), Halved(), HALVES, limits, **options)
    assert len(pools(step)) == 1
    for again in (step, copy.deepcopy(step)):
        with pytest.raises(InputError, match=r"'label' has shape \(8, 6\).*allows \(8, 5\)"):
            again(noise(8, 10, 6), noise(8, 6))


def test_several_labels_are_numbered() -> None:
    batches = [
        ([noise(n, t, 6, seed=n)], [noise(n, t, seed=t).round() % 3, noise(n, 1, 1, seed=n)])
        for n, t in ((4, 5), (8, 10), (2, 7))
    ]
    largest = {"data": (8, 10, 6), "label0": (8, 10), "label1": (8, 1, 1)}
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    step = compared(Tagger(), loss_of, batches, {"max_shapes": largest})
    with pytest.raises(InputError, match=r"'label1' has shape \(9, 1, 1\)"):
        step(noise(8, 10, 6), [noise(8, 10), noise(9, 1, 1)])


def test_a_budget_is_of_the_step() -> None:
    batches = [([noise(n, 6, seed=n)], [noise(n, 3, seed=n + 9)]) for n in (4, 8)]
    loss_of = mx.gluon.loss.L2Loss()
    assert len(pools(compared(layers(), loss_of, batches, {"memory": "50MB"}))) == 1
    with pytest.raises(BudgetError):
        compared(layers(), loss_of, batches, {"memory": 1000})


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_shapes": {"labels": (8, 3)}}, "names 'labels'; the inputs are data, label"),
        ({"max_shapes": {"label": (0, 3)}}, "no shape for 'label'"),
        ({"max_shapes": {}}, "names no input"),
        ({"memory": "much"}, "is no size"),
    ],
)
def test_limits_that_cannot_be(limits: dict[str, Any], message: str) -> None:
    batch = [noise(4, 6)], [noise(4, 3)]
    with pytest.raises(InputError, match=message):
        compared(layers(), mx.gluon.loss.L2Loss(), [batch], limits)


def test_a_net_that_only_infers_has_no_step_within_limits() -> None:
    net = layers()
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    for options in ({"mode": "inference"}, {"record": True}):
        fast = graphopt.optimize(net, **options)
        with pytest.raises(InputError, match="leave"):
            graphopt.train_step(fast, mx.gluon.loss.L2Loss(), trainer, memory="1GB")


def test_limits_of_labels_do_not_hinder_nets_with_hooks() -> None:
    net, seen = layers(), []
    net.register_forward_hook(lambda *_: seen.append(True))
    batches = [([noise(n, 6, seed=n)], [noise(n, 3, seed=n + 9)]) for n in (4, 8, 2)]
    limits = {"max_shapes": {"data": (8, 6), "label": (8, 3)}}
    compared(net, mx.gluon.loss.L2Loss(), batches, limits)
    assert len(seen) == 2 * len(batches)


def test_where_there_are_hooks_the_loss_has_no_largest_shapes() -> None:
    net, seen = layers(), []
    net.register_forward_hook(lambda *_: seen.append(True))
    batches = [([noise(n, 6, seed=n)], [noise(n, 3, seed=n + 9)]) for n in (4, 8, 2)]
    compared(net, mx.gluon.loss.L2Loss(), batches, max_shapes={"data": (8, 6)})
    assert len(seen) == 2 * len(batches)


def test_the_net_itself_is_called_with_its_own_limits() -> None:
    net = layers()
    start(net)
    fast = graphopt.optimize(net, max_shapes={"data": (8, 6)})
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    graphopt.train_step(fast, mx.gluon.loss.L2Loss(), trainer)(noise(4, 6), noise(4, 3))
    x = noise(8, 6)
    found = []
    for which in (net, fast):
        with mx.autograd.record():
            loss = (which(x) ** 2).sum()
        loss.backward()
        found.append(net[0].weight.grad().asnumpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)
