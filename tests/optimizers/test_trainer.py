"""Optimized views of ``gluon.Trainer``: the same weights after the same steps."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from tests.optimizers.steps import assert_same, give_gradients, pair, parameters, train
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def test_multipliers_and_schedules() -> None:
    def make(params: list[Any]) -> Any:
        params[0].lr_mult, params[1].wd_mult = 0.1, 0.0
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.1)
        return mx.gluon.Trainer(params, "adam", {"lr_scheduler": schedule, "wd": 0.1})

    plain, fast = pair(make)
    assert_same(train(*plain, steps=7), train(*fast, steps=7), 2e-6)
    assert plain[1].learning_rate == fast[1].learning_rate
    for trainer in (plain[1], fast[1]):
        trainer._optimizer.lr_scheduler = None
        trainer.set_learning_rate(0.3)
        trainer.optimizer.clip_gradient = 0.05
    assert_same(train(*plain), train(*fast), 2e-6)


def test_states_are_saved_and_loaded_either_way(tmp_path: Any) -> None:
    plain, fast = pair(lambda p: mx.gluon.Trainer(p, "adam", {"learning_rate": 0.1}))
    train(*plain), train(*fast)
    plain[1].save_states(str(tmp_path / "plain"))
    fast[1].save_states(str(tmp_path / "fast"))
    plain[1].load_states(str(tmp_path / "fast"))
    fast[1].load_states(str(tmp_path / "plain"))
    assert_same(train(*plain), train(*fast), 2e-6)
    assert "one kernel" in fast[1].explain()


def test_plain_and_optimized_steps_in_turns() -> None:
    plain, fast = pair(lambda p: mx.gluon.Trainer(p, "sgd", {"momentum": 0.9}))
    own = mx.gluon.Trainer(fast[0], "sgd", {"momentum": 0.9})
    view = graphopt.optimize(own)
    expected = [train(*plain) for _ in range(3)][-1]
    train(fast[0], view), train(fast[0], own)
    assert_same(expected, train(fast[0], graphopt.optimize(view)), 2e-6)
    assert view.__dict__ is own.__dict__
    assert isinstance(view, mx.gluon.Trainer)
    assert type(own) is mx.gluon.Trainer


def test_old_gradients_are_told_as_by_mxnet() -> None:
    params = parameters()
    trainer = graphopt.optimize(mx.gluon.Trainer(params, "sgd"))
    give_gradients(params, 0)
    params[1].list_data()[0]._fresh_grad = False
    before = [p.data().asnumpy() for p in params]
    with pytest.raises(UserWarning, match="p1_weight"):
        trainer.step(1)
    assert_same(before, [p.data().asnumpy() for p in params], 0)
    give_gradients(params, 0)
    params[1].list_data()[0]._fresh_grad = False
    trainer.step(1, ignore_stale_grad=True)
    changed = [
        bool((p.data().asnumpy() != old).any()) for p, old in zip(params, before, strict=True)
    ]
    assert changed == [True, False, True, True]
    assert "one kernel" in trainer.explain()
    give_gradients(params, 0)
    trainer.step(1)
    assert "one kernel" in trainer.explain()
    with pytest.raises(UserWarning):  # gradients are old once they were used
        trainer.step(1)


@pytest.mark.parametrize("name", ["sgd", "adam", "nadam"])
@pytest.mark.parametrize("schedule", [False, True])
def test_weights_without_new_gradients(name: str, schedule: bool) -> None:
    """Those of parts of a net that a batch does not reach; each has steps of its own."""
    found, told = [], ""
    for optimize in (graphopt.optimize, lambda trainer: trainer):
        params = parameters()
        half = mx.gluon.Parameter("half_weight", shape=(5,), dtype="float16")
        half.initialize(mx.init.One())
        params.append(half)
        options: dict[str, Any] = {"learning_rate": 0.1, "multi_precision": True}
        if schedule:
            options["lr_scheduler"] = mx.lr_scheduler.FactorScheduler(step=2, factor=0.5)
        trainer = optimize(mx.gluon.Trainer(params, name, options))
        for step in range(6):
            give_gradients(params, step)
            for at in {0: (), 1: (2,), 2: (0, 4), 3: (0, 1, 2, 3, 4)}[step % 4]:
                params[at].list_data()[0]._fresh_grad = False
            trainer.step(2, ignore_stale_grad=True)
            told = trainer.explain() if optimize is graphopt.optimize else told
        found.append([p.data().asnumpy() for p in params])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    by_kernels = "0 of 5 weights" if name == "nadam" else "4 of 5 weights"
    assert "rates follow a schedule" in told if schedule else by_kernels in told


class Net(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Words and a dense layer."""

    def __init__(self, *, is_sparse: bool) -> None:
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(20, 6, sparse_grad=is_sparse)
            self.norm = nn.BatchNorm(axis=-1)
            self.dense = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.dense(self.norm(self.words(x)))


