"""Batched against one by one, in values and in gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


class Fn(mx.gluon.Block):
    """A function as a Block; blocks and parameters are attributes it gets as ``net``."""

    def __init__(self, function: Any, **children: Any) -> None:
        super().__init__()
        self._function = function
        with self.name_scope():
            for name, child in children.items():
                setattr(self, name, child)

    def forward(self, *args: Any) -> Any:
        return self._function(self, *args)


def initialized(net: Any, seed: int = 0) -> Any:
    mx.random.seed(seed)
    net.initialize(mx.init.Uniform(0.5), force_reinit=True)
    return net


def rand(*shape: int, dtype: str = "float32", seed: int | None = None) -> Any:
    rng = np.random.RandomState(seed) if seed is not None else np.random
    return mx.nd.array(rng.uniform(-1, 1, shape), dtype=dtype)


def flat(nested: Any) -> list[Any]:
    if isinstance(nested, mx.nd.NDArray):
        return [nested]
    if isinstance(nested, (tuple, list)):
        return [leaf for item in nested for leaf in flat(item)]
    if isinstance(nested, dict):
        return [leaf for item in nested.values() for leaf in flat(item)]
    return []


def gradients(run: Any, net: Any) -> tuple[Any, dict[str, np.ndarray]]:
    params = {k: p for k, p in net.collect_params().items() if p.grad_req != "null"}
    for p in params.values():
        p.zero_grad()
    with mx.autograd.record():
        found = run()
        losses = [
            (
                array.astype("float64")
                * (mx.nd.arange(array.size).reshape(array.shape) % 7 + 1).astype("float64")
            ).sum()
            for array in flat(found)
            if array.dtype in (np.float32, np.float64, np.float16)
        ]
        total = mx.nd.add_n(*losses)
    total.backward()
    return found, {k: p.grad().asnumpy().copy() for k, p in params.items()}


def same(found: Any, expected: Any, tol: float) -> None:
    """Equal layouts, types and, within tol, values."""
    if isinstance(expected, mx.nd.NDArray):
        assert type(found) is mx.nd.NDArray
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=tol, atol=tol)
    elif isinstance(expected, (tuple, list)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b, tol)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key], tol)
    else:
        assert found == expected


def check(
    net: Any,
    samples: Any,
    *,
    tol: float = 1e-5,
    grads: bool = True,
    groups: int | None = None,
    scheduler: str = "depth",
) -> Any:
    """Batched must be as debug=True, twice (planned anew and from the cache)."""
    eager = graphopt.batch(net, debug=True)
    batched = graphopt.batch(net, scheduler=scheduler)
    expected = eager(samples)
    for _ in range(2):
        same(batched(samples), expected, tol)
    if groups is not None:
        assert batched.statistics.groups == groups, batched.explain()
    if grads:
        want_values, want = gradients(lambda: eager(samples), net)
        for _ in range(2):
            values, got = gradients(lambda: batched(samples), net)
            same(values, want_values, tol)
            for name in want:
                np.testing.assert_allclose(
                    got[name], want[name], rtol=10 * tol, atol=10 * tol, err_msg=name
                )
    return batched
