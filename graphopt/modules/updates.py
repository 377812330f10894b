"""Updates of the weights of a module."""

from __future__ import annotations

from typing import Any

from graphopt.errors import UnsupportedError
from graphopt.nn.config import Config
from graphopt.optimizers.plan import Plan, Slot, are_same
from graphopt.optimizers.rules import rule_of
from graphopt.optimizers.updating import why_no_kernels


class Updates:
    """What updates the weights of one module: a kernel, or MXNet."""

    def __init__(self, config: Config) -> None:
        """Nothing is compiled before the first update."""
        self._config = config
        self._never = why_no_kernels()
        self._lists: tuple[Any, Any] = (None, None)
        self._arrays: list[Any] = []
        self._plan: Plan | None = None
        self._reason: str | None = "no update was made yet"

    def __call__(self, module: Any) -> bool:
        """Update all weights, if kernels can; whether they did.

        Raises:
            UnsupportedError: they cannot, and ``strict`` asked for it.
        """
        plan = self._planned(module)
        if isinstance(plan, str) and self._config.strict:
            raise UnsupportedError(f"no kernel updates the weights of the module: {plan}")
        self._reason = plan if isinstance(plan, str) else plan.run()
        return self._reason is None

    def explain(self) -> str:
        """What updates which weights, and why not more."""
        if self._reason is not None or self._plan is None:
            return f"MXNet updates the weights: {self._reason}"
        return self._plan.explain()

    def _planned(self, module: Any) -> Plan | str:
        """What fits the arrays that there are now, or why MXNet is to update them."""
        updater = module._updater
        if self._never is not None:
            return self._never
        if updater is None or module._kvstore is not None:
            return "a key-value store sums up their gradients, or updates them"
        contexts = module._context
        if len(contexts) != 1 or contexts[0].device_type != "cpu":
            return f"they are on {', '.join(map(str, contexts))}"
        rule = rule_of(updater.optimizer)
        if isinstance(rule, str):
            return rule
        slots = self._slots(module._exec_group)
        if slots is not None or self._plan is None or not self._plan.serves(updater, rule):
            slots = slots or self._listed(module._exec_group)
            device = contexts[0].device_id
            precise = self._config.precise
            self._plan = Plan(slots, updater, rule, device=device, precise=precise)
        return self._plan

    def _slots(self, group: Any) -> list[Slot] | None:
        """Weights and gradients, where they are others than those of the last update."""
        lists = group.param_arrays, group.grad_arrays
        if are_same(lists, self._lists):
            return None
        self._lists = lists  # new ones at each new shape, mostly of the same arrays
        arrays = [array for pair in zip(*lists, strict=True) for (array, *_) in pair]
        if are_same(arrays, self._arrays):
            return None
        self._arrays = arrays
        return self._listed(group)

    @staticmethod
    def _listed(group: Any) -> list[Slot]:
        names = group.param_names
        pairs = zip(names, group.param_arrays, group.grad_arrays, strict=True)
        return [
            Slot(name, at, data, grad)
            for at, (name, (data, *_), (grad, *_)) in enumerate(pairs)
            if grad is not None
        ]
