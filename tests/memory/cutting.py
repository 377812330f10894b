"""Problems of which the best plan is known, because they were made of it."""

from __future__ import annotations

import numpy as np

from graphopt.memory import Buffers


def cut(pieces: int, seed: int, height: int = 64, moments: int = 24, unit: int = 1) -> Buffers:
    """A rectangle of ``height`` units cut to pieces: they pack without any gap."""
    generator = np.random.default_rng(seed)
    parts = [(0, moments, 0, height)]
    while len(parts) < pieces:
        left, right, low, high = parts.pop(int(generator.integers(len(parts))))
        if generator.random() < 0.5 and right - left > 1:
            at = int(generator.integers(left + 1, right))
            parts += [(left, at, low, high), (at, right, low, high)]
        elif high - low > 1:
            at = int(generator.integers(low + 1, high))
            parts += [(left, right, low, at), (left, right, at, high)]
        else:
            parts.append((left, right, low, high))
    left, right, low, high = np.array(parts)[generator.permutation(len(parts))].T
    return Buffers(range(len(parts)), left, right, (high - low) * unit)
