"""Optimized views of ``gluon.Trainer``.

As with Blocks, a view is an instance of a subclass of the user's own class that shares the user's
``__dict__``: the same parameters, optimizer and states, which ``save_states`` writes and
``load_states`` reads. Only what updates the weights is different.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.optimizers.plan import Plan, Slot, are_same
from graphopt.optimizers.rule import Rule
from graphopt.optimizers.rules import rule_of
from graphopt.optimizers.updating import Freshness, why_no_kernels
from graphopt.recording.active import flush_recorded

_STATE = "_graphopt_state"

#: Methods that make a step; what the last one does is :class:`State`'s to know.
_STEP: Final = frozenset({"step", "_allreduce_grads", "_update"})


class OptimizedTrainer:
    """Mixin in front of the user's class; see the module's docstring."""

    _graphopt_state: State
    _graphopt_config: tuple[bool, bool]

    def _update(self, ignore_stale_grad: bool = False) -> None:
        """As MXNet's, which ``step`` and ``update`` call."""
        flush_recorded()
        if not self.graphopt_state.update(ignore_stale_grad=ignore_stale_grad):
            super()._update(ignore_stale_grad)  # type: ignore[misc]

    @property
    def graphopt_state(self) -> State:
        """What graphopt knows about this view."""
        try:
            return self._graphopt_state
        except AttributeError:
            precise, strict = self._graphopt_config
            self._graphopt_state = State(self, precise=precise, strict=strict)
            return self._graphopt_state

    def explain(self) -> str:
        """Which weights one kernel updates, and why it does not update the others."""
        return self.graphopt_state.explain()

    def __copy__(self) -> Any:
        make, (own,) = self.__reduce_ex__(None)
        return make(copy.copy(own))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle, and copy deeply, what the user's trainer holds; its kernels are planned anew."""
        precise, strict = self._graphopt_config
        return functools.partial(trainer_view, precise=precise, strict=strict), (_own(self),)


def trainer_view(trainer: Any, *, precise: bool, strict: bool) -> Any:
    """An optimized view of a ``gluon.Trainer``."""
    cls = type(trainer)
    if isinstance(trainer, OptimizedTrainer):
        cls = cls.__mro__[2]
    body = {
        "__slots__": (_STATE,),
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "_graphopt_config": (precise, strict),
    }
    twin: Any = object.__new__(type(cls.__name__, (OptimizedTrainer, cls), body))
    twin.__dict__ = trainer.__dict__
    return twin


def _own(view: Any) -> Any:
    """The user's own trainer behind a view, which parameters refer to, or else an equal one."""
    cls = type(view).__mro__[2]
    for trainer in (p._trainer for p in view._params):
        if type(trainer) is cls and trainer.__dict__ is view.__dict__:
            return trainer
    twin: Any = object.__new__(cls)
    twin.__dict__ = view.__dict__
    return twin


