"""Runs the Tree-LSTMs of examples/tree_lstm.py over batches; in this process and in others."""

from __future__ import annotations

import importlib
from typing import Any

import mxnet as mx
import numpy as np

from bench import trees

tree_lstm = importlib.import_module("tree_lstm")

PerSample, Size, Vectorised = tree_lstm.PerSample, tree_lstm.Size, tree_lstm.Vectorised
sample_of, weights_of = tree_lstm.sample_of, tree_lstm.weights_of

gluon = mx.gluon


def made(kind: type[Any], size: Size, seed: int = 0) -> Any:
    """A net with random weights."""
    mx.random.seed(seed)
    net = kind(size, prefix="net_")
    net.initialize(mx.init.Xavier())
    return net


def ready(
    kind: str, size: Size, weights: dict[str, np.ndarray], *, backward: bool
) -> tuple[Any, Any]:
    """A net, and how a user would run it: ``one by one``, ``vectorised`` or ``batched``."""
    net = made(Vectorised if kind == "vectorised" else PerSample, size)
    tree_lstm.set_weights(net, weights)
    # With static memory MXNet takes for the gradient of an output that nobody uses, such as the
    # memory of a root, what happens to be there: gradients come out wrong.
    static = kind == "vectorised" or not backward
    net.hybridize(static_alloc=static, static_shape=static and kind == "one by one")
    if kind == "vectorised":
        return net, net
    if kind == "one by one":
        return net, lambda samples: mx.nd.concat(*(net(*sample) for sample in samples), dim=0)
    import graphopt

    return net, graphopt.batch(net)


class Steps:
    """Runs a net over one batch after the other, over and over.

    Args:
        kind: see :func:`ready`.
        size: of the net.
        weights: of the net.
        batches: all its inputs are made here, ahead of time.
        backward: whether to train, without an optimizer.
    """

    def __init__(
        self,
        kind: str,
        size: Size,
        weights: dict[str, np.ndarray],
        batches: list[trees.Batch],
        *,
        backward: bool,
    ) -> None:
        self._net, self._run = ready(kind, size, weights, backward=backward)
        self._inputs = [
            tree_lstm.arrays_of(batch)
            if kind == "vectorised"
            else ([sample_of(pair) for pair in trees.pairs_in(batch)],)
            for batch in batches
        ]
        self._targets = [mx.nd.array(batch.targets) for batch in batches]
        self._backward = backward
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False)
        self._loss.hybridize(static_alloc=True, static_shape=True)
        self._next = 0

    def __call__(self) -> Any:
        """Scores of the next batch, or its loss; the gradients are those of the loss's mean."""
        inputs, targets = self._inputs[self._next], self._targets[self._next]
        self._next = (self._next + 1) % len(self._inputs)
        if not self._backward:
            with mx.autograd.pause(train_mode=False):
                return self._run(*inputs)
        with mx.autograd.record():
            loss = self._loss(self._run(*inputs), targets).mean()
        loss.backward()
        return loss

    def found(self) -> list[np.ndarray]:
        """What a run comes to: scores as probabilities, or the loss and the gradients."""
        out = self()
        if not self._backward:
            return [mx.nd.softmax(out).asnumpy()]
        return [out.asnumpy(), *self.gradients().values()]

    def gradients(self) -> dict[str, np.ndarray]:
        """Of the parameters, in the order of their names."""
        return dict(sorted(tree_lstm.gradients_of(self._net).items()))


def requested(request: dict[str, Any]) -> tuple[Steps, Steps]:
    """What a process of its own is asked to run, to be timed and to be checked."""
    weights = dict(np.load(request["weights"]))
    timed, checked = (
        Steps(
            request["net"],
            Size(*request["size"]),
            weights,
            trees.load(request[name]),
            backward=request["backward"],
        )
        for name in ("batches", "check")
    )
    return timed, checked
