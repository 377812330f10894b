"""Normalisation by statistics of the data, or by learned ones. Computed in float64, rounded once.

Running statistics are inputs here and stay as they are: MXNet's update of them in training is a
side effect of the executor, not a value of the operator.
"""

from __future__ import annotations

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow, wide


def _statistics(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and (biased) variance, the axes kept with length 1."""
    return x.mean(axes, keepdims=True), x.var(axes, keepdims=True)


def _all_but(ndim: int, axis: int) -> tuple[int, ...]:
    return tuple(a for a in range(ndim) if a != axis)


def _along(vector: Array, ndim: int, axis: int) -> Array:
    """A vector shaped so that it broadcasts along one axis, in float64."""
    return wide(vector).reshape(tuple(-1 if a == axis else 1 for a in range(ndim)))


def _batch_norm(call: Call) -> Outputs:
    """BatchNorm of (data, gamma, beta, moving mean, moving variance) along `axis`.

    In training, without use_global_stats, the statistics are those of the batch. With fix_gamma,
    which is the default, gamma counts as 1. With output_mean_var the mean and 1 / sqrt(variance +
    eps) follow.
    """
    x, axis, eps = wide(call.x), call.axis(default=1), call.number("eps", 1e-3)
    gamma, beta, mean, variance = (_along(v, x.ndim, axis) for v in call.inputs[1:5])
    if call.flag("fix_gamma", True):
        gamma = np.ones_like(gamma)
    if call.training and not call.flag("use_global_stats"):
        mean, variance = _statistics(x, _all_but(x.ndim, axis))
    inverse = 1 / np.sqrt(variance + eps)
    out = [narrow((x - mean) * inverse * gamma + beta, call.x.dtype)]
    if call.flag("output_mean_var"):
        out += [narrow(v.ravel(), call.inputs[3].dtype) for v in (mean, inverse)]
    return out


def _batch_norm_relu(call: Call) -> Outputs:
    """BatchNorm, and zero where that is negative."""
    out = _batch_norm(call)
    return [np.maximum(out[0], 0), *out[1:]]


def _layer_norm(call: Call) -> Outputs:
    """LayerNorm along one axis; with output_mean_var the mean and standard deviation follow."""
    x, axis = wide(call.x), call.axis(default=-1)
    gamma, beta = (_along(v, x.ndim, axis) for v in call.inputs[1:3])
    mean, variance = _statistics(x, (axis,))
    deviation = np.sqrt(variance + call.number("eps", 1e-5))
    out = [(x - mean) / deviation * gamma + beta]
    if call.flag("output_mean_var"):
        out += [mean, deviation]
    return [narrow(v, call.x.dtype) for v in out]


def _instance_norm(call: Call) -> Outputs:
    """InstanceNorm over the spatial axes of (N, C, ...)."""
    x = wide(call.x)
    gamma, beta = (_along(v, x.ndim, 1) for v in call.inputs[1:3])
    mean, variance = _statistics(x, tuple(range(2, x.ndim)))
    out = (x - mean) / np.sqrt(variance + call.number("eps", 1e-3)) * gamma + beta
    return [narrow(out, call.x.dtype)]


def _group_norm(call: Call) -> Outputs:
    """GroupNorm of (N, C, ...) in num_groups ranges of channels, one gamma and beta for each."""
    groups = call.integer("num_groups", 1)
    x = wide(call.x).reshape(call.x.shape[0], groups, -1)
    gamma, beta = (_along(v, 3, 1) for v in call.inputs[1:3])
    mean, variance = _statistics(x, (2,))
    deviation = np.sqrt(variance + call.number("eps", 1e-5))
    out = [((x - mean) / deviation * gamma + beta).reshape(call.x.shape)]
    if call.flag("output_mean_var"):
        out += [mean[:, :, 0], deviation[:, :, 0]]
    return [narrow(v, call.x.dtype) for v in out]


def _l2_normalization(call: Call) -> Outputs:
    """L2Normalization: over everything of a sample, over its channels, or over its spatial axes."""
    x, mode = wide(call.x), call.text("mode", "instance")
    first, last = {"instance": (1, x.ndim), "channel": (1, 2), "spatial": (2, x.ndim)}[mode]
    squares = np.square(x).sum(tuple(range(first, last)), keepdims=True)
    return [narrow(x / np.sqrt(squares + call.number("eps", 1e-10)), call.x.dtype)]


def _lrn(call: Call) -> Outputs:
    """LRN: x over a power of knorm + alpha times the mean square of the nsize nearest channels."""
    x, size = wide(call.x), call.integer("nsize")
    padded = np.pad(np.square(x), [(0, 0), (size // 2, size // 2), (0, 0), (0, 0)])
    channels = x.shape[1]
    squares = np.zeros_like(x)
    for shift in range(size):
        squares += padded[:, shift : shift + channels]
    base = call.number("knorm", 2.0) + call.number("alpha", 1e-4) / size * squares
    return [narrow(x * base ** -call.number("beta", 0.75), call.x.dtype)]


TABLE: Table = {
    "BatchNorm": _batch_norm,
    "BatchNorm_v1": _batch_norm,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "L2Normalization": _l2_normalization,
    "LRN": _lrn,
    "LayerNorm": _layer_norm,
    "_contrib_BatchNormWithReLU": _batch_norm_relu,
    "_contrib_SyncBatchNorm": _batch_norm,
}
