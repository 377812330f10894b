"""The comparison with MXNet that all tests of the reference's values share."""

import ctypes

import numpy as np
import pytest

from graphopt.backend.reference_ops import evaluate
from graphopt.compat import import_mxnet

mx = import_mxnet()

# MXNet computes in the dtype of the data, the reference in float64.
TOLERANCE = {
    "float16": {"rtol": 1e-2, "atol": 1e-3},
    "float32": {"rtol": 1e-5, "atol": 1e-6},
    "float64": {"rtol": 1e-10, "atol": 1e-12},
}
EXACT = {"rtol": 0, "atol": 0}

# Wider where MXNet's own float32 result is that far from the exact value.
WIDER = {
    "erfinv": {"rtol": 1e-4, "atol": 1e-6},  # a single-precision polynomial
    "gamma": {"rtol": 1e-4, "atol": 1e-6},  # tgammaf near the poles
    "gammaln": {"rtol": 1e-4, "atol": 1e-6},  # lgammaf near its zeros
    "log_softmax": {"rtol": 1e-5, "atol": 5e-6},  # oneDNN's own logarithm
    "RNN": {"rtol": 1e-4, "atol": 1e-5},  # float32 states, rounded at every step
}


def by_mxnet(op, inputs, attrs, training):
    """All visible outputs of MXNet's own operator, called by its registered name."""
    handle = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(op.encode(), ctypes.byref(handle)))
    with mx.autograd.train_mode() if training else mx.autograd.predict_mode():
        outputs = mx.nd._internal._imperative_invoke(
            handle.value,
            [mx.nd.array(v, dtype=v.dtype) for v in inputs],
            list(attrs),
            [str(v) for v in attrs.values()],
            None,
            False,
            True,
        )
    return [v.asnumpy() for v in outputs]


def check(op, inputs, attrs, training=False):
    expected = by_mxnet(op, inputs, attrs, training)
    before = [v.copy() for v in inputs]
    found = evaluate(op, inputs, attrs, training=training)
    for kept, given in zip(before, inputs, strict=True):
        np.testing.assert_array_equal(kept, given, "an input was written to")
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        tolerance = TOLERANCE.get(str(ours.dtype), EXACT)
        if ours.dtype == np.float32:
            tolerance = WIDER.get(op, tolerance)
        np.testing.assert_allclose(ours, theirs, **tolerance)


@pytest.fixture
def agrees():
    """A function of (op, inputs, attrs) that asserts the number, dtypes, shapes and values."""
    return check
