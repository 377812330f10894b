"""Tree-LSTMs that compare two sentences: one pair after the other, and all trees at a time.

Both compute the same (child-sum Tree-LSTM of Tai, Socher and Manning, 2015). ``PerSample`` is what
one writes down first. ``Vectorised`` takes the trees of a batch as one array of parents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np
from sick import SCORES, Batch, Node, Pair

gluon = mx.gluon

#: Units of the layer that compares two sentences.
COMPARED = 50


@dataclass(frozen=True)
class Size:
    """Words in the vocabulary, columns of their vectors, units of a state."""

    words: int
    columns: int = 300
    units: int = 150


class Keep(gluon.HybridBlock):
    """What a node takes over of the memory of one child."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.i2h = gluon.nn.Dense(size.units, in_units=size.columns, prefix="i2h_")
            self.h2h = gluon.nn.Dense(
                size.units, use_bias=False, in_units=size.units, prefix="h2h_"
            )

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        return F.sigmoid(self.i2h(x) + self.h2h(h)) * c


class Update(gluon.HybridBlock):
    """State and memory of a node, from its word and the sums over its children."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.i2h = gluon.nn.Dense(3 * size.units, in_units=size.columns, prefix="i2h_")
            self.h2h = gluon.nn.Dense(
                3 * size.units, use_bias=False, in_units=size.units, prefix="h2h_"
            )

    def hybrid_forward(self, F: Any, x: Any, h_sum: Any, c_sum: Any) -> Any:
        gates = self.i2h(x) + self.h2h(h_sum)
        i, o, u = F.split(gates, num_outputs=3, axis=1)
        c = F.sigmoid(i) * F.tanh(u) + c_sum
        return F.sigmoid(o) * F.tanh(c), c


class Similarity(gluon.HybridBlock):
    """Scores ``(pairs, 5)`` of two sentences' states, before the softmax."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.wide = gluon.nn.Dense(
                COMPARED, activation="sigmoid", in_units=2 * size.units, prefix="wide_"
            )
            self.score = gluon.nn.Dense(SCORES, in_units=COMPARED, prefix="score_")

    def hybrid_forward(self, F: Any, left: Any, right: Any) -> Any:
        return self.score(self.wide(F.concat(F.abs(left - right), left * right, dim=1)))


class PerSample(gluon.Block):
    """Walks two trees; words are ``(1, length)``, scores ``(1, 5)``."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        self._units = size.units
        with self.name_scope():
            self.embed = gluon.nn.Embedding(size.words, size.columns, prefix="embed_")
            self.keep = Keep(size, prefix="f_")
            self.update = Update(size, prefix="iou_")
            self.compare = Similarity(size, prefix="")

    def forward(self, left: Node, right: Node, left_words: Any, right_words: Any) -> Any:
        states = [
            self.visit(tree, self.embed(words))[0]
            for tree, words in ((left, left_words), (right, right_words))
        ]
        return self.compare(*states)

    def visit(self, node: Node, vectors: Any) -> Any:
        """State and memory of a node."""
        x = vectors[:, node.position]
        below = [self.visit(child, vectors) for child in node.children]
        if not below:
            none = mx.nd.zeros((1, self._units))
            return self.update(x, none, none)
        h_sum = mx.nd.add_n(*(h for h, _ in below))
        c_sum = mx.nd.add_n(*(self.keep(x, h, c) for h, c in below))
        return self.update(x, h_sum, c_sum)


class Vectorised(gluon.Block):
    """All trees of a batch at once: words and parents ``(nodes,)``, scores ``(pairs, 5)``."""

    def __init__(self, size: Size, **more: Any) -> None:
        import graphopt.nn

        super().__init__(**more)
        with self.name_scope():
            self.embed = gluon.nn.Embedding(size.words, size.columns, prefix="embed_")
            self.tree = graphopt.nn.ChildSumTreeLSTM(
                size.units, size.columns, embedding=self.embed, prefix="tree_"
            )
            self.compare = Similarity(size, prefix="")

    def forward(self, words: Any, parents: Any, roots: Any) -> Any:
        h, _ = self.tree(words, parents)
        return self.compare(*mx.nd.split(mx.nd.take(h, roots), num_outputs=2, axis=0))


def weights_of(net: Any) -> dict[str, np.ndarray]:
    """Values of the parameters, by the names they have in ``PerSample``."""
    found = {n: p.data().asnumpy() for n, p in _named(net).items()}
    if isinstance(net, Vectorised):
        # The layer has biases on both sides of a sum.
        i, f, u, o = np.split(found["tree_i2h_bias"], 4)
        sums = np.split(found["tree_hs2h_bias"], 3)
        new = [a + b for a, b in zip((i, u, o), sums, strict=True)]
        found["tree_i2h_bias"] = np.concatenate([new[0], f + found["tree_hc2h_bias"], *new[1:]])
    return _per_sample(found)


def gradients_of(net: Any) -> dict[str, np.ndarray]:
    """Gradients of the parameters, by the same names."""
    return _per_sample({n: p.grad().asnumpy() for n, p in _named(net).items()})


def set_weights(net: Any, weights: dict[str, np.ndarray]) -> None:
    """Give a net the weights of another one."""
    found = dict(weights)
    if isinstance(net, Vectorised):
        for kind in ("weight", "bias"):
            i, o, u = np.split(weights[f"iou_i2h_{kind}"], 3)
            found[f"tree_i2h_{kind}"] = np.concatenate([i, weights[f"f_i2h_{kind}"], u, o])
        i, o, u = np.split(weights["iou_h2h_weight"], 3)
        found["tree_hs2h_weight"] = np.concatenate([i, u, o])
        found["tree_hc2h_weight"] = weights["f_h2h_weight"]
        found["tree_hs2h_bias"] = np.zeros(len(found["tree_hs2h_weight"]), "f")
        found["tree_hc2h_bias"] = np.zeros(len(found["tree_hc2h_weight"]), "f")
    for name, parameter in _named(net).items():
        parameter.set_data(mx.nd.array(found[name]))


def _named(net: Any) -> dict[str, Any]:
    return {name.removeprefix(net.prefix): p for name, p in net.collect_params().items()}


def _per_sample(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays in the order of gates, and under the names, of ``PerSample``."""
    arrays = {name: a for name, a in found.items() if not name.startswith("tree_")}
    if "tree_i2h_weight" in found:
        for kind in ("weight", "bias"):
            i, arrays[f"f_i2h_{kind}"], u, o = np.split(found[f"tree_i2h_{kind}"], 4)
            arrays[f"iou_i2h_{kind}"] = np.concatenate([i, o, u])
        i, u, o = np.split(found["tree_hs2h_weight"], 3)
        arrays["iou_h2h_weight"] = np.concatenate([i, o, u])
        arrays["f_h2h_weight"] = found["tree_hc2h_weight"]
    return arrays


def arrays_of(batch: Batch) -> tuple[Any, ...]:
    """What a net is called with that takes all trees at a time."""
    return tuple(mx.nd.array(a, dtype="int32") for a in (batch.words, batch.parents, batch.roots))


def sample_of(pair: Pair) -> tuple[Any, ...]:
    """What a net that goes sample by sample is called with."""
    words = [mx.nd.array(side.words[None], dtype="int32") for side in (pair.left, pair.right)]
    return pair.left.tree, pair.right.tree, *words
