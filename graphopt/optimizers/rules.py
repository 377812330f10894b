"""What MXNet's optimizers compute, as kernels over a weight, its gradient and its states.

The formulas are those of MXNet 1.9.1, with what its documentation leaves open as its operators and
Python have it: where gradients are clipped, whether weights decay inside that, what is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from graphopt.optimizers.adaptive import lamb, lamb_numbers, lars, lars_numbers
from graphopt.optimizers.rule import Rule
from graphopt.optimizers.terms import Term, clipped, mean_of, scaled

#: In front of the name of a number: what it leaves of one, taken before it is rounded.
_REST: Final = "rest_"
_CLIP: Final = "clip_gradient"

#: Methods of optimizers that kernels stand for: they ask for the numbers of all weights at once.
_UPDATING: Final = frozenset(
    {"update", "update_multi_precision", "_update_impl", "_get_lr", "_get_wd"}
)


def rule_of(optimizer: Any) -> Rule | str:
    """The rule of an optimizer with its present settings, or why there is none."""
    kind = type(optimizer)
    name = kind.__name__
    make = _RULES.get(name)
    if make is None or kind.__module__ != _MODULES.get(name, "mxnet.optimizer.optimizer"):
        return f"optimizer {name} has no kernel"
    own = vars(optimizer).keys() & _UPDATING
    if own:
        return f"the optimizer has a method {min(own)} of its own"
    clip = optimizer.clip_gradient
    if clip is not None and not clip > 0:
        return f"clip_gradient={clip} is no bound"
    found = make(optimizer)
    if isinstance(found, str):
        return found
    return _scaling(found, clips=clip is not None)


@lru_cache(maxsize=256)
def _scaling(rule: Rule, *, clips: bool) -> Rule:
    """A rule with the numbers that all optimizers have."""
    shared = ("rescale_grad", *rule.shared, *((_CLIP,) if clips else ()))
    return replace(rule, shared=shared)


def shared_number(optimizer: Any, name: str) -> float:
    """A number that all weights share; of ``rest_x`` what ``x`` leaves of one."""
    if name.startswith(_REST):
        return 1 - float(getattr(optimizer, name.removeprefix(_REST)))
    number = float(getattr(optimizer, name))
    return float(np.float32(number)) if name == _CLIP else number  # as every operator has it


def own_numbers(optimizer: Any, indices: Sequence[Any]) -> list[tuple[float, ...]]:
    """The own numbers of weights whose updates were counted."""
    name = type(optimizer).__name__
    if name in _OWN_OF_ALL:
        return _OWN_OF_ALL[name](optimizer, indices)
    rates, decays = _rates(optimizer, indices), optimizer._get_wds(indices)
    found = _OWN.get(name)
    if found is None:
        return list(zip(rates, decays, strict=True))
    counts = map(optimizer._index_update_count.__getitem__, indices)
    return [found(optimizer, *numbers) for numbers in zip(rates, decays, counts, strict=True)]


def may_count_calls(scheduler: Any) -> bool:
    """Whether learning rates may follow from how often it was asked: MXNet's own do not."""
    return scheduler is not None and type(scheduler).__module__ != "mxnet.lr_scheduler"


def _rates(optimizer: Any, indices: Sequence[Any]) -> list[float]:
    """Learning rates, for which a scheduler of the user's is asked as often as by MXNet."""
    if not may_count_calls(optimizer.lr_scheduler):
        found: list[float] = optimizer._get_lrs(indices)
        return found
    together = max(1, optimizer.aggregate_num) if type(optimizer).__name__ == "SGD" else 1
    groups = (indices[first : first + together] for first in range(0, len(indices), together))
    return [rate for some in groups for rate in optimizer._get_lrs(some)]


def _decayed(x: Any) -> Term:
    """With the weight's decay in it before it is clipped."""
    return clipped(x, x.rescale_grad * x.grad + x.wd * x.weight)


def _sgd(x: Any) -> Sequence[Term]:
    return ((1 - x.lr * x.wd) * x.weight - x.lr * scaled(x),)


def _momentum(x: Any) -> Sequence[Term]:
    state = x.momentum * x.state - x.lr * x.wd * x.weight - x.lr * scaled(x)
    return x.weight + state, state


def _nesterov(x: Any) -> Sequence[Term]:
    before, grad = x.momentum * x.state, scaled(x)
    ahead = before - x.lr * (grad + x.wd * x.weight)
    weight = x.weight - before + (x.momentum + 1) * ahead
    # By the new weight: MXNet's operator has written it when it comes to the state.
    return weight, before - x.lr * (grad + x.wd * weight)


def _sign_sgd(x: Any) -> Sequence[Term]:
    # Neither scaled nor clipped: its sign is the same.
    return ((1 - x.lr * x.wd) * x.weight - x.lr * x.grad.sign(),)


