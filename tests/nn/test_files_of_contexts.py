"""Files of nets whose parameters are on several contexts: they hold the means, as MXNet's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


def _net() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=3), nn.BatchNorm(in_channels=4))
    net.initialize(mx.init.Normal(1), ctx=[mx.cpu(0), mx.cpu(1)])
    net.hybridize()
    return net


def _called(path: Path, name: str, x: Any) -> Any:
    files = str(path / f"{name}-symbol.json"), str(path / f"{name}-0000.params")
    return mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])(x)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_values_that_differ_are_written_as_their_mean(tmp_path: Path, mode: str) -> None:
    net = _net()
    net[1].running_mean.list_data()[1][:] = 3  # as other samples leave it
    x = mx.nd.random.normal(shape=(2, 3))
    net(x)
    net.export(str(tmp_path / "plain"))
    fast = graphopt.optimize(net, mode=mode)
    fast(x)
    if mode == "inference":
        with pytest.warns(UserWarning, match="'.*running_mean' has other values on each context"):
            fast.export(str(tmp_path / "fast"))
    else:
        fast.export(str(tmp_path / "fast"))
    found, want = (_called(tmp_path, name, x).asnumpy() for name in ("fast", "plain"))
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("error:.*the net as it is", "ignore:Cannot decide type")
def test_values_that_are_the_same_need_no_word(tmp_path: Path) -> None:
    net = _net()
    x = mx.nd.random.normal(shape=(2, 3))
    fast = graphopt.optimize(net, mode="inference")
    fast(x)
    fast.export(str(tmp_path / "fast"))
    found, want = _called(tmp_path, "fast", x).asnumpy(), net(x).asnumpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
