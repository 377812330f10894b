"""Optimized views of ``gluon.Trainer``: the same weights after the same steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd

#: Names of optimizers, their arguments, and whether MXNet takes float64 weights.
OPTIMIZERS: list[tuple[str, dict[str, Any], bool]] = [
    ("sgd", {"wd": 0.01}, True),
    ("sgd", {"clip_gradient": 0.1}, True),
    ("sgd", {"momentum": 0.9, "wd": 0.01}, True),
    ("sgd", {"momentum": 0.9, "clip_gradient": 0.1}, True),
    ("nag", {"wd": 0.01}, True),
    ("nag", {"momentum": 0.9, "wd": 0.01, "clip_gradient": 0.1}, True),
    ("signum", {"momentum": 0.0, "wd": 0.01}, True),
    ("signum", {"momentum": 0.9, "wd": 0.01, "wd_lh": 0.02, "clip_gradient": 0.1}, True),
    ("adam", {"wd": 0.01}, True),
    ("adam", {"wd": 0.01, "clip_gradient": 0.1, "beta1": 0.8, "epsilon": 1e-5}, True),
    ("adamax", {"wd": 0.01, "clip_gradient": 0.1}, True),
    ("nadam", {"wd": 0.01}, True),
    ("adagrad", {"wd": 0.01, "clip_gradient": 0.1}, False),
    ("adadelta", {"wd": 0.01, "clip_gradient": 0.1}, False),
    ("rmsprop", {"wd": 0.01}, False),
    ("rmsprop", {"wd": 0.01, "centered": True, "clip_weights": 0.5}, False),
    ("ftrl", {"wd": 0.01}, False),
    ("ftml", {"wd": 0.01}, True),
    ("lamb", {"wd": 0.01}, True),
    ("lamb", {"wd": 0.01, "clip_gradient": 0.1, "bias_correction": False}, True),
    ("lamb", {"lower_bound": 0.5, "upper_bound": 3.0}, True),
    ("lars", {"wd": 0.01, "eta": 0.1}, True),
    ("lars", {"wd": 0.01, "momentum": 0.9, "eta": 0.1, "eps": 1e-8, "clip_gradient": 0.1}, True),
]
NAMES = [f"{name}-{'-'.join(more)}" for name, more, _ in OPTIMIZERS]
SHAPES = ((7, 5), (33,), (150, 301), (1,))


def parameters(dtype: str = "float32", **more: Any) -> list[Any]:
    """Some of the shapes, with the same numbers in every call."""
    random = np.random.RandomState(0)
    found = []
    for number, shape in enumerate(SHAPES):
        parameter = mx.gluon.Parameter(f"p{number}_weight", shape=shape, dtype=dtype, **more)
        parameter.initialize()
        numbers = mx.nd.array(random.normal(size=shape), dtype=dtype)
        numbers.copyto(parameter.data().as_nd_ndarray())
        found.append(parameter)
    return found


def give_gradients(params: list[Any], step: int) -> None:
    """As a backward pass would."""
    random = np.random.RandomState(step + 1)
    for p in params:
        numbers = mx.nd.array(random.normal(size=p.shape), dtype=p.dtype)
        if p.grad_req != "null":
            numbers.copyto(p.list_grad()[0].as_nd_ndarray())
            p.list_data()[0]._fresh_grad = True


def train(params: list[Any], trainer: Any, steps: int = 4) -> list[np.ndarray]:
    """What the weights are after some steps."""
    for step in range(steps):
        give_gradients(params, step)
        trainer.step(4)
    return [p.data().asnumpy() for p in params]


def pair(make: Callable[[list[Any]], Any], dtype: str = "float32") -> tuple[Any, Any]:
    """Parameters and trainer by MXNet, and the same optimized."""
    plain, fast = parameters(dtype), parameters(dtype)
    return (plain, make(plain)), (fast, graphopt.optimize(make(fast), strict=True))


def assert_same(expected: list[np.ndarray], found: list[np.ndarray], tolerance: float) -> None:
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "more", "takes_doubles"), OPTIMIZERS, ids=NAMES)
def test_weights_and_states_are_mxnets(
    name: str, more: dict[str, Any], takes_doubles: bool, dtype: str
) -> None:
    if dtype == "float64" and not takes_doubles:
        pytest.skip("MXNet keeps float32 states, which do not fit float64 weights")
    options = {"learning_rate": 0.05, **more}
    plain, fast = pair(lambda p: mx.gluon.Trainer(p, name, dict(options)), dtype)
    before = [p.data().asnumpy() for p in plain[0]]
    expected, found = train(*plain), train(*fast)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(before, expected, strict=True))
    # FTML's powers and sums of squares are float32 in MXNet, and a centered RMSProp divides by a
    # difference.
    cancels = name in ("ftml", "lamb", "lars") or "centered" in more
    tolerance = (2e-4 if cancels else 2e-6) if dtype == "float32" else (1e-5 if cancels else 1e-13)
    assert_same(expected, found, tolerance)
    assert fast[1].explain().endswith("one kernel updates 4 of 4 weights")
    for index, state in plain[1]._updaters[0].states.items():
        other = fast[1]._updaters[0].states[index]
        for one, two in zip(_arrays(state), _arrays(other), strict=True):
            assert_same([one.asnumpy()], [two.asnumpy()], tolerance * 10)


def test_lamb_is_that_of_the_paper() -> None:
    """Against numpy in float64: You et al., 2020, with a bias of moments corrected."""
    params = parameters()
    weights = [p.data().asnumpy().astype(np.float64) for p in params]
    make = mx.gluon.Trainer(params, "lamb", {"learning_rate": 0.05, "wd": 0.01})
    found = train(params, graphopt.optimize(make, strict=True))
    means, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for step in range(4):
        random = np.random.RandomState(step + 1)
        for at, weight in enumerate(weights):
            grad = random.normal(size=weight.shape) / 4
            means[at] = 0.9 * means[at] + 0.1 * grad
            squares[at] = 0.999 * squares[at] + 0.001 * grad**2
            mean, square = (
                m[at] / (1 - b ** (step + 1)) for m, b in ((means, 0.9), (squares, 0.999))
            )
            move = mean / (np.sqrt(square) + 1e-6) + 0.01 * weight
            weight -= 0.05 * np.linalg.norm(weight) / np.linalg.norm(move) * move
    assert_same(weights, found, 1e-5)


@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_norms_of_nothing(name: str) -> None:
    """Weights that are zero, or that nothing moves, have the rate as it is."""
    results = []
    for optimized in (False, True):
        params = parameters()
        params[0].set_data(mx.nd.zeros(params[0].shape))
        trainer = mx.gluon.Trainer(params, name, {"learning_rate": 0.05, "wd": 0.01})
        if optimized:
            trainer = graphopt.optimize(trainer, strict=True)
        give_gradients(params, 0)
        for p in (params[1], params[3]):
            p.list_grad()[0][:] = 0
        trainer.step(4)
        results.append([p.data().asnumpy() for p in params])
    assert_same(*results, 2e-6)
    assert np.abs(results[0][0]).max() > 0
    assert all(np.isfinite(weight).all() for weight in results[0])


def test_lars_knows_names_and_changes_of_rates() -> None:
    """Biases have the rate of SGD; of rates that change, momentum follows in some weights."""

    def make(params: list[Any]) -> Any:
        schedule = mx.lr_scheduler.FactorScheduler(2, 0.5, base_lr=0.5)
        names = {0: "dense_weight", 1: "dense_bias", 2: "conv_weight", 3: "norm_gamma"}
        lars = mx.optimizer.LARS(momentum=0.9, lr_scheduler=schedule, param_idx2name=names, eta=0.1)
        lars.aggregate_num = 2
        return mx.gluon.Trainer(params, lars)

    plain, fast = pair(make)
    assert_same(train(*plain, steps=7), train(*fast, steps=7), 5e-6)


def _arrays(state: Any) -> list[Any]:
    if state is None:
        return []
    return list(state) if isinstance(state, (tuple, list)) else [state]


def test_gluonnlps_optimizer() -> None:
    """A stand-in for it, by the operator of MXNet that it calls."""

    class BERTAdam(mx.optimizer.Adam):  # type: ignore[misc, name-defined]
        __module__ = "gluonnlp.optimizer.bert_adam"

        def update(self, index: int, weight: Any, grad: Any, state: Any) -> None:
            self._update_count(index)
            rates = {"eta": self._get_lr(index), "wd": self._get_wd(index), "lr": 1}
            numbers = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
            scale = mx.nd.full((1,), self.rescale_grad)
            if self.clip_gradient:
                numbers["clip_gradient"] = self.clip_gradient
            mx.nd.contrib.adamw_update(
                weight, grad, *state, rescale_grad=scale, out=weight, **rates, **numbers
            )

    for more in ({"wd": 0.1}, {"clip_gradient": 0.1}):
        plain, fast = pair(lambda p, m=more: mx.gluon.Trainer(p, BERTAdam(learning_rate=0.05, **m)))
        assert_same(train(*plain), train(*fast), 2e-6)
        assert fast[1].explain() == "BERTAdam: one kernel updates 4 of 4 weights"
    loose = graphopt.optimize(mx.gluon.Trainer(parameters(), BERTAdam()))
    give_gradients(loose._params, 0)
    loose._scale = float("nan")
    before = [p.data().asnumpy() for p in loose._params]
    loose.step(1)
    assert_same(before, [p.data().asnumpy() for p in loose._params], 0)
    assert "rescale_grad=nan skips the update" in loose.explain()


def test_adam_is_that_of_the_paper() -> None:
    """Against numpy in float64: Kingma and Ba, 2015, with MXNet's place of epsilon."""
    params = parameters()
    weights = [p.data().asnumpy().astype(np.float64) for p in params]
    found = train(params, graphopt.optimize(mx.gluon.Trainer(params, "adam"), strict=True))
    means, squares = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for step in range(4):
        random = np.random.RandomState(step + 1)
        rate = 0.001 * np.sqrt(1 - 0.999 ** (step + 1)) / (1 - 0.9 ** (step + 1))
        for at, weight in enumerate(weights):
            grad = random.normal(size=weight.shape) / 4
            means[at] = 0.9 * means[at] + 0.1 * grad
            squares[at] = 0.999 * squares[at] + 0.001 * grad**2
            weight -= rate * means[at] / (np.sqrt(squares[at]) + 1e-8)
    assert_same(weights, found, 2e-6)


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
    assert "rates follow a schedule" in told if schedule else "4 of 5 weights" in told


def test_gradients_that_are_no_numbers() -> None:
    for name, more in (("sgd", {"clip_gradient": 0.1}), ("adam", {}), ("signum", {})):
        plain, fast = pair(lambda p, n=name, m=more: mx.gluon.Trainer(p, n, dict(m)))
        for params, trainer in (plain, fast):
            give_gradients(params, 0)
            special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 1e38]
            params[0].list_grad()[0][:, 0] = mx.nd.array(special)
            trainer.step(1)
        for one, other in zip(plain[0], fast[0], strict=True):
            np.testing.assert_allclose(
                other.data().asnumpy(), one.data().asnumpy(), rtol=2e-6, atol=2e-6
            )


@pytest.mark.parametrize("name", ["adam", "lamb", "lars"])
def test_one_thread_and_two_compute_the_same(name: str) -> None:
    found = []
    for threads in ("1", "2"):
        params = parameters()
        trainer = graphopt.optimize(mx.gluon.Trainer(params, name), strict=True)
        mx.base.check_call(mx.base._LIB.MXSetNumOMPThreads(int(threads)))
        found.append(train(params, trainer))
    assert_same(*found, 0)


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