def _signum(x: Any) -> Sequence[Term]:
    rest = 1 - x.momentum
    state = x.momentum * x.state - rest * x.wd * x.weight - rest * scaled(x)
    return (1 - x.lr * x.wd_lh) * x.weight + x.lr * state.sign(), state


def _adam(x: Any) -> Sequence[Term]:
    grad = _decayed(x)
    mean = mean_of(x.beta1, x.mean, grad)
    var = x.beta2 * x.var + (1 - x.beta2) * grad * grad
    return x.weight - x.lr * mean / (var.sqrt() + x.epsilon), mean, var


def _bert_adam(x: Any) -> Sequence[Term]:
    grad = scaled(x)
    mean, var = mean_of(x.beta1, x.mean, grad), mean_of(x.beta2, x.var, grad * grad)
    return x.weight - x.lr * (mean / (var.sqrt() + x.epsilon) + x.wd * x.weight), mean, var


def _adamax(x: Any) -> Sequence[Term]:
    grad = _decayed(x)
    mean = mean_of(x.beta1, x.mean, grad, x.rest_beta1)
    most = (x.beta2 * x.most).or_larger(grad.abs())
    return x.weight - x.lr * mean / most, mean, most


def _nadam(x: Any) -> Sequence[Term]:
    grad = _decayed(x)
    mean = mean_of(x.beta1, x.mean, grad, x.rest_beta1)
    var = mean_of(x.beta2, x.var, grad * grad, x.rest_beta2)
    ahead = x.by_grad * grad + x.by_mean * mean
    return x.weight - x.lr * ahead / ((var / x.bias2).sqrt() + x.epsilon), mean, var


def _ada_grad(x: Any) -> Sequence[Term]:
    grad = scaled(x)
    history = x.history + grad * grad
    step = grad / (history + x.float_stable_eps).sqrt() + x.weight * x.wd
    return x.weight - x.lr * step, history


def _ada_delta(x: Any) -> Sequence[Term]:
    grad = scaled(x)
    squares = mean_of(x.rho, x.squares, grad * grad, x.rest_rho)
    step = (x.steps + x.epsilon).sqrt() / (squares + x.epsilon).sqrt() * grad
    steps = mean_of(x.rho, x.steps, step * step, x.rest_rho)
    return x.weight - (step + x.wd * x.weight), squares, steps


def _rms_prop(x: Any) -> Sequence[Term]:
    grad = _decayed(x)
    squares = (1 - x.gamma1) * (grad * grad) + x.gamma1 * x.squares
    return _bounded(x, x.weight - x.lr * (grad / (squares + x.epsilon).sqrt())), squares


def _centered_rms_prop(x: Any) -> Sequence[Term]:
    grad = _decayed(x)
    squares = (1 - x.gamma1) * grad * grad + x.gamma1 * x.squares
    mean = (1 - x.gamma1) * grad + x.gamma1 * x.mean
    spread = (squares - mean * mean + x.epsilon).sqrt()
    delta = x.gamma2 * x.delta - x.lr * grad / spread
    return _bounded(x, x.weight + delta), squares, mean, delta


def _bounded(x: Any, weight: Term) -> Term:
    return weight.clipped(x.clip_weights) if hasattr(x, "clip_weights") else weight


def _ftrl(x: Any) -> Sequence[Term]:
    grad = scaled(x)
    more = x.squares + grad * grad
    z = x.z + (grad - (more.sqrt() - x.squares.sqrt()) * x.weight / x.lr)
    by = (x.beta + more.sqrt()) / x.lr + x.wd
    weight = (z.sign() * x.lamda1 - z) / by
    return z.abs().if_larger(x.lamda1, 1.0, 0.0) * weight, z, more


def _ftml(x: Any) -> Sequence[Term]:
    grad = _decayed(x)
    var = mean_of(x.beta2, x.var, grad * grad)
    d = x.bias1 / x.lr * ((var / x.bias2).sqrt() + x.epsilon)
    z = x.beta1 * x.z + (1 - x.beta1) * grad - (d - x.beta1 * x.d) * x.weight
    return -z / d, d, var, z


def _with_momentum(plain: Rule, moved: Rule) -> Callable[[Any], Rule | str]:
    def choose(optimizer: Any) -> Rule | str:
        if optimizer.momentum < 0:
            return f"momentum={optimizer.momentum} is negative"
        return moved if optimizer.momentum > 0 else plain

    return choose


def _of_signum(optimizer: Any) -> Rule | str:
    if optimizer.momentum == 0 and optimizer.wd_lh:  # MXNet's operator does not know it
        return f"wd_lh={optimizer.wd_lh} is without momentum"
    return _SIGNUM(optimizer)


