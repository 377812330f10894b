"""Hybridized Blocks: MXNet runs their Python once, and so it is where they are optimized."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.frontend.gluon import lift_block

mx = import_mxnet()
nn, nd, autograd = mx.gluon.nn, mx.nd, mx.autograd


class Scaled(mx.gluon.HybridBlock):
    """A layer times a number that Python reads."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.calls = 1.0, 0
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        self.calls += 1
        return F.tanh(self.dense(x) * self.factor)


class Around(mx.gluon.HybridBlock):
    """Not hybridized, around a Block that is."""

    def __init__(self, child: Any) -> None:
        super().__init__()
        self.bias = 1.0
        self.child, self.out = child, nn.Dense(3, in_units=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.out(self.child(x)) + self.bias


def data(rows: int = 3) -> Any:
    return nd.array(np.random.default_rng(0).normal(size=(rows, 4)))


def ready(net: Any) -> Any:
    net.initialize(mx.init.Xavier())
    return net


def learn(net: Any, rows: int = 3) -> None:
    with autograd.record():
        loss = net(data(rows)).sum()
    loss.backward()


AFTERWARDS: dict[str, Callable[[Any, Any], Any]] = {
    "another size": lambda net, fast: fast(data(5)),
    "another mode": lambda net, fast: learn(fast),
    "another setting of the outer Block": lambda net, fast: setattr(net, "bias", 2.0),
}


@pytest.mark.parametrize("what", AFTERWARDS)
def test_an_attribute_of_a_child_counts_as_it_was(what: str) -> None:
    child = Scaled()
    net = ready(Around(child))
    child.hybridize()
    fast = graphopt.optimize(net)
    fast(data())
    child.factor = 5.0
    AFTERWARDS[what](net, fast)
    for rows in (3, 5):
        np.testing.assert_allclose(fast(data(rows)).asnumpy(), net(data(rows)).asnumpy(), rtol=1e-5)
    assert child.calls == 1


def test_the_graph_of_an_earlier_call_stays() -> None:
    net = ready(Scaled())
    net.hybridize()
    want = net(data()).asnumpy()
    net.factor = 5.0
    fast = graphopt.optimize(net)
    for _ in range(2):
        np.testing.assert_allclose(fast(data()).asnumpy(), want, rtol=1e-5)
    assert net.calls == 1
    net.hybridize()  # makes a new one
    changed = net(data()).asnumpy()
    np.testing.assert_allclose(fast(data()).asnumpy(), changed, rtol=1e-5)
    assert not np.allclose(changed, want)


def test_reset_reads_attributes_again() -> None:
    child = Scaled()
    net = ready(Around(child))
    child.hybridize()
    fast = graphopt.optimize(net)
    fast(data())
    child.factor = 5.0
    fast.reset()
    found = fast(data()).asnumpy()
    np.testing.assert_allclose(found, net(data()).asnumpy(), rtol=1e-5)
    child.hybridize(False)
    np.testing.assert_allclose(found, net(data()).asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("record", [True, False])
def test_ways_of_a_plain_block_compute_the_same(record: bool) -> None:
    class Plain(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.child = Scaled()

        def forward(self, x: Any) -> Any:
            return self.child(x) * 2

    net = ready(Plain())
    net.child.hybridize()
    fast = graphopt.optimize(net, record=record)
    want = fast(data()).asnumpy()
    net.child.factor = 5.0
    for _ in range(3):
        np.testing.assert_allclose(fast(data()).asnumpy(), want, rtol=1e-5)
    np.testing.assert_allclose(net(data()).asnumpy(), want, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_the_blocks_own_export_has_its_parameters(tmp_path: Path) -> None:
    child = Scaled()
    net = ready(Around(child))
    child.hybridize()
    graphopt.optimize(net)(data())
    child.export(str(tmp_path / "child"))
    again = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "child-symbol.json"), ["data"], str(tmp_path / "child-0000.params")
    )
    np.testing.assert_allclose(again(data()).asnumpy(), child(data()).asnumpy(), rtol=1e-6)


def test_looking_at_a_graph_leaves_none_behind() -> None:
    net = ready(Scaled())
    net.hybridize()
    lift_block(net, {"data": (3, 4)}, {})
    net.factor = 5.0
    np.testing.assert_allclose(
        graphopt.optimize(net)(data()).asnumpy(),
        np.tanh(net.dense(data()).asnumpy() * 5),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_child_that_is_called_twice_and_shares_its_weights() -> None:
    class Twice(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.child = Scaled()
            self.other = nn.Dense(4, in_units=4, params=self.child.dense.params)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.child(self.child(x)) + self.other(x)

    net = ready(Twice())
    net.child.hybridize()
    fast = graphopt.optimize(net)
    weight = net.child.dense.weight
    for _ in range(2):
        learn(net)
        want = weight.grad().asnumpy()
        learn(fast)
        np.testing.assert_allclose(weight.grad().asnumpy(), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(fast(data()).asnumpy(), net(data()).asnumpy(), rtol=1e-5)


class Pair(mx.gluon.HybridBlock):
    """Takes a list and perhaps a mask, and returns lists."""

    def hybrid_forward(self, F: Any, pair: Any, mask: Any = None) -> Any:
        found = F.elemwise_add(*pair) if mask is None else pair[0] * mask
        return [F.split(found, 2, axis=1), [pair[1]]]


def test_arguments_and_results_of_all_kinds() -> None:
    class Net(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            (one, two), (three,) = self.pair(F.split(x, 2, axis=1))
            (four, _), _ = self.pair([x, x * 2], None)
            return one * two, three, four

    net = Net()
    net.pair.hybridize()
    fast = graphopt.optimize(net)
    for _ in range(2):
        for got, want in zip(fast(data()), net(data()), strict=True):
            np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5)
    assert "Python runs" not in fast.explain()


def test_other_threads_call_and_trace_meanwhile() -> None:
    child, other = ready(Scaled()), ready(Scaled())
    child.hybridize()
    other.hybridize()
    found: list[np.ndarray] = []

    class Waiting(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.child = child

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                for net in (child, graphopt.optimize(other)):
                    made = pool.submit(net, data()).result()
                    found.append(made.asnumpy())
            return self.child(x) + 1

    net = Waiting()
    net.hybridize()
    y = graphopt.optimize(net)(data()).asnumpy()
    np.testing.assert_allclose(y, child(data()).asnumpy() + 1, rtol=1e-5)
    for array, block in zip(found, (child, other), strict=False):
        np.testing.assert_allclose(array, block(data()).asnumpy(), rtol=1e-5)
    assert other.calls == 1