def _trained(net: Any, *, is_fast: bool) -> tuple[list[np.ndarray], Any, Any]:
    mx.random.seed(3)
    net.initialize(mx.init.Xavier(), force_reinit=True)
    words = mx.nd.array(np.random.RandomState(1).randint(0, 20, (8, 5)))
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    run = net
    if is_fast:
        run, trainer = graphopt.optimize(net), graphopt.optimize(trainer)
    for _ in range(5):
        with autograd.record():
            loss = (run(words) ** 2).mean()
        loss.backward()
        trainer.step(1)
    return [p.data().asnumpy() for p in net.collect_params().values()], trainer, run


def test_a_net_trained_by_both() -> None:
    expected, _, _ = _trained(Net(is_sparse=False), is_fast=False)
    found, trainer, fast = _trained(Net(is_sparse=False), is_fast=True)
    assert_same(expected, found, 1e-4)
    assert trainer.explain() == "Adam: one kernel updates 5 of 5 weights"
    words = mx.nd.array(np.arange(20).reshape(4, 5))
    before = fast(words).asnumpy()
    with autograd.record():
        loss = (fast(words) ** 2).mean()
    loss.backward()
    trainer.step(1)  # what inference has computed in of the weights is old now
    after = fast(words).asnumpy()
    assert np.abs(after - before).max() > 1e-3
    plain = Net(is_sparse=False)
    plain.initialize()
    plain(words)
    own = fast.collect_params().values()
    for one, other in zip(plain.collect_params().values(), own, strict=True):
        one.set_data(other.data())
    np.testing.assert_allclose(after, plain(words).asnumpy(), rtol=1e-4, atol=1e-5)


def test_sparse_gradients_are_left_to_mxnet() -> None:
    expected, _, _ = _trained(Net(is_sparse=True), is_fast=False)
    found, trainer, _ = _trained(Net(is_sparse=True), is_fast=True)
    assert_same(expected, found, 1e-4)
    first, second = trainer.explain().splitlines()
    assert first == "Adam: one kernel updates 4 of 5 weights"
    assert second.endswith("by MXNet: an array of it is row_sparse")


def test_parameters_that_get_other_arrays() -> None:
    plain, fast = pair(lambda p: mx.gluon.Trainer(p, "sgd", {"learning_rate": 0.1}))
    for params, trainer in (plain, fast):
        train(params, trainer)
        params[0].cast("float64")
        params[1].grad_req = "null"
        params[2].initialize(mx.init.One(), force_reinit=True)
    assert_same(train(*plain), train(*fast), 2e-6)
    assert fast[1].explain().endswith("one kernel updates 3 of 3 weights")


def test_half_precision_is_left_to_mxnet() -> None:
    params = parameters()
    params[0].cast("float16")
    trainer = graphopt.optimize(
        mx.gluon.Trainer(params, "sgd", {"momentum": 0.9, "multi_precision": True})
    )
    before = params[0].data().asnumpy()
    train(params, trainer)
    assert (params[0].data().asnumpy() != before).any()
    assert "p0_weight by MXNet: it is float16" in trainer.explain()
    strict = graphopt.optimize(
        mx.gluon.Trainer(params, "sgd", {"multi_precision": True}), strict=True
    )
    give_gradients(params, 0)
    with pytest.raises(UnsupportedError, match="'p0_weight': it is float16"):
        strict.step(1)


class OwnSGD(mx.optimizer.SGD):  # type: ignore[misc, name-defined]
    """Somebody's own."""


class SGD(mx.optimizer.Optimizer):  # type: ignore[misc, name-defined]
    """Another one of a known name."""

    def create_state(self, index: int, weight: Any) -> None:
        return None

    def update(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        weight[:] = 7


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: mx.optimizer.LBSGD(), "optimizer LBSGD has no kernel"),
        (lambda: OwnSGD(), "optimizer OwnSGD has no kernel"),
        (lambda: SGD(), "optimizer SGD has no kernel"),
        (lambda: mx.optimizer.SGD(momentum=-0.5), "momentum=-0.5 is negative"),
        (lambda: mx.optimizer.Adam(clip_gradient=0), "clip_gradient=0 is no bound"),
    ],
)
def test_other_optimizers_are_left_to_mxnet(make: Any, why: str) -> None:
    params, others = parameters(), parameters()
    trainer = graphopt.optimize(mx.gluon.Trainer(params, make()))
    expected = train(others, mx.gluon.Trainer(others, make()))
    assert_same(expected, train(params, trainer), 0)
    assert trainer.explain() == f"MXNet updates the weights: {why}"
    strict = graphopt.optimize(mx.gluon.Trainer(params, make()), strict=True)
    with pytest.raises(UnsupportedError, match="no kernel updates the weights"):
        strict.step(1)