def _of_rms_prop(optimizer: Any) -> Rule:
    bound = ("clip_weights",) if optimizer.clip_weights and optimizer.clip_weights > 0 else ()
    if optimizer.centered:
        shared = ("gamma1", "gamma2", "epsilon", *bound)
        return Rule(_centered_rms_prop, ("squares", "mean", "delta"), shared)
    return Rule(_rms_prop, ("squares",), ("gamma1", "epsilon", *bound))


def _of_bert_adam(optimizer: Any) -> Rule | str:
    scale = float(optimizer.rescale_grad)
    if not math.isfinite(scale) or scale == 0:  # then it updates nothing
        return f"rescale_grad={scale} skips the update"
    return Rule(_bert_adam, ("mean", "var"), (*_BETAS, "epsilon"))


def _always(rule: Rule) -> Callable[[Any], Rule]:
    return lambda optimizer: rule


_BETAS: Final = ("beta1", "beta2")
_SIGNUM: Final = _with_momentum(Rule(_sign_sgd), Rule(_signum, ("state",), ("momentum", "wd_lh")))
_RULES: Final[dict[str, Callable[[Any], Rule | str]]] = {
    "SGD": _with_momentum(Rule(_sgd), Rule(_momentum, ("state",), ("momentum",))),
    "NAG": _with_momentum(Rule(_sgd), Rule(_nesterov, ("state",), ("momentum",))),
    "Signum": _of_signum,
    "Adam": _always(Rule(_adam, ("mean", "var"), (*_BETAS, "epsilon"))),
    "Adamax": _always(Rule(_adamax, ("mean", "most"), (*_BETAS, "rest_beta1"), rounds=False)),
    "Nadam": _always(
        Rule(
            _nadam,
            ("mean", "var"),
            (*_BETAS, "rest_beta1", "rest_beta2", "epsilon"),
            ("lr", "wd", "by_grad", "by_mean", "bias2"),
            rounds=False,
            in_order=True,
        )
    ),
    "AdaGrad": _always(Rule(_ada_grad, ("history",), ("float_stable_eps",), rounds=False)),
    "AdaDelta": _always(
        Rule(
            _ada_delta, ("squares", "steps"), ("rho", "rest_rho", "epsilon"), ("wd",), rounds=False
        )
    ),
    "BERTAdam": _of_bert_adam,
    "LAMB": lamb,
    "LARS": lars,
    "RMSProp": _of_rms_prop,
    "Ftrl": _always(Rule(_ftrl, ("z", "squares"), ("lamda1", "beta"))),
    "FTML": _always(
        Rule(_ftml, ("d", "var", "z"), (*_BETAS, "epsilon"), ("lr", "wd", "bias1", "bias2"))
    ),
}

#: Of optimizers that are not MXNet's own.
_MODULES: Final = {"BERTAdam": "gluonnlp.optimizer.bert_adam"}


def _adam_numbers(optimizer: Any, lr: float, wd: float, count: int) -> tuple[float, ...]:
    bias1, bias2 = 1 - optimizer.beta1**count, 1 - optimizer.beta2**count
    return lr * math.sqrt(bias2) / bias1, wd


def _adamax_numbers(optimizer: Any, lr: float, wd: float, count: int) -> tuple[float, ...]:
    return lr / (1 - optimizer.beta1**count), wd


def _nadam_numbers(optimizer: Any, lr: float, wd: float, count: int) -> tuple[float, ...]:
    def momentum(at: int) -> float:
        return float(optimizer.beta1 * (1 - 0.5 * 0.96 ** (at * optimizer.schedule_decay)))

    # MXNet has one schedule for all weights, which each of their updates moves on.
    optimizer.m_schedule *= momentum(count)
    by_grad = (1 - momentum(count)) / (1 - optimizer.m_schedule)
    by_mean = momentum(count + 1) / (1 - optimizer.m_schedule * momentum(count + 1))
    return lr, wd, by_grad, by_mean, 1 - optimizer.beta2**count


def _ftml_numbers(optimizer: Any, lr: float, wd: float, count: int) -> tuple[float, ...]:
    return lr, wd, 1 - optimizer.beta1**count, 1 - optimizer.beta2**count


_OWN: Final[dict[str, Callable[..., tuple[float, ...]]]] = {
    "Adam": _adam_numbers,
    "Adamax": _adamax_numbers,
    "Nadam": _nadam_numbers,
    "FTML": _ftml_numbers,
    "LAMB": lamb_numbers,
}


def _adadelta_numbers(optimizer: Any, indices: Sequence[Any]) -> list[tuple[float, ...]]:
    """Asks no scheduler for a learning rate, which there is none of."""
    return [(wd,) for wd in optimizer._get_wds(indices)]


#: Of those that need all weights at once, or no learning rates.
_OWN_OF_ALL: Final[dict[str, Callable[[Any, Sequence[Any]], list[tuple[float, ...]]]]] = {
    "LARS": lars_numbers,
    "AdaDelta": _adadelta_numbers,
}
