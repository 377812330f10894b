"""Hybridized children of recorded Blocks: their graphs are recorded, each as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.recording.children import Child, child_of
from tests.recording.nets import array, assert_same, block, programs

mx = import_mxnet()
nn, nd, autograd = mx.gluon.nn, mx.nd, mx.autograd


class Hybrid(mx.gluon.HybridBlock):
    """A hybridized Block with that ``hybrid_forward``."""

    def __init__(
        self, function: Callable[..., Any], *, flags: dict[str, Any] | None = None, **children: Any
    ) -> None:
        super().__init__()
        self.calls = 0
        self._function = function
        for name, child in children.items():
            setattr(self, name, child)
        self.hybridize(**(flags or {}))

    def hybrid_forward(self, F: Any, *args: Any) -> Any:
        self.calls += 1
        return self._function(self, F, *args)


def two(self: Any, F: Any, x: Any) -> Any:
    return F.tanh(self.a(x)), self.norm(self.b(x))


def of_two(**flags: Any) -> Any:
    layers = {name: nn.Dense(4, in_units=4) for name in "ab"}
    child = Hybrid(two, flags=flags, norm=nn.BatchNorm(in_channels=4), **layers)
    return block(
        lambda self, x: self.out(self.child(x)[0]), child=child, out=nn.Dense(2, in_units=4)
    )


def learned(make: Callable[[], Any], **options: Any) -> list[np.ndarray]:
    """Parameters after some steps, those of the first batch once more as the last."""
    mx.random.seed(3)
    net = make()
    run = graphopt.optimize(net, **options) if options else net
    adam = {"learning_rate": 0.01, "wd": 0.01}
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", adam)
    for rows in (5, 5, 3, 7, 5):
        with autograd.record():
            loss = run(array(rows, 4)).square().sum()
        loss.backward()
        trainer.step(rows)
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


@pytest.mark.parametrize("record", [True, None])
@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}])
def test_what_nobody_reads_learns_as_in_mxnet(record: Any, flags: dict[str, Any]) -> None:
    want, got = learned(lambda: of_two(**flags)), learned(lambda: of_two(**flags), record=record)
    for one, other in zip(want, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_what_nobody_reads_is_of_the_program_if_it_learns() -> None:
    optimized = graphopt.optimize(of_two(), record=True)
    for _ in range(3):
        with autograd.record():
            loss = optimized(array(5, 4)).sum()
        loss.backward()
    optimized(array(5, 4))
    learning, inferring = programs(optimized).entries
    assert [len(entry.original.outputs) for entry in (learning, inferring)] == [2, 1]


def test_so_few_operators_as_mxnet_takes_apart_lead_where_they_do() -> None:
    layers = {name: nn.Dense(4, in_units=4) for name in "ab"}
    child = Hybrid(lambda self, F, x: (self.a(x), self.b(x)), **layers)
    net = block(lambda self, x: self.child(x)[0] * 2, child=child)
    optimized = graphopt.optimize(net, record=True)
    unread = child.b.weight.grad()
    for _ in range(3):
        unread[:] = 7
        with autograd.record():
            loss = optimized(array(5, 4)).sum()
        loss.backward()
        assert (unread.asnumpy() == 7).all()
    assert child.a.weight.grad().asnumpy().any()


def test_python_of_a_child_runs_once() -> None:
    def forward(self: Any, F: Any, x: Any) -> Any:
        with autograd.pause():  # which a graph knows nothing of
            y = self.dense(x)
        return y * self.factor + self.calls

    child = Hybrid(forward, dense=nn.Dense(4, in_units=4))
    child.factor = 2.0
    net = block(lambda self, x: self.child(x), child=child)
    optimized = graphopt.optimize(net, record=True)
    for call in range(4):
        x = array(3, 4)
        with autograd.record():
            y = optimized(x)
        y.backward()
        child.factor = 5.0
        np.testing.assert_allclose(y.asnumpy(), child.dense(x).asnumpy() * 2 + 1, rtol=1e-5)
        rows = np.tile(x.asnumpy().sum(0) * 2, (4, 1))
        np.testing.assert_allclose(child.dense.weight.grad().asnumpy(), rows, rtol=1e-5)
        assert child.calls == 1, call


def test_what_is_drawn_is_drawn_in_order() -> None:
    def forward(self: Any, F: Any, x: Any) -> Any:
        return F.random.normal_like(x) * x, F.random.uniform_like(x)

    def outer(self: Any, x: Any) -> Any:
        first, _ = self.child(x)
        return first + nd.random.uniform(shape=(3, 4))

    net = block(outer, child=Hybrid(forward))
    optimized, x = graphopt.optimize(net, record=True), array(3, 4)
    for _ in range(3):
        found = []
        for run in (net, optimized):
            mx.random.seed(1)
            found.append([run(x).asnumpy() for _ in range(2)])
        np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda self, F, x: (x, self.dense(x)),
        lambda self, F, x: [self.dense(x)] * 2,
        lambda self, F, x: [[F.split(self.dense(x), 2)], F.tanh(x)],
    ],
    ids=["input", "twice", "nested"],
)
def test_results_of_all_kinds(function: Any) -> None:
    child = Hybrid(function, dense=nn.Dense(4, in_units=4))
    net = block(lambda self, x: [self.child(x), x * 2], child=child)
    assert_same(net, array(6, 4))


def test_extents_that_only_the_graph_tells() -> None:
    cell = mx.gluon.rnn.LSTMCell(4, input_size=4)

    def forward(self: Any, F: Any, x: Any) -> Any:
        return self.cell.unroll(3, x, merge_outputs=True)[0]

    net = block(lambda self, x: self.child(x) + 1, child=Hybrid(forward, cell=cell))
    optimized = assert_same(net, array(5, 3, 4))
    assert programs(optimized).compiled == 1


def test_lists_and_none_are_passed_on() -> None:
    def forward(self: Any, F: Any, pair: Any, mask: Any = None) -> Any:
        return self.dense(pair[0]) * pair[1] + (0 if mask is None else mask)

    child = Hybrid(forward, dense=nn.Dense(4, in_units=4))
    net = block(lambda self, x: self.child([x, x * 2], None), child=child)
    assert_same(net, array(3, 4))
    with pytest.raises(ValueError, match=r"do not support passing|argument structure"):
        child(array(3, 4), array(3, 4))


def test_a_child_of_numpys_interface(numpy_interface: None) -> None:
    child = Hybrid(lambda self, F, x: F.np.exp(self.dense(x)), dense=nn.Dense(4, in_units=4))
    net = block(lambda self, x: self.child(x) - 1, child=child)
    x = mx.np.ones((3, 4))
    optimized = graphopt.optimize(net, record=True)
    for _ in range(3):
        found = optimized(x)
        assert isinstance(found, mx.np.ndarray)
        np.testing.assert_allclose(found.asnumpy(), net(x).asnumpy(), rtol=1e-5)
    assert programs(optimized).compiled == 1


def test_loops_and_operators_of_the_user_are_left_to_mxnet() -> None:
    def forward(self: Any, F: Any, x: Any) -> Any:
        first = F.zeros_like(F.slice_axis(x, axis=0, begin=0, end=1).reshape(-1))
        return F.contrib.foreach(lambda row, total: (total + row, total + row), x, first)[0]

    child = Hybrid(forward)
    net = block(lambda self, x: self.child(x * 2) + 1, child=child)
    optimized = assert_same(net, array(3, 4))
    assert child_of(child, child._cached_op) is None
    assert {n.op for e in programs(optimized).entries for n in e.original if not n.is_input} == {
        "_mul_scalar",
        "_plus_scalar",
    }


def test_what_a_child_hands_on_has_the_memory_of_what_it_was_given() -> None:
    def forward(self, x):
        y = self.shortcut(x)
        y += 1
        counted, scaled = self.counting(x)
        counted += 1
        return x * 3, scaled, y

    class Counting(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.count = self.params.get("count", shape=(1,), init="zeros", grad_req="null")

        def hybrid_forward(self, F: Any, x: Any, count: Any) -> Any:
            return count, F.broadcast_add(F.tanh(x) * 2, count)

    net = block(forward, shortcut=nn.HybridSequential(), counting=Counting())
    net.shortcut.hybridize()
    net.counting.hybridize()
    optimized, count = graphopt.optimize(net, record=True), net.counting.count
    for calls in range(1, 5):
        want, got = net(array(3, 4)), optimized(array(3, 4))
        assert count.data().asscalar() == 2 * calls
        for step, (one, other) in enumerate(zip(want, got, strict=True)):
            np.testing.assert_allclose(other.asnumpy(), one.asnumpy() + (step == 1), rtol=1e-5)


def test_a_shortcut_ends_no_program() -> None:
    net = block(
        lambda self, x: self.shortcut(self.dense(x)) + x,
        shortcut=nn.HybridSequential(),
        dense=nn.Dense(4, in_units=4),
    )
    net.shortcut.hybridize()
    optimized = assert_same(net, array(3, 4))
    assert programs(optimized).compiled == 1
    assert programs(optimized).runs == 2


def test_a_graph_is_the_same_for_a_child_that_is_hybridized_again() -> None:
    child = Hybrid(lambda self, F, x: F.tanh(self.dense(x)), dense=nn.Dense(4, in_units=4))
    net = block(lambda self, x: self.child(x) + 1, child=child)
    optimized = assert_same(net, array(3, 4))
    (key,) = programs(optimized)._entries
    child.hybridize()
    optimized(array(3, 4))
    assert [*programs(optimized)._entries] == [key]
    assert isinstance(key.calls[0].op, Child)
    assert key.calls[0].op.size == 2


@pytest.mark.filterwarnings("ignore:register_op_hook is experimental")
def test_a_monitored_child_is_called_by_mxnet() -> None:
    seen: list[str] = []
    child = Hybrid(lambda self, F, x: F.tanh(self.dense(x)), dense=nn.Dense(4, in_units=4))
    net = block(lambda self, x: self.child(x) + 1, child=child)
    child.register_op_hook(lambda name, *_: seen.append(name))
    graphopt.optimize(net, record=True)(array(3, 4))
    assert seen
