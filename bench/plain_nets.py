"""Nets as textbooks write them: plain Blocks, whose Python asks arrays for their shapes."""

from __future__ import annotations

import math
from typing import Any

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


class _Attention(mx.gluon.Block):  # type: ignore[misc]
    """Attention of several heads over sequences of their own lengths; its weights are kept."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        with self.name_scope():
            self.query, self.key, self.value, self.out = (
                nn.Dense(width, use_bias=False, flatten=False) for _ in range(4)
            )

    def _split(self, x: Any) -> Any:
        x = x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)
        return x.reshape(-1, x.shape[2], x.shape[3])

    def forward(self, x: Any, lengths: Any) -> Any:
        q, k, v = (self._split(part(x)) for part in (self.query, self.key, self.value))
        scores = mx.npx.batch_dot(q, k, transpose_b=True) / math.sqrt(q.shape[-1])
        shape = scores.shape
        lengths = lengths.repeat(self.heads * shape[1])
        scores = scores.reshape(-1, shape[-1])
        scores = mx.npx.sequence_mask(scores, lengths, True, value=-1e6, axis=1)
        self.weights = mx.npx.softmax(scores).reshape(shape)
        y = mx.npx.batch_dot(self.weights, v)
        y = y.reshape(-1, self.heads, y.shape[1], y.shape[2]).transpose(0, 2, 1, 3)
        return self.out(y.reshape(y.shape[0], y.shape[1], -1))


class _Layer(mx.gluon.Block):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        with self.name_scope():
            self.attention = _Attention(width, heads)
            self.wide = nn.Dense(4 * width, flatten=False, activation="relu")
            self.narrow = nn.Dense(width, flatten=False)
            self.norms = nn.HybridSequential()
            self.norms.add(nn.LayerNorm(), nn.LayerNorm())

    def forward(self, x: Any, lengths: Any) -> Any:
        x = self.norms[0](x + self.attention(x, lengths))
        return self.norms[1](x + self.narrow(self.wide(x)))


class Encoder(mx.gluon.Block):  # type: ignore[misc]
    """Transformer encoder (Vaswani et al., 2017) of ``mx.np``, with sines for positions."""

    def __init__(self, words: int = 1000, width: int = 256, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.width = width
        with self.name_scope():
            self.table = nn.Embedding(words, width)
            self.layers = nn.Sequential()
            self.layers.add(*(_Layer(width, heads) for _ in range(depth)))
        steps = mx.np.arange(200).reshape(-1, 1)
        turns = steps / mx.np.power(10000, mx.np.arange(0, width, 2) / width)
        self.places = mx.np.concatenate([mx.np.sin(turns), mx.np.cos(turns)], axis=1)

    def forward(self, words: Any, lengths: Any) -> Any:
        x = self.table(words) * math.sqrt(self.width) + self.places[: words.shape[1]]
        for layer in self.layers:
            x = layer(x, lengths)
        return x


class LanguageModel(mx.gluon.Block):  # type: ignore[misc]
    """Letters by a GRU and a dense layer, of ``mx.np``."""

    def __init__(self, letters: int = 28, width: int = 256) -> None:
        super().__init__()
        self.letters = letters
        with self.name_scope():
            self.rnn, self.dense = mx.gluon.rnn.GRU(width), nn.Dense(letters)

    def forward(self, x: Any, state: Any) -> Any:
        y, state = self.rnn(mx.npx.one_hot(x.T, self.letters), state)
        return self.dense(y.reshape(-1, y.shape[-1])), state


class _Residual(mx.gluon.Block):  # type: ignore[misc]
    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Conv2D(channels, 3, stride, 1)
            self.second = nn.Conv2D(channels, 3, 1, 1)
            self.beside = nn.Conv2D(channels, 1, stride) if stride > 1 else None
            self.norms = nn.HybridSequential()
            self.norms.add(nn.BatchNorm(), nn.BatchNorm())

    def forward(self, x: Any) -> Any:
        y = mx.nd.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        return mx.nd.relu(y + (x if self.beside is None else self.beside(x)))


class ResNet(mx.gluon.Block):  # type: ignore[misc]
    """Residual net (He et al., 2016) for small images, of ``mx.nd``."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.stem, self.norm = nn.Conv2D(32, 3, 1, 1), nn.BatchNorm()
            self.blocks = nn.Sequential()
            for channels, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
                self.blocks.add(_Residual(channels, stride))
            self.head = nn.Dense(10)

    def forward(self, x: Any) -> Any:
        x = mx.nd.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(axis=(2, 3)))
