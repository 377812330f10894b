"""Calls that fail raise what MXNet raises, and leave a net as it was: further calls compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


def dense() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3, activation="relu"), nn.Dense(2, in_units=4))
    net.initialize()
    return net


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", ["none", "two", "None", "numpy", "list"])
def test_wrong_arguments(kind: str, is_first: bool, tmp_path: Path) -> None:
    x = mx.nd.ones((2, 3))
    arguments = {
        "none": (),
        "two": (x, x),
        "None": (None,),
        "numpy": (np.ones((2, 3)),),
        "list": ([x],),
    }
    plain = dense()
    net = graphopt.optimize(plain)
    if not is_first:
        net(x)
    with pytest.raises(Exception) as expected:  # noqa: PT011 - whatever MXNet raises
        plain(*arguments[kind])
    with pytest.raises(expected.type):
        net(*arguments[kind])
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5)
    assert "its Python" not in net.explain()
    assert net.graph().name == plain.name
    net.export(str(tmp_path / "net"))


class Scaled(mx.gluon.HybridBlock):
    """A Block with an attribute that may be set later."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.exp(x) * self.scale


def test_an_attribute_that_is_set_later() -> None:
    net = graphopt.optimize(Scaled())
    with pytest.raises(AttributeError, match="scale"):
        net(mx.nd.zeros(2))
    net.scale = 3
    assert net(mx.nd.zeros(2)).asnumpy().tolist() == [3, 3]
    assert net.graph()


def test_before_initialize() -> None:
    net = nn.Dense(4, in_units=3)
    with pytest.raises(RuntimeError, match="not initialized"):
        graphopt.optimize(net)(mx.nd.ones((2, 3)))


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_quantizing_asks_with_a_label_first(tmp_path: Path) -> None:
    """MXNet calls a net with all that the loader has, and with less where that fails."""
    x = mx.nd.array(np.random.default_rng(0).normal(size=(8, 3)))
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(x, mx.nd.zeros(8)), 4)
    plain = dense()
    found = [
        mx.contrib.quantization.quantize_net_v2(
            net, calib_data=loader, calib_mode="naive", num_calib_examples=8, ctx=mx.cpu()
        )(x).asnumpy()
        for net in (plain, graphopt.optimize(plain))
    ]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