class State:
    """What graphopt keeps about one view: updates that fit the arrays of the last step."""

    def __init__(self, trainer: Any, *, precise: bool, strict: bool) -> None:
        """Nothing is compiled before the first step."""
        self._trainer, self._precise, self._strict = trainer, precise, strict
        self._plan: TrainerPlan | None = None
        mx = import_mxnet()
        plain, own = vars(mx.gluon.Trainer), type(trainer)
        self._own = {name for name in _STEP if _of_class(own, name) is not plain[name]}
        if "_update" in self._own:
            self._never: str | None = "its class has an _update of its own"
        else:
            self._never = why_no_kernels()
        self._reason: str | None = "no step was made yet"

    def update(self, *, ignore_stale_grad: bool) -> bool:
        """Update all weights, if kernels can; whether they did.

        Raises:
            UnsupportedError: they cannot, and ``strict`` asked for it.
        """
        plan = self.plan()
        if isinstance(plan, str):
            self._reason = plan
            return False
        self._reason = plan.step(ignore_stale_grad=ignore_stale_grad)
        return self._reason is None

    def plan(self) -> TrainerPlan | str:
        """What fits the arrays that there are now, or why MXNet is to update them.

        Raises:
            UnsupportedError: it is to, and ``strict`` asked for a kernel.
        """
        rule = self._rule()
        if isinstance(rule, Rule):
            if self._plan is not None and self._plan.fits(rule):
                return self._plan
            rule = _why_not_together(self._trainer._params) or rule
        if isinstance(rule, str):
            if self._strict:
                raise UnsupportedError(f"no kernel updates the weights of the trainer: {rule}")
            return rule
        self._plan = self._planned(rule)
        return self._plan

    def why_stepwise(self) -> str | None:
        """Why ``step`` has to be called for an update, or ``None`` if it does nothing besides."""
        trainer = self._trainer
        own = self._own or vars(trainer).keys() & _STEP
        if own:
            return f"the trainer has a method {min(own)} of its own"
        return None if trainer._kvstore is None else "the trainer has a key-value store"

    def explain(self) -> str:
        """See :meth:`OptimizedTrainer.explain`."""
        if self._reason is not None or self._plan is None:
            return f"MXNet updates the weights: {self._reason}"
        return self._plan.explain()

    def _rule(self) -> Rule | str:
        """What the optimizer computes, or why MXNet is to do it."""
        trainer = self._trainer
        if self._never is not None:
            return self._never
        if getattr(trainer, "_amp_loss_scaler", None) is not None:
            return "losses are scaled by mx.contrib.amp"
        if trainer._kvstore and trainer._update_on_kvstore:
            return "its key-value store updates them"
        contexts = trainer._contexts
        if len(contexts) != 1 or contexts[0].device_type != "cpu":
            return f"they are on {', '.join(map(str, contexts))}"
        updater = trainer._updaters[0]
        if type(updater) is not import_mxnet().optimizer.Updater:
            return f"updater {type(updater).__name__} has no kernel"
        return rule_of(updater.optimizer)  # not the trainer's, which may be another by now

    def _planned(self, rule: Rule) -> TrainerPlan:
        plan = TrainerPlan(self._trainer, rule, precise=self._precise)
        if self._strict and plan.refused:
            slot, reason = plan.refused[0]
            raise UnsupportedError(f"no kernel updates parameter {slot.name!r}: {reason}")
        return plan


class TrainerPlan(Plan):
    """Updates of the arrays that a trainer's parameters and optimizer have now."""

    def __init__(self, trainer: Any, rule: Rule, *, precise: bool) -> None:
        """See :class:`Plan`."""
        self._trainer, self._parameters = trainer, trainer._params[:]
        self._arrays = _lists_of(self._parameters)
        slots = [
            Slot(p.name, i, p.list_data()[0], p.list_grad()[0])
            for i, p in enumerate(self._parameters)
            if p.grad_req != "null"
        ]
        # Not the trainer's, which stay what they were when it was made.
        contexts = [slot.data.context for slot in slots] or trainer._contexts
        device = contexts[0].device_id
        super().__init__(slots, trainer._updaters[0], rule, device=device, precise=precise)
        self._fresh = Freshness([slot.data for slot in slots])

    def fits(self, rule: Rule) -> bool:
        """Whether rule, parameters, optimizer and states are the same as when it was made."""
        trainer = self._trainer
        return (
            self.serves(trainer._updaters[0], rule)
            and are_same(trainer._params, self._parameters)
            and are_same(_lists_of(self._parameters), self._arrays)
        )

    def step(self, *, ignore_stale_grad: bool) -> str | None:
        """Update the weights, or tell why MXNet is to do it; then nothing was done."""
        if self._fresh.of_all():
            return self.run()
        if ignore_stale_grad:
            return self.run_fresh()
        return "a weight had no new gradient in the last step"  # which MXNet names


def _why_not_together(parameters: Sequence[Any]) -> str | None:
    """Why MXNet is to update the weights, one after the other; ``None`` where a kernel may."""
    arrays = [array for p in parameters if p.grad_req != "null" for array in p._data or ()]
    if len({*map(id, arrays)}) < len(arrays):
        return "a parameter is given twice"  # whose gradient is old when MXNet comes to it again
    contexts = sorted({*map(str, (array.context for array in arrays))})
    if len(contexts) > 1:  # a trainer knows those alone that there were when it was made
        return f"they are on {', '.join(contexts)}"
    return None


def _lists_of(parameters: Sequence[Any]) -> list[Any]:
    """What parameters hold: a list of arrays and one of gradients each."""
    return [held for p in parameters for held in (p._data, p._grad)]


def _of_class(cls: type, name: str) -> Any:
    """A method of the user's class."""
    bases = [base for base in cls.__mro__[1:] if base is not OptimizedTrainer]
    return next(vars(base)[name] for base in bases if name in vars(base))
