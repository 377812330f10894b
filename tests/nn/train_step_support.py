"""What tests of graphopt.train_step share: nets, steps by hand, and what was learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd

SMALL = "the calling thread runs all of a step"


def noise(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape), dtype=dtype)


def layers(*middle: Any) -> Any:
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(nn.Dense(16, activation="tanh", in_units=6), *middle, nn.Dense(3, in_units=16))
    return net


class Plain(mx.gluon.Block):  # type: ignore[misc, name-defined]
    """Asks for a shape."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layers = layers()

    def forward(self, x: Any) -> Any:
        return self.layers(x) * (x.shape[0] / 4)


def start(net: Any) -> None:
    """The same weights in every call."""
    net.initialize(mx.init.Zero(), force_reinit=True)
    for seed, (_, p) in enumerate(sorted(net.collect_params().items())):
        if p.grad_req != "null":
            p.set_data(noise(*p.shape, seed=seed, dtype=np.dtype(p.dtype).name) / 3)


def by_hand(net: Any, loss_of: Any, trainer: Any, data: Any, label: Any) -> Any:
    with autograd.record():
        losses = loss_of(net(*data), *label)
    losses.backward()
    trainer.step(data[0].shape[0])
    return losses


def learned(net: Any, trainer: Any, losses: Any) -> list[np.ndarray]:
    """Losses, weights, gradients and states."""
    params = [p for _, p in sorted(net.collect_params().items())]
    found = [losses, *(p.data() for p in params)]
    found += [p.grad() for p in params if p.grad_req != "null"]
    for _, state in sorted(trainer._updaters[0].states.items()):
        parts = state if isinstance(state, tuple) else (state,)
        found += [part for part in parts if part is not None]
    return [array.asnumpy() for array in found]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        largest = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * largest)
