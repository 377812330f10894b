"""What multiplies in pairs, with and without them, whatever the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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


def test_the_setting_is_followed() -> None:
    """Sums are rounded elsewhere, and hardly differ."""
    plain, paired = (np.frombuffer(run(wanted, "-c", OUTPUT), np.float32) for wanted in "01")
    assert (plain != paired).any()
    np.testing.assert_allclose(plain, paired, atol=2e-6)
