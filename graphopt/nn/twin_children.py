"""Children as the code of a twin sees them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from graphopt.nn.pairs import Pairs


class Children(OrderedDict[str, Any]):
    """Optimized children; what a method does to them is done to the user's Block's as well.

    Attributes:
        own: the user's Block's.
        are_same: whether nothing was done to them.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Without pairs, as of an OrderedDict: code makes others by ``type(self._children)``."""
        is_twins = len(args) > 1 and isinstance(args[1], Pairs)
        return super().__new__(cls) if is_twins else OrderedDict(*args, **kwargs)

    def __init__(self, own: OrderedDict[str, Any], pairs: Pairs) -> None:
        """``pairs`` has what stands for each of ``own``."""
        super().__init__()
        self.own, self.are_same, self._pairs = own, True, pairs
        for name, child in own.items():
            super().__setitem__(name, pairs.twin(child))

    def __setitem__(self, name: str, child: Any) -> None:
        self.own[name] = self._pairs.own(child)
        self.follow(name)

    def __delitem__(self, name: str) -> None:
        del self.own[name]
        self.are_same = False
        super().__delitem__(name)

    def follow(self, name: str) -> None:
        """The user's Block has another child of that name."""
        self.are_same = False
        if name in self.own:
            super().__setitem__(name, self._pairs.twin(self.own[name]))

    # CPython's methods below go past __delitem__, in most of its versions.

    def pop(self, name: str, *default: Any) -> Any:
        """As of any dict."""
        if name not in self:
            return OrderedDict[str, Any]().pop(name, *default)
        found = self[name]
        del self[name]
        return found

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """As of any OrderedDict."""
        if not self:
            return OrderedDict[str, Any]().popitem()
        name = next(reversed(self) if last else iter(self))
        return name, self.pop(name)

    def clear(self) -> None:
        """As of any dict."""
        for name in list(self):
            del self[name]

    def move_to_end(self, name: str, last: bool = True) -> None:
        """As of any OrderedDict."""
        self.own.move_to_end(name, last)
        self.are_same = False
        super().move_to_end(name, last)

    def copy(self) -> Any:
        """What is done to a copy is done to nothing else."""
        return OrderedDict(self)

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return OrderedDict(other) | self.copy()

    def __reduce__(self) -> Any:
        return OrderedDict, ([*self.items()],)
