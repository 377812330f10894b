"""Which modules, classes and objects are a user's, rather than MXNet's, a library's or Python's."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import sysconfig
import types
from collections import UserDict, UserList, deque
from collections.abc import Iterator, MutableMapping
from functools import cache, partial
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.nn.by_class import kept_by_class

_OF_NO_USER: Final = {"mxnet", "graphopt"}
_PYTHONS: Final = {*sys.stdlib_module_names} - {"__main__"}
_STDLIB: Final = sysconfig.get_path("stdlib") + os.sep
#: Values that hold nothing.
SCALARS: Final = {int, float, str, bool, complex, bytes, type(None)}
#: Objects of these are like dicts.
NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace, UserDict, UserList)
CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
#: What is looked for in lists and the like ends so deep, and after so many.
_DEEPEST: Final = 6
_MOST: Final = 4096


@cache
def is_users_module(name: str) -> bool:
    """Whether it is one of the user's."""
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    if top in _OF_NO_USER or (not file and top in _PYTHONS):
        return False
    is_pythons = file.startswith(_STDLIB)  # rather than a script of the same name
    return not is_pythons and "-packages" not in file  # of sites and of Debian


def is_users(part: Any) -> bool:
    """Whether a class or function is one of the user's."""
    return is_users_module(part.__module__ or "graphopt")


class Held:
    """Objects of a user's classes, classes and modules that values are or hold, each once.

    Those are settings or strategies, of a script, or plain data. Objects of libraries (progress
    bars, writers, tokenizers) change as they are used.
    """

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self.classes: dict[type, None] = {}
        self.functions: dict[types.FunctionType, None] = {}
        self.modules: dict[int, types.ModuleType] = {}
        self._left = 0

    def look(self, value: Any) -> None:
        """Note what a value is or holds, but not what objects hold that it is or holds."""
        self._left = _MOST
        self._look(value, 0)

    def _look(self, value: Any, depth: int) -> None:
        if type(value) in SCALARS:
            return
        self._left -= 1
        if depth > _DEEPEST or self._left < 0 or id(value) in self.objects:
            return
        if isinstance(value, (*NAMESPACES, *CONTAINERS)):
            own = vars(value) if type(value) in NAMESPACES else value
            parts = [] if isinstance(own, NAMESPACES) else own
            for part in list(parts.values() if isinstance(parts, dict) else parts):
                self._look(part, depth + 1)
            if type(value) not in NAMESPACES and _is_of_users_class(value):
                self.objects[id(value)] = value  # a subclass may have attributes besides
        elif isinstance(value, types.FunctionType):
            self.functions[value] = None
        elif isinstance(value, types.MethodType):
            self._look(value.__self__, depth + 1)
            self._look(value.__func__, depth + 1)
        elif isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._look(part, depth + 1)
        elif isinstance(value, type):
            self.classes |= {value: None} if is_users(value) else {}
        elif isinstance(value, types.ModuleType):
            self.modules |= {id(value): value} if is_users_module(value.__name__) else {}
        elif isinstance(value, import_mxnet().gluon.Block):  # one that may be no child
            self.objects |= {} if getattr(value, "_active", False) else {id(value): value}
        elif _is_of_users_class(value):
            self.objects[id(value)] = value


class _Slots(MutableMapping[str, Any]):
    """Attributes of an object that has slots."""

    def __init__(self, owner: Any) -> None:
        self._owner, self._others = owner, getattr(owner, "__dict__", {})
        self._names = [name for cls in type(owner).__mro__ for name in _slots_of(cls)]

    def __getitem__(self, name: str) -> Any:
        if name in self._others:  # views of Blocks have properties in front of some
            return self._others[name]
        try:
            return getattr(self._owner, name)
        except AttributeError:
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        object.__setattr__(self._owner, name, value)

    def __delitem__(self, name: str) -> None:
        object.__delattr__(self._owner, name)

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._names if hasattr(self._owner, name))
        yield from self._others

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _slots_of(cls: type) -> list[str]:
    named = vars(cls).get("__slots__", ())
    names = [named] if isinstance(named, str) else list(named)
    names = [name for name in names if not name.startswith("_graphopt")]
    private = f"_{cls.__name__.lstrip('_')}"
    return [private + n if n.startswith("__") and not n.endswith("__") else n for n in names]


def attributes_of(owner: Any) -> MutableMapping[str, Any]:
    """What an object, a class or a module has, as it is at any time."""
    is_block = isinstance(owner, import_mxnet().gluon.Block)
    may_have_slots = is_block or _is_of_users_class(owner)
    has_slots = may_have_slots and any(map(_slots_of, type(owner).__mro__))
    return _Slots(owner) if has_slots or not hasattr(owner, "__dict__") else vars(owner)


def _is_of_users_class(value: Any) -> bool:
    return _is_users_class(type(value))


@kept_by_class
def _is_users_class(cls: type) -> bool:
    has_attributes = cls.__dictoffset__ or any("__slots__" in vars(base) for base in cls.__mro__)
    if not has_attributes or issubclass(cls, _never_held()):
        return False
    is_librarys = cls.__module__.partition(".")[0] not in _OF_NO_USER | _PYTHONS
    return is_users(cls) or (is_librarys and dataclasses.is_dataclass(cls))


@cache
def _never_held() -> tuple[type, ...]:
    mx = import_mxnet()
    of_mxnet = (mx.nd.NDArray, mx.sym.Symbol, mx.gluon.Block, mx.gluon.Parameter)
    numbers = (int, float, complex, str, bytes, np.generic, np.ndarray)
    return (*numbers, BaseException, types.FunctionType, *of_mxnet)
