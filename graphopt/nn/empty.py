"""Lists and the like of the user's that are empty, as a twin sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphopt.nn.generated import delete_own
from graphopt.nn.pairs import Pairs


class Empty:
    """An attribute of a twin whose value is an empty list or the like of the user's.

    Code of the twin writes into the user's. Whether that holds Blocks is found out once, when
    there is something in it: reading it stays cheap if it holds thousands of numbers later.
    """

    def __init__(self, name: str, own: Any, pairs: Pairs, swap: Callable[[], None]) -> None:
        """``swap`` has the twin look the attribute up elsewhere, if it holds Blocks."""
        self.own = own
        self._name, self._pairs, self._swap = name, pairs, swap

    def __get__(self, block: Any, owner: type | None = None) -> Any:
        if block is None:  # asked of the class
            shown: Any = owner
            return getattr(shown._graphopt_shown, self._name)
        try:
            found = vars(block)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
        if found is not self.own:
            return found
        if found and not self._pairs.awaits(found):
            self._leave(type(block))
            return getattr(block, self._name)
        self._pairs.wait(self, type(block))
        return found

    def __set__(self, block: Any, value: Any) -> None:
        vars(block)[self._name] = value

    def __delete__(self, block: Any) -> None:
        del vars(block)[self._name]

    def settle(self, cls: type) -> None:
        """Code of a twin of that class read it, and may have written into it."""
        if self.own:
            self._pairs.own(self.own)
            self._leave(cls)

    def _leave(self, cls: type) -> None:
        if vars(cls).get(self._name) is self:  # else the attribute was set since
            delete_own(cls, self._name)
            self._swap()
