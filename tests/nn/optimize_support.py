"""What tests of optimized views share: a small net with its images, gradients, and a comparison."""

from __future__ import annotations

import numpy as np

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def small_cnn(dropout: float = 0.0) -> object:
    mx.random.seed(0)
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.MaxPool2D(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Dense(5),
        )
    net.initialize(mx.init.Xavier())
    return net


def image(batch: int = 2) -> object:
    return mx.nd.random.uniform(shape=(batch, 3, 8, 8))


def gradients(net: object, x: object) -> dict[str, np.ndarray]:
    params = {k: p for k, p in net.collect_params().items() if p.grad_req != "null"}
    for p in params.values():
        p.zero_grad()
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    return {k: p.grad().asnumpy().copy() for k, p in params.items()}


def same(a: object, b: object, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=tol, atol=tol)
