"""Where Python of Blocks reads values from: attributes, those of classes, names by functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.nn.copies import copied, is_comparable, look_for_held
from graphopt.nn.names_read import Enclosing, is_users, names_read

#: What layers and cells of MXNet note of a call.
_NOTED: Final = {"skip_states", "_counter", "_init_counter", "_modified"}


class Source:
    """Names and values of one Block, object, class or module, or around one function.

    Attributes:
        own: by name, as they are at any time.
        names: which of them, or None for all of the user's.
    """

    def __init__(self, owner: Any, names: Collection[str] | None = None) -> None:
        self.owner, self.names = owner, names
        self.own: Mapping[str, Any] = vars(owner) if names is None else owner

    def values(self) -> dict[str, Any]:
        """Copies of those that can be compared."""
        return {name: copied(self.own[name]) for name in self.names_now()}

    def names_now(self) -> set[str]:
        """Names of what can be compared."""
        own = self.own
        if self.names is not None:
            return {name for name in self.names if name in own and is_comparable(own[name])}
        # Cells of MXNet keep states and masks as attributes, None at first.
        is_cell = isinstance(self.owner, import_mxnet().gluon.rnn.RecurrentCell)
        keeps = is_cell and _is_mxnets(self.owner)
        return {n for n, v in own.items() if is_setting(n, v) and not (keeps and v is None)}

    def set(self, name: str, value: Any) -> None:
        """Give a name a value."""
        if isinstance(self.owner, type):
            setattr(self.owner, name, value)
        else:
            self.own[name] = value  # type: ignore[index]

    def drop(self, name: str) -> None:
        """Take a name away."""
        if isinstance(self.owner, type):
            delattr(self.owner, name)
        else:
            self.own.pop(name)  # type: ignore[attr-defined]

    def describe(self, name: str) -> str:
        """A name and whose it is."""
        if isinstance(self.owner, Enclosing):
            return f"{name!r} around {self.owner.function.__qualname__}"
        if self.owner is self.own:
            return f"{name!r} of module {self.owner.get('__name__')}"
        cls = self.owner if isinstance(self.owner, type) else type(self.owner)
        return f"{name!r} of {cls.__name__}"


def sources(blocks: Iterable[Any]) -> list[Source]:
    """Of Blocks: their own, those of objects they hold, of their classes, of what these read."""
    held: dict[int, Any] = {}
    found = list(blocks)
    for block in found:
        for name, value in vars(block).items():
            if name not in _set_by_mxnet():
                look_for_held(value, held)
    parts = (*found, *held.values())
    kinds = {cls: None for kind in map(type, parts) for cls in kind.__mro__ if is_users(cls)}
    functions = [v for owner in (*parts, *kinds) for v in vars(owner).values()]
    read, classes = names_read(functions)
    for own, names in read:
        for name in names & own.keys():
            look_for_held(own[name], held)
    return [
        *map(Source, (*found, *held.values(), *(kinds | classes))),
        *(Source(own, names) for own, names in read),
    ]


def is_setting(name: str, value: Any) -> bool:
    """Whether an attribute is one of the user's that can be compared."""
    if name in _set_by_mxnet() or name.startswith(("_graphopt", "__")):
        return False
    gluon = import_mxnet().gluon  # which has registers of its own for these
    return not isinstance(value, (gluon.Block, gluon.Parameter)) and is_comparable(value)


def _is_mxnets(block: Any) -> bool:
    cls = getattr(type(block), "_graphopt_base", type(block))
    return bool(cls.__module__.partition(".")[0] == "mxnet")


@cache
def _set_by_mxnet() -> frozenset[str]:
    """Attributes that all Blocks have, and those that calls set."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix=""))) | _NOTED
