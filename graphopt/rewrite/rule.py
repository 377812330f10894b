"""What a rewrite rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphopt.ir.node import Node, Value

if TYPE_CHECKING:
    from graphopt.rewrite.edit import Edit

#: What stands for the node's output from now on (one value per output), or ``None``: no match.
Replacement = Value | tuple[Value, ...] | None


class Mismatch(Exception):  # noqa: N818 - a verdict, not an error
    """Raised by a rule that found its pattern and still refuses; the reason becomes a remark."""

    def __init__(self, reason: str) -> None:
        """Refuse for ``reason``, a clause a user understands without knowing the rule."""
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Rule:
    """A rewrite of one node.

    Attributes:
        name: kebab-case, in remarks and statistics.
        ops: operators it is tried on, by canonical name.
        rewrite: given the graph being edited and the node; adds nodes and returns the replacement.

    A rule holds no state, and replaces a value by one of the same type. Whatever it adds before it
    refuses is taken away again.
    """

    name: str
    ops: tuple[str, ...]
    rewrite: Callable[[Edit, Node], Replacement]
