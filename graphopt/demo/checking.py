"""An optimized net against the net as it was: outputs, gradients, running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.demo import data
from graphopt.demo.models import Example

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

#: Gradients smaller than this part of the net's largest are compared with it, not with themselves:
#: some are zero but for rounding, such as that of a bias in front of BatchNorm.
NEGLIGIBLE = 1e-4
#: Below this part of the net's largest an array is zero but for rounding, such as the gradient of
#: an attention's key bias: it only has to stay that small.
VANISHING = 1e-6
#: By what part of themselves images are changed to see gradients jump, and how often.
_CHANGE, _CHANGES = 2e-5, 3


def infer(example: Example, net: Any) -> Arrays:
    """The outputs of one run, by name."""
    return {
        f"output{i}.{j}": array.asnumpy()
        for i, found in enumerate(example.run(net))
        for j, array in enumerate(_leaves(found))
    }


def train_step(example: Example, net: Any) -> None:
    """One forward and backward, with fixed random gradients at the outputs; does not wait."""
    autograd = import_mxnet().autograd
    with autograd.record():
        heads = [array for found in example.run(net) for array in _leaves(found)]
    autograd.backward(heads, [_head_gradient(array) for array in heads])


def train(example: Example, net: Any, seed: int = 0) -> Arrays:
    """Outputs, gradients of all parameters and new running statistics of one training step.

    The statistics are put back afterwards.
    """
    mx = import_mxnet()
    learned, running = _parameters(example)
    before = {name: parameter.data().copy() for name, parameter in running.items()}
    mx.random.seed(seed)
    with mx.autograd.record():
        heads = [array for found in example.run(net) for array in _leaves(found)]
    mx.autograd.backward(heads, [_head_gradient(array) for array in heads])
    found = {f"output{i}": array.asnumpy() for i, array in enumerate(heads)}
    found |= {f"gradient:{name}": p.grad().asnumpy() for name, p in learned.items()}
    found |= {f"running:{name}": p.data().asnumpy() for name, p in running.items()}
    for name, parameter in running.items():
        parameter.set_data(before[name])
    return found


def jumps(example: Example, net: Any, expected: Arrays) -> float:
    """How far the gradients of a net jump when its images change by rounding, as an error.

    A ReLU lets a gradient through or does not: where rounding changes the sign of what it reads,
    gradients jump by a part of themselves, in whatever way the net is computed.

    Args:
        example: its arguments are changed, by about what Winograd's algorithm rounds.
        net: what is run.
        expected: what it gave without a change.
    """
    nd, worst = import_mxnet().nd, 0.0
    before = {name: array for name, array in expected.items() if name.startswith("gradient:")}
    for seed in range(_CHANGES):
        rng = np.random.default_rng(seed)
        calls = [
            tuple(x * nd.array(1 + _CHANGE * rng.standard_normal(x.shape)) for x in args)
            for args in example.calls
        ]
        worst = max(worst, relative_error(before, train(replace(example, calls=tuple(calls)), net)))
    return worst


def relative_error(expected: Mapping[str, Array], found: Mapping[str, Array]) -> float:
    """The worst array's largest difference, relative to its largest value.

    Infinite where shapes differ or a value is not finite.
    """
    scale = {name: float(np.abs(array).max(initial=0.0)) for name, array in expected.items()}
    least = NEGLIGIBLE * max(scale.values(), default=0.0)
    worst = 0.0
    for name, want in expected.items():
        got = found[name]
        if got.shape != want.shape or not np.isfinite(got).all():
            return float("inf")
        if want.size and scale[name] <= VANISHING * max(scale.values()):
            if np.abs(got).max() > 2 * VANISHING * max(scale.values()):
                return float("inf")
        elif want.size:
            error = float(np.abs(got - want).max())
            worst = max(worst, error / max(scale[name], least) if error else 0.0)
    return worst


def _parameters(example: Example) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters with and without a gradient, by name."""
    every = example.net.collect_params()
    learned = {name: p for name, p in every.items() if p.grad_req != "null"}
    return learned, {name: p for name, p in every.items() if name not in learned}


_HEADS: dict[tuple[int, ...], Any] = {}


def _head_gradient(array: Any) -> Any:
    if array.shape not in _HEADS:
        _HEADS[array.shape] = data.normal(array.shape, seed=1)
    return _HEADS[array.shape].astype(array.dtype, copy=False)


def _leaves(found: Any) -> list[Any]:
    if isinstance(found, (list, tuple)):
        return [leaf for item in found for leaf in _leaves(item)]
    return [found]
