"""Nets in 8 bits, which run as MXNet's oneDNN subgraphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


def quantized(net: Any, shape: tuple[int, ...]) -> Any:
    """A net without ranges that were measured before: each call's input has its own."""
    from mxnet.contrib.quantization import quantize_net_v2

    net.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    net(mx.nd.ones(shape))
    given = [mx.io.DataDesc("data", shape)]
    return quantize_net_v2(
        net, quantized_dtype="int8", calib_mode="none", data_shapes=given, ctx=mx.cpu()
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["auto", "inference", "loaded"])
def test_ranges_are_those_of_each_input(mode: str, tmp_path: Path) -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="relu"), nn.Dense(4))
    plain = quantized(net, (4, 8))
    x = mx.nd.random.uniform(shape=(4, 8))
    plain(x)
    if mode == "loaded":
        plain.export(str(tmp_path / "net"))
        fast = graphopt.load(tmp_path / "net-symbol.json", tmp_path / "net-0000.params")
    else:
        fast = graphopt.optimize(plain, mode=mode)
    for factor in (1, 10, 0.1, 3):
        want, float_ = plain(x * factor).asnumpy(), net(x * factor).asnumpy()
        largest = np.abs(want).max()
        for _ in range(2):
            found = fast(x * factor).asnumpy()
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * largest)
        np.testing.assert_allclose(found, float_, atol=0.1 * largest)
