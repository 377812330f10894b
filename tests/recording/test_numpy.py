"""Recorded Blocks of mx.np."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.recording.nets import assert_same, block, programs

mx = import_mxnet()
nn = mx.gluon.nn


def masked_softmax(scores: Any, lengths: Any) -> Any:
    shape = scores.shape
    lengths = lengths.repeat(shape[1])
    scores = mx.npx.sequence_mask(scores.reshape(-1, shape[-1]), lengths, True, value=-1e6, axis=1)
    return mx.npx.softmax(scores).reshape(shape)


def attention() -> Any:
    """Attention as textbooks write it: shapes are read, weights are kept."""

    def forward(self, x, lengths):
        def heads(y):
            y = y.reshape(y.shape[0], y.shape[1], 2, -1).transpose(0, 2, 1, 3)
            return y.reshape(-1, y.shape[2], y.shape[3])

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        scores = mx.npx.batch_dot(q, k, transpose_b=True) / math.sqrt(q.shape[-1])
        self.weights = masked_softmax(scores, lengths.repeat(2, axis=0))
        y = mx.npx.batch_dot(self.weights, v)
        y = y.reshape(-1, 2, y.shape[1], y.shape[2]).transpose(0, 2, 1, 3)
        return self.norm(y.reshape(y.shape[0], y.shape[1], -1) + x)

    parts = {name: nn.Dense(8, flatten=False) for name in "qkv"}
    return block(forward, **parts, norm=nn.LayerNorm())


def test_attention_of_the_numpy_interface(numpy_interface: None) -> None:
    net, x = attention(), mx.np.random.normal(size=(3, 5, 8))
    optimized = assert_same(net, x, mx.np.array([2, 5, 3]))
    assert type(optimized(x, mx.np.array([2, 5, 3]))) is mx.np.ndarray
    assert type(optimized.weights) is mx.np.ndarray
    assert optimized.weights.shape == (6, 5, 5)
    assert programs(optimized).compiled == 1
    (entry,) = programs(optimized).entries
    assert not any(n.op.startswith("_np") for n in entry.result.graph)


def test_arrays_of_the_other_interface_are_refused_as_ever(numpy_interface: None) -> None:
    net = block(lambda self, x: mx.nd.relu(x + 1))
    with pytest.raises(TypeError, match="legacy operator"):
        graphopt.optimize(net, record=True)(mx.np.ones((2, 2)))


def test_gradients_of_the_numpy_interface(numpy_interface: None) -> None:
    net, x = attention(), mx.np.random.normal(size=(3, 5, 8))
    lengths = mx.np.array([2, 5, 3])
    net(x, lengths)
    found = []
    for call in (net, graphopt.optimize(net, record=True)):
        with mx.autograd.record():
            loss = (call(x, lengths) ** 2).mean()
        loss.backward()
        found.append({k: p.grad().asnumpy() for k, p in net.collect_params().items()})
    for key, wanted in found[0].items():
        np.testing.assert_allclose(found[1][key], wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("layer", [mx.gluon.rnn.RNN, mx.gluon.rnn.GRU, mx.gluon.rnn.LSTM])
def test_a_language_model_of_the_numpy_interface(layer: Any, numpy_interface: None) -> None:
    def forward(self, x, state):
        y, state = self.rnn(mx.npx.one_hot(x.T, 9), state)
        return self.dense(y.reshape(-1, y.shape[-1])), state

    net = block(forward, rnn=layer(6), dense=nn.Dense(9))
    state = net.rnn.begin_state(batch_size=2)
    optimized = assert_same(net, mx.np.array([[1, 2, 3], [4, 5, 8]]), state)
    assert programs(optimized).compiled == 1


@pytest.mark.usefixtures("numpy_interface")
def test_views_of_numpys_shape() -> None:
    def forward(self, x):
        h = x * 1.0
        flat, kept = h.reshape_view(-1), h.detach()
        flat += 1
        kept[0] = 5
        return h, flat, kept

    assert_same(block(forward), mx.np.ones((2, 3)))
