"""optimize(net, record=True): Python runs at every call, what it calls runs as one graph."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.nn.ski_rental import AT_ONCE
from graphopt.recording.arrays import PENDING
from graphopt.recording.programs import MAX_PLAIN
from tests.recording.nets import array, assert_same, block, programs

mx = import_mxnet()
nn = mx.gluon.nn


# -- what is one graph -----------------------------------------------------------------------------


def test_shapes_are_known_and_one_graph_is_made() -> None:
    def forward(self, x):
        assert x.ndim == 3
        assert x.size == 24
        assert x.dtype is np.float32
        assert x.ctx == mx.cpu()
        y = self.dense(x.reshape((x.shape[0] * x.shape[1], -1)))
        assert y.shape == (6, 5)
        assert len(y) == 6
        assert y.stype == "default"
        return mx.nd.softmax(y.reshape((2, -1, 5)) / math.sqrt(y.shape[1]), axis=-1)

    optimized = assert_same(block(forward, dense=nn.Dense(5)), array(2, 3, 4))
    assert programs(optimized).runs == 2
    assert programs(optimized).compiled == 1
    (entry,) = programs(optimized).entries
    assert len([n for n in entry.original if not n.is_input]) > 3
    assert "its Python runs at every call; 2 programs were run, 1 of them compiled first" in (
        optimized.explain()
    )


def test_what_is_returned_is_an_ordinary_array() -> None:
    net = block(lambda self, x: {"twice": x * 2, "pair": (x + 1, [x - 1])})
    found = graphopt.optimize(net, record=True)(array(2, 3))
    arrays = (found["twice"], found["pair"][0], found["pair"][1][0])
    assert all(type(a) is mx.nd.NDArray for a in arrays)
    found["twice"][:] = 7
    assert found["twice"].asnumpy().tolist() == [[7] * 3] * 2


def test_arguments_may_be_anything() -> None:
    def forward(self, tree, scale=1.0):
        return sum((self(x, scale) if isinstance(x, tuple) else x * scale) for x in tree)

    net = block(forward)
    assert_same(net, (array(2, 2), (array(2, 2), array(2, 2))), 3.0)


def test_another_shape_is_another_program() -> None:
    net = block(lambda self, x: self.dense(x.reshape((0, -1))), dense=nn.Dense(3, in_units=4))
    optimized = graphopt.optimize(net, record=True)
    for rows in (2, 5, 2, 5):
        np.testing.assert_allclose(
            optimized(array(rows, 4)).asnumpy(), net(array(rows, 4)).asnumpy(), rtol=1e-5
        )
    assert programs(optimized).compiled == 2


def test_values_kept_in_attributes_are_computed() -> None:
    def forward(self, x):
        self.weights = mx.nd.softmax(self.dense(x))
        forgotten = x * 100  # noqa: F841 - nobody holds it when the call ends
        return mx.nd.dot(self.weights, x)

    net = block(forward, dense=nn.Dense(4))
    optimized = assert_same(net, array(4, 4))
    kept = optimized.weights
    assert type(kept) is mx.nd.NDArray
    np.testing.assert_allclose(kept.asnumpy().sum(axis=1), np.ones(4), rtol=1e-5)
    (entry,) = programs(optimized).entries
    assert len(entry.original.outputs) == 2


def test_hybridized_children_are_inlined_and_stay_hybridized() -> None:
    child = nn.HybridSequential()
    child.add(nn.Dense(8, activation="relu"), nn.Dense(3))
    net = block(lambda self, x: mx.nd.tanh(self.child(x) * 2), child=child)
    child.hybridize()
    optimized = assert_same(net, array(2, 4))
    (entry,) = programs(optimized).entries
    assert sum(n.op == "FullyConnected" for n in entry.original) == 2
    assert child._active


def test_a_hybridized_block_whose_own_forward_calls_gluons_runs_it_once() -> None:
    class Halved(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(2)

        def forward(self, x):
            assert x.ndim == 2  # which a Symbol has not
            return super().forward(x / 2)

        def hybrid_forward(self, F, x):
            return F.tanh(self.dense(x))

    child = Halved()
    outer = block(lambda self, x: self.child(x) + 1, child=child)
    child.hybridize()
    for net in (outer, child):
        optimized = assert_same(net, array(3, 4))
        assert programs(optimized).runs == 2
        assert child._active


def test_inference_mode_folds_parameters() -> None:
    net = block(
        lambda self, x: mx.nd.relu(self.norm(self.conv(x))),
        conv=nn.Conv2D(4, 3),
        norm=nn.BatchNorm(),
    )
    optimized = assert_same(net, array(2, 3, 8, 8), mode="inference")
    (entry,) = programs(optimized).entries
    assert not any(n.op == "BatchNorm" for n in entry.result.graph)


def test_children_that_are_optimized_are_part_of_it() -> None:
    child = nn.HybridSequential()
    child.add(nn.Dense(3, in_units=4))
    net = block(lambda self, x: mx.nd.tanh(self.child(x)), child=graphopt.optimize(child))
    optimized = assert_same(net, array(2, 4))
    (entry,) = programs(optimized).entries
    assert {n.op for n in entry.original if not n.is_input} == {"FullyConnected", "tanh"}


# -- what is not compiled --------------------------------------------------------------------------


def test_numbers_that_change_from_call_to_call() -> None:
    def forward(self, x):
        self.step = getattr(self, "step", 0) + 1
        return self.dense(x) * self.step

    net = block(forward, dense=nn.Dense(2))
    optimized, x = graphopt.optimize(net, record=True, passes="none"), array(1, 2)
    for _ in range(AT_ONCE + MAX_PLAIN + 4):
        found = optimized(x).asnumpy()
        np.testing.assert_allclose(found, net.dense(x).asnumpy() * net.step, rtol=1e-5)
    assert programs(optimized).compiled == AT_ONCE
    assert programs(optimized).runs == AT_ONCE + MAX_PLAIN + 1
    assert programs(optimized).is_in_vain
    told = optimized.explain()
    assert f"{MAX_PLAIN + 1} runs, of {MAX_PLAIN + 1} programs, were made call by call" in told
    assert "not recorded any more" in told


def test_programs_that_come_often_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    net = block(lambda self, x: self.dense(x.reshape((0, -1))), dense=nn.Dense(2, in_units=3))
    optimized = graphopt.optimize(net, record=True, passes="none")
    for rows in range(1, AT_ONCE + 2):
        optimized(array(rows, 3))
    rule = programs(optimized).rule
    assert (programs(optimized).compiled, rule.plain_calls) == (AT_ONCE, 1)
    monkeypatch.setattr(rule, "_compiling", 1e-9)
    x, weight = array(AT_ONCE + 1, 3), net.dense.weight
    with mx.autograd.record():
        found = optimized(x).sum()  # runs call by call, as the first step does in any case
    found.backward()
    np.testing.assert_allclose(
        weight.grad().asnumpy(), np.tile(x.asnumpy().sum(0), (2, 1)), rtol=1e-5
    )
    optimized(x)  # the first of its calls does not count
    np.testing.assert_allclose(optimized(x).asnumpy(), net(x).asnumpy(), rtol=1e-5)
    assert (programs(optimized).compiled, rule.plain_calls) == (AT_ONCE + 1, 2)
    assert not programs(optimized).is_in_vain


def test_where_it_is_asked_for_all_programs_are_compiled() -> None:
    net = block(lambda self, x: self.dense(x.reshape((0, -1))), dense=nn.Dense(2, in_units=3))
    optimized = graphopt.optimize(net, record=True, passes="none", strict=True)
    for rows in range(1, 40):
        optimized(array(rows, 3))
    assert programs(optimized).compiled == 39


def test_a_program_that_mxnet_has_no_graph_for() -> None:
    def forward(self, x):
        ones = mx.nd.ones((3,))
        # Statistics that are computed are no variables, which a graph wants them to be.
        return mx.nd.BatchNorm(x, ones, ones * 0, ones * 0, ones * 2, use_global_stats=True) + 1

    optimized = assert_same(block(forward), array(2, 3, 4, 4))
    assert "runs call by call" in optimized.explain()


def test_python_operators_run_at_once() -> None:
    class Plus(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] + 1)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0])

    class PlusProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Plus()

    mx.operator.register("graphopt_test_plus")(PlusProp)
    assert_same(
        block(lambda self, x: mx.nd.Custom(x * 2, op_type="graphopt_test_plus") * 3), array(2, 2)
    )


def test_what_the_block_raises_is_raised() -> None:
    def forward(self, x):
        y = x * 2
        if x.shape[0] == 3:
            raise KeyError("no such thing")
        return y

    optimized = graphopt.optimize(block(forward), record=True)
    with pytest.raises(KeyError, match="no such thing"):
        optimized(array(3, 1))
    assert optimized(array(2, 1)).shape == (2, 1)


def test_a_wrong_call_raises_what_mxnet_raises() -> None:
    optimized = graphopt.optimize(block(lambda self, x: mx.nd.dot(x, x)), record=True)
    with pytest.raises(mx.MXNetError):
        optimized(array(2, 3)).asnumpy()


@pytest.mark.parametrize("option", [{"memory": "1GB"}, {"max_shapes": {"data": (2, 2)}}])
def test_refused_with_planned_memory(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="leave out record=True"):
        graphopt.optimize(block(lambda self, x: x), record=True, **option)


def test_it_cannot_be_exported(tmp_path: Path) -> None:
    optimized = graphopt.optimize(block(lambda self, x: x * 2), record=True)
    optimized(array(2, 2))
    with pytest.raises(InputError, match="cannot be exported as one graph"):
        optimized.export(tmp_path / "net")


def test_its_graph_and_its_report(tmp_path: Path) -> None:
    optimized = graphopt.optimize(block(lambda self, x: mx.nd.relu(x) * 2 + 1), record=True)
    optimized(array(2, 2))
    assert len(optimized.graph().outputs) == 1
    assert "fuse-pointwise" in optimized.report(tmp_path / "net.html").read_text()


def test_a_net_that_compiles_whole_is_not_recorded() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.initialize()
    optimized = graphopt.optimize(net, record=True)
    optimized(array(2, 4))
    assert optimized.graphopt_state.recorded is None


def test_without_it_explain_tells_of_it() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)), dense=nn.Dense(3))
    optimized = graphopt.optimize(net, record=False)
    optimized(array(2, 4))
    assert "record=True compiles them" in optimized.explain()


# -- beside others ---------------------------------------------------------------------------------


def test_threads() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)) * 2, dense=nn.Dense(3))
    optimized = graphopt.optimize(net, record=True)
    inputs = [array(2 + n % 3, 4) * (n + 1) for n in range(12)]
    wanted = [net(x).asnumpy() for x in inputs]
    found: list[Any] = [None] * len(inputs)

    def work(offset: int) -> None:
        for n in range(offset, len(inputs), 3):
            found[n] = optimized(inputs[n]).asnumpy()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


def test_inside_of_a_batch() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)) + 1, dense=nn.Dense(3, in_units=4))
    batched = graphopt.batch(graphopt.optimize(net, record=True))
    samples = [(array(1, 4) * n,) for n in range(4)]
    found = batched(samples)
    wanted = np.concatenate([net(x).asnumpy() for (x,) in samples])
    np.testing.assert_allclose(found.asnumpy(), wanted, rtol=1e-5)


def test_a_batch_inside_of_it() -> None:
    inner = block(lambda self, x: mx.nd.tanh(self.dense(x)), dense=nn.Dense(3, in_units=4))
    batched = graphopt.batch(inner)
    net = block(lambda self, x: batched([(x[:1] * 2,), (x[1:] * 3,)]) + 1)
    assert_same(net, array(2, 4))


def test_no_pending_array_stays() -> None:
    kept = []
    net = block(lambda self, x: kept.append(x * 2) or x + 1)
    graphopt.optimize(net, record=True)(array(2, 2))
    assert type(kept[0]) not in PENDING
