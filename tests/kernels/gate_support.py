"""What tests of kernels in nets share: a net with fused operators, kernels as Symbols, scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED
from tests.places import REPOSITORY
from tests.symbols import one_operator

mx = import_mxnet()
nn = mx.gluon.nn

ADD_TANH = "f32[a] (f32[a], f32[a]) { %2 = add %0 %1; %3 = tanh %2; return %3:f32[a] }"


class Gate(mx.gluon.HybridBlock):
    """Two dense layers with a chain of pointwise operators and a reduction between them."""

    def __init__(self, units: int = 6) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Dense(units, flatten=False)
            self.norm = nn.LayerNorm()
            self.scale = self.params.get("scale", shape=(units,), init="ones")
            self.last = nn.Dense(3, flatten=False)

    def hybrid_forward(self, F: Any, x: Any, scale: Any) -> Any:
        y = self.first(x)
        y = F.tanh(F.broadcast_mul(y, scale)) * F.sigmoid(y) + y
        return self.last(self.norm(y))


def gate(ctx: Any = None) -> Any:
    mx.random.seed(0)
    net = Gate()
    net.initialize(mx.init.Xavier(), ctx=ctx or mx.cpu())
    net(mx.nd.ones((2, 4), ctx=(ctx or [mx.cpu()])[0]))
    return net


def data(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape).astype("float32"))


def same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=tolerance, atol=tolerance)


def is_fused(net: Any) -> bool:
    return any(node.op == FUSED for node in net.graph())


def symbol_of(spec: str, inputs: list[str]) -> Any:
    return one_operator(FUSED, "f", inputs, {"spec": spec})


def call(symbol: Any, *arrays: Any) -> Any:
    return mx._ctypes.ndarray.CachedOp(symbol)(*arrays)


def python(code: str, *arguments: object, **env: str) -> str:
    """Run in a process of its own; one that hangs fails."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
