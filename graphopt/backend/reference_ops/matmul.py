"""Matrix products: dot, FullyConnected, linear algebra and attention, accumulated in float64."""

from __future__ import annotations

import math

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow, wide


def _dot(call: Call) -> Outputs:
    """Contracts the last axis of the first input with the first of the second.

    A transposed first input gives its first axis instead, a transposed second its last. Two vectors
    give shape (1,).
    """
    a, b = call.inputs
    left = 0 if call.flag("transpose_a") else a.ndim - 1
    right = b.ndim - 1 if call.flag("transpose_b") else 0
    out = np.tensordot(wide(a), wide(b), ([left], [right]))
    return [narrow(out if out.ndim else out.reshape(1), a.dtype)]


def _batch_dot(call: Call) -> Outputs:
    """Matrix products over the leading axes."""
    a, b = _transposed(call, call.inputs[0], "a"), _transposed(call, call.inputs[1], "b")
    return [narrow(wide(a) @ wide(b), call.x.dtype)]


def _transposed(call: Call, x: Array, side: str) -> Array:
    """The matrices of one operand, turned as `transpose_a` or `transpose_b` says."""
    return x.swapaxes(-1, -2) if call.flag(f"transpose_{side}") else x


def _fully_connected(call: Call) -> Outputs:
    """The sum x W' + b, W (num_hidden, in); without flatten only the last axis is contracted."""
    x, weight = wide(call.x), wide(call.inputs[1])
    if call.flag("flatten", True):
        x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    out = x @ weight.T
    if not call.flag("no_bias"):
        out = out + wide(call.inputs[2])
    return [narrow(out, call.x.dtype)]


def _gemm(call: Call) -> Outputs:
    """The sum alpha A B (+ beta C for gemm) over the leading axes."""
    if call.integer("axis", -2) != -2:
        raise call.unsupported("with axis other than -2")
    a, b = _transposed(call, call.inputs[0], "a"), _transposed(call, call.inputs[1], "b")
    out = call.number("alpha", 1.0) * (wide(a) @ wide(b))
    if len(call.inputs) == 3:
        out = out + call.number("beta", 1.0) * wide(call.inputs[2])
    return [narrow(out, call.x.dtype)]


def _syrk(call: Call) -> Outputs:
    """Alpha A A', or alpha A' A with transpose."""
    a = wide(call.x)
    turned = a.swapaxes(-1, -2)
    out = turned @ a if call.flag("transpose") else a @ turned
    return [narrow(call.number("alpha", 1.0) * out, call.x.dtype)]


def _heads(x: Array, heads: int, parts: int) -> list[Array]:
    """The `parts` arrays (B * heads, T, D) that lie interleaved in (T, B, heads * parts * D)."""
    length, batch, width = x.shape
    split = wide(x).reshape(length, batch, heads, parts, width // heads // parts)
    order = split.transpose(3, 1, 2, 0, 4)
    return list(order.reshape(parts, batch * heads, length, -1))


def _scores(queries: Array, keys: Array) -> Array:
    """Products of queries and keys over the square root of their length: (B * heads, Tq, Tk)."""
    return np.asarray(queries @ keys.swapaxes(-1, -2) / math.sqrt(queries.shape[-1]))


def _mixture(weights: Array, values: Array, heads: int) -> Array:
    """The values weighted per query, with the heads side by side again: (Tq, B, heads * D)."""
    out = wide(weights) @ values
    _, length, width = out.shape
    return (
        out.reshape(-1, heads, length, width)
        .transpose(2, 0, 1, 3)
        .reshape(length, -1, heads * width)
    )


def _self_scores(call: Call) -> Outputs:
    """The scores of the queries and keys in (T, B, heads * 3 * D): (B * heads, T, T)."""
    queries, keys, _ = _heads(call.x, call.integer("heads"), 3)
    return [narrow(_scores(queries, keys), call.x.dtype)]


def _self_mixture(call: Call) -> Outputs:
    """The values of the same array mixed by the weights (B * heads, T, T)."""
    heads = call.integer("heads")
    values = _heads(call.x, heads, 3)[2]
    return [narrow(_mixture(call.inputs[1], values, heads), call.x.dtype)]


def _cross_scores(call: Call) -> Outputs:
    """The scores of queries (Tq, B, heads * D) and of the keys in (Tk, B, heads * 2 * D)."""
    heads = call.integer("heads")
    (queries,), (keys, _) = _heads(call.x, heads, 1), _heads(call.inputs[1], heads, 2)
    return [narrow(_scores(queries, keys), call.x.dtype)]


def _cross_mixture(call: Call) -> Outputs:
    """The values in (Tk, B, heads * 2 * D) mixed by the weights (B * heads, Tq, Tk)."""
    heads = call.integer("heads")
    values = _heads(call.x, heads, 2)[1]
    return [narrow(_mixture(call.inputs[1], values, heads), call.x.dtype)]


def _div_sqrt_dim(call: Call) -> Outputs:
    """The input over the square root of its last length."""
    return [narrow(wide(call.x) / math.sqrt(call.x.shape[-1]), call.x.dtype)]


TABLE: Table = {
    "FullyConnected": _fully_connected,
    "_contrib_div_sqrt_dim": _div_sqrt_dim,
    "_contrib_interleaved_matmul_encdec_qk": _cross_scores,
    "_contrib_interleaved_matmul_encdec_valatt": _cross_mixture,
    "_contrib_interleaved_matmul_selfatt_qk": _self_scores,
    "_contrib_interleaved_matmul_selfatt_valatt": _self_mixture,
    "_linalg_gemm": _gemm,
    "_linalg_gemm2": _gemm,
    "_linalg_syrk": _syrk,
    "batch_dot": _batch_dot,
    "dot": _dot,
    "linalg_gemm": _gemm,
    "linalg_gemm2": _gemm,
    "linalg_syrk": _syrk,
}
