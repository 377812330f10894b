"""Backward in another mode than forward, as gradients by an image are computed in inference."""

from __future__ import annotations

from typing import Any

from graphopt.backend.documents import document_of, every_node
from graphopt.cached import cached_property
from graphopt.ir.ops import info
from graphopt.ir.ops.facts import OpInfo
from graphopt.modules.tapes import draws_in_inference


class Modes:
    """Of one Symbol; nothing is asked of it before it is needed."""

    def __init__(self, symbol: Any) -> None:
        """``symbol`` is what an executor was bound for."""
        self._symbol = symbol

    def of_backward(self, asked: bool, ran: bool) -> bool:
        """Whether backward trains: as it is asked to, or as forward did where that is the same.

        Of all operators only those with moving statistics look at the mode of backward: in training
        they differentiate by the data's mean as well, and write the statistics. What others have
        drawn is forward's.
        """
        return asked if asked != ran and self._matter else ran

    def may_run_again(self, *, is_train: bool) -> bool:
        """Whether another forward computes the same, as nothing draws numbers."""
        return not self._draws[is_train]

    def _nodes(self) -> list[dict[str, Any]]:
        return list(every_node(document_of(self._symbol)))

    @cached_property
    def _matter(self) -> bool:
        return any(f.mode_dependent and f.mutates for f in map(_facts, self._nodes()))

    @cached_property
    def _draws(self) -> dict[bool, bool]:
        """Whether forward draws numbers, by whether it trains."""
        return {
            True: any(_facts(node).random for node in self._nodes()),
            False: any(map(draws_in_inference, self._nodes())),
        }


def _facts(node: dict[str, Any]) -> OpInfo:
    return info(node["op"], node.get("attrs", {}))
