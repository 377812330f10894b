"""What the tests of graphopt.nn's recurrent layers share: Gluon's layer and ours, and data."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt import nn as ours
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon = mx.gluon
autograd = mx.autograd

KINDS = ("LSTM", "GRU", "RNN")
LENGTHS = (5, 2, 0, 3)
STEPS, BATCH, INPUTS, UNITS = 5, 4, 3, 6


def noise(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return mx.nd.array(np.random.default_rng(seed).uniform(-1, 1, shape), dtype=dtype)


def pair(kind: str, units: int = UNITS, **more: Any) -> tuple[Any, Any]:
    """Gluon's layer and ours, with the same parameters."""
    more.setdefault("input_size", INPUTS)
    theirs = getattr(gluon.rnn, kind)(units, **more)
    mine = getattr(ours, kind)(units, **more)
    for layer in (theirs, mine):
        layer.initialize(mx.init.Uniform(0.5))
    if more["input_size"]:
        share(theirs, mine)
    return theirs, mine


def share(theirs: Any, mine: Any) -> None:
    """Biases too are no zeros, so that adding them up wrong would show."""
    sources, targets = (list(layer.collect_params().values()) for layer in (theirs, mine))
    for n, (source, target) in enumerate(zip(sources, targets, strict=True)):
        source.set_data(noise(*source.shape, seed=n, dtype=source.dtype) * 0.7)
        target.set_data(source.data())


def data(layer: Any, steps: int = STEPS, batch: int = BATCH, dtype: str = "float32") -> Any:
    shape = (batch, steps) if layer._layout == "NTC" else (steps, batch)
    return noise(*shape, INPUTS, seed=40, dtype=dtype)


def states_of(layer: Any, batch: int = BATCH, dtype: str = "float32") -> list[Any]:
    shapes = [info["shape"] for info in layer.state_info(batch)]
    return [noise(*shape, seed=50 + n, dtype=dtype) for n, shape in enumerate(shapes)]


def flat(found: Any) -> list[Any]:
    if not isinstance(found, (list, tuple)):
        return [found]
    return [array for part in found for array in flat(part)]


def learn(net: Any, reads: list[Any], *args: Any) -> tuple[list[Any], list[Any]]:
    """Outputs, and gradients of what is read and of all parameters."""
    for array in reads:
        array.attach_grad()
    with autograd.record():
        outputs = flat(net(*args))
        loss = sum((noise(*o.shape, seed=9, dtype=o.dtype) * o).sum() for o in outputs)
    loss.backward()
    gradients = [array.grad for array in reads]
    gradients += [parameter.grad() for parameter in net.collect_params().values()]
    return [o.asnumpy() for o in outputs], [g.asnumpy() for g in gradients]


def near(got: Any, want: Any, tolerance: float = 1e-5, what: str = "") -> None:
    got, want = (a.asnumpy() if isinstance(a, mx.nd.NDArray) else a for a in (got, want))
    assert got.shape == want.shape, what
    scale = tolerance * (1 + np.abs(want).max(initial=0))
    np.testing.assert_allclose(got, want, rtol=0, atol=scale, err_msg=what)


def compare(theirs: Any, mine: Any, *args: Any, tolerance: float = 1e-5) -> None:
    """The same outputs and gradients, in training and without recording."""
    reads = flat(list(args))
    want, found = learn(theirs, reads, *args), learn(mine, reads, *args)
    for got, right in zip(found, want, strict=True):
        assert len(got) == len(right)
        for n, (g, w) in enumerate(zip(got, right, strict=True)):
            near(g, w, tolerance, f"array {n} of {len(got)}")
    for got, right in zip(flat(mine(*args)), want[0], strict=True):
        near(got, right, tolerance)
