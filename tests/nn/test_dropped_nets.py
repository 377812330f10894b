"""Nets that were optimized and dropped leave nothing behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


def trained(net: Any, fast: Any) -> None:
    """A call and a step, as plain MXNet's."""
    x = mx.nd.random.uniform(-1, 1, shape=(4, 6))
    np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), atol=1e-6)
    gradients = []
    for each in (fast, net):
        with mx.autograd.record():
            loss = (each(x) ** 2).sum()
        loss.backward()
        gradients.append([p.grad().asnumpy() for p in net.collect_params().values()])
    for got, want in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


def layers() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(5, in_units=6, activation="tanh"), nn.Dense(3, in_units=5))
    net.initialize()
    return net


def of_a_class_of_its_own() -> Any:
    """A net that methods of its class refer to."""
    inner = layers()

    class Around(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(inner(x))

    return Around()


@pytest.mark.parametrize("made", [layers, of_a_class_of_its_own])
def test_neither_parameters_nor_classes_are_kept(made: Any) -> None:
    net = made()
    fast = graphopt.optimize(net)
    trained(net, fast)
    kept = [weakref.ref(p) for p in net.collect_params().values()]
    kept.append(weakref.ref(type(fast)))
    if made is of_a_class_of_its_own:
        kept.append(weakref.ref(type(net)))
    assert all(each() is not None for each in kept)
    del net, fast
    mx.nd.waitall()
    gc.collect()
    assert [each() for each in kept if each() is not None] == []


def test_no_symbol_is_written_by_way_of_a_copy_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """MXNet never frees the one that ``tojson()`` makes to leave out casts of AMP."""
    copied = []
    write = mx.sym.Symbol.tojson

    def tojson(symbol: Any, remove_amp_cast: bool = True) -> Any:
        copied.append(remove_amp_cast)
        return write(symbol, remove_amp_cast)

    monkeypatch.setattr(mx.sym.Symbol, "tojson", tojson)
    net = layers()
    trained(net, graphopt.optimize(net))
    assert copied
    assert not any(copied)