def test_what_mxnet_refuses_is_refused() -> None:
    options = {"momentum": 0.0, "wd_lh": 0.5}
    trainer = graphopt.optimize(mx.gluon.Trainer(parameters(), "signum", options))
    with pytest.raises(mx.MXNetError, match="wd_lh"):
        train(trainer._params, trainer)
    assert trainer.explain() == "MXNet updates the weights: wd_lh=0.5 is without momentum"


class OwnTrainer(mx.gluon.Trainer):  # type: ignore[misc, name-defined]
    """Counts its steps."""

    steps = 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.steps += 1
        super().step(*args, **kwargs)


class OtherTrainer(mx.gluon.Trainer):  # type: ignore[misc, name-defined]
    """Updates nothing."""

    def _update(self, ignore_stale_grad: bool = False) -> None:
        pass


def test_trainers_of_the_users_own() -> None:
    params = parameters()
    trainer = graphopt.optimize(OwnTrainer(params, "sgd"))
    train(params, trainer)
    assert trainer.steps == 4
    assert isinstance(trainer, OwnTrainer)
    assert "one kernel" in trainer.explain()
    before = [p.data().asnumpy() for p in params]
    other = graphopt.optimize(OtherTrainer(params, "sgd"))
    assert_same(before, train(params, other), 0)
    assert "an _update of its own" in other.explain()


class Counting(mx.optimizer.Updater):  # type: ignore[misc, name-defined]
    """Counts the updates that it is asked for."""

    calls = 0

    def __call__(self, *args: Any) -> None:
        self.calls += 1
        super().__call__(*args)


def test_updates_of_the_users_own() -> None:
    params = parameters()
    trainer = graphopt.optimize(mx.gluon.Trainer(params, "sgd"))
    train(params, trainer)
    trainer._updaters = [Counting(trainer.optimizer)]
    train(params, trainer)
    assert trainer._updaters[0].calls == 4
    assert "updater Counting has no kernel" in trainer.explain()
    trainer._updaters = [mx.optimizer.get_updater(trainer.optimizer)]
    train(params, trainer)
    assert "one kernel" in trainer.explain()
    trainer.optimizer.update_multi_precision = lambda *args: None
    before = [p.data().asnumpy() for p in params]
    assert_same(before, train(params, trainer), 0)
    assert "a method update_multi_precision of its own" in trainer.explain()


def test_a_key_value_store_that_updates() -> None:
    params = parameters()
    trainer = graphopt.optimize(
        mx.gluon.Trainer(params, "sgd", kvstore=mx.kv.create("local"), update_on_kvstore=True)
    )
    before = params[0].data().asnumpy()
    train(params, trainer)
    assert (params[0].data().asnumpy() != before).any()
    assert "its key-value store updates them" in trainer.explain()


def test_scaled_losses_are_left_to_mxnet() -> None:
    params = parameters()
    trainer = graphopt.optimize(mx.gluon.Trainer(params, "sgd"))

    class Scaler:
        def has_overflow(self, params: Any) -> bool:
            return True

    trainer._amp_loss_scaler = Scaler()
    before = [p.data().asnumpy() for p in params]
    assert_same(before, train(params, trainer), 0)
    assert "scaled by mx.contrib.amp" in trainer.explain()


def test_arrays_of_mx_np() -> None:
    others = parameters()
    expected = train(others, mx.gluon.Trainer(others, "adam"))
    with mx.util.np_array(True):
        params = parameters()
        assert isinstance(params[0].data(), mx.np.ndarray)
        trainer = graphopt.optimize(mx.gluon.Trainer(params, "adam"), strict=True)
        assert_same(expected, train(params, trainer), 2e-6)


def test_options_are_those_of_trainers() -> None:
    trainer = mx.gluon.Trainer(parameters(), "sgd")
    for option in ({"memory": "1GB"}, {"mode": "training"}, {"passes": "none"}, {"record": True}):
        with pytest.raises(InputError, match="a Trainer takes no options but precise= and strict="):
            graphopt.optimize(trainer, **option)
    precise = graphopt.optimize(trainer, precise=True)
    train(precise._params, precise)
    assert "one kernel" in precise.explain()


