"""A transformer encoder."""

from __future__ import annotations

import math
from typing import Any

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn
HybridBlock: Any = mx.gluon.HybridBlock


class Attention(HybridBlock):
    """Multi-head self-attention: ``(batch, length, width)`` to the same."""

    def __init__(self, width: int, heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._heads = heads
        self._scale = 1 / math.sqrt(width // heads)
        with self.name_scope():
            self.query = nn.Dense(width, flatten=False, in_units=width, prefix="query_")
            self.key = nn.Dense(width, flatten=False, in_units=width, prefix="key_")
            self.value = nn.Dense(width, flatten=False, in_units=width, prefix="value_")
            self.mix = nn.Dense(width, flatten=False, in_units=width, prefix="mix_")

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Attend from every step to every step."""
        query, key, value = (
            self._split(F, layer(x)) for layer in (self.query, self.key, self.value)
        )
        scores = F.batch_dot(query, key, transpose_b=True) * self._scale
        mixed = F.batch_dot(F.softmax(scores), value)
        by_head = F.reshape(mixed, shape=(-4, -1, self._heads, 0, 0))
        return self.mix(F.reshape(F.transpose(by_head, axes=(0, 2, 1, 3)), shape=(0, 0, -3)))

    def _split(self, F: Any, x: Any) -> Any:
        """``(batch, length, width)`` to ``(batch * heads, length, width / heads)``."""
        by_head = F.reshape(x, shape=(0, 0, -4, self._heads, -1))
        return F.reshape(F.transpose(by_head, axes=(0, 2, 1, 3)), shape=(-3, 0, 0))


class EncoderLayer(HybridBlock):
    """Attention and a feed-forward net, each with a residual sum and LayerNorm behind it."""

    def __init__(
        self, width: int, heads: int, hidden: int, activation: str, dropout: float, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._activation = activation
        with self.name_scope():
            self.attention = Attention(width, heads, prefix="attention_")
            self.norm1 = nn.LayerNorm(in_channels=width, prefix="norm1_")
            self.widen = nn.Dense(hidden, flatten=False, in_units=width, prefix="widen_")
            self.narrow = nn.Dense(width, flatten=False, in_units=hidden, prefix="narrow_")
            self.norm2 = nn.LayerNorm(in_channels=width, prefix="norm2_")
            self.dropout = nn.Dropout(dropout) if dropout else None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Attention, then the feed-forward net."""
        x = self.norm1(x + self._drop(self.attention(x)))
        wide = self.widen(x)
        active = F.LeakyReLU(wide, act_type="gelu") if self._activation == "gelu" else F.relu(wide)
        return self.norm2(x + self._drop(self.narrow(active)))

    def _drop(self, x: Any) -> Any:
        return x if self.dropout is None else self.dropout(x)


class Encoder(HybridBlock):
    """A stack of layers over ``(batch, length, width)``."""

    def __init__(
        self,
        layers: int = 4,
        width: int = 768,
        heads: int = 12,
        hidden: int = 3072,
        activation: str = "gelu",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.layers = nn.HybridSequential(prefix="")
            for i in range(layers):
                self.layers.add(
                    EncoderLayer(width, heads, hidden, activation, dropout, prefix=f"layer{i}_")
                )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """All layers, one after the other."""
        return self.layers(x)
