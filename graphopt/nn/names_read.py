"""Names that functions read: of their modules, of other modules, of functions around them."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator, MutableMapping
from functools import lru_cache, partial
from typing import Any, Final

from graphopt.nn.copies import is_comparable, is_users_module

#: Functions called by functions and so on are looked into up to so many.
_MOST_FUNCTIONS: Final = 256
#: Names, by the namespace where they are looked up.
NamesRead = list[tuple[MutableMapping[str, Any], set[str]]]


class Enclosing(MutableMapping[str, Any]):
    """Variables of functions around one, as it reads them."""

    def __init__(self, function: types.FunctionType) -> None:
        """``function`` is one within another."""
        self.function = function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._cells = dict(cells)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError:  # not set yet
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self._cells[name].cell_contents

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


def names_read(values: Iterable[Any]) -> tuple[NamesRead, dict[type, None]]:
    """What the user's functions among some values read, and functions that these call by name.

    Returns:
        Names of what can be compared, and classes of the user's that are read.
    """
    stack = [*map(_function_of, values)]
    seen: set[int] = set()
    read: dict[int, tuple[MutableMapping[str, Any], set[str]]] = {}
    classes: dict[type, None] = {}
    while stack and len(seen) < _MOST_FUNCTIONS:
        function = stack.pop()
        if function is None or not is_users(function) or id(function) in seen:
            continue
        seen.add(id(function))
        for own, name in _reads(function):
            value = own[name]
            if isinstance(value, type):
                classes |= {value: None} if is_users(value) else {}
            elif not isinstance(value, types.ModuleType) and is_comparable(value):
                read.setdefault(id(own), (own, set()))[1].add(name)
                stack.append(_function_of(value))
    return list(read.values()), classes


def is_users(part: Any) -> bool:
    """Whether a class or function is one of the user's."""
    return is_users_module(part.__module__ or "graphopt")


def _function_of(value: Any) -> types.FunctionType | None:
    while isinstance(value, partial):
        value = value.func
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    return value if isinstance(value, types.FunctionType) else None


def _reads(function: types.FunctionType) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    own = function.__globals__
    for name, attributes in _names_in(function.__code__).items():
        if name not in own:
            continue
        yield own, name
        value = own[name]
        if isinstance(value, types.ModuleType) and is_users_module(value.__name__):
            yield from ((vars(value), part) for part in attributes if part in vars(value))
    around = Enclosing(function)
    yield from ((around, name) for name in around if name in around)


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
