"""What autograd's tapes of an executor's calls are needed for, and how long they may stay."""

from __future__ import annotations

from typing import Any

from graphopt.backend.documents import document_of, every_node
from graphopt.cached import cached_property
from graphopt.ir.ops import info


class Tapes:
    """Of one Symbol; nothing is asked of it before it is needed."""

    def __init__(self, symbol: Any) -> None:
        """``symbol`` is what an executor was bound for."""
        self._symbol = symbol

    @cached_property
    def may_stay(self) -> bool:
        """Whether backward may be called again: a while_loop's is left on arrays it writes next."""
        return all(node["op"] != "_while_loop" for node in every_node(document_of(self._symbol)))

    @cached_property
    def needed_in_inference(self) -> bool:
        """Whether inference draws numbers, which backward is to take for the same ones."""
        return any(map(draws_in_inference, every_node(document_of(self._symbol))))


def draws_in_inference(node: dict[str, Any]) -> bool:
    """Whether an operator draws in inference, as Symbol JSON has it."""
    facts, mode = info(node["op"]), node.get("attrs", {}).get("mode")
    is_off = facts.pure_at_inference or (node["op"] == "Dropout" and mode != "always")
    return facts.random and not is_off
