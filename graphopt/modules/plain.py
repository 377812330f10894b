"""MXNet's executor on the arrays of an optimized one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.backend.environment import environment
from graphopt.backend.retiring import bound_executor
from graphopt.cached import cached_property


class Plain:
    """Runs instead of what is compiled while there is a reason, and is there for others to share.

    Attributes:
        reason: why it runs; empty if it does not.
        has_turned: whether it ran for backward in another mode than forward's.
    """

    def __init__(
        self,
        symbol: Any,
        ctx: Any,
        arguments: Mapping[str, Any],
        gradients: Mapping[str, Any],
        states: Mapping[str, Any],
        grad_req: Mapping[str, str],
    ) -> None:
        """Nothing is bound before it is asked for.

        Args:
            symbol: what it runs.
            ctx: where.
            arguments: arrays by name.
            gradients: an array, or None, by the name of the argument.
            states: arrays by name.
            grad_req: "write", "add" or "null" by the name of the argument.
        """
        self._symbol, self._ctx, self._arguments, self._states = symbol, ctx, arguments, states
        self._gradients = {n: array for n, array in gradients.items() if array is not None}
        self._grad_req = {name: grad_req.get(name, "null") for name in arguments}
        self.reason = ""
        self.has_turned = False
        self._has_run = False  # as the last one

    @cached_property
    def executor(self) -> Any:
        """MXNet's."""
        with environment(MXNET_SUBGRAPH_VERBOSE="0"):
            return bound_executor(
                self._symbol,
                self._ctx,
                dict(self._arguments),
                args_grad=self._gradients or None,
                grad_req=self._grad_req,
                aux_states=dict(self._states),
            )

    def adopt(self, executor: Any) -> None:
        """Run with one that is bound on these arrays already."""
        self.__dict__["executor"] = executor

    def begin(self, reason: str) -> None:
        """Run from now on."""
        self._has_run = self._has_run and bool(self.reason)
        self.reason = reason

    def end(self) -> None:
        """Run no longer, and let go of what that took."""
        self.reason, self._has_run = "", False
        self.__dict__.pop("executor", None)

    def forward(self, *, is_train: bool) -> list[Any]:
        """The outputs, in memory that the next call writes."""
        self._has_run = True
        found: list[Any] = self.executor.forward(is_train=is_train)
        return found

    def backward(self, heads: Any, *, is_train: bool, ran_train: bool) -> None:
        """Compute gradients, after forward if another executor ran last.

        Args:
            heads: gradients of outputs.
            is_train: as MXNet's.
            ran_train: whether what ran last was to train.
        """
        if not self._has_run:
            self.forward(is_train=ran_train)
        self.executor.backward(heads, is_train)

    def let_go(self) -> None:
        """Have forward run again if backward is called without another forward."""
        self._has_run = False

    def turn(self, heads: Any, *, is_train: bool, ran_train: bool) -> None:
        """Compute gradients in another mode than forward ran in, which runs again."""
        self.has_turned = True
        self.executor.forward(is_train=ran_train)
        self.executor.backward(heads, is_train)
