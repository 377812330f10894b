"""Modules that share parameters and states, as buckets do, and those that cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
S = mx.sym
LENGTHS = 5, 3, 2  # the first is the default bucket's


def loss(scores: Any) -> tuple[Any, tuple[str], tuple[str]]:
    return S.SoftmaxOutput(scores, name="softmax"), ("data",), ("softmax_label",)


def mean() -> Any:
    return S.mean(S.var("data"), axis=1, keepdims=True)


def weight_of_each_length(_: int) -> Any:
    return loss(S.FullyConnected(S.var("data"), num_hidden=4, name="a"))


def states_of_each_length(_: int) -> Any:
    x = S.BlockGrad(S.BatchNorm(S.var("data"), name="bn"))
    return loss(S.FullyConnected(S.mean(x, axis=1, keepdims=True), num_hidden=4, name="a"))


def weight_of_some(length: int) -> Any:
    x = S.FullyConnected(mean(), num_hidden=4, name="a")
    return loss(x if length == 5 else S.broadcast_mul(x, S.var("more_weight", shape=(1, 4))))


def weight_of_all(_: int) -> Any:
    x = S.BatchNorm(mean(), name="bn", fix_gamma=False)
    return loss(S.FullyConnected(x, num_hidden=4, name="a"))


def trained(sym_gen: Callable[[int], Any], *, is_optimized: bool) -> list[np.ndarray]:
    """What buckets give while they learn, in turns."""
    module = mx.mod.BucketingModule(sym_gen, default_bucket_key=5)
    module = graphopt.optimize(module) if is_optimized else module
    module.bind([("data", (4, 5))], [("softmax_label", (4,))])
    module.init_params(mx.init.Constant(0.5))
    module.init_optimizer("local", "sgd", {"learning_rate": 0.5})
    rng, found = np.random.default_rng(0), []
    for step in range(6):
        length = LENGTHS[step % 3]
        batch = mx.io.DataBatch(
            [mx.nd.array(rng.standard_normal((4, length)))],
            [mx.nd.array(rng.integers(0, 4, 4))],
            bucket_key=length,
            provide_data=[("data", (4, length))],
            provide_label=[("softmax_label", (4,))],
        )
        module.forward(batch, is_train=True)
        module.backward()
        module.update()
        found.append(module.get_outputs()[0].asnumpy())
    return found


FAULTS = {
    weight_of_each_length: r"'a_weight' is float32\(4, 5\) in what it .* float32\(4, 3\) here",
    states_of_each_length: r"'bn_gamma' is float32\(5,\) in what it .* float32\(3,\) here",
    weight_of_some: "there is no 'more_weight' to share",
}


@pytest.mark.parametrize("sym_gen", FAULTS, ids=[sym_gen.__name__ for sym_gen in FAULTS])
def test_buckets_of_other_parameters_are_refused(sym_gen: Callable[[int], Any]) -> None:
    """Each would train on its own."""
    with pytest.raises(RuntimeError):  # as MXNet has it
        trained(sym_gen, is_optimized=False)
    with pytest.raises(RuntimeError, match=FAULTS[sym_gen]):
        trained(sym_gen, is_optimized=True)


def test_buckets_of_the_same_parameters_learn_together() -> None:
    pairs = [trained(weight_of_all, is_optimized=which) for which in (False, True)]
    for want, got in zip(*pairs, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def dense(units: int = 3, name: str = "fc") -> Any:
    return S.FullyConnected(S.var("data"), num_hidden=units, name=name)


def norm_of_shared_parameters() -> Any:
    bias = S.var("fc_bias")
    return S.BatchNorm(S.var("data"), bias, bias, name="bn")


OTHERS = {
    "shape": (dense(4), "float32", "'fc_weight' is float32(3, 3) in what"),
    "dtype": (dense(), "float64", "'fc_weight' is float32(3, 3) in what"),
    "name": (dense(name="other"), "float32", "there is no 'other_weight' to share"),
    "state": (norm_of_shared_parameters(), "float32", "there is no 'bn_moving_mean' to share"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_modules_of_other_parameters_are_refused(what: str) -> None:
    symbol, dtype, message = OTHERS[what]
    raised = []
    for is_optimized in (False, True):
        first = S.FullyConnected(S.var("data"), num_hidden=3, name="fc")
        modules = [mx.mod.Module(each, label_names=None) for each in (first, symbol)]
        one, other = map(graphopt.optimize, modules) if is_optimized else modules
        one.bind([("data", (4, 3))])
        one.init_params()
        with pytest.raises(RuntimeError) as error:
            other.bind([mx.io.DataDesc("data", (2, 3), dtype)], shared_module=one)
        raised.append(str(error.value))
    assert message in raised[1]
