"""Files that optimized nets of ``mx.np`` write, for which an extent of 0 is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


def _masked(F: Any, hidden: Any) -> Any:
    return F.npx.softmax(F.np.where(hidden > 0, hidden, F.np.full_like(hidden, -1e9)))


def _rectified(F: Any, hidden: Any) -> Any:
    return F.np.where(hidden > 0, hidden, F.np.zeros_like(hidden))


def _summed(F: Any, hidden: Any) -> Any:
    total = F.np.sum(hidden, axis=0, keepdims=True)
    return F.np.sum(F.np.maximum(total, F.np.ones_like(hidden)), axis=0)


def _stacked(F: Any, hidden: Any) -> Any:
    return F.np.stack([hidden, F.np.zeros_like(hidden)])


def _counted(F: Any, hidden: Any) -> Any:
    return hidden / F.np.sum(F.np.ones_like(hidden)), F.np.zeros((0, 3))


@mx.util.use_np
class Filling(mx.gluon.HybridBlock):
    """Fills an array of the shape of what a layer makes of data."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3, in_units=3, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.function(F, self.dense(x))


@pytest.mark.filterwarnings("ignore:Cannot decide type", "ignore:.*the net as it is")
@pytest.mark.parametrize("function", [_masked, _rectified, _summed, _stacked])
def test_fills_follow_the_data(tmp_path: Path, function: Callable[[Any, Any], Any]) -> None:
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = Filling(function)
        net.initialize(mx.init.Normal(1))
        fast = graphopt.optimize(net, mode="inference")
        fast(mx.np.ones((2, 3)))
        fast.export(str(tmp_path / "m"))
        files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
        plain = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
        for rows in (2, 5):
            x = mx.np.random.uniform(-1, 1, size=(rows, 3))
            want = net(x).asnumpy()
            np.testing.assert_allclose(plain(x).asnumpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Cannot decide type", "ignore:ndarray.context has been renamed")
def test_an_output_without_elements_tells_of_sizes(tmp_path: Path) -> None:
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = Filling(_counted)
        net.initialize(mx.init.Normal(1))
        fast = graphopt.optimize(net, mode="inference")
        fast(mx.np.ones((2, 3)))
        with pytest.warns(UserWarning, match="the net as it is"):
            fast.export(str(tmp_path / "m"))
        files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
        plain = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
        x = mx.np.random.uniform(-1, 1, size=(5, 3))
        for got, want in zip(plain(x), net(x), strict=True):
            np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)
