"""Nets that attend as other packages have them: over lengths, and from one place at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import graphopt
from bench.step_memory import peak_mb
from graphopt.compat import import_mxnet
from graphopt.demo import data, models
from graphopt.demo.checking import train_step
from graphopt.demo.models import Example

mx = import_mxnet()
nn = mx.gluon.nn
HybridBlock: Any = mx.gluon.HybridBlock


class Layer(HybridBlock):
    """A layer of BERT (Devlin et al., 2018) as GluonNLP computes it, interleaved.

    ``(length, batch, width)`` to the same; ``lengths`` are those of all heads, ``(batch * heads,
    length)``, the same for each row.
    """

    def __init__(self, width: int, heads: int, dropout: float, **more: Any) -> None:
        super().__init__(**more)
        self._heads = heads
        with self.name_scope():
            self.all = nn.Dense(3 * width, flatten=False, in_units=width, prefix="attention_all_")
            self.mix = nn.Dense(width, flatten=False, in_units=width, prefix="attention_mix_")
            self.norm1 = nn.LayerNorm(in_channels=width, epsilon=1e-5, prefix="norm1_")
            self.widen = nn.Dense(4 * width, flatten=False, in_units=width, prefix="widen_")
            self.narrow = nn.Dense(width, flatten=False, in_units=4 * width, prefix="narrow_")
            self.norm2 = nn.LayerNorm(in_channels=width, epsilon=1e-5, prefix="norm2_")
            self.drop = nn.Dropout(dropout)

    def hybrid_forward(self, F: Any, x: Any, lengths: Any) -> Any:
        """Attention, then the feed-forward net."""
        both = self.all(x)
        scores = F.contrib.interleaved_matmul_selfatt_qk(both, heads=self._heads)
        weights = self.drop(F.softmax(scores, lengths, use_length=True, axis=-1))
        mixed = F.contrib.interleaved_matmul_selfatt_valatt(both, weights, heads=self._heads)
        x = self.norm1(x + self.drop(self.mix(mixed)))
        wide = F.LeakyReLU(self.widen(x), act_type="gelu")
        return self.norm2(x + self.drop(self.narrow(wide)))


class LanguageModel(HybridBlock):
    """Layers over ``(batch, length, width)``, of sequences as long as ``lengths`` say."""

    def __init__(
        self, layers: int, width: int, heads: int, length: int, dropout: float, **more: Any
    ) -> None:
        super().__init__(**more)
        self._heads, self._length = heads, length
        with self.name_scope():
            self.layers = nn.HybridSequential(prefix="")
            for i in range(layers):
                self.layers.add(Layer(width, heads, dropout, prefix=f"layer{i}_"))

    def hybrid_forward(self, F: Any, x: Any, lengths: Any) -> Any:
        """All layers; what is behind a sequence's end comes out as zeros."""
        rows = F.broadcast_axis(F.expand_dims(lengths, 1), axis=1, size=self._heads)
        rows = F.reshape(F.stop_gradient(rows), (-1, 1))
        rows = F.cast(F.broadcast_axis(rows, axis=1, size=self._length), "int32")
        x = F.transpose(x, (1, 0, 2))
        for layer in self.layers:
            x = layer(x, rows)
        x = F.SequenceMask(x, lengths, use_sequence_length=True)
        return F.transpose(x, (1, 0, 2))


