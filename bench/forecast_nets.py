"""Nets that forecast series as GluonTS's do: unrolled cells over scaled values and their lags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn, rnn = mx.gluon.nn, mx.gluon.rnn

LAGS = (1, 2, 3, 24)


class Autoregressive(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A series' negative logarithm of likelihood, normal, by DeepAR (Salinas et al., 2017)."""

    def __init__(self, steps: int, units: int, series: int, rate: float) -> None:
        super().__init__()
        self.steps = steps
        with self.name_scope():
            self.name_of = nn.Embedding(series, 8)
            self.cell = rnn.HybridSequentialRNNCell()
            for _ in range(2):
                cell = rnn.LSTMCell(units)
                self.cell.add(rnn.ZoneoutCell(cell, zoneout_outputs=rate) if rate else cell)
            self.mean = nn.Dense(1, flatten=False)
            self.deviation = nn.Dense(1, flatten=False, activation="softrelu")

    def inputs(self, F: Any, past: Any, number: Any) -> tuple[Any, Any, Any]:
        """Scaled targets, what a step reads, and the scale."""
        begin = max(LAGS)
        scale = F.mean(F.abs(past), axis=1, keepdims=True) + 1e-3
        scaled = F.broadcast_div(past, scale)
        lags = [
            F.slice_axis(scaled, axis=1, begin=begin - lag, end=begin - lag + self.steps)
            for lag in LAGS
        ]
        series = F.repeat(F.expand_dims(self.name_of(number), axis=1), repeats=self.steps, axis=1)
        target = F.slice_axis(scaled, axis=1, begin=begin, end=begin + self.steps)
        return target, F.concat(F.stack(*lags, axis=2), series, dim=2), scale

    def hybrid_forward(self, F: Any, past: Any, number: Any) -> Any:
        """A number for each series."""
        target, read, scale = self.inputs(F, past, number)
        hidden, _ = self.cell.unroll(self.steps, read, layout="NTC", merge_outputs=True)
        mean = F.squeeze(self.mean(hidden), axis=2)
        deviation = F.squeeze(self.deviation(hidden), axis=2) + 1e-3
        z = (target - mean) / deviation
        return F.mean(0.5 * z * z + F.log(F.broadcast_mul(deviation, scale)), axis=1)


class SeveralSeries(mx.gluon.HybridBlock):  # type: ignore[misc]
    """One such net over several series, which share its weights, as in GPVAR (the same, 2019)."""

    def __init__(self, steps: int, units: int, count: int) -> None:
        super().__init__()
        self.count = count
        with self.name_scope():
            self.each = Autoregressive(steps, units, count, 0.0)

    def hybrid_forward(self, F: Any, past: Any, number: Any) -> Any:
        """A number for each sample."""
        found = []
        for at in range(self.count):
            self.each.cell.reset()
            one = F.squeeze(F.slice_axis(past, axis=2, begin=at, end=at + 1), axis=2)
            found.append(self.each(one, number * 0 + at))
        return F.add_n(*found)


def _past(batch: int, steps: int, *more: int) -> Any:
    days = np.arange(steps + max(LAGS)) * 2 * np.pi / 24
    waves = np.sin(days).reshape(1, -1, *(1 for _ in more))
    noise = np.random.default_rng(0).normal(0, 0.1, (batch, len(days), *more))
    return mx.nd.array(3 + waves + noise)


def _number(batch: int) -> Any:
    return mx.nd.array(np.arange(batch) % 3)


#: How to make a net and its arguments, the number of recurrences that it has, and whether it draws.
NETS: dict[str, tuple[Callable[[bool], tuple[Any, tuple[Any, ...]]], int, bool]] = {
    "deepar": (lambda quick: _deepar(quick, 0.0), 2, False),
    "deepar_zoneout": (lambda quick: _deepar(quick, 0.1), 4, True),
    "gpvar": (lambda quick: _gpvar(quick), 8, False),
}


def _deepar(quick: bool, rate: float) -> tuple[Any, tuple[Any, ...]]:
    batch, steps, units = (2, 6, 8) if quick else (32, 72, 40)
    net = Autoregressive(steps, units, 40, rate)
    return net, (_past(batch, steps), _number(batch))


def _gpvar(quick: bool) -> tuple[Any, tuple[Any, ...]]:
    batch, steps, units = (2, 6, 8) if quick else (32, 72, 40)
    net = SeveralSeries(steps, units, 4)
    return net, (_past(batch, steps, 4), _number(batch))
