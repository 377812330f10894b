"""Backward in another mode than forward, against MXNet's: it trains unless it is told not to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
S = mx.sym
Make = Callable[[], Any]
TURNED = "backward in another mode than forward's: MXNet's executor ran both"


@mx.operator.register("graphopt_test_modes_twice")
class TwiceProp(mx.operator.CustomOpProp):  # type: ignore[misc]
    """An operator of the user's."""

    def create_operator(self, *_: Any) -> Any:
        return Twice()


class Twice(mx.operator.CustomOp):  # type: ignore[misc]
    def forward(self, req: Any, in_data: Any, out_data: Any, **_: Any) -> None:
        self.assign(out_data[0], req[0], in_data[0] * 2)

    def backward(self, req: Any, out_grad: Any, in_grad: Any, **_: Any) -> None:
        self.assign(in_grad[0], req[0], out_grad[0] * 2)


def norm(x: Any, **attrs: Any) -> Any:
    return S.BatchNorm(x, name="bn", **{"fix_gamma": False, **attrs})


def bare() -> Any:
    return norm(S.var("data"))


def dense() -> Any:
    hidden = S.tanh(norm(S.FullyConnected(S.var("data"), num_hidden=6, name="f1", no_bias=True)))
    scores = S.FullyConnected(hidden, num_hidden=3, name="f2")
    return S.Group([S.SoftmaxOutput(scores, name="softmax"), S.BlockGrad(hidden), hidden * 2])


def images() -> Any:
    x = S.reshape(S.var("data"), (-1, 1, 1, 5))
    x = S.Convolution(x, num_filter=16, kernel=(1, 1), no_bias=True, name="c")
    return S.Pooling(S.relu(norm(x)), global_pool=True, pool_type="avg", kernel=(1, 1))


def moving_statistics_alone() -> Any:
    return norm(S.var("data"), use_global_stats=True)


def operators_of_the_users() -> Any:
    return S.Custom(norm(S.var("data")), op_type="graphopt_test_modes_twice")


def dropout_with_operators_of_the_users() -> Any:
    return S.Custom(S.Dropout(S.var("data"), p=0.5), op_type="graphopt_test_modes_twice")


def names(makes: list[Make]) -> list[str]:
    return [make.__name__ for make in makes]


def executor(make: Make, *, is_optimized: bool, grad_req: str = "write") -> Any:
    made = make().simple_bind(mx.cpu(), grad_req=grad_req, data=(4, 5))
    rng = np.random.default_rng(0)
    for name, array in made.arg_dict.items():
        array[:] = 1 if "label" in name else rng.standard_normal(array.shape)
    for array in made.aux_arrays:
        array[:] = 0.5 + rng.random(array.shape)
    return graphopt.optimize(made) if is_optimized else made


def called(executor: Any, seed: int, *, forward: bool, backward: bool) -> list[np.ndarray]:
    """Outputs, gradients and states behind one call of both."""
    rng = np.random.default_rng(seed)
    executor.forward(is_train=forward, data=mx.nd.array(rng.standard_normal((4, 5))))
    heads = [mx.nd.array(rng.standard_normal(output.shape)) for output in executor.outputs]
    executor.backward(heads, is_train=backward)
    mx.nd.waitall()  # MXNet's engine is not told that statistics are written
    arrays = (*executor.outputs, *executor.grad_arrays, *executor.aux_arrays)
    return [array.asnumpy() for array in arrays]


def assert_all_near(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


COMPILED = [bare, dense, images, moving_statistics_alone]


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("forward", [False, True])
@pytest.mark.parametrize("make", COMPILED, ids=names(COMPILED))
def test_the_other_mode(make: Make, forward: bool, grad_req: str) -> None:
    plain, fast = (executor(make, is_optimized=which, grad_req=grad_req) for which in (False, True))
    for seed in range(3):
        for backward in (not forward, forward, not forward):
            found = [called(e, seed, forward=forward, backward=backward) for e in (fast, plain)]
            assert_all_near(*found)
    assert (TURNED in fast.explain()) == (make is not moving_statistics_alone)


def test_executors_that_go_soon_have_the_same_gradients() -> None:
    """MXNet's executor runs their first calls."""
    wanted = called(executor(bare, is_optimized=False), 1, forward=False, backward=True)
    for calls in (1, 1, 1, 6):
        fast = executor(bare, is_optimized=True)
        for _ in range(calls):
            assert_all_near(called(fast, 1, forward=False, backward=True), wanted)


KEPT = [operators_of_the_users, dropout_with_operators_of_the_users]


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("make", KEPT, ids=names(KEPT))
def test_operators_of_the_users_behind_inference(make: Make, backward: bool) -> None:
    plain, fast = (executor(make, is_optimized=which) for which in (False, True))
    for seed in range(3):
        found = [called(e, seed, forward=False, backward=backward) for e in (fast, plain)]
        assert_all_near(*found)


def test_numbers_that_were_drawn_are_not_drawn_again() -> None:
    data = S.var("data")
    symbol = S.Group([norm(data), S.Dropout(data + 9, p=0.5, mode="always")])
    fast = graphopt.optimize(symbol.simple_bind(mx.cpu(), data=(40, 5)))
    for _ in range(3):
        _, output = fast.forward(is_train=False)
        fast.backward([mx.nd.zeros((40, 5)), mx.nd.ones((40, 5)) * 9])
        np.testing.assert_allclose(
            fast.grad_dict["data"].asnumpy(), output.asnumpy(), rtol=1e-5, atol=1e-5
        )
    assert TURNED not in fast.explain()


def test_gradients_by_the_data_of_a_module() -> None:
    """Its backward has no mode to give: it trains."""
    found = []
    for is_optimized in (False, True):
        module = mx.mod.Module(dense())
        module = graphopt.optimize(module) if is_optimized else module
        module.bind([("data", (4, 5))], [("softmax_label", (4,))], inputs_need_grad=True)
        mx.random.seed(0)
        module.init_params(mx.init.Xavier())
        data = np.random.default_rng(0).standard_normal((4, 5))
        batch = mx.io.DataBatch([mx.nd.array(data)], [mx.nd.arange(4) % 3])
        for _ in range(2):
            module.forward(batch, is_train=False)
            module.backward([mx.nd.ones(output.shape) for output in module.get_outputs()])
        found.append([gradient.asnumpy() for gradient in module.get_input_grads()])
    assert_all_near(*found)
