"""Random programs: every sample is another one; batched they are what they are one by one."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, check, gradients, initialized, rand
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn
nd = mx.nd
WIDTH = 4


def unary(net: Any, rng: random.Random, x: Any) -> Any:
    return rng.choice(
        [
            lambda: nd.tanh(x),
            lambda: nd.sigmoid(x) * 2,
            lambda: 1 - x,
            lambda: x / 2 + 1,
            lambda: -x,
            lambda: abs(x),
            lambda: x.relu(),
            lambda: x.softmax(axis=-1),
            lambda: nd.softmax(x),
            lambda: net.dense(x),
            lambda: net.pair(x, nd.ones_like(x)),
            lambda: net.block(x),
            lambda: nd.FullyConnected(
                x, net.dense.weight.data(), None, no_bias=True, num_hidden=WIDTH
            ),
            lambda: nd.dot(x, net.dense.weight.data()),
            lambda: x * net.scale.data(),
            lambda: net.scale.data() - x,
            lambda: nd.LayerNorm(x, net.gamma.data(), net.gamma.data()),
            lambda: nd.concat(x[:, :2], x[:, 2:] * 3, dim=1),
            lambda: nd.concat(*nd.split(x, 2, axis=1)[::-1], dim=1),
            lambda: nd.flip(x, axis=1),
            lambda: x.reshape((0, 2, 2)).transpose((0, 2, 1)).reshape((0, -1)),
            lambda: nd.broadcast_mul(x, nd.sum(x, axis=1, keepdims=True)),
            lambda: x - x.mean(axis=1, keepdims=True),
            lambda: x * x.max(),
            lambda: x + nd.L2Normalization(x),
            lambda: x.expand_dims(0).squeeze(axis=0),
            lambda: x.reshape((-1,)).reshape((-1, WIDTH)),
            lambda: nd.where(x > 0, x, x * 0.1),
            lambda: nd.clip(x, -0.5, 0.5) + x.sum().reshape((1, 1)),
            lambda: nd.concat(x, x, dim=0)[: x.shape[0]],
            lambda: nd.stack(x, x * 2, axis=1).sum(axis=1),
            lambda: nd.stack(x, x * 2, axis=0)[1],
            lambda: nd.pick(x, nd.zeros((x.shape[0],)), axis=1, keepdims=True) + x,
            lambda: nd.SwapAxis(nd.SwapAxis(x.expand_dims(1), 1, 2), 1, 2).squeeze(axis=1),
        ]
    )()


def binary(net: Any, rng: random.Random, x: Any, y: Any) -> Any:
    return rng.choice(
        [
            lambda: x + y,
            lambda: x - y,
            lambda: x * y,
            lambda: nd.maximum(x, y),
            lambda: nd.add_n(x, y) if x.shape == y.shape else x + y,
            lambda: nd.elemwise_mul(x, y) if x.shape == y.shape else x * y,
            lambda: nd.concat(x, y, dim=0),
            lambda: nd.concat(x, y, dim=0).mean(axis=0, keepdims=True),
            lambda: net.pair(x, y) if x.shape == y.shape else x,
            lambda: x / (y * y + 1),
            lambda: nd.broadcast_add(x, y),
        ]
    )()


def shrink(rng: random.Random, x: Any) -> Any:
    """Back to one row, or to few."""
    at = rng.randrange(x.shape[0])
    return rng.choice(
        [
            lambda: x.sum(axis=0, keepdims=True),
            lambda: x.max(axis=0).reshape((1, -1)),
            lambda: x[at : at + 1],
            lambda: x[at].expand_dims(0),
            lambda: nd.slice_axis(x, axis=0, begin=0, end=1),
            lambda: nd.mean(x, axis=0).reshape((1, WIDTH)),
        ]
    )()


class Pair(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.a, self.b = nn.Dense(WIDTH, in_units=WIDTH), nn.Dense(WIDTH, in_units=WIDTH)

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        return F.sigmoid(self.a(x)) * F.tanh(self.b(y))


def program(net: Any, seed: int, length: int, xs: Any, reads: bool) -> Any:
    rng = random.Random(seed)
    values = list(xs)
    for _ in range(length):
        x = rng.choice(values)
        if rng.random() < 0.6:
            y = unary(net, rng, x)
        else:
            others = [v for v in values if v.shape == x.shape or 1 in (v.shape[0], x.shape[0])]
            y = binary(net, rng, x, rng.choice(others))
        if y.shape[0] > 4 or rng.random() < 0.2:
            y = shrink(rng, y)
        if reads and rng.random() < 0.2 and y.sum().asscalar() > 0.1:
            y = nd.tanh(y)
        values.append(nd.clip(y, -3, 3))
    return shrink(rng, values[-1]), [shrink(rng, v) for v in values[-3:]]


@pytest.mark.parametrize(("seed", "scheduler"), one_of(5, product(range(30), ["depth", "agenda"])))
def test_random_programs(seed: int, scheduler: str) -> None:
    block = nn.HybridSequential()
    block.add(nn.Dense(5, activation="tanh", in_units=WIDTH), nn.Dense(WIDTH, in_units=5))
    net = Fn(program, dense=nn.Dense(WIDTH, in_units=WIDTH), pair=Pair(), block=block)
    net.scale = net.params.get("scale", shape=(1, WIDTH))
    net.gamma = net.params.get("gamma", shape=(WIDTH,))
    net = initialized(net)
    rng = random.Random(seed)
    samples = [
        (
            # Some programs in common, so that there is something to batch.
            rng.randrange(6) + 100 * seed,
            rng.randint(1, 25),
            [rand(1, WIDTH, seed=at), rand(rng.randint(1, 3), WIDTH, seed=99)],
            seed % 3 == 0,
        )
        for at in range(8)
    ]
    check(net, samples, tol=1e-4, scheduler=scheduler)


def test_arrays_that_an_earlier_graph_has_read() -> None:
    """MXNet's backward of take fails for these (found by seed 1111 of the test above)."""
    block = nn.HybridSequential()
    block.add(nn.Dense(5, activation="tanh", in_units=WIDTH), nn.Dense(WIDTH, in_units=5))
    net = Fn(program, dense=nn.Dense(WIDTH, in_units=WIDTH), pair=Pair(), block=block)
    net.scale = net.params.get("scale", shape=(1, WIDTH))
    net.gamma = net.params.get("gamma", shape=(WIDTH,))
    net = initialized(net)
    rng = random.Random(1111)
    samples = [
        (
            rng.randrange(6) + 100 * 1111,
            rng.randint(1, 25),
            [rand(1, WIDTH, seed=at), rand(rng.randint(1, 3), WIDTH, seed=99)],
            False,
        )
        for at in range(8)
    ]
    eager = graphopt.batch(net, debug=True)
    _, want = gradients(lambda: eager(samples), net)
    batched = graphopt.batch(net)
    _, got = gradients(lambda: batched(samples), net)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4, err_msg=name)
