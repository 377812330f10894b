"""Optimizers whose rates follow from norms of whole weights, as MXNet computes them.

Sources: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, 2017 (LARS); You
et al., Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes, 2020 (LAMB).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from graphopt.optimizers.rule import Adaptation, Rule
from graphopt.optimizers.terms import Term, mean_of, scaled

#: Weights with such names have the rate of SGD in LARS.
_PLAIN: Final = ("gamma", "beta", "bias")


def _lamb_states(x: Any) -> Sequence[Term]:
    grad = scaled(x)
    return mean_of(x.beta1, x.mean, grad), x.beta2 * x.var + (1 - x.beta2) * grad * grad


def _lamb_direction(x: Any) -> Term:
    """What a weight moves by, before rates."""
    mean, var = x.mean, x.var
    if hasattr(x, "unbias1"):  # factors: two divisions less of every element
        mean, var = x.unbias1 * mean, x.unbias2 * var
    direction: Term = mean / (var.sqrt() + x.epsilon) + x.wd * x.weight
    return direction


def _lamb_norms(x: Any) -> Sequence[Term]:
    return x.weight, _lamb_direction(x)


def _lamb_ratio(x: Any) -> Term:
    of_weight, of_direction = x.norms
    if hasattr(x, "lower_bound"):
        of_weight = of_weight.or_larger(x.lower_bound)
    if hasattr(x, "upper_bound"):
        of_weight = of_weight.or_smaller(x.upper_bound)
    ratio: Term = of_weight.if_zero(1.0, of_direction.if_zero(1.0, of_weight / of_direction))
    return ratio


def _lamb(x: Any) -> Sequence[Term]:
    return (x.weight - x.lr * x.ratio * _lamb_direction(x),)


def lamb(optimizer: Any) -> Rule:
    """LAMB with its present settings."""
    bounds = tuple(name for name in ("lower_bound", "upper_bound") if getattr(optimizer, name))
    unbiased = ("unbias1", "unbias2") if optimizer.bias_correction else ()
    adapts = Adaptation(_lamb_norms, _lamb_ratio, _lamb_states)
    shared = ("beta1", "beta2", "epsilon", *bounds)
    return Rule(_lamb, ("mean", "var"), shared, ("lr", "wd", *unbiased), adapts=adapts)


def lamb_numbers(optimizer: Any, lr: float, wd: float, count: int) -> tuple[float, ...]:
    """Own numbers of a weight that is updated for the ``count``-th time."""
    if not optimizer.bias_correction:
        return lr, wd
    # Of the betas that the kernel has, as MXNet's: what 0.999 is rounded by is much of 1 - 0.999.
    betas = (float(np.float32(beta)) for beta in (optimizer.beta1, optimizer.beta2))
    return lr, wd, *(1 / (1 - beta**count) for beta in betas)


def _lars_norms(x: Any) -> Sequence[Term]:
    return x.weight, x.grad


def _lars_ratio(x: Any) -> Term:
    of_weight, of_grad = x.norms
    by = of_grad * x.rescale_grad + x.wd * of_weight + x.eps
    ratio = of_grad.if_larger(0.0, x.eta * of_weight / by, 1.0)
    chosen: Term = x.is_plain.if_larger(0.0, 1.0, of_weight.if_larger(0.0, ratio, 1.0))
    return chosen


def _lars(x: Any) -> Sequence[Term]:
    rate = x.lr * x.ratio
    step = -rate * x.wd * x.weight - rate * scaled(x)
    if not hasattr(x, "state"):
        return (x.weight + step,)
    state = x.momentum * x.state + step
    return x.weight + state, state


def lars(optimizer: Any) -> Rule | str:
    """LARS with its present settings."""
    if optimizer.momentum < 0:
        return f"momentum={optimizer.momentum} is negative"
    states, own = (("state",), ("momentum",)) if optimizer.momentum else ((), ())
    adapts = Adaptation(_lars_norms, _lars_ratio)
    numbers = ("lr", "wd", "is_plain", *own)
    return Rule(_lars, states, ("eta", "eps"), numbers, adapts=adapts, in_order=True)


def lars_numbers(optimizer: Any, indices: Sequence[Any]) -> list[tuple[float, ...]]:
    """Own numbers of all weights.

    Momentum follows changes of the rate, which MXNet looks for as often as it updates some weights
    together: none but the first of these see one.
    """
    found: list[tuple[float, ...]] = []
    decays = optimizer._get_wds(indices)
    together = max(1, optimizer.aggregate_num)
    for first in range(0, len(indices), together):
        some = indices[first : first + together]
        rates = optimizer._get_lrs(some)
        momentum = optimizer.momentum
        if optimizer.momentum_correction and optimizer.last_lr != 0:
            momentum *= optimizer.cur_lr / optimizer.last_lr
        for index, rate, decay in zip(some, rates, decays[first:], strict=False):
            name = optimizer.idx2name.get(index, str(index))
            numbers = rate, decay, float(name.endswith(_PLAIN))
            found.append((*numbers, momentum) if optimizer.momentum else numbers)
    return found
