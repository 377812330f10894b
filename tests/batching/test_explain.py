"""What ``explain`` tells of a batched Block before, after and without batching."""

from __future__ import annotations

from typing import Any

import numpy as np

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


def dense() -> Any:
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    return net


def test_before_the_first_call() -> None:
    net = dense()
    told = f"Dense {net.name!r}, scheduler 'depth'\n  nothing was called yet"
    assert graphopt.batch(net).explain() == told


def test_one_and_several() -> None:
    net = dense()
    batched = graphopt.batch(net)
    x = mx.nd.ones((1, 3))
    for count, told in (
        (1, "1 sample: 1 call in 1 group (1.0 calls each), run as 1 operator in 1 flush, "),
        (2, "2 samples: 2 calls in 1 group (2.0 calls each), run as 1 operator in 1 flush, "),
    ):
        found = batched([(x,)] * count)
        np.testing.assert_allclose(found.asnumpy(), [net(x).asnumpy()[0]] * count, atol=1e-6)
        assert told in batched.explain()


def test_without_batching() -> None:
    batched = graphopt.batch(dense(), debug=True)
    for _ in range(2):
        assert "debug=True: samples run one by one, and nothing is batched" in batched.explain()
        batched([(mx.nd.ones((1, 3)),)])