def test_nothing_learns() -> None:
    params = parameters(grad_req="null")
    trainer = graphopt.optimize(mx.gluon.Trainer(params, "sgd"))
    before = [p.data().asnumpy() for p in params]
    trainer.step(1)
    assert_same(before, [p.data().asnumpy() for p in params], 0)
    assert trainer.explain() == "SGD: one kernel updates 0 of 0 weights"


def test_before_there_are_values() -> None:
    params = parameters()
    trainer = graphopt.optimize(mx.gluon.Trainer(params, "sgd"))
    assert trainer.explain() == "MXNet updates the weights: no step was made yet"
    net = nn.Dense(3)
    net.initialize()
    late = graphopt.optimize(mx.gluon.Trainer(net.collect_params(), "sgd"))
    with pytest.raises(mx.gluon.parameter.DeferredInitializationError):
        late.step(1)


def unpickled(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, unpickled])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_copies_learn_on_as_those_of_mxnet(name: str, again: Callable[[Any], Any]) -> None:
    options = {"learning_rate": 0.1, "wd": 0.1}

    def make(params: list[Any]) -> Any:
        params[0].lr_mult = 0.1
        return mx.gluon.Trainer(params, name, options)

    plain, fast = pair(make)
    train(*plain), train(*fast)
    (expected, found) = (again(trainer) for _, trainer in (plain, fast))
    for trainer in (expected, found):
        trainer.set_learning_rate(0.2)
        for p in trainer._params:  # of copies MXNet does not mark the arrays
            autograd.mark_variables(p.list_data(), p.list_grad(), p.grad_req)
    assert_same(train(plain[0], plain[1]), train(fast[0], fast[1]), 2e-6)
    assert_same(train(expected._params, expected), train(found._params, found), 2e-6)
    assert_same(train(*plain, steps=1), train(*fast, steps=1), 2e-6)
    assert found.learning_rate == expected.learning_rate
    assert fast[1].learning_rate == plain[1].learning_rate
    assert "one kernel updates 4 of 4 weights" in found.explain()
    assert type(found._params[0]._trainer) is mx.gluon.Trainer


def test_a_copied_trainer_is_that_of_the_copied_parameters() -> None:
    params = parameters()
    trainer = graphopt.optimize(mx.gluon.Trainer(params, "sgd"), strict=True)
    mx.gluon.Trainer(params[:1], "sgd")  # to which the first parameter refers from now on
    for again in (copy.deepcopy, unpickled):
        others, found = again((params, trainer))
        assert all(one is other for one, other in zip(found._params, others, strict=True))
        assert others[1]._trainer.__dict__ is found.__dict__
        assert found._graphopt_config == trainer._graphopt_config


class Decay(mx.lr_scheduler.LRScheduler):  # type: ignore[misc, name-defined]
    """Goes down at every call."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.asked: list[int] = []

    def __call__(self, count: int) -> float:
        self.asked.append(count)
        self.base_lr *= 0.98
        return float(self.base_lr)


SCHEDULED: dict[str, dict[str, Any]] = {
    "adadelta": {},
    "sgd": {},
    "sgd-momentum": {"momentum": 0.9},
    "adam": {},
    "lamb": {},
    "lars": {"momentum": 0.9},
    "nadam": {},
}


@pytest.mark.parametrize(
    ("kind", "last"), one_of(2, product(SCHEDULED, ["float32", "float64", "float16"]))
)
def test_a_schedule_is_asked_as_often_as_by_mxnet(kind: str, last: str) -> None:
    if (kind, last) == ("adadelta", "float64"):
        pytest.skip("MXNet keeps float32 states, which do not fit float64 weights")
    found, weights = [], []
    for optimize in (graphopt.optimize, lambda trainer: trainer):
        params = [*parameters(), *parameters()]
        params[-3] = parameters(last)[1]
        schedule = Decay()
        options = {"lr_scheduler": schedule, "multi_precision": True, **SCHEDULED[kind]}
        trainer = optimize(mx.gluon.Trainer(params, kind.partition("-")[0], options))
        weights.append(train(params, trainer))
        found.append((schedule.asked, trainer.learning_rate))
    assert found[0] == found[1]
    for got, want in zip(*weights, strict=True):
        assert_same([want], [got], 2e-3 if want.dtype == np.float16 else 5e-6)
