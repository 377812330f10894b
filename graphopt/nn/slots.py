"""Attributes that users' classes have slots for, which are in no ``__dict__`` that is shared."""

from __future__ import annotations

from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any


class Slot:
    """An attribute of what stands for the user's object, which has it."""

    def __init__(
        self, member: Any, own: Callable[[Any], Any], given: Callable[[Any], Any] | None = None
    ) -> None:
        """Reads and writes go to the user's object.

        Args:
            member: of the user's class.
            own: finds the user's object.
            given: what is read instead of a value; by default itself.
        """
        self._member, self._own, self._given = member, own, given

    def __get__(self, block: Any, owner: type | None = None) -> Any:
        if block is None:
            return self
        found = self._member.__get__(self._own(block))
        return found if self._given is None else self._given(found)

    def __set__(self, block: Any, value: Any) -> None:
        self._member.__set__(self._own(block), value)

    def __delete__(self, block: Any) -> None:
        self._member.__delete__(self._own(block))


def members_of(cls: type) -> dict[str, MemberDescriptorType]:
    """The slots of a user's class and of its bases, by the names of the attributes.

    Not those that a subclass hides by a value or a property of its own.
    """
    shown: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        shown |= vars(base)
    return {
        name: member
        for name, member in shown.items()
        if isinstance(member, MemberDescriptorType) and not name.startswith("_graphopt")
    }


def values_in_slots(own: Any) -> dict[str, Any]:
    """What an object of the user's has in slots."""
    return {name: getattr(own, name) for name in members_of(type(own)) if hasattr(own, name)}
