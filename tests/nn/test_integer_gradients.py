"""Gradients of integers, which MXNet hands through casts, truncated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED

mx = import_mxnet()
DTYPES = ["uint8", "int8", "int32", "int64"]


class Waves(mx.gluon.HybridBlock):
    """A few pointwise operators on integers and on floats."""

    def hybrid_forward(self, F: Any, x: Any, w: Any) -> Any:
        return F.tanh(F.cast(x, "float32") * 0.3 * w) * F.sqrt(w) * 20


class Twice(mx.gluon.HybridBlock):
    """What an engine without MXNet's operators may run."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.cast(x, "float32") * 2


class Scaled(mx.gluon.HybridBlock):
    """A parameter of integers."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.table = self.params.get("table", shape=(4, 6), dtype="int32", init=mx.init.One())

    def hybrid_forward(self, F: Any, x: Any, table: Any) -> Any:
        return F.cast(table, "float32") * x


def integers(rows: int = 4, dtype: str = "int32", *, learns: bool = True) -> Any:
    array = mx.nd.array(np.arange(rows * 6).reshape(rows, 6) % 8, dtype=dtype)
    if learns:
        array.attach_grad()
    return array


def floats(rows: int = 4) -> Any:
    array = mx.nd.array(np.linspace(1, 2, rows * 6).reshape(rows, 6))
    array.attach_grad()
    return array


def learned(net: Any, *given: Any) -> list[Any]:
    """The output and the gradients that there are."""
    with mx.autograd.record():
        output = net(*given)
    output.backward(mx.nd.full(output.shape, 3))
    gradients = [array.grad for array in given if array.grad is not None]
    return [array.asnumpy() for array in (output, *gradients)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hybridized", [False, True])
def test_integers_that_are_cast_learn(dtype: str, hybridized: bool) -> None:
    net = Twice()
    if hybridized:
        net.hybridize(static_alloc=True)
    found = learned(graphopt.optimize(net), integers(dtype=dtype))
    assert_same(found, learned(Twice(), integers(dtype=dtype)))
    assert np.all(found[1] == 6)


@pytest.mark.parametrize("options", [{}, {"record": True}, {"memory": 1 << 30}], ids=str)
def test_integers_may_learn_later(options: dict[str, Any]) -> None:
    """What was compiled when nobody asked for their gradients has none."""
    fast = graphopt.optimize(Waves(), **options)
    for learns in (False, True, True, False):
        found = learned(fast, integers(learns=learns), floats())
        assert_same(found, learned(Waves(), integers(learns=learns), floats()))


def test_integers_of_other_sizes_learn() -> None:
    fast = graphopt.optimize(Waves())
    for learns in (False, True):
        for rows in [*range(2, 9)] * 2:
            found = learned(fast, integers(rows, learns=learns), floats(rows))
            assert_same(found, learned(Waves(), integers(rows, learns=learns), floats(rows)))


def test_computed_integers_learn() -> None:
    found = []
    for net in (Waves(), graphopt.optimize(Waves())):
        x = integers()
        with mx.autograd.record():
            net(x * 2, floats()).backward()
        found.append([x.grad.asnumpy()])
    assert_same(*found)


def test_parameters_of_integers_learn() -> None:
    net = Scaled()
    net.initialize()
    for each in (net, graphopt.optimize(net)):
        learned(each, floats())
        np.testing.assert_array_equal(net.table.grad().asnumpy(), np.trunc(floats().asnumpy() * 3))
        net.table.zero_grad()


def test_models_learn_of_integers() -> None:
    symbol = mx.sym.Cast(mx.sym.var("x"), dtype="float32") * mx.sym.var("w")
    model = graphopt.optimize(symbol)
    for learns in (False, True):
        x = integers(learns=learns)
        learned(lambda given, x=x: model(x=x, w=given), floats())
    np.testing.assert_array_equal(x.grad.asnumpy(), np.trunc(floats().asnumpy() * 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_labels_stay_in_the_kernel_of_a_loss(dtype: str) -> None:
    loss = graphopt.optimize(Waves())
    learned(loss, integers(dtype=dtype, learns=False), floats())
    assert [node.op for node in loss.graph() if not node.is_input] == [FUSED]
