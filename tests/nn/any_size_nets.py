"""Nets that take batches and sequences of any size, and calls of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.demo import models

mx = import_mxnet()
nn = mx.gluon.nn


class Masked(mx.gluon.HybridBlock):
    """Attends to as many steps as a length says."""

    def __init__(self) -> None:
        super().__init__(prefix="masked_")
        with self.name_scope():
            self.keys = nn.Dense(8, flatten=False, in_units=6)

    def hybrid_forward(self, F: Any, x: Any, lengths: Any) -> Any:
        keys = self.keys(x)
        scores = F.batch_dot(keys, keys, transpose_b=True)
        lengths = F.broadcast_like(
            F.reshape(lengths, (-1, 1)), scores, lhs_axes=(1,), rhs_axes=(1,)
        )
        return F.batch_dot(F.softmax(scores, length=lengths, use_length=True), keys)


class Positions(mx.gluon.HybridBlock):
    """Adds what it learned about each position, and masks the end of every sequence."""

    def __init__(self) -> None:
        super().__init__(prefix="positions_")
        with self.name_scope():
            self.table = self.params.get("table", shape=(16, 6))
            self.out = nn.Dense(4, flatten=False, in_units=6)

    def hybrid_forward(self, F: Any, x: Any, lengths: Any, table: Any) -> Any:
        steps = F.contrib.arange_like(x, axis=1)
        positions = F.Embedding(steps, table * 2, input_dim=16, output_dim=6)
        x = F.broadcast_add(x, F.expand_dims(positions, axis=0))
        zeros = F.reshape(F.zeros_like(steps), (1, -1))
        inside = F.broadcast_lesser(
            F.broadcast_add(F.reshape(steps, (1, -1)), zeros), F.reshape(lengths, (-1, 1))
        )
        return F.broadcast_mul(self.out(x), F.expand_dims(inside, axis=2))


def masked_call(batch: int, steps: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(100 * batch + steps)
    lengths = mx.nd.array(rng.integers(1, steps + 1, size=batch), dtype="int32")
    return mx.nd.array(rng.normal(size=(batch, steps, 6))), lengths


def float_lengths(batch: int, steps: int) -> tuple[Any, ...]:
    x, lengths = masked_call(batch, steps)
    return x, lengths.astype("float32")


def of(shape_of: Callable[[int, int], tuple[int, ...]]) -> Callable[[int, int], tuple[Any, ...]]:
    def call(batch: int, steps: int) -> tuple[Any, ...]:
        shape = shape_of(batch, steps)
        return (mx.nd.array(np.random.default_rng(7 * batch + steps).normal(size=shape)),)

    return call


def mlp() -> Any:
    net = nn.HybridSequential(prefix="mlp_")
    with net.name_scope():
        net.add(nn.Dense(16, activation="tanh", in_units=6, flatten=False), nn.LayerNorm())
        net.add(nn.Dense(3, in_units=16, flatten=False))
    return net


def cnn() -> Any:
    net = nn.HybridSequential(prefix="cnn_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, in_channels=3, use_bias=False), nn.BatchNorm(in_channels=8))
        net.add(nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(4, in_units=8))
    return net


def groups() -> Any:
    net = nn.HybridSequential(prefix="groups_")
    with net.name_scope():
        net.add(nn.Conv2D(8, 3, in_channels=3), nn.GroupNorm(2), nn.Activation("relu"))
        net.add(nn.GlobalAvgPool2D(), nn.Dense(4, in_units=8))
    return net


@mx.util.use_np
class Heads(mx.gluon.HybridBlock):
    """Attends in two heads, each with matrices of its own, in ``mx.np``."""

    def __init__(self) -> None:
        super().__init__(prefix="heads_")
        with self.name_scope():
            self.keys = nn.Dense(8, flatten=False, in_units=6)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        keys = F.npx.reshape(self.keys(x), (-2, -2, 2, 4)).transpose(0, 2, 1, 3)
        weights = F.npx.softmax(F.np.matmul(keys, keys.transpose(0, 1, 3, 2)))
        return F.np.matmul(weights, keys)


def heads_call(batch: int, steps: int) -> tuple[Any, ...]:
    values = np.random.default_rng(batch * steps).normal(size=(batch, steps, 6))
    return (mx.np.array(values, dtype="float32"),)


def lstm() -> Any:
    net = nn.HybridSequential(prefix="lstm_")
    with net.name_scope():
        net.add(mx.gluon.rnn.LSTM(8, input_size=6), nn.Dense(4, in_units=8, flatten=False))
    return net


def encoder() -> Any:
    return models.encoder(2, 5, 16, 2, 32, 2).net


NETS: dict[str, tuple[Callable[[], Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "masked": (Masked, masked_call),
    "positions": (Positions, float_lengths),
    "mlp": (mlp, of(lambda batch, steps: (batch, steps, 6))),
    "cnn": (cnn, of(lambda batch, steps: (batch, 3, 4 + steps, 4 + steps))),
    "groups": (groups, of(lambda batch, steps: (batch, 3, 4 + steps, 3 + steps))),
    "heads": (Heads, heads_call),
    "lstm": (lstm, of(lambda batch, steps: (steps, batch, 6))),
    "encoder": (encoder, of(lambda batch, steps: (4 * batch, steps, 16))),
}
