"""Graphs for which MXNet's engines are not tried against each other: they may all be wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


@mx.util.use_np
class Deleting(mx.gluon.HybridBlock):
    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.both = both
        with self.name_scope():
            self.dense = nn.Dense(4, in_units=5)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        hidden = self.dense(x)
        if self.both:
            return hidden, F.np.delete(x, slice(0, 2), axis=1)
        return F.np.delete(hidden, 1, axis=1)


@pytest.mark.parametrize("both", [False, True])
def test_outputs_whose_shapes_are_known_once_they_ran(both: bool) -> None:
    net = Deleting(both=both)
    net.initialize()
    fast = graphopt.optimize(net)
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.ones((3, 5))
        want = net(x)
        for _ in range(3):
            for got, expected in zip(fast(x), want, strict=True):
                np.testing.assert_allclose(got.asnumpy(), expected.asnumpy(), rtol=1e-5)


def test_a_batch_without_rows_does_no_harm() -> None:
    # What it broke was memory, found out later: in a process of its own.
    script = """
import graphopt, mxnet as mx
from mxnet import np, npx
npx.set_np()
nn = mx.gluon.nn
net = nn.HybridSequential()
net.add(nn.Dense(8, activation="relu"), nn.LayerNorm(), nn.Dense(3))
net.initialize()
net(np.ones((4, 5)))
fast = graphopt.optimize(net)
fast(np.ones((4, 5))).wait_to_read()
for _ in range(3):
    try:
        fast(np.ones((0, 5))).wait_to_read()
    except mx.MXNetError:  # as in MXNet itself
        pass
found = [np.ones((n % 7 + 1, 5)) for n in range(500)]
print(fast(np.ones((4, 5))).shape)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n")[-2] == "(4, 3)"


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_export_is_read_by_mxnet(mode: str, tmp_path: Path) -> None:
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = nn.HybridSequential()
        net.add(nn.Dense(4, activation="relu"), nn.BatchNorm(), nn.Dense(3))
        net.initialize()
        x = mx.np.ones((2, 5))
        net(x)
        fast = graphopt.optimize(net, mode=mode)
        want = fast(x)
        path = str(tmp_path / "net")
        fast.export(path)
        files = f"{path}-symbol.json", f"{path}-0000.params"
        for read in (
            mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1]),
            graphopt.load(*files),
        ):
            found = read(x)
            assert type(found) is mx.np.ndarray
            np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-5)
