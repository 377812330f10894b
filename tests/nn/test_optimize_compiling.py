"""When an optimized net is compiled, when again, and that its parameters are never old."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from tests.nn.optimize_support import image, same, small_cnn

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def test_parameters_stay_live_in_auto_mode() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    x = image()
    trainer = mx.gluon.Trainer(fast.collect_params(), "sgd", {"learning_rate": 0.01})
    for _ in range(3):
        with autograd.record():
            loss = (fast(x) ** 2).mean()
        loss.backward()
        trainer.step(2)
        same(fast(x), net(x))


def test_inference_mode_freezes_until_reset() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net, mode="inference")
    x = image()
    fast(x)
    for p in net.collect_params(".*(gamma|beta|running_mean)").values():
        p.set_data(p.data() + 0.5)
    fast.reset()
    same(fast(x), net(x), 1e-4)


def test_load_parameters_resets_a_frozen_net(tmp_path) -> None:
    source, net = small_cnn(), small_cnn()
    x = image()
    source(x)
    for p in source.collect_params().values():
        p.set_data(p.data() + 0.1)
    source.save_parameters(str(tmp_path / "p"))
    fast = graphopt.optimize(net, mode="inference")
    fast(x)
    fast.load_parameters(str(tmp_path / "p"))
    same(fast(x), source(x), 1e-4)


def test_every_signature_compiles_once() -> None:
    fast = graphopt.optimize(small_cnn())
    for batch in (1, 2, 1, 2):
        fast(image(batch))
    with autograd.record():
        fast(image(2))
    assert len(fast.receipts()) == 3


def test_a_net_that_asks_autograd_is_traced_in_each_state() -> None:
    class Net(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)

        def hybrid_forward(self, F, x):
            found = self.dense(x)
            if autograd.is_recording():
                found = F.concat(found, x)
            return F.tanh(found) if autograd.is_training() else found

    net, x = Net(), mx.nd.random.uniform(shape=(2, 4))
    net.initialize()
    for options in ({}, {"strict": True}, {"mode": "training"}):
        optimized = graphopt.optimize(net, **options)
        for _ in range(2):
            for scope in (autograd.record, autograd.pause):
                for train_mode in (True, False):
                    with scope(train_mode=train_mode):
                        same(optimized(x), net(x))
        assert len(optimized.graphopt_state.compiled.entries) == 4


def test_states_of_autograd_share_a_graph_that_comes_out_alike() -> None:
    net = small_cnn(dropout=0.5)
    optimized, x = graphopt.optimize(net), image()
    for scope in (autograd.record, autograd.train_mode, autograd.record):
        with scope():
            optimized(x)
    with autograd.record(train_mode=False):
        same(optimized(x), net(x))
    assert len(optimized.graphopt_state.compiled.entries) == 1


def test_casting_recompiles() -> None:
    fast = graphopt.optimize(small_cnn(), mode="inference")
    x = image()
    want = fast(x)
    fast.cast("float64")
    same(fast(x.astype("float64")), want, 1e-4)
    assert fast(x.astype("float64")).dtype == np.float64


def test_casting_the_users_net_recompiles() -> None:
    """Calls look alike before and after: their data is numbers of rows."""
    net = nn.HybridSequential()
    net.add(nn.Embedding(7, 4), nn.Dense(3, in_units=4, activation="tanh"))
    net.initialize(mx.init.Normal(1))
    fast, x = graphopt.optimize(net), mx.nd.array([1, 6, 2])
    for dtype in ("float32", "float64", "float32"):
        net.cast(dtype)
        same(fast(x), net(x))
        with autograd.record():
            found = fast(x)
        found.backward()
        assert found.dtype == net[0].weight.grad().dtype == np.dtype(dtype)
        told = fast.explain()
        assert "training (" in told
        assert "its Python ran" not in told


def test_hybridize_compiles_in_what_blocks_within_were_told() -> None:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dropout(0.9))
    net.initialize()
    fast, x = graphopt.optimize(net), mx.nd.ones((2, 4))
    with mx.autograd.record():
        assert (fast(x) == 0).sum().asscalar()
    net[1]._rate = 0
    fast.hybridize()
    with mx.autograd.record():
        assert not (fast(x) == 0).sum().asscalar()


def test_hybridize_and_optimize_for_take_what_mxnet_takes():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    x = mx.nd.array([[1.0, 2.0, 3.0]])
    want, fast = net(x).asnumpy(), graphopt.optimize(net)
    fast.hybridize(True, "MKLDNN")
    np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-6)
    fast.optimize_for(x, backend="MKLDNN", static_alloc=True)
    assert len(fast.receipts()) == 1
    np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-6)
    with pytest.raises(InputError, match="name the backend"):
        fast.optimize_for(x, "MKLDNN")
