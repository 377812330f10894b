"""Outputs of recurrences that lie where their inputs were: where they may, and that values hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.node import KEEPING
from graphopt.memory.listing import allocated
from tests.tiers import one_of

mx = import_mxnet()
gluon = mx.gluon

# Narrow layers on many rows have as large sequences with fewer products.
STEPS, BATCH, UNITS = 64, 256, 32
SEQUENCE_MIB = STEPS * BATCH * UNITS * 4 // (1 << 20)
LAYERS = 4
#: Our kernels run, whatever is faster here.
PASSES = "import-rnn{measure=False}"


class Leaky(gluon.rnn.HybridRecurrentCell):  # type: ignore[misc, name-defined]
    """A cell that reads its input again where it emits, as residual ones do."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self._residual = residual
        with self.name_scope():
            self.inner = self.params.get("inner", shape=(UNITS, UNITS))
            self.back = self.params.get("back", shape=(UNITS, UNITS))

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [{"shape": (batch_size, UNITS), "__layout__": "NC"}]

    def hybrid_forward(self, F: Any, x: Any, states: list[Any], inner: Any, back: Any) -> Any:
        both = (
            F.FullyConnected(value, weight, no_bias=True, num_hidden=UNITS)
            for value, weight in ((x, inner), (states[0], back))
        )
        new = 0.5 * states[0] + F.tanh(sum(both))
        return (new + x if self._residual else F.sin(new)), [new]


class Unrolled(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Layers of such cells."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self._cells = [Leaky(residual) for _ in range(LAYERS)]
        for cell in self._cells:
            self.register_child(cell)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        for cell in self._cells:
            x = cell.unroll(8, x, layout="NTC", merge_outputs=True)[0]
        return x


def layers(kind: str, **more: Any) -> Any:
    net = gluon.nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(getattr(gluon.rnn, kind)(UNITS, input_size=UNITS, **more))
    return net


def compared(net: Any, *shape: int, **how: Any) -> Any:
    """The symbol that runs, once its values are MXNet's, of two calls."""
    net.initialize(mx.init.Xavier())
    feeds = [mx.nd.array(np.random.default_rng(n).uniform(-1, 1, shape)) for n in range(2)]
    wanted = [net(x).asnumpy() for x in feeds]
    fast = graphopt.optimize(net, strict=True, **how)
    for x, expected in zip(feeds, wanted, strict=True):
        before = x.asnumpy()
        np.testing.assert_allclose(fast(x).asnumpy(), expected, rtol=2e-4, atol=2e-5)
        np.testing.assert_array_equal(x.asnumpy(), before)
    (entry,) = fast.graphopt_state.compiled.entries
    return entry.lowered.symbol


def planned(symbol: Any, *shape: int) -> int:
    """MiB between operators and in them, as MXNet plans them."""
    (data,) = (name for name in symbol.list_arguments() if "data" in name)
    return allocated(symbol.simple_bind(mx.cpu(), grad_req="null", **{data: shape}).debug_str())


# One layout of each stays quick, by turns.
@pytest.mark.parametrize(
    ("kind", "layout"),
    one_of(
        2,
        [
            (kind, ["TNC", "NTC"][(number + turn) % 2])
            for number, kind in enumerate(["LSTM", "GRU", "RNN"])
            for turn in range(2)
        ],
    ),
)
def test_layers_of_equal_width_share_one_array(kind: str, layout: str) -> None:
    shape = (STEPS, BATCH, UNITS) if layout == "TNC" else (BATCH, STEPS, UNITS)
    symbol = compared(layers(kind, layout=layout), *shape, passes=PASSES)
    assert KEEPING in symbol.tojson()
    # Batch-major layers are read and written by one transpose each.
    assert planned(symbol, *shape) < (2 if layout == "TNC" else 3) * SEQUENCE_MIB


def test_two_directions_read_one_input() -> None:
    net = gluon.nn.HybridSequential()
    for _ in range(LAYERS):
        net.add(gluon.rnn.LSTM(UNITS // 2, input_size=UNITS, bidirectional=True))
    symbol = compared(net, STEPS, BATCH, UNITS, passes=PASSES)
    assert KEEPING in symbol.tojson()
    assert planned(symbol, STEPS, BATCH, UNITS) >= 2 * SEQUENCE_MIB


@pytest.mark.parametrize("residual", [False, True])
def test_cells_that_read_their_input_where_they_emit(residual: bool) -> None:
    compared(Unrolled(residual), BATCH, 8, UNITS)


def test_training_is_as_before() -> None:
    net = layers("LSTM")
    net.initialize(mx.init.Xavier())
    x = mx.nd.array(np.random.default_rng(0).uniform(-1, 1, (9, 5, UNITS)))
    found = []
    for made in (net, graphopt.optimize(net, strict=True)):
        x.attach_grad()
        with mx.autograd.record():
            out = made(x)
        out.backward()
        found.append((out.asnumpy(), x.grad.asnumpy()))
    for got, expected in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)
