"""Numbers at which operators that look equal are not."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
INF, NAN = float("inf"), float("nan")


class Named(mx.gluon.HybridBlock):
    def __init__(self, name):
        super().__init__()
        self.case = name

    def hybrid_forward(self, F, x):
        return CASES[self.case][0](F, x)


def divided(F, x):
    return F.ones_like(x) / (x + 0.0)


#: what it is -> (the net, its input, the input's dtype)
CASES = {
    "limits of clip are float32": (
        lambda F, x: F.clip(F.relu(x), 0.1, INF),
        [0.1, 0.05, 5.0],
        "float64",
    ),
    "clip within a limit": (
        lambda F, x: F.minimum(F.clip(x, -INF, 0.1), 0.3),
        [0.1, 0.05, 5.0],
        "float64",
    ),
    "reciprocal of x + 0": (lambda F, x: 1 / (x + 0.0), [-0.0, 0.0, 2.0], "float32"),
    "reciprocal of x - -0": (lambda F, x: 1 / (x - (-0.0)), [-0.0, 0.0, 2.0], "float32"),
    "reciprocal of x + -0": (lambda F, x: 1 / (x + (-0.0)), [-0.0, 0.0, 2.0], "float32"),
    "quotient by x + 0": (divided, [-0.0, 0.0, 2.0], "float32"),
    "reciprocal of (x - 0) + 0": (
        lambda F, x: F.reciprocal((x - 0.0) + 0.0),
        [-0.0, 0.0, 2.0],
        "float32",
    ),
    "max of one": (lambda F, x: F.max(x.expand_dims(1), axis=1) * 2, [NAN, 1.0], "float32"),
    "min of one": (lambda F, x: F.min(x.expand_dims(1), axis=1) * 2, [NAN, 1.0], "float32"),
}


def test_what_a_mask_fills_in_is_float32() -> None:
    class Mask(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, lengths):
            return F.SequenceMask(x, lengths, use_sequence_length=True, value=0.1)

    inputs = mx.nd.ones((2, 1), dtype="float64"), mx.nd.ones((1,), dtype="float64")
    plain, fast = Mask(), graphopt.optimize(Mask())
    plain.hybridize(static_alloc=True)
    np.testing.assert_array_equal(fast(*inputs).asnumpy(), plain(*inputs).asnumpy())


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    plain, fast = Named(name), graphopt.optimize(Named(name))
    plain.hybridize(static_alloc=True)
    _, numbers, dtype = CASES[name]
    found = []
    for net in (plain, fast):
        x = mx.nd.array(numbers, dtype=dtype)
        x.attach_grad()
        inferred = net(x)
        with mx.autograd.record():
            y = net(x)
        y.backward()
        found.append([array.asnumpy() for array in (inferred, y, x.grad)])
    for expected, actual in zip(*found, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_number_that_only_mxnet_reads() -> None:
    x = mx.sym.var("x", dtype="float32")
    symbol = mx.sym.load_json((x + 1.5).tojson().replace('"1.5"', '"1.5f"'))
    ones = mx.nd.ones((2,))
    net = graphopt.optimize(mx.gluon.SymbolBlock(symbol, [x]))
    np.testing.assert_array_equal(net(ones).asnumpy(), [2.5, 2.5])
