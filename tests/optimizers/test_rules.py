"""What optimizers compute: kernels against MXNet's, and against papers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.optimizers.steps import assert_same, give_gradients, pair, parameters, train
from tests.tiers import one_of

mx = import_mxnet()

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
#: Where MXNet does not, it keeps float32 states, which do not fit float64 weights.
DOUBLES = [(name, more) for name, more, takes_doubles in OPTIMIZERS if takes_doubles]
#: What stays quick: the last arguments of each optimizer, which are the most, as a rule.
LAST = {name: more for name, more, _ in OPTIMIZERS}
CASES = [
    *(
        pytest.param(name, more, "float32", marks=() if more is LAST[name] else pytest.mark.slow)
        for name, more, _ in OPTIMIZERS
    ),
    *one_of(4, ((*double, "float64") for double in DOUBLES)),
]
NAMES = [
    *(f"{name}-{'-'.join(more)}-float32" for name, more, _ in OPTIMIZERS),
    *(f"{name}-{'-'.join(more)}-float64" for name, more in DOUBLES),
]


@pytest.mark.parametrize(("name", "more", "dtype"), CASES, ids=NAMES)
def test_weights_and_states_are_mxnets(name: str, more: dict[str, Any], dtype: str) -> None:
    options = {"learning_rate": 0.05, **more}
    plain, fast = pair(lambda p: mx.gluon.Trainer(p, name, dict(options)), dtype)
    before = [p.data().asnumpy() for p in plain[0]]
    expected, found = train(*plain), train(*fast)
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(before, expected, strict=True))
    # FTML's powers and sums of squares are float32 in MXNet, and a centered RMSProp divides by a
    # difference.
    cancels, sums = name == "ftml" or "centered" in more, name in ("lamb", "lars")
    tolerance = (2e-4 if cancels else 2e-6) if dtype == "float32" else (1e-5 if cancels else 1e-13)
    if sums:
        tolerance = 5e-6
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


@pytest.mark.parametrize("dtypes", [("float64", "float32"), ("float16", "float32")])
@pytest.mark.parametrize("name", ["nadam", "lars"])
def test_weights_of_several_dtypes_in_the_order_of_mxnet(
    name: str, dtypes: tuple[str, str]
) -> None:
    """Nadam's momentum moves on from weight to weight; of rates, LARS's first weights see more."""
    found = []
    for optimize in (lambda trainer: trainer, graphopt.optimize):
        first, second = map(parameters, dtypes)
        params = [first[0], *second[1:]]
        options: dict[str, Any] = {"learning_rate": 0.1, "multi_precision": True}
        if name == "lars":
            schedule = mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.1)
            options |= {"momentum": 0.9, "eta": 0.1, "lr_scheduler": schedule}
        trainer = optimize(mx.gluon.Trainer(params, name, options))
        found.append(train(params, trainer, steps=6))
    for got, want in zip(*found, strict=True):
        assert_same([want], [got], 2e-3 if want.dtype == np.float16 else 5e-6)
    assert "one kernel updates 0 of 4 weights" in trainer.explain()
    assert "its update follows from those before it" in trainer.explain()


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
