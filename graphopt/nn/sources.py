"""Where Python of Blocks reads values from: attributes, those of classes, names of modules."""

from __future__ import annotations

import dis
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.nn.copies import copied, is_comparable, is_users_module, look_for_held

#: What layers and cells of MXNet note of a call.
_NOTED: Final = {"skip_states", "_counter", "_init_counter", "_modified"}
#: Functions called by functions and so on are looked into up to so many.
_MOST_FUNCTIONS: Final = 256


class Source:
    """Names and values of one Block, object, class or module.

    Attributes:
        own: by name, as they are at any time.
        names: which of them, or None for all of the user's.
    """

    def __init__(self, owner: Any, names: Collection[str] | None = None) -> None:
        self.owner, self.names = owner, names
        self.own: Mapping[str, Any] = owner if isinstance(owner, dict) else vars(owner)

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
        if isinstance(self.owner, dict):
            return f"{name!r} of module {self.owner.get('__name__')}"
        cls = self.owner if isinstance(self.owner, type) else type(self.owner)
        return f"{name!r} of {cls.__name__}"


def sources(blocks: Iterable[Any]) -> list[Source]:
    """Of Blocks: their own, those of objects they hold, of their classes, of modules they read."""
    held: dict[int, Any] = {}
    found = list(blocks)
    for block in found:
        for name, value in vars(block).items():
            if name not in _set_by_mxnet():
                look_for_held(value, held)
    classes, read = _of_classes({type(part): None for part in (*found, *held.values())})
    for own, names in read:
        for name in names & own.keys():
            look_for_held(own[name], held)
    return [
        *map(Source, (*found, *held.values(), *classes)),
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


#: Names that functions read, by the namespace of their module.
_Read = list[tuple[dict[str, Any], set[str]]]


def _of_classes(kinds: Iterable[type]) -> tuple[list[type], _Read]:
    """The user's classes among these and their bases, and names that their functions read."""
    classes = {cls: None for kind in kinds for cls in kind.__mro__ if _is_users(cls)}
    functions = [value for cls in classes for value in vars(cls).values()]
    stack = [function for function in functions if _is_users_function(function)]
    seen: set[types.CodeType] = set()
    read: dict[int, tuple[dict[str, Any], set[str]]] = {}
    while stack and len(seen) < _MOST_FUNCTIONS:
        function = stack.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        for own, name in _reads(function):
            value = own[name]
            if isinstance(value, type):
                classes |= {value: None} if _is_users(value) else {}
            elif not isinstance(value, types.ModuleType) and is_comparable(value):
                read.setdefault(id(own), (own, set()))[1].add(name)
                stack += [value] if _is_users_function(value) else []
    return list(classes), list(read.values())


def _is_users(part: Any) -> bool:
    return is_users_module(part.__module__ or "graphopt")


def _is_users_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and _is_users(value)


def _reads(function: types.FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Names of modules that a function reads, its own one and those it reads by name."""
    own = function.__globals__
    for name, attributes in _names_in(function.__code__).items():
        value = own.get(name, own)
        if value is own:
            continue
        yield own, name
        if isinstance(value, types.ModuleType) and is_users_module(value.__name__):
            yield from ((vars(value), part) for part in attributes if hasattr(value, part))


@lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> dict[str, set[str]]:
    """Global names in a function and those within it, and the attributes read of each."""
    found: dict[str, set[str]] = {}
    name = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"):
            name = instruction.argval
            found.setdefault(name, set())
        else:
            if name and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                found[name].add(instruction.argval)
            name = None
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            for key, attributes in _names_in(inner).items():
                found.setdefault(key, set()).update(attributes)
    return found
