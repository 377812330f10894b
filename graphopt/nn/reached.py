"""Functions of the user's that calls of Blocks may run, and the names that these read."""

from __future__ import annotations

import dis
import random
import sys
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, MutableMapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.util import resolve_name
from typing import Any, Final

import numpy as np

from graphopt.nn.users import attributes_of, is_users, is_users_module

#: Functions called by functions and so on are looked into up to so many.
_MOST_FUNCTIONS: Final = 4096
#: With these Python reads attributes whose names it computes.
_DYNAMIC: Final = {
    *("getattr", "setattr", "hasattr", "delattr", "vars", "dir", "eval", "exec", "__dict__"),
    *("attrgetter", "methodcaller", "asdict", "astuple", "fields"),
}
#: Nobody calls these in a call of a Block, but where it makes an object or prints it.
_ASIDE: Final = {"__init__", "__repr__", "__str__", "__del__", "__getstate__", "__setstate__"}
_Cached: Final = type(lru_cache(len))
_FORWARD: Final = {"forward", "hybrid_forward"}


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


@dataclass
class Names:
    """Names that are looked up in one namespace, and those of them that are set there."""

    own: MutableMapping[str, Any]
    read: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)


class Reached:
    """What Python of some objects and classes may run and read.

    Methods are known by their names: any of that name may be meant.

    Attributes:
        names: by the id of their namespace.
        attributes: that are read or set, of whatever object.
        are_any: whether these may be any, as names of some are computed.
        classes: the user's.
        functions: those that are followed.
        modules: the user's that are read, by id.
        values: defaults of arguments.
    """

    def __init__(self) -> None:
        self.names: dict[int, Names] = {}
        self.attributes: set[str] = set()
        self.are_any = False
        self.classes: dict[type, None] = {}
        self.functions: dict[types.FunctionType, None] = {}
        self.modules: dict[int, types.ModuleType] = {}
        self.values: list[Any] = []
        self._draws = self._reads_numpy = False
        self._waiting: defaultdict[str, list[types.FunctionType]] = defaultdict(list)
        self._stack: list[types.FunctionType] = []

    def add(self, part: Any) -> None:
        """An object, its class, and functions that it has."""
        self.add_class(type(part))
        for value in list(attributes_of(part).values()):
            self._stack += functions_of(value)

    def add_class(self, cls: type) -> None:
        """A class, if it is a user's, and its bases."""
        others = [base for base in cls.__mro__[:-1] if not is_users(base)]
        for base in cls.__mro__:
            if base in self.classes or not is_users(base) or "_graphopt_base" in vars(base):
                continue
            self.classes[base] = None
            for name, value in vars(base).items():
                is_called = name in _FORWARD or name in self.attributes
                is_called |= name.startswith("__") and name not in _ASIDE
                is_called |= name not in _ASIDE and any(hasattr(o, name) for o in others)
                if is_called:
                    self._load({name})
                (self._stack if is_called else self._waiting[name]).extend(functions_of(value))

    def add_function(self, function: types.FunctionType) -> None:
        """One that may be called."""
        self._stack.append(function)

    def add_module(self, module: types.ModuleType) -> None:
        """One of the user's: what may be read of it."""
        own = vars(module)
        for name in list(own.keys() if self.are_any else own.keys() & self.attributes):
            if not name.startswith("__"):
                self._note(own, name, is_stored=False)

    @property
    def may_draw(self) -> bool:
        """Whether a function reads what draws from Python's or numpy's generators."""
        return self._draws or (self._reads_numpy and "random" in self.attributes)

    def run(self) -> None:
        """Follow what was added as far as it goes."""
        while self._stack and len(self.functions) < _MOST_FUNCTIONS:
            function = self._stack.pop()
            if function in self.functions or not is_users(function):
                continue
            self.functions[function] = None
            self.values += [
                *(function.__defaults__ or ()),
                *(function.__kwdefaults__ or {}).values(),
            ]
            loads = _loads(function.__code__)
            self.are_any |= loads.are_any
            self._load(loads.attributes)
            for module in _imported(function, loads):
                self._note_module(module)
            for own, name in _names_of(function, loads):
                self._note(own, name, is_stored=name in loads.stored)
        self.are_any |= bool(self._stack)  # what is in those is not known

    def _load(self, names: Set[str]) -> None:
        for name in names - self.attributes:
            self._stack += self._waiting.pop(name, [])
        self.attributes |= names

    def _note(self, own: MutableMapping[str, Any], name: str, *, is_stored: bool) -> None:
        value = own[name]
        if isinstance(value, (types.BuiltinFunctionType, types.MethodType)):
            self._draws |= (
                value.__self__ is random._inst or value.__self__ is np.random.mtrand._rand
            )
        if isinstance(value, types.ModuleType):
            self._note_module(value)
            return
        names = self.names.setdefault(id(own), Names(own))
        names.read.add(name)
        names.stored |= {name} if is_stored else set()
        if isinstance(value, type):
            self.add_class(value)
            if not hasattr(value, "collect_params"):  # made within, unlike a Block
                for method in ("__init__", "__repr__", "__str__"):
                    self._stack += functions_of(vars(value).get(method))
        self._stack += functions_of(value)

    def _note_module(self, module: types.ModuleType) -> None:
        self._draws |= module is random or module.__name__.startswith("numpy.random")
        self._reads_numpy |= module is np
        self.modules |= {id(module): module} if is_users_module(module.__name__) else {}


