"""Nets that are called with sequences of ever other lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.attention_nets import HybridBlock, Layer
from graphopt.compat import import_mxnet
from graphopt.demo import data, models

mx = import_mxnet()
nn = mx.gluon.nn


class Reader(HybridBlock):
    """Classifies texts as BERT does: ``(batch, length)`` words and their numbers in each text."""

    def __init__(
        self, words: int, most: int, width: int, heads: int, layers: int, **more: Any
    ) -> None:
        super().__init__(**more)
        self._heads, self._most, self._width = heads, most, width
        with self.name_scope():
            self.words = nn.Embedding(words, width, prefix="words_")
            self.table = self.params.get("table", shape=(most, width))
            self.layers = nn.HybridSequential(prefix="")
            for i in range(layers):
                self.layers.add(Layer(width, heads, 0.0, prefix=f"layer{i}_"))
            self.out = nn.Dense(2, in_units=width)

    def hybrid_forward(self, F: Any, words: Any, lengths: Any, table: Any) -> Any:
        """The class of each text, from its first word."""
        x = F.transpose(self.words(words), (1, 0, 2))
        steps = F.contrib.arange_like(x, axis=0)
        positions = F.Embedding(steps, table, input_dim=self._most, output_dim=self._width)
        x = F.broadcast_add(x, F.expand_dims(positions, axis=1))
        zeros = F.reshape(F.zeros_like(steps), (1, -1))
        heads = F.broadcast_axis(F.expand_dims(lengths, 1), axis=1, size=self._heads)
        rows = F.cast(F.broadcast_add(F.reshape(heads, (-1, 1)), zeros), "int32")
        for layer in self.layers:
            x = layer(x, rows)
        return self.out(F.slice_axis(x, axis=0, begin=0, end=1).reshape((-3, 0)))


@dataclass(frozen=True)
class Varied:
    """A net, and its arguments by the length of a sequence."""

    make: Callable[[bool], models.Example]
    arguments: Callable[[bool, int], tuple[Any, ...]]
    lengths: tuple[int, int]
    learns: bool = True


def _encoder_of(quick: bool) -> models.Example:
    return models.encoder(1, 8, 64, 8, 0, 2) if quick else models.encoder(1, 32, 768, 12, 0, 4)


def _reader(quick: bool) -> models.Example:
    sizes = (50, 64, 64, 8, 2) if quick else (2000, 128, 768, 12, 4)
    return models.example("reader", Reader(*sizes, prefix="reader_"), _texts(quick, 8))


def _texts(quick: bool, length: int) -> tuple[Any, ...]:
    batch = 1 if quick else 2
    lengths = np.random.default_rng(length).integers(length // 2, length + 1, batch)
    return data.tokens((batch, length), 50), mx.nd.array(lengths)


def _lstm(quick: bool) -> models.Example:
    features, width = (8, 16) if quick else (128, 256)
    net = nn.HybridSequential(prefix="lstm_")
    with net.name_scope():
        net.add(mx.gluon.rnn.LSTM(width, 2, input_size=features))
        net.add(nn.Dense(features, flatten=False, in_units=width))
    return models.example("lstm", net, (_steps(quick, 8),))


def _steps(quick: bool, length: int) -> Any:
    return data.normal((length, 2, 8) if quick else (length, 16, 128))


def _images(quick: bool) -> models.Example:
    net = nn.HybridSequential(prefix="vgg_")
    if quick:
        with net.name_scope():
            net.add(nn.Conv2D(16, 3, in_channels=3, activation="relu"))
            net.add(nn.Conv2D(16, 3, in_channels=16), nn.GlobalAvgPool2D())
    else:
        layers = mx.gluon.model_zoo.vision.vgg16(prefix="vgg_").features
        for layer in layers[:31]:  # up to the dense ones
            net.add(layer)
    return models.example("images", net, (_image(quick, 224),))


def _image(quick: bool, height: int) -> Any:
    return data.normal((1, 3, height, 24 if quick else 192))


NETS = {
    "encoder": Varied(
        _encoder_of,
        lambda quick, length: (data.normal((1, length, 64 if quick else 768)),),
        (5, 64),
    ),
    "reader": Varied(_reader, _texts, (8, 128)),
    "lstm": Varied(
        _lstm,
        lambda quick, length: (_steps(quick, length),),
        (10, 80),
    ),
    "images by VGG-16": Varied(
        _images,
        lambda quick, height: (_image(quick, height),),
        (128, 256),
        learns=False,
    ),
}
