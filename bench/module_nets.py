"""Symbols as they were trained before Gluon, with their batches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))  # they are no package
from bucketing_lm import language_model

mx = import_mxnet()
sym = mx.sym


@dataclass(frozen=True)
class LanguageModel:
    """That of ``examples/bucketing_lm.py``: LSTM cells unrolled over a bucket.

    Attributes:
        words: of the vocabulary.
        units: of a word's vector and of each cell.
        batch: sentences.
        steps: words of each.
    """

    words: int = 10_000
    units: int = 200
    batch: int = 32
    steps: int = 30

    @property
    def symbol(self) -> Any:
        """Makes the Symbol of so many steps, as ``BucketingModule`` asks for."""
        return language_model(self.words, self.units)

    def module(self) -> Any:
        """Not bound yet."""
        return mx.mod.BucketingModule(self.symbol, default_bucket_key=self.steps)

    def given(self) -> Any:
        """A batch."""
        rng = np.random.default_rng(0)
        arrays = [mx.nd.array(rng.integers(0, self.words, (self.batch, self.steps))) for _ in "xy"]
        return _batch(arrays, bucket_key=self.steps)


def _batch(arrays: list[Any], **more: Any) -> Any:
    names = "data", "softmax_label"
    described = [mx.io.DataDesc(n, a.shape) for n, a in zip(names, arrays, strict=True)]
    data, label = [[array] for array in arrays]
    return mx.io.DataBatch(
        data, label, provide_data=described[:1], provide_label=described[1:], **more
    )


@dataclass(frozen=True)
class Classifier:
    """A net of images, of rows, or of sentences, and which of some classes each is of.

    Attributes:
        make: what it computes of a batch.
        shape: of a batch.
        classes: how many there are.
        vocabulary: how many words sentences are of; 0 for numbers.
    """

    make: Callable[[Any], Any]
    shape: tuple[int, ...]
    classes: int = 10
    vocabulary: int = 0

    def module(self) -> Any:
        """Not bound yet."""
        with mx.name.NameManager():  # the same names each time
            return mx.mod.Module(sym.SoftmaxOutput(self.make(sym.var("data")), name="softmax"))

    def given(self) -> Any:
        """A batch."""
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, self.vocabulary, self.shape) if self.vocabulary else None
        data = mx.nd.array(rng.standard_normal(self.shape) if drawn is None else drawn)
        return _batch([data, mx.nd.array(rng.integers(0, self.classes, self.shape[0]))])


def lenet(x: Any) -> Any:
    """Of MXNet's example for handwritten digits."""
    for filters in (20, 50):
        x = sym.Activation(sym.Convolution(x, kernel=(5, 5), num_filter=filters), act_type="tanh")
        x = sym.Pooling(x, pool_type="max", kernel=(2, 2), stride=(2, 2))
    x = sym.Activation(sym.FullyConnected(sym.flatten(x), num_hidden=500), act_type="tanh")
    return sym.FullyConnected(x, num_hidden=10)


def sentences(x: Any) -> Any:
    """Filters over 3, 4 and 5 words at a time (Kim, 2014), of 5,000 words."""
    x = sym.expand_dims(sym.Embedding(x, input_dim=5000, output_dim=300), axis=1)
    largest = []
    for size in (3, 4, 5):
        seen = sym.Convolution(x, kernel=(size, 300), num_filter=100)
        largest.append(sym.max(sym.Activation(seen, act_type="relu"), axis=2))
    return sym.FullyConnected(sym.concat(*largest, dim=1), num_hidden=2)


def perceptron(x: Any) -> Any:
    """A policy's layers."""
    for _ in range(2):
        x = sym.Activation(sym.FullyConnected(x, num_hidden=64), act_type="tanh")
    return sym.FullyConnected(x, num_hidden=6)


def digits(x: Any) -> Any:
    """Of MXNet's first example for handwritten digits."""
    for units in (128, 64):
        x = sym.Activation(sym.FullyConnected(x, num_hidden=units), act_type="relu")
    return sym.FullyConnected(x, num_hidden=10)


def resnet(x: Any) -> Any:
    """ResNet-18 of the model zoo."""
    return mx.gluon.model_zoo.vision.resnet18_v1(classes=100, prefix="resnet_")(x)


def bound(module: Any, batch: Any) -> Any:
    """A module with parameters and SGD with momentum."""
    module.bind(batch.provide_data, batch.provide_label)
    mx.random.seed(0)
    np.random.seed(0)
    module.init_params(mx.init.Xavier())
    options = {"learning_rate": 1e-3, "momentum": 0.9}
    module.init_optimizer(optimizer="sgd", optimizer_params=options)
    return module