def functions_of(value: Any) -> Iterable[types.FunctionType]:
    """Functions that a value is, or is made of: of a property, a method, a partial one."""
    while isinstance(value, (partial, _Cached)):
        value = value.func if isinstance(value, partial) else value.__wrapped__
    if isinstance(value, (types.MethodType, staticmethod, classmethod)):
        value = value.__func__
    values = (value.fget, value.fset) if isinstance(value, property) else (value,)
    return [value for value in values if isinstance(value, types.FunctionType)]


def _names_of(
    function: types.FunctionType, loads: _Loads
) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    own, around = function.__globals__, Enclosing(function)
    yield from ((own, name) for name in loads.names if name in own)
    yield from ((around, name) for name in around if name in around)


def _imported(function: types.FunctionType, loads: _Loads) -> Iterator[types.ModuleType]:
    """Modules that it imports itself, as far as they are known by then, and their packages."""
    package = function.__globals__.get("__package__") or ""
    for name in loads.imports:
        with suppress(ImportError, ValueError):  # which the call will raise, too
            whole = resolve_name(name, package)
            for end in (at for at, char in enumerate(whole + ".") if char == "."):
                if module := sys.modules.get(whole[:end]):
                    yield module


@dataclass(frozen=True)
class _Loads:
    """What a function's code reads or sets.

    Attributes:
        names: global ones that it reads or sets.
        stored: global ones and those of enclosing functions that it sets.
        attributes: those that it reads or sets, of whatever object, and what it imports from
            modules.
        imports: modules, those of its package with a dot before them.
        are_any: whether it reads attributes whose names it computes.
    """

    names: frozenset[str]
    stored: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]
    are_any: bool


@lru_cache(maxsize=4096)
def _loads(code: types.CodeType) -> _Loads:
    names, stored, attributes, imports = set(), set(), set(), set()
    level = dots = 0
    for instruction in dis.get_instructions(code):
        name, found = instruction.opname, instruction.argval
        if name == "EXTENDED_ARG":
            continue
        if name in ("LOAD_GLOBAL", "STORE_GLOBAL"):
            names.add(found)
        if name in ("STORE_GLOBAL", "STORE_DEREF"):
            stored.add(found)
        if "_ATTR" in name or "_METHOD" in name or name == "IMPORT_FROM":
            attributes.add(found)
        if name == "IMPORT_NAME":  # behind the level and what is imported from it
            imports.add("." * level + found)
        level, dots = dots, found if name == "LOAD_CONST" else 0
    for inner in map(_loads, (c for c in code.co_consts if isinstance(c, types.CodeType))):
        names |= inner.names
        stored |= inner.stored
        attributes |= inner.attributes
        imports |= inner.imports
    return _Loads(
        names=frozenset(names),
        stored=frozenset(stored),
        attributes=frozenset(attributes),
        imports=frozenset(imports),
        are_any=not _DYNAMIC.isdisjoint(names | attributes),
    )
