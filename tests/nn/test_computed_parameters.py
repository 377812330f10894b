"""Parameters of which every call reads another array than they hold."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
gluon = mx.gluon
nn = gluon.nn

WAYS = [{}, {"strict": True}, {"record": True}, {"memory": "1GB"}, {"max_shapes": {"data": (4, 3)}}]


class Dropped(gluon.Parameter):
    """As GluonNLP's WeightDropParameter."""

    mode = "training"

    def data(self, ctx: Any = None) -> Any:
        return mx.nd.Dropout(super().data(ctx), 0.5, mode=self.mode)


class Wide(gluon.Parameter):
    def data(self, ctx: Any = None) -> Any:
        return super().data(ctx).astype("float64")


class Net(gluon.HybridBlock):
    def __init__(self, kind: type, shape: tuple[int, int] = (4, 3)) -> None:
        super().__init__()
        with self.name_scope():
            self.weight = kind("weight", shape=shape, init=mx.init.One(), allow_deferred_init=True)
        self.params._params["weight"] = self._reg_params["weight"] = self.weight
        self.dense = nn.Dense(2, in_units=4)

    def hybrid_forward(self, F, x, weight):
        found = F.FullyConnected(x, weight, num_hidden=4, no_bias=True)
        return self.dense(F.tanh(found).astype("float32"))


class Outer(gluon.Block):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).reshape((x.shape[0], -1)) * 2


def steps(net: Any, call: Any, x: Any) -> list[np.ndarray]:
    """Losses, gradients, and what is predicted before and after."""
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    found = [call(x)]
    for _ in range(3):
        with mx.autograd.record():
            loss = call(x)
        loss.backward()
        found += [loss, *(p.grad().copy() for p in net.collect_params().values())]
        trainer.step(1)
    return [array.asnumpy() for array in (*found, call(x))]


def made(kind: type, *, is_plain: bool = False) -> Any:
    mx.random.seed(0)
    net = Net(kind)
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    return Outer(net) if is_plain else net


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize(("kind", "dtype"), [(Dropped, "float32"), (Wide, "float64")])
def test_every_call_reads_them_anew(kind: type, dtype: str, options: dict[str, Any]) -> None:
    x = mx.nd.full((4, 3), 0.2, dtype=dtype)
    found = []
    for is_optimized in (False, True):
        net = made(kind)
        call = graphopt.optimize(net, **options) if is_optimized else net
        call(x)
        mx.random.seed(1)
        found.append(steps(net, call, x))
    for expected, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, expected, rtol=1e-5, atol=1e-6)


def test_they_are_read_anew_where_programs_are_recorded() -> None:
    x = mx.nd.ones((4, 3))
    net = made(Dropped, is_plain=True)
    optimized = graphopt.optimize(net, record=True)
    optimized(x)
    masks = []
    for _ in range(3):
        with mx.autograd.record():
            found = optimized(x)
        found.backward()
        masks.append(net.net.weight.grad().asnumpy() != 0)
    assert optimized.graphopt_state.recorded.programs.compiled == 2
    assert all(0 < mask.sum() < mask.size for mask in masks)
    assert any((mask != masks[0]).any() for mask in masks)


def test_masks_of_inference_differ() -> None:
    class Always(Dropped):
        mode = "always"

    for options in ({}, {"mode": "inference"}):
        optimized = graphopt.optimize(made(Always), **options)
        found = [optimized(mx.nd.ones((1, 3))).asnumpy() for _ in range(9)]
        assert any((each != found[0]).any() for each in found)


def test_what_they_hold_is_exported(tmp_path: Path) -> None:
    x = mx.nd.ones((2, 3))
    net = made(Dropped)
    optimized = graphopt.optimize(net, mode="inference")
    expected = optimized(x).asnumpy()
    optimized.export(tmp_path / "net")
    files = [str(tmp_path / name) for name in ("net-symbol.json", "net-0000.params")]
    again = graphopt.load(*files)
    np.testing.assert_allclose(again(x).asnumpy(), expected, rtol=1e-5)
    assert f"arg:{net.weight.name}" in mx.nd.load(files[1])


def test_shapes_that_are_inferred() -> None:
    net = Net(Dropped, (4, 0))
    net.initialize(mx.init.Normal(0.5))
    found = graphopt.optimize(net)(mx.nd.ones((2, 3))).asnumpy()
    np.testing.assert_allclose(found, net(mx.nd.ones((2, 3))).asnumpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "is_late", "grad_req"),
    one_of(5, itertools.product(WAYS[:3], [False, True], ["write", "null"])),
)
def test_computed_arrays_put_in_their_place_learn(
    grad_req: str, is_late: bool, options: dict[str, Any]
) -> None:
    x = mx.nd.ones((4, 3))
    found = []
    for is_optimized in (False, True):
        net = made(gluon.Parameter)
        net.weight.grad_req = grad_req
        call = graphopt.optimize(net, **options) if is_optimized else net
        if is_late:
            with mx.autograd.record():
                call(x).backward()
        call(x)
        gradients = []
        for step in range(3):
            mean = mx.nd.full((4, 3), 0.1 * step)
            mean.attach_grad()
            with mx.autograd.record():
                net.weight._data[0] = mean * 2
                loss = call(x)
            loss.backward()
            gradients += [loss.asnumpy(), mean.grad.asnumpy(), call(x).asnumpy()]
        found.append(gradients)
    for expected, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, expected, rtol=1e-5, atol=1e-6)


def test_programs_read_computed_arrays_put_in_their_place() -> None:
    x = mx.nd.ones((4, 3))
    net = made(gluon.Parameter, is_plain=True)
    optimized = graphopt.optimize(net, record=True)
    optimized(x)
    for step in range(3):
        mean = mx.nd.full((4, 3), 0.1 * step)
        gradients = []
        for call in (net, optimized):
            mean.attach_grad()
            with mx.autograd.record():
                net.net.weight._data[0] = mean * 2
                loss = call(x)
            loss.backward()
            gradients.append(mean.grad.asnumpy())
        np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)
