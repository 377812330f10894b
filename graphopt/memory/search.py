"""Exact search, as a question: is there a plan of so many bytes?"""

from __future__ import annotations

import numpy as np

from graphopt.kernels.packing.skyline import EXHAUSTED, FOUND, PAUSED, Problem, State, search
from graphopt.memory.best import Best
from graphopt.memory.buffers import Integers
from graphopt.memory.model import Model


def sections_of(model: Model) -> tuple[Integers, Integers]:
    """Buffers by section, one list after another, and where each begins."""
    length = model.last - model.first
    which = np.repeat(np.arange(len(model)), length)
    within = np.arange(len(which)) - np.repeat(np.cumsum(length) - length, length)
    section = model.first[which] + within
    order = np.argsort(section, kind="stable")
    at = np.searchsorted(section[order], np.arange(model.sections + 1))
    return at.astype(np.int64), which[order].astype(np.int64)


def problem_of(model: Model, capacity: int) -> Problem:
    at, buffers = sections_of(model)
    return Problem(model.size, model.first, model.last, model.limits(capacity), at, buffers)


def start(model: Model) -> State:
    n, m = len(model), model.sections
    crossing = np.zeros(m + 1, np.int64)
    np.add.at(crossing, model.first, 1)
    np.add.at(crossing, model.last - 1, -1)
    length = int((model.last - model.first).sum())
    return State(
        height=np.zeros(m, np.int64),
        low=np.arange(m, dtype=np.int64),
        high=np.arange(1, m + 1, dtype=np.int64),
        left=model.load.copy(),
        crossing=np.cumsum(crossing)[:-1],
        offset=np.full(n, -1, np.int64),
        top=np.zeros(n, np.int64),
        witness=model.first.copy(),
        old_heights=np.zeros((4 * length + m*n, 4), np.int64),
        old_tops=np.zeros((4 * length + n*n, 3), np.int64),
        mark=np.zeros((4 * n + 2 * m, 9), np.int64),
        cases=np.zeros(length * 4 + n*m, np.int64),
        control=np.array([-1, 0, 0, 0, 0, 0, 0], np.int64),
        dirty=np.zeros(m, np.int8),
    )
def run(best, seed): ...
