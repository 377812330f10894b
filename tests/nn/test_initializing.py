"""Parameters whose shapes a first call tells, of layers that lead to no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError

mx = import_mxnet()
nn = mx.gluon.nn


class Net(mx.gluon.HybridBlock):
    """Like a WaveNet, whose last residual layer nobody reads."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.first, self.unread, self.last = nn.Dense(3), nn.Dense(4), nn.Dense(2)
            self.uncalled = nn.Dense(2)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = self.first(x)
        self.unread(x)
        return self.last(x)


@pytest.mark.parametrize("learns", [False, True])
def test_they_are_initialized_in_mxnets_order(tmp_path: Path, *, learns: bool) -> None:
    def called(*, optimized: bool) -> dict[str, Any]:
        mx.random.seed(1)
        net = Net()
        net.initialize(mx.init.Uniform(1))
        fast = graphopt.optimize(net) if optimized else net
        for rows in (2, 3):
            with mx.autograd.record() if learns else mx.autograd.pause():
                fast(mx.nd.ones((rows, 5)))
        assert net.uncalled.weight._deferred_init
        del net.uncalled
        net._children.pop("uncalled")
        net.save_parameters(str(tmp_path / "net.params"))
        return {name: p.data().asnumpy() for name, p in net.collect_params().items()}

    want, found = called(optimized=False), called(optimized=True)
    assert want.keys() == found.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_hybridized_nets_run_no_python_again() -> None:
    calls = []

    class Counted(Net):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            calls.append(F)
            return super().hybrid_forward(F, x)

    net = Counted()
    net.initialize()
    net.hybridize()
    graphopt.optimize(net)(mx.nd.ones((2, 5)))
    assert calls == [mx.sym]


class Drawing(mx.gluon.HybridBlock):
    """Calls its layers in another order than its graph has them, and draws in between."""

    def __init__(self) -> None:
        super().__init__(prefix="drawing_")
        with self.name_scope():
            self.first, self.second = nn.Dense(3), nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        second = self.second(x)
        return self.first(x + F.random.normal(shape=(2, 5))) + second


def losses(call: str, *, optimized: bool, hybridized: bool = False) -> list[float]:
    mx.random.seed(3)
    net, loss = Drawing(), mx.gluon.loss.L2Loss()
    net.initialize(mx.init.Uniform(1))
    if hybridized:
        net.hybridize()
    seen: list[Any] = []
    net.register_forward_hook(lambda *_: seen.append(1))
    fast = graphopt.optimize(net) if optimized else net
    x, label, found = mx.nd.ones((2, 5)), mx.nd.ones((2, 3)), []
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(fast, loss, trainer) if call == "step" and optimized else None
    for _ in range(3):
        if step is not None:
            found.append(step(x, label).mean().asscalar())
            continue
        if call == "infer":
            found.append(loss(fast(x), label).mean().asscalar())
            continue
        with mx.autograd.record():
            error = loss(fast(x), label)
        error.backward()
        trainer.step(2)
        found.append(error.mean().asscalar())
    assert len(seen) == 3
    return found


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("call", ["infer", "train", "step"])
def test_weights_are_drawn_as_by_mxnet(call: str, *, hybridized: bool) -> None:
    want, found = (losses(call, optimized=o, hybridized=hybridized) for o in (False, True))
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_the_first_call_compiles_besides() -> None:
    net = Drawing()
    net.initialize()
    fast = graphopt.optimize(net)
    fast(mx.nd.ones((2, 5)))
    assert fast.graph().outputs
    assert "inference (data: f32[2,5])" in fast.explain()


def test_a_first_call_that_fails_leaves_shapes_open() -> None:
    net = Drawing()
    net.initialize()
    fast = graphopt.optimize(net)
    with pytest.raises(InputError):
        fast(mx.nd.ones((2, 7)))
    assert net.second.weight.shape == (3, 0)
    assert fast(mx.nd.ones((2, 5))).shape == (2, 3)


def test_initialized_behind_a_call() -> None:
    def drawn(*, optimized: bool) -> Any:
        net = Drawing()
        fast = graphopt.optimize(net) if optimized else net
        with pytest.raises(RuntimeError):
            fast(mx.nd.ones((2, 5)))
        mx.random.seed(5)
        net.initialize(mx.init.Uniform(1))
        return fast(mx.nd.ones((2, 5))).asnumpy()

    np.testing.assert_allclose(drawn(optimized=True), drawn(optimized=False), rtol=1e-5)
