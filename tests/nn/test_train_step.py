"""``graphopt.train_step``: the same weights, states and losses as by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
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
nn = mx.gluon.nn
loss = mx.gluon.loss


class Critic(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Reads two arrays."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.state = nn.Dense(8, activation="relu", in_units=6)
            self.worth = nn.Dense(3, in_units=10)

    def hybrid_forward(self, F: Any, state: Any, action: Any) -> Any:
        return self.worth(F.concat(self.state(state), action, dim=1))


def compare(
    net: Any,
    loss_of: Any,
    data: list[Any],
    label: list[Any],
    optimizer: tuple[str, dict[str, Any]] = ("adam", {"learning_rate": 0.05}),
    steps: int = 5,
) -> graphopt.nn.train_step.TrainStep:
    """Train by hand and by steps; the step."""
    results = []
    for is_fast in (False, True):
        start(net)
        name, options = optimizer
        trainer = mx.gluon.Trainer(net.collect_params(), name, dict(options))
        if is_fast:
            step = graphopt.train_step(net, loss_of, trainer)
            found = [step(data, label) for _ in range(steps)]
        else:
            net.hybridize()
            found = [by_hand(net, loss_of, trainer, data, label) for _ in range(steps)]
            net.hybridize(False)
        results.append(learned(net, trainer, mx.nd.stack(*found)))
    assert_same(results[1], results[0])
    return step


@pytest.mark.parametrize(
    "optimizer",
    [
        ("sgd", {"learning_rate": 0.1}),
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.1}),
        ("adam", {"learning_rate": 0.05, "clip_gradient": 0.01}),
        ("adagrad", {"learning_rate": 0.05}),
    ],
    ids=lambda o: "-".join((o[0], *o[1])),
)
def test_small_nets_by_the_calling_thread(optimizer: Any) -> None:
    step = compare(layers(), loss.L2Loss(), [noise(4, 6)], [noise(4, 3, seed=1)], optimizer)
    assert SMALL in step.explain()
    assert "one kernel updates 4 of 4 weights" in step.explain()


def test_several_inputs_and_classes() -> None:
    data = [noise(4, 6), noise(4, 2, seed=3)]
    step = compare(Critic(), loss.SoftmaxCELoss(), data, [mx.nd.array([0, 2, 1, 1])])
    assert SMALL in step.explain()
    norm = compare(
        layers(nn.BatchNorm(in_channels=16)), loss.L2Loss(), [noise(4, 6)], [noise(4, 3, seed=1)]
    )
    assert SMALL in norm.explain()
    weights = [noise(4, 3, seed=1), noise(4, 1, seed=2)]  # of samples
    assert SMALL in compare(Critic(), loss.HuberLoss(), data, weights).explain()


@pytest.mark.parametrize(
    ("make", "rows"),
    [
        (lambda: layers(nn.BatchNorm(scale=False, in_channels=16)), 4),  # no small node
        (lambda: layers(nn.Dense(256, in_units=16), nn.Dense(16, in_units=256)), 400),  # large
        (Plain, 4),
    ],
    ids=["batch norm without scale", "large", "plain Block"],
)
def test_other_nets_by_mxnets_engine(make: Callable[[], Any], rows: int) -> None:
    sgd = ("sgd", {"learning_rate": 0.01})
    step = compare(make(), loss.L2Loss(), [noise(rows, 6)], [noise(rows, 3, seed=1)], sgd)
    assert SMALL not in step.explain()


def test_other_optimizers_and_requests() -> None:
    data, label = [noise(4, 6)], [noise(4, 3, seed=1)]
    rate = {"learning_rate": 0.01}
    assert SMALL in compare(layers(), loss.L2Loss(), data, label, ("lamb", rate)).explain()
    step = compare(layers(), loss.L2Loss(), data, label, ("dcasgd", rate))
    assert SMALL not in step.explain()
    assert "DCASGD has no kernel" in step.explain()
    net = layers()
    net[0].weight.grad_req = "null"
    net[0].bias.grad_req = "null"
    assert SMALL in compare(net, loss.L2Loss(), data, label).explain()
    net = layers()
    net[0].weight.grad_req = "add"
    assert SMALL not in compare(net, loss.L2Loss(), data, label).explain()


def test_shapes_rates_and_arrays_that_change() -> None:
    net, results = layers(), []
    for is_fast in (False, True):
        start(net)
        schedule = mx.lr_scheduler.FactorScheduler(3, 0.5, base_lr=0.1)
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"lr_scheduler": schedule})
        if is_fast:
            step = graphopt.train_step(net, loss.L2Loss(), trainer)
        else:
            step = lambda x, y, n=None, t=trainer: by_hand(  # noqa: E731
                net, loss.L2Loss(), t, [x], [y]
            )
        found = []
        for turn in range(12):
            rows = 2 + turn % 3
            if turn == 6:
                net[0].weight.initialize(mx.init.One(), force_reinit=True)  # other arrays
            if turn == 9:
                trainer.optimizer.lr_scheduler = None
                trainer.set_learning_rate(0.02)
            found.append(step(noise(rows, 6, seed=turn), noise(rows, 3, seed=turn)).mean())
        results.append(learned(net, trainer, mx.nd.stack(*found)))
    assert_same(results[1], results[0])
    assert SMALL in step.explain()


def test_weights_that_are_cast() -> None:
    """Calls look alike before and after: their data is numbers of rows."""
    found = []
    for is_fast in (False, True):
        net = nn.HybridSequential()
        net.add(nn.Embedding(7, 6), layers())
        start(net)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        data, label, ce = mx.nd.array([1, 6, 2, 1]), mx.nd.array([0, 2, 1, 1]), loss.SoftmaxCELoss()
        step = graphopt.train_step(net, ce, trainer) if is_fast else None
        for dtype in ("float32", "float64"):
            net.cast(dtype)
            for _ in range(3):
                made = step(data, label) if step else by_hand(net, ce, trainer, [data], [label])
            assert made.dtype == np.dtype(dtype)
        found.append(learned(net, trainer, made))
    assert_same(found[1], found[0])


def test_batch_size_and_saved_states(tmp_path: Any) -> None:
    x, y = noise(4, 6), noise(4, 3, seed=1)
    found = []
    for size in (None, 4, 2):
        net = layers()
        start(net)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        step = graphopt.train_step(graphopt.optimize(net), loss.L2Loss(), trainer)
        for _ in range(3):
            step(x, y, size)
        found.append([p.data().asnumpy() for _, p in sorted(net.collect_params().items())])
    assert_same(found[0], found[1])
    assert np.abs(found[0][0] - found[2][0]).max() > 1e-4
    net = layers()
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "adam")
    step = graphopt.train_step(net, loss.L2Loss(), trainer)
    for _ in range(3):
        step(x, y)
    trainer.save_states(str(tmp_path / "states"))
    want = step(x, y), step(x, y)
    other = layers()
    start(other)
    again = mx.gluon.Trainer(other.collect_params(), "adam")
    step = graphopt.train_step(other, loss.L2Loss(), again)
    for _ in range(3):
        step(x, y)
    again.load_states(str(tmp_path / "states"))
    assert_same([a.asnumpy() for a in (step(x, y), step(x, y))], [a.asnumpy() for a in want])


def test_inference_sees_what_was_learned() -> None:
    net = layers()
    start(net)
    fast = graphopt.optimize(net)
    step = graphopt.train_step(
        fast, loss.L2Loss(), mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    )
    x, y = noise(4, 6), noise(4, 3, seed=1)
    for _ in range(5):
        step(x, y)
        assert_same([fast(x).asnumpy()], [net(x).asnumpy()])


def test_hooks_are_called() -> None:
    net, calls = layers(), []
    net.register_forward_hook(lambda *_: calls.append(1))
    start(net)
    step = graphopt.train_step(net, loss.L2Loss(), mx.gluon.Trainer(net.collect_params(), "sgd"))
    for _ in range(3):
        step(noise(4, 6), noise(4, 3))
    assert len(calls) == 3
    assert SMALL not in step.explain()
    other = layers()
    start(other)
    step = graphopt.train_step(
        other, loss.L2Loss(), mx.gluon.Trainer(other.collect_params(), "sgd")
    )
    step(noise(4, 6), noise(4, 3))
    assert SMALL in step.explain()
    other.register_forward_hook(lambda *_: calls.append(1))  # from now on
    step(noise(4, 6), noise(4, 3))
    assert len(calls) == 4


def test_arrays_of_mx_np() -> None:
    with mx.util.np_array(True):
        net = layers()
        start_np = [p for _, p in sorted(net.collect_params().items())]
        net.initialize(mx.init.One())
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        step = graphopt.train_step(net, loss.L2Loss(), trainer)
        x, y = mx.np.ones((4, 6)), mx.np.zeros((4, 3))
        first = [step(x, y) for _ in range(3)][-1]
        assert isinstance(first, mx.np.ndarray)
        assert len(start_np) == 4
        assert float(first.mean()) != float(step(x, y).mean())


def test_threads_take_steps() -> None:
    net = layers()
    start(net)
    step = graphopt.train_step(
        net, loss.L2Loss(), mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    )
    want = step(noise(4, 6), noise(4, 3, seed=1)).asnumpy()
    found: list[Any] = []

    def work() -> None:
        found.extend(step(noise(4, 6), noise(4, 3, seed=1)).asnumpy() for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 200
    assert_same(found, [want] * 200)


def test_what_was_given_is_told() -> None:
    net = layers()
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    with pytest.raises(InputError, match="net: a list is no Gluon Block"):
        graphopt.train_step([], loss.L2Loss(), trainer)
    with pytest.raises(InputError, match="loss: a function is no Gluon Block"):
        graphopt.train_step(net, lambda x, y: x, trainer)
    with pytest.raises(InputError, match=r"trainer: a str is no gluon\.Trainer"):
        graphopt.train_step(net, loss.L2Loss(), "adam")
    step = graphopt.train_step(net, loss.L2Loss(), trainer)
    with pytest.raises(InputError, match="data: give an NDArray"):
        step(np.ones((4, 6)), noise(4, 3))
    with pytest.raises(InputError, match="label: give an NDArray"):
        step(noise(4, 6), [])
    with pytest.raises(InputError, match="batch_size 0: gradients cannot be divided by it"):
        step(noise(4, 6), noise(4, 3), 0)


class Scaled(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Multiplies by a number that is compiled in."""

    factor = 1.0

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x * self.factor


