"""Masks of ``graphopt_dropout``: the same hash as kernels/bridge/dropout.cc, number by number."""

from __future__ import annotations

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table

_BLOCK = 4096
_BITS = 24
_WORD = 1 << 64


def mask(seed: Array, salt: int, dropped: float, shape: tuple[int, ...]) -> Array:
    """0 where an element is dropped, else the factor that keeps the mean (float32)."""
    keep = np.float32(1 - dropped)
    count = int(np.prod(shape))
    blocks = -(-count // _BLOCK)
    first, second = int(np.uint32(seed[0])), int(np.uint32(seed[1]))
    key = ((first << 32 | second) + salt * 0xD1342543DE82EF95) % _WORD
    drawn = np.concatenate([_hashes(key, block) for block in range(blocks)] or [np.zeros(0)])
    kept = drawn[:count] < int(float(keep) * (1 << _BITS) + 0.5)
    return np.where(kept, np.float32(1) / keep, np.float32(0)).reshape(shape)


def _hashes(key: int, block: int) -> Array:
    x = (key + 0x9E3779B97F4A7C15 * (block + 1)) % _WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % _WORD
    x ^= x >> 31
    low, high = np.uint32(x & 0xFFFFFFFF), np.uint32(x >> 32)
    with np.errstate(over="ignore"):
        found = np.arange(_BLOCK, dtype=np.uint32) * np.uint32(0x9E3779B9) + low
        found = (found ^ (found >> np.uint32(16))) * np.uint32(0x7FEB352D)
        found = (found ^ (found >> np.uint32(15)) ^ high) * np.uint32(0x846CA68B)
    found ^= found >> np.uint32(16)
    return found >> np.uint32(32 - _BITS)


def _dropout(call: Call) -> Outputs:
    """The input times its mask, in training; elsewhere the input."""
    if not call.training:
        return [call.x]
    salt, dropped = int(call.number("salt", 0)), float(call.number("p", 0.5))
    return [call.x * mask(call.inputs[1], salt, dropped, call.x.shape)]


TABLE: Table = {"graphopt_dropout": _dropout}
