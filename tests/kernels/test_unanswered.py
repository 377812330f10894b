"""Python is interrupted, or fails, when the bridge asks it: an error, and nothing of it is kept."""

from __future__ import annotations

from typing import Any

import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge, library
from tests.kernels.gate_support import ADD_TANH, call, data, python, same, symbol_of

mx = import_mxnet()

#: Ctrl-C while the bridge asks Python.
INTERRUPTED = """
import signal
import numpy as np
import graphopt
import mxnet as mx
from graphopt.kernels import bridge
from mxnet.gluon import nn, rnn

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in background ignores it
def learnt(net):
    with mx.autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    return [loss.asnumpy(), *(p.grad().asnumpy() for p in net.collect_params().values())]

def interrupted(asked, units, activation):
    real, is_first = getattr(bridge, asked), True

    def once(*arguments):
        nonlocal is_first
        if is_first:
            is_first = False
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(rnn.LSTM(units, layout="NTC", input_size=16), nn.LayerNorm())
    net.add(nn.Dense(4, activation=activation))
    net.initialize(mx.init.Normal(0.5))
    expected = learnt(net)
    setattr(bridge, asked, once)
    fast = graphopt.optimize(net)
    try:
        learnt(fast)
    except KeyboardInterrupt:
        print(asked, "KeyboardInterrupt")
    for _ in range(2):
        for found, wanted in zip(learnt(fast), expected):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    setattr(bridge, asked, real)

x = mx.nd.array(np.random.default_rng(0).normal(size=(4, 7, 16)))
# Answers are kept: each net has a recurrence and a kernel that were not asked for before.
interrupted("_recurrence_numbers", 24, "tanh")
interrupted("_kernel_numbers", 23, "sigmoid")
interrupted("_spec", 22, "softsign")
"""


def test_an_interrupt_while_python_is_asked() -> None:
    asked = ["_recurrence_numbers", "_kernel_numbers", "_spec"]
    assert python(INTERRUPTED).splitlines() == [f"{name} KeyboardInterrupt" for name in asked]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("module", "asked", "op"), [(bridge, "_kernel_numbers", "sub"), (library, "kernel", "mul")]
)
def test_what_python_does_not_answer_is_not_kept(
    module: Any, asked: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*_: Any, **__: Any) -> None:
        raise SystemExit

    symbol = symbol_of(ADD_TANH.replace("tanh", "sin").replace("add", op), ["x", "y"])
    x, y = data(5), data(5, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, asked, leave)
        with pytest.raises(mx.MXNetError, match="Python was interrupted"):
            call(symbol, x, y).wait_to_read()
    same(call(symbol, x, y), mx.nd.sin(x - y if op == "sub" else x * y))


def test_a_kernel_that_does_not_compile_is_mxnets_error(monkeypatch: pytest.MonkeyPatch) -> None:
    symbol = symbol_of(ADD_TANH.replace("add", "sub"), ["x", "y"])
    x = mx.nd.ones((4,))

    def refuse(text: str, *, backward: bool) -> Any:
        raise RuntimeError("no compiler today")

    with monkeypatch.context() as patch:
        patch.setattr(library, "kernel", refuse)
        with pytest.raises(mx.MXNetError, match="graphopt: RuntimeError: no compiler today"):
            call(symbol, x, x).asnumpy()
    # And once it compiles, all is well.
    assert call(symbol, x, x).asnumpy().tolist() == [0.0] * 4