@pytest.mark.parametrize("told", ["net", "loss", "step"])
@pytest.mark.parametrize("method", ["reset", "hybridize"])
def test_what_blocks_hold_is_compiled_in_anew(told: str, method: str) -> None:
    net, scaled = layers(), Scaled()
    net.add(scaled)
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    blocks = {"net": net, "loss": loss.L2Loss()}
    if told != "step":
        blocks[told] = graphopt.optimize(blocks[told])
    step = graphopt.train_step(blocks["net"], blocks["loss"], trainer)
    x, y = noise(4, 6), noise(4, 3, seed=1)
    for _ in range(3):
        step(x, y)
    scaled.factor = 3.0
    getattr({**blocks, "step": step}[told], method)()
    expected = loss.L2Loss()(net(x), y).asnumpy()
    assert_same([step(x, y).asnumpy() for _ in range(3)], [expected] * 3)


@pytest.mark.parametrize("make", [layers, Plain])
def test_messages_name_net_and_loss(make: Callable[[], Any]) -> None:
    net, half = make(), loss.L2Loss()
    both = f"{type(net).__name__} {net.name!r} with L2Loss {half.name!r}"
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(net, half, trainer)
    step(noise(4, 6), noise(4, 3, seed=1))
    told = step.explain()
    assert f"{both}, mode 'auto'" in told
    assert "WithLoss" not in told
    assert make is Plain or f"{net.name}_with_loss, training" in told