def language_model(
    batch: int, length: int, width: int, heads: int, layers: int, dropout: float
) -> Example:
    """Sequences of a quarter to all of the length."""
    net = LanguageModel(layers, width, heads, length, dropout, prefix="encoder_")
    lengths = np.random.default_rng(0).integers(length // 4, length + 1, batch)
    arrays = (data.normal((batch, length, width)), mx.nd.array(lengths))
    return models.example("language_model", net, arrays)


class Decoder(HybridBlock):
    """A series continued step by step, each of which attends to all before and to a context.

    ``first`` is ``(samples, 1, width)``, ``context`` ``(samples, length, width)``; the result is
    ``(samples, steps, width)``.
    """

    def __init__(self, steps: int, width: int, heads: int, **more: Any) -> None:
        super().__init__(**more)
        self._steps, self._heads = steps, heads
        with self.name_scope():
            for part in ("self", "context"):
                for name in ("query", "key", "value", "mix"):
                    layer = nn.Dense(width, flatten=False, in_units=width)
                    setattr(self, f"{part}_{name}", layer)
            self.norm1 = nn.LayerNorm(in_channels=width)
            self.norm2 = nn.LayerNorm(in_channels=width)
            self.out = nn.Dense(width, flatten=False, in_units=width, activation="tanh")

    def hybrid_forward(self, F: Any, first: Any, context: Any) -> Any:
        """All steps, unrolled."""
        keys, values = self.context_key(context), self.context_value(context)
        x, own_keys, own_values, found = first, None, None, []
        for _ in range(self._steps):
            key, value = self.self_key(x), self.self_value(x)
            own_keys = key if own_keys is None else F.concat(own_keys, key, dim=1)
            own_values = value if own_values is None else F.concat(own_values, value, dim=1)
            own = self._attend(F, self.self_query(x), own_keys, own_values)
            x = self.norm1(x + self.self_mix(own))
            other = self._attend(F, self.context_query(x), keys, values)
            made = self.out(self.norm2(x + self.context_mix(other)))
            found.append(made)
            x = first + 0.1 * made  # steps by all of it magnify rounding fivefold each
        return F.concat(*found, dim=1)

    def _attend(self, F: Any, query: Any, key: Any, value: Any) -> Any:
        query, key, value = (self._split(F, x) for x in (query, key, value))
        weights = F.softmax(F.batch_dot(query, key, transpose_b=True))
        mixed = F.reshape(F.batch_dot(weights, value), (-4, -1, self._heads, 0, 0))
        return F.reshape(F.transpose(mixed, (0, 2, 1, 3)), (0, 0, -3))

    def _split(self, F: Any, x: Any) -> Any:
        x = F.reshape(x, (0, 0, -4, self._heads, -1))
        return F.reshape(F.transpose(x, (0, 2, 1, 3)), (-3, 0, 0))


def decoder(samples: int, length: int, width: int, heads: int, steps: int) -> Example:
    """A decoder of so many samples and steps."""
    net = Decoder(steps, width, heads, prefix="decoder_")
    shapes = ((samples, 1, width), (samples, length, width))
    arrays = tuple(data.normal(shape, seed=n) for n, shape in enumerate(shapes))
    return models.example("decoder", net, arrays)


def peak_of_steps(how: str) -> float:
    """MiB that three steps of 8 sequences of 512 words add to what the process has had.

    Args:
        how: ``plain`` or ``graphopt``.
    """
    example = language_model(8, 512, 768, 12, 2, 0.1)
    net = graphopt.optimize(example.net) if how == "graphopt" else example.as_plain()
    before = peak_mb()
    for _ in range(3):
        train_step(example, net)
        mx.nd.waitall()
    return peak_mb() - before


#: Sizes of language models: of a check, and of what is measured.
LANGUAGE_MODELS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "8x128 words": (
        {"batch": 2, "length": 16, "width": 64, "heads": 4, "layers": 2},
        {"batch": 8, "length": 128, "width": 768, "heads": 12, "layers": 2},
    ),
    "4x512 words": (
        {"batch": 2, "length": 24, "width": 64, "heads": 8, "layers": 2},
        {"batch": 4, "length": 512, "width": 768, "heads": 12, "layers": 2},
    ),
}

#: How to make decoders, for a check or not.
DECODERS: dict[str, Callable[[bool], Example]] = {
    "3200 samples, heads of 4": lambda quick: (
        decoder(8, 5, 8, 2, 3) if quick else decoder(3200, 48, 32, 8, 24)
    ),
    "64 samples, heads of 64": lambda quick: (
        decoder(8, 6, 16, 4, 3) if quick else decoder(64, 40, 512, 8, 24)
    ),
}

if __name__ == "__main__":
    sys.stdout.write(f"{peak_of_steps(sys.argv[1])}\n")
