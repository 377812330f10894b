"""Greedy plans: every order, each with first fit and best fit."""

from __future__ import annotations

import numpy as np

from graphopt.kernels.packing.greedy import place
from graphopt.memory.best import Best
from graphopt.memory.orders import ORDERS


def run(best: Best) -> None:
    """Try the orders until one gives a plan that is enough, or the time is over; one at least."""
    model = best.model
    offsets = np.empty(len(model), np.int64)
    scratch = np.empty((4, len(model)), np.int64)
    for name, order in ORDERS.items():
        ranked = order(model)
        for fit in ("first fit", "best fit"):
            if best.method != "none" and (best.is_enough or best.seconds_left < 0):
                return
            # In units, rounded up: one that ends exactly there may still be smaller by padding.
            limit = -(-best.arena // model.unit) + 1
            arena = place(
                ranked,
                model.size,
                model.first,
                model.last,
                fit == "best fit",
                limit,
                offsets,
                scratch,
            )
            if arena < limit:
                best.offer(offsets, f"greedy by {name}, {fit}")
