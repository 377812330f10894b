"""Softmax in its variants, and the output layers of MXNet's Module API.

An output layer's forward value is a prediction; its loss exists only in the gradient, so the label
is not read.
"""

from __future__ import annotations

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Operator, Outputs, Table, narrow, wide
from graphopt.backend.reference_ops.elementwise import sigmoid


def log_softmax(x: Array, axis: int) -> Array:
    """The logarithm of the softmax of a float64 array."""
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))


def softmax(x: Array, axis: int) -> Array:
    """The softmax of a float64 array."""
    return np.exp(log_softmax(x, axis))


def _variant(sign: int, logarithm: bool) -> Operator:
    """softmax, softmin (sign -1) or log_softmax."""

    def run(call: Call) -> Outputs:
        axis = call.axis(default=-1)
        x = sign * wide(call.x) / call.number("temperature", 1.0)
        alive = _alive(call, axis)
        logs = log_softmax(np.where(alive, x, -np.inf), axis)
        # Beyond its length a row is 0, also for the logarithm.
        out = np.where(alive, logs if logarithm else np.exp(logs), 0)
        return [narrow(out, call.dtype(call.x.dtype))]

    def quiet(call: Call) -> Outputs:
        # A row of length 0 has nothing to sum: NaN inside, masked to 0 outside.
        with np.errstate(invalid="ignore", divide="ignore"):
            return run(call)

    return quiet


def _alive(call: Call, axis: int) -> Array:
    """Where values take part: everywhere, or with use_length the first `length` along the axis."""
    if not call.flag("use_length"):
        return np.ones(call.x.shape, bool)
    lengths = np.expand_dims(call.inputs[1], axis)
    places = np.arange(call.x.shape[axis]).reshape((-1,) + (1,) * (call.x.ndim - axis - 1))
    return np.asarray(places < lengths)


def _softmax_activation(call: Call) -> Outputs:
    """SoftmaxActivation: over channels (axis 1), or over the last axis."""
    axis = 1 if call.text("mode", "instance") == "channel" else -1
    return [narrow(softmax(wide(call.x), axis), call.x.dtype)]


def _softmax_output(call: Call) -> Outputs:
    """SoftmaxOutput: over axis 1 with multi_output, the last with preserve_shape, else all."""
    x = wide(call.x)
    if call.flag("multi_output"):
        out = softmax(x, 1)
    elif call.flag("preserve_shape"):
        out = softmax(x, -1)
    else:
        out = softmax(x.reshape(len(x), -1), 1).reshape(x.shape)
    return [narrow(out, call.x.dtype)]


def _softmax_cross_entropy(call: Call) -> Outputs:
    """The sum over the rows of a matrix of -log softmax at the label, shape (1,)."""
    x, label = call.inputs
    logs = log_softmax(wide(x), 1)[np.arange(len(x)), narrow(label, np.int64)]
    return [narrow(-logs.sum(keepdims=True), x.dtype)]


def _prediction(call: Call) -> Outputs:
    return [call.x]


def _logistic(call: Call) -> Outputs:
    return [narrow(sigmoid(wide(call.x)), call.x.dtype)]


TABLE: Table = {
    "LinearRegressionOutput": _prediction,
    "LogisticRegressionOutput": _logistic,
    "MAERegressionOutput": _prediction,
    "SVMOutput": _prediction,
    "Softmax": _softmax_output,
    "SoftmaxActivation": _softmax_activation,
    "SoftmaxOutput": _softmax_output,
    "log_softmax": _variant(1, logarithm=True),
    "softmax": _variant(1, logarithm=False),
    "softmax_cross_entropy": _softmax_cross_entropy,
    "softmin": _variant(-1, logarithm=False),
}
