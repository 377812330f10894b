"""Which kernels make the weights of an ``mx.optimizer.Updater`` new."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from graphopt.ir.types import dtype_name
from graphopt.optimizers.rule import Rule
from graphopt.optimizers.rules import may_count_calls
from graphopt.optimizers.updating import Update, Weight, why_not
from graphopt.pipeline.remarks import counted

#: Combinations of weights with new gradients that updates are kept of.
_MOST_KEPT: Final = 16


@dataclass(frozen=True)
class Slot:
    """A weight and its gradient, and what the optimizer knows them by."""

    name: str
    index: int
    data: Any
    grad: Any


class Plan:
    """Updates of the arrays that some weights and the optimizer's states have now."""

    def __init__(
        self, slots: Sequence[Slot], updater: Any, rule: Rule, *, device: int, precise: bool
    ) -> None:
        """Makes what states the optimizer has not made yet of weights that kernels update.

        Those of others are MXNet's to make, when it updates one first: a copy of it in float32 is
        of what it is then.

        Args:
            slots: all weights, on one device.
            updater: an ``mx.optimizer.Updater``.
            rule: what its optimizer computes.
            device: number of the device, which optimizers count updates by.
            precise: no kernel may round differently.
        """
        self._rule, self._updater, self._device, self._precise = rule, updater, device, precise
        self._optimizer = updater.optimizer
        self._all = slots
        self._indices = [slot.index for slot in slots]
        found = _reasons(slots, [why_not(slot.data, slot.grad) for slot in slots], rule)
        made = {
            s.index: _weight(s, updater) for s, why in zip(slots, found, strict=True) if not why
        }
        self._kept, self._states = [*made], [updater.states[index] for index in made]
        found = [
            why or made[slot.index].why_not(rule) for slot, why in zip(slots, found, strict=True)
        ]
        reasons = [*zip(slots, _reasons(slots, found, rule), strict=True)]
        self.refused = [(slot, reason) for slot, reason in reasons if reason is not None]
        self._fast = [made[slot.index] for slot, reason in reasons if reason is None]
        self._updates = self._updates_of(self._fast)
        self._some: dict[tuple[int, ...], list[Update]] = {}

    def serves(self, updater: Any, rule: Rule) -> bool:
        """Whether rule, optimizer and states are the same as when it was made."""
        return (
            rule is self._rule
            and updater is self._updater
            and updater.optimizer is self._optimizer
            and are_same([*map(updater.states.get, self._kept)], self._states)
        )

    def run(self) -> str | None:
        """Update the weights, or tell why MXNet is to do it; then nothing was done."""
        reason = self._why_not_now()
        if reason is not None:
            return reason
        self._run(self._updates, [slot for slot, _ in self.refused])
        return None

    def run_fresh(self) -> str | None:
        """The same of those weights alone that have new gradients."""
        reason = self._why_not_now()
        if reason is not None:
            return reason
        is_fresh = {slot.index: bool(slot.data._fresh_grad) for slot in self._all}
        fast = [weight for weight in self._fast if is_fresh[weight.index]]
        key = tuple(weight.index for weight in fast)
        if key not in self._some:
            if len(self._some) >= _MOST_KEPT:
                self._some.clear()
            self._some[key] = self._updates_of(fast)
        others = [slot for slot, _ in self.refused if is_fresh[slot.index]]
        self._run(self._some[key], others)
        return None

    def _updates_of(self, weights: Sequence[Weight]) -> list[Update]:
        alike = groupby(sorted(weights, key=_dtype_of), _dtype_of)
        return [Update(list(some), self._rule, precise=self._precise) for _, some in alike]

    def _run(self, updates: Sequence[Update], others: Sequence[Slot]) -> None:
        """By kernels, and others by MXNet."""
        for update in updates:
            update(self._optimizer)
        for slot in others:
            if slot.data._fresh_grad:  # weights of modules have no gradient for autograd
                slot.data._fresh_grad = False
        if others:
            self._updater(
                [slot.index for slot in others],
                [slot.grad for slot in others],
                [slot.data for slot in others],
            )

    def told(self) -> tuple[Any, ...] | None:
        """What the bridge has to know of an update of all weights now; counts it as made.

        ``None`` where it is not one call.
        """
        if self.refused or len(self._updates) != 1 or self._why_not_now() is not None:
            return None
        return self._updates[0].told(self._optimizer)

    @property
    def weights(self) -> list[Weight]:
        """All that kernels update."""
        return [weight for update in self._updates for weight in update.weights]

    def _why_not_now(self) -> str | None:
        optimizer = self._optimizer
        optimizer._set_current_context(self._device)
        counts = optimizer._index_update_count
        if optimizer.lr_scheduler is None:
            return None
        # MXNet asks for a rate weight by weight, each by the most updates of those before it.
        if len({*map(counts.get, self._indices)}) > 1:
            return "weights were updated at different times, and rates follow a schedule"
        is_one_update = not self.refused and len(self._updates) <= 1
        if may_count_calls(optimizer.lr_scheduler) and not is_one_update:
            return "the user's scheduler is asked in order, and not all weights are of one kind"
        return None

    def explain(self) -> str:
        """What updates which weights."""
        total = len(self._indices)
        name = type(self._optimizer).__name__
        count = total - len(self.refused)
        lines = [f"{name}: one kernel updates {count} of {counted(total, 'weights')}"]
        lines += [f"  {slot.name} by MXNet: {reason}" for slot, reason in self.refused]
        return "\n".join(lines)


def are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether they are the same objects; arrays that are equal need not be."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _reasons(
    slots: Sequence[Slot], found: Sequence[str | None], rule: Rule
) -> Sequence[str | None]:
    """Of each weight why no kernel updates it, given what its arrays say; ``None``: one does."""
    is_one_update = not any(found) and len({*map(_dtype_of, slots)}) <= 1
    if not rule.in_order or is_one_update:
        return found
    # Several updates, some of them MXNet's, come in another order than MXNet's own.
    several = "its update follows from those before it, and not all weights are of one kind"
    return [reason or several for reason in found]


def _weight(slot: Slot, updater: Any) -> Weight:
    """A weight, and the optimizer's states for it, made if there are none."""
    index, data = slot.index, slot.data
    if index not in updater.states:
        classic = data.as_nd_ndarray()  # as MXNet's updater hands it over: optimizers know no mx.np
        updater.states[index] = updater.optimizer.create_state_multi_precision(index, classic)
        updater.states_synced[index] = True
    elif not updater.states_synced[index]:
        state = updater.sync_state_context(updater.states[index], data.context)
        updater.states[index], updater.states_synced[index] = state, True
    return Weight(slot.name, index, data, slot.grad, _flat(updater.states[index]))


def _flat(state: Any) -> tuple[Any, ...]:
    """The arrays of an optimizer's state."""
    if state is None:
        return ()
    if isinstance(state, (tuple, list)):
        return tuple(array for part in state for array in _flat(part))
    return (state,)


def _dtype_of(weight: Weight | Slot) -> str:
    return dtype_name(weight.data.dtype)
