"""What multiplies in pairs, with and without them, whatever the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.kernels.products import IN_PAIRS, dense_means

ROOT = Path(graphopt.__file__).parents[1]
FILES = [
    "kernels/test_recurrence_slots.py",
    "kernels/test_dense.py",
    "kernels/test_products.py",
]
OUTPUT = """
import sys, graphopt.nn, mxnet as mx, numpy as np
mx.random.seed(0)
layer = graphopt.nn.LSTM(100, input_size=32)
layer.initialize(mx.init.Normal(0.3))
x = np.random.default_rng(0).standard_normal((20, 32, 32))
sys.stdout.buffer.write(layer(mx.nd.array(x)).asnumpy().tobytes())
"""
#: How many numbers that are.
SIZE = 20 * 32 * 100
LONE = """
import sys, graphopt.nn, mxnet as mx, numpy as np
rng = np.random.default_rng(0)
x, head = (mx.nd.array(rng.standard_normal((12, 32, units))) for units in (64, 100))
arrays = None
for made in (graphopt.nn.LSTM, mx.gluon.rnn.LSTM):
    layer = made(100, input_size=64)
    layer.initialize()
    parameters = [p for _, p in sorted(layer.collect_params().items())]
    if arrays is None:
        arrays = [rng.standard_normal(p.shape) * 0.1 for p in parameters]
        for array in arrays:
            if array.shape == (400, 64):
                array[0, 5] = 1e5
    for parameter, array in zip(parameters, arrays):
        parameter.set_data(mx.nd.array(array))
    x.attach_grad()
    with mx.autograd.record():
        y = layer(x)
    y.backward(head)
    for found in (y, x.grad, *(p.grad() for p in parameters)):
        sys.stdout.buffer.write(found.asnumpy().tobytes())
"""


def run(wanted: str, *command: str) -> bytes:
    told = {"GRAPHOPT_PAIRED": wanted, "GRAPHOPT_AMX": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **told}, cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:].decode()
    return done.stdout


@pytest.mark.parametrize("wanted", ["0", "1"])
def test_products(wanted: str) -> None:
    usual = {None: "0", IN_PAIRS: "1"}  # by the matrix unit both are others
    if usual.get(dense_means(import_mxnet())) == wanted and not os.environ.get("GRAPHOPT_PAIRED"):
        pytest.skip("the other tests have it so on this processor")
    options = ["-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    run(wanted, "-m", "pytest", *options, *(str(ROOT / "tests" / file) for file in FILES))


@pytest.fixture(scope="module")
def in_pairs() -> tuple[Any, Any]:
    """What OUTPUT and LONE write where products are in pairs, by one process."""
    found = np.frombuffer(run("1", "-c", OUTPUT + LONE), np.float32)
    return found[:SIZE], found[SIZE:]


def test_the_setting_is_followed(in_pairs: tuple[Any, Any]) -> None:
    """Sums are rounded elsewhere, and hardly differ."""
    plain, paired = np.frombuffer(run("0", "-c", OUTPUT), np.float32), in_pairs[0]
    assert (plain != paired).any()
    np.testing.assert_allclose(plain, paired, atol=2e-6)


def test_a_lone_large_weight_leaves_other_units_alone(in_pairs: tuple[Any, Any]) -> None:
    """Its own gate is closed, so that gradients of its input come from all the others."""
    found, plain = in_pairs[1].reshape(2, -1)
    np.testing.assert_allclose(found, plain, rtol=2e-5, atol=2e-5)
