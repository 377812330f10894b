"""Children that are added or replaced, and hooks that come, after a Block was compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError

mx = import_mxnet()
nn = mx.gluon.nn

KINDS = pytest.mark.parametrize("kind", [nn.Sequential, nn.HybridSequential])


def made(kind: Any) -> tuple[Any, Any]:
    """A net of two layers, and its view, which was called."""
    net = kind()
    net.add(nn.Dense(4, activation="relu"), nn.Dense(3))
    net.initialize(mx.init.Normal(0.5))
    fast = graphopt.optimize(net)
    fast(data())
    return net, fast


def data() -> Any:
    return mx.nd.array(np.random.default_rng(1).normal(size=(2, 5)))


@KINDS
@pytest.mark.parametrize("owner", ["net", "view"])
def test_a_child_that_was_added_is_run(kind: Any, owner: str) -> None:
    net, fast = made(kind)
    (net if owner == "net" else fast).add(nn.Dense(7))
    net[2].initialize()
    found = fast(data())
    assert found.shape == (2, 7)
    np.testing.assert_allclose(found.asnumpy(), net(data()).asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_child_that_was_replaced_is_run() -> None:
    class Model(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.HybridSequential()
            self.body.add(nn.Dense(4))
            self.output = nn.Dense(3)

        def hybrid_forward(self, _F: Any, x: Any) -> Any:  # noqa: N803 - Gluon's name
            return self.output(self.body(x))

    net = Model()
    net.initialize()
    fast = graphopt.optimize(net)
    assert fast(data()).shape == (2, 3)
    fast.output = nn.Dense(6)
    fast.output.initialize()
    assert fast(data()).shape == (2, 6)
    fast.body.add(nn.Dense(8))
    fast.body[1].initialize()
    fast.output = nn.Dense(2)
    fast.output.initialize()
    np.testing.assert_allclose(fast(data()).asnumpy(), net(data()).asnumpy(), rtol=1e-5, atol=1e-6)


@KINDS
def test_hooks_of_children_run_and_what_was_compiled_is_kept(kind: Any) -> None:
    net, fast = made(kind)
    expected = fast(data()).asnumpy()
    entries = len(fast._graphopt_entries())
    seen: list[tuple[int, ...]] = []
    handle = net[0].register_forward_hook(lambda *given: seen.append(given[2].shape))
    np.testing.assert_allclose(fast(data()).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert seen == [(2, 4)]
    assert f"Dense {net[0].name!r} has forward hooks" in fast.explain()
    handle.detach()
    np.testing.assert_allclose(fast(data()).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert seen == [(2, 4)]
    assert len(fast.graphopt_state.compiled.entries) == entries


def test_hooks_of_children_are_refused_where_all_must_compile() -> None:
    net, _ = made(nn.HybridSequential)
    strict = graphopt.optimize(net, strict=True)
    strict(data())
    handle = net[0].register_forward_pre_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="has forward hooks"):
        strict(data())
    handle.detach()
    assert strict(data()).shape == (2, 3)


@KINDS
def test_a_step_runs_hooks_of_children(kind: Any) -> None:
    net, _ = made(kind)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = graphopt.train_step(net, mx.gluon.loss.L2Loss(), trainer)
    label = mx.nd.ones((2, 3))
    step(data(), label)
    step(data(), label)
    seen: list[int] = []
    handle = net[1].register_forward_hook(lambda *_: seen.append(1))
    step(data(), label)
    assert seen == [1]
    handle.detach()
    step(data(), label)
    assert seen == [1]


@KINDS
def test_summary_tells_of_all_layers(kind: Any, capsys: Any) -> None:
    _, fast = made(kind)
    fast.summary(data())
    text = capsys.readouterr().out
    assert text.count("Dense-") == 2
    assert "Total params: 39" in text


@pytest.mark.filterwarnings("ignore:register_op_hook is experimental", "ignore:All children")
@pytest.mark.parametrize("is_hybrid", [True, False])
def test_an_op_hook_sees_what_mxnets_operators_compute(is_hybrid: bool) -> None:
    net = (nn.HybridSequential if is_hybrid else nn.Sequential)()
    net.add(nn.Dense(8, activation="relu", in_units=6), nn.Dense(4, in_units=8))
    net.initialize()
    net.hybridize()
    fast, x, seen = graphopt.optimize(net), mx.nd.ones((2, 6)), []
    wanted = fast(x).asnumpy()
    fast.register_op_hook(lambda name, op, array: seen.append(name))
    np.testing.assert_allclose(fast(x).asnumpy(), wanted, rtol=1e-5)
    assert len(seen) >= 3
    assert "op hook" in fast.explain()
    fast.register_op_hook(None)
    count = len(seen)
    fast(x).wait_to_read()
    assert "op hook" not in fast.explain()
    assert len(seen) == count
