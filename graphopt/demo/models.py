"""The embedded models: each builder returns a net with fixed random parameters, and its inputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphopt.batching.batched import Batched
from graphopt.compat import import_mxnet
from graphopt.demo import data
from graphopt.demo.encoder import Encoder
from graphopt.demo.recurrent import LSTMNet, WordLSTM
from graphopt.demo.tree import TreeLSTM

mx = import_mxnet()


@dataclass(frozen=True)
class Example:
    """A net and the arguments of the calls that make up one run of it.

    ``calls`` has one entry for nets that take a batch, one per sample for those that do not.
    """

    name: str
    net: Any
    calls: tuple[tuple[Any, ...], ...]

    @property
    def is_hybrid(self) -> bool:
        """Whether MXNet can hybridize the net as a whole."""
        return isinstance(self.net, mx.gluon.HybridBlock)

    def run(self, net: Any = None) -> list[Any]:
        """Outputs of all calls, of ``net`` in place of the example's own where given."""
        call = self.net if net is None else net
        if isinstance(call, Batched):
            found = call(list(self.calls))
            return list(mx.nd.split(found, num_outputs=len(self.calls), axis=0))
        return [call(*args) for args in self.calls]

    def as_plain(self) -> Any:
        """The net as a careful user of plain MXNet runs it: hybridized as far as it can be."""
        self.net.hybridize(static_alloc=True, static_shape=True)
        return self.net


@dataclass(frozen=True)
class Recipe:
    """A named example, built when asked for."""

    name: str
    make: Callable[..., Example]
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> Example:
        """Build it."""
        return self.make(**self.options)


def tiny_cnn() -> Example:
    """Convolution, BatchNorm, relu, pooling, Dense: small enough to print."""
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="")
    with net.name_scope():
        net.add(
            nn.Conv2D(8, 3, padding=1, use_bias=False, in_channels=3, prefix="conv_"),
            nn.BatchNorm(in_channels=8, prefix="bn_"),
            nn.Activation("relu", prefix="relu_"),
            nn.GlobalAvgPool2D(prefix="pool_"),
            nn.Flatten(prefix="flat_"),
            nn.Dense(10, in_units=8, prefix="dense_"),
        )
    return example("tiny_cnn", net, (data.normal((1, 3, 32, 32)),))


def zoo(name: str = "resnet18_v1", batch: int = 1, extent: int = 224, **options: Any) -> Example:
    """A net of Gluon's vision zoo, not pretrained."""
    net = getattr(mx.gluon.model_zoo.vision, name)(prefix=f"{name}_", **options)
    return example(name, net, (data.normal((batch, 3, extent, extent)),))


def mlp(batch: int = 32, widths: tuple[int, ...] = (784, 1024, 1024, 10)) -> Example:
    """Dense layers with ReLU between them."""
    nn = mx.gluon.nn
    net = nn.HybridSequential(prefix="mlp_")
    with net.name_scope():
        for inputs, units in itertools.pairwise(widths):
            relu = "relu" if len(net) < len(widths) - 2 else None
            net.add(nn.Dense(units, in_units=inputs, activation=relu))
    return example("mlp", net, (data.normal((batch, widths[0])),))


def encoder(
    batch: int = 8,
    length: int = 128,
    width: int = 768,
    heads: int = 12,
    hidden: int = 0,
    layers: int = 4,
    activation: str = "gelu",
    dropout: float = 0.0,
) -> Example:
    """A transformer encoder; ``hidden`` is four times the width unless given."""
    net = Encoder(layers, width, heads, hidden or 4 * width, activation, dropout, prefix="encoder_")
    return example("encoder", net, (data.normal((batch, length, width)),))


def lstm(
    length: int = 40,
    batch: int = 128,
    features: int = 57,
    hidden: int = 128,
    outputs: int = 57,
    layers: int = 1,
) -> Example:
    """Dense, LSTM, Dense as a plain Block."""
    net = LSTMNet(features, hidden, outputs, layers, prefix="lstmnet_")
    return example("lstm", net, (data.normal((length, batch, features)),))


def word_lstm(
    length: int = 40,
    batch: int = 32,
    words: int = 1000,
    width: int = 64,
    hidden: int = 128,
    outputs: int = 2,
    layers: int = 1,
) -> Example:
    """Embedding, LSTM, Dense as a plain Block."""
    net = WordLSTM(words, width, hidden, outputs, layers, prefix="wordlstm_")
    return example("word_lstm", net, (data.tokens((length, batch), words),))


def tree_lstm(samples: int = 12, width: int = 64, hidden: int = 100, outputs: int = 5) -> Example:
    """A child-sum Tree-LSTM, called once per embedded tree."""
    words = len(data.vocabulary())
    net = TreeLSTM(words, width, hidden, outputs, prefix="treelstm_")
    forest = data.trees()
    chosen = [forest[i % len(forest)] for i in range(samples)]
    return example("tree_lstm", net, *((data.indices(tree), tree) for tree in chosen))


def fill(net: Any, seed: int = 0) -> None:
    """Give every parameter of an initialized net fixed random values; constants keep theirs.

    They depend on the seed, the parameter's position, its kind and shape only: not on names, nor on
    MXNet's generator. Statistics of BatchNorm are random too, so that folding them shows. Layers
    keep the scale of their input.
    """
    for position, (name, parameter) in enumerate(net.collect_params().items()):
        if isinstance(parameter, mx.gluon.Constant):
            continue
        rng = np.random.default_rng([seed, position])
        values = _values(name, parameter.shape, rng)
        parameter.set_data(mx.nd.array(values, dtype="float32"))


_RANGES = {
    "running_mean": (-0.3, 0.3),
    "running_var": (0.6, 1.6),
    "gamma": (0.5, 1.3),
    "beta": (-0.3, 0.3),
    "bias": (-0.1, 0.1),
}


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    for kind, (low, high) in _RANGES.items():
        if name.endswith(kind):
            return rng.uniform(low, high, shape)
    scale = math.sqrt(2 / math.prod(shape[1:]))
    return np.float32(scale) * rng.standard_normal(shape, dtype=np.float32)


def example(name: str, net: Any, *calls: tuple[Any, ...]) -> Example:
    """A net that is not initialized yet, with fixed random parameters."""
    net.initialize(mx.init.Zero())
    with mx.autograd.pause():
        net(*calls[0])  # shapes that are not known yet
    fill(net)
    return Example(name, net, calls)