def test_a_net_without_values_is_named_with_its_loss() -> None:
    net, half, other = layers(), loss.L2Loss(), layers()
    start(other)
    trainer = mx.gluon.Trainer(other.collect_params(), "sgd")
    step = graphopt.train_step(net, half, trainer)
    both = f"HybridSequential {net.name!r} with L2Loss {half.name!r}"
    with pytest.raises(InputError, match=f"of {both} is not initialized"):
        step(noise(4, 6), noise(4, 3, seed=1))


def test_a_plain_net_is_recorded_with_its_loss() -> None:
    data, label = noise(4, 6), noise(4, 3, seed=1)
    net = Plain()
    compare(net, loss.L2Loss(), [data], [label])
    start(net)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(graphopt.optimize(net, record=True), loss.L2Loss(), trainer)
    for _ in range(3):
        step(data, label)
    told = step.explain()
    assert "2 programs were run, 1 of them compiled first" in told  # the first step runs as it is
    assert "one kernel updates 4 of 4 weights" in told


def test_weights_of_samples_are_no_batch_size() -> None:
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd")
    step = graphopt.train_step(net, mx.gluon.loss.L2Loss(), trainer)
    before = net.weight.data().asnumpy()
    x, y = mx.nd.ones((4, 3)), mx.nd.ones((4, 2))
    with pytest.raises(InputError, match=r"step\(x, \[y, w\]\)"):
        step(x, y, mx.nd.ones((4, 1)))
    with pytest.raises(InputError, match="batch_size '4'"):
        step(x, y, "4")  # type: ignore[arg-type]
    np.testing.assert_array_equal(net.weight.data().asnumpy(), before)
    step(x, [y, mx.nd.ones((4, 1))])
    assert repr(step) == "TrainStep(net=Dense, loss=L2Loss, trainer=Trainer)"


def test_data_that_is_a_parameter_has_its_gradient() -> None:
    net, y = nn.Dense(6, in_units=6), noise(6, 6, seed=3)
    results = []
    for is_fast in (False, True):
        start(net)
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        step = graphopt.train_step(net, loss.L2Loss(), trainer)
        if not is_fast:
            step = lambda x, y, t=trainer: by_hand(net, loss.L2Loss(), t, [x], [y])  # noqa: E731
        found = [step(net.weight.data(), y) for _ in range(3)]
        found += [step(x, y) for x in (noise(6, 6), net.weight.data(), noise(6, 6))]
        results.append(learned(net, trainer, mx.nd.stack(*found)))
    assert_same(results[1], results[0])
