"""Values of Python that can be compared with what they were."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import sys
import types
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet

_SCALARS: Final = {int, float, str, bool, complex, bytes, type(None)}
_PLAIN: tuple[type, ...] = (*_SCALARS, np.generic, np.dtype, enum.Enum, range, slice, Decimal)
_PLAIN += (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, type)
_WITH_NAN: Final = (float, complex, np.inexact)
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace)
#: Lists and the like are looked into if they are no longer than this, and so deep; of others
#: another object or length is seen.
_LONGEST: Final = 128
_DEEPEST: Final = 3
#: Arrays of numpy are compared by value up to so many bytes.
_LARGEST: Final = 1024
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
_OF_NO_USER: Final = {*sys.stdlib_module_names, "mxnet", "graphopt"} - {"__main__"}


class Container:
    """A list, dict, namespace or the like, as it was; of a long one its length."""

    __slots__ = ("items", "keys", "size", "value")

    def __init__(self, value: Any, depth: int) -> None:
        self.value = value
        own = _own(value)
        self.size = len(own)
        self.keys: Any = None
        self.items: list[Any] | None = None
        if self.size > _LONGEST or depth >= _DEEPEST:
            return
        if isinstance(own, (set, frozenset)):
            self.keys = set(own)
            return
        if isinstance(own, dict):
            self.keys, own = list(own), own.values()
        self.items = [copied(item, depth + 1) for item in own]

    @property
    def own(self) -> Any:
        """What its items are in."""
        return _own(self.value)

    def holds(self, value: Any) -> bool:
        """Whether it is like that."""
        if type(value) is not type(self.value) or len(own := _own(value)) != self.size:
            return False
        if self.items is None:
            return value is self.value if self.keys is None else bool(own == self.keys)
        if self.keys is not None and list(own) != self.keys:
            return False
        return all(map(holds, self.items, own if self.keys is None else own.values()))

    @property
    def has_slots(self) -> bool:
        """Whether what it holds is all in places of its own."""
        return not isinstance(self.own, (set, frozenset))

    def slots(self) -> Iterator[tuple[Any, Any]]:
        """Places that may be written into, as an object and an index or key."""
        own = self.own
        if self.items is None or isinstance(own, tuple):
            return
        for key in range(self.size) if self.keys is None else self.keys:
            yield own, key

    def put_back(self) -> Any:
        """The same object, like that again."""
        value, own = self.value, self.own
        items = [put_back(item) for item in self.items or ()]
        if self.items is None and self.keys is None:
            if isinstance(own, list):
                del own[self.size :]
        elif isinstance(own, list):
            own[:] = items
        elif isinstance(own, (dict, set, deque)):
            own.clear()
            if isinstance(own, dict):
                for key, item in zip(self.keys, items, strict=True):
                    own[key] = item  # a counter's `update` adds up
            else:
                add = own.extend if isinstance(own, deque) else own.update
                add(items if self.keys is None else self.keys)
        return value


class _Array:
    """A small array of numpy, as it was."""

    __slots__ = ("numbers", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.numbers = value, value.copy()

    def holds(self, value: Any) -> bool:
        """Whether it is like that."""
        was = self.numbers
        same = type(value) is type(was) and (value.dtype, value.shape) == (was.dtype, was.shape)
        return same and value.tobytes() == was.tobytes()

    def put_back(self) -> Any:
        """The same object, like that again."""
        if self.value.flags.writeable and self.value.shape == self.numbers.shape:
            self.value[...] = self.numbers
        return self.value


def is_comparable(value: Any, depth: int = 0) -> bool:
    """Whether it is none of MXNet's arrays and Symbols, and holds none: calls make those."""
    if type(value) in _SCALARS:
        return True
    if isinstance(value, _of_calls()):
        return False
    return depth >= _DEEPEST or all(is_comparable(part, depth + 1) for part in _parts(value))


def copied(value: Any, depth: int = 0) -> Any:
    """What is needed to tell later whether a value is what it was."""
    if type(value) in _SCALARS or isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray) and value.nbytes <= _LARGEST and not value.dtype.hasobject:
        return _Array(value)
    if isinstance(value, _CONTAINERS) or type(value) in _NAMESPACES:
        return Container(value, depth)
    return value


def copies_in(copy: Any) -> Iterator[Container | _Array]:
    """A copy of what may be written into, and those in it."""
    if is_copy(copy):
        yield copy
        for item in getattr(copy, "items", None) or ():
            yield from copies_in(item)


def is_copy(copy: Any) -> bool:
    """Whether what was copied may be written into."""
    return isinstance(copy, (Container, _Array))


def holds(copy: Any, value: Any) -> bool:
    """Whether a value is what was copied: equal and of one type, or the same object."""
    if copy is value:
        return True
    if is_copy(copy):
        return bool(copy.holds(value))
    if type(copy) is not type(value) or not isinstance(copy, _PLAIN):
        return False
    # Zero has a sign, and what is no number is not equal to itself.
    return repr(copy) == repr(value) if isinstance(copy, _WITH_NAN) else bool(copy == value)


def put_back(copy: Any) -> Any:
    """What was copied, as it was."""
    return copy.put_back() if is_copy(copy) else copy


def look_for_held(value: Any, found: dict[int, Any], depth: int = 0) -> None:
    """Note objects of the user's classes by id, with those that they hold."""
    if type(value) in _SCALARS or depth > _DEEPEST + 1 or id(value) in found:
        return
    parts = _parts(value)
    if _is_of_users(value):
        found[id(value)] = value
        parts = list(vars(value).values())
    for part in parts:
        look_for_held(part, found, depth + 1)


@cache
def is_users_module(name: str) -> bool:
    """Whether it is one of the user's, rather than a library's or of Python."""
    if name.partition(".")[0] in _OF_NO_USER:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "-packages" not in file  # of sites and of Debian


def _own(value: Any) -> Any:
    return vars(value) if type(value) in _NAMESPACES else value


def _parts(value: Any) -> list[Any]:
    """What a short list, or the like, holds."""
    own = _own(value)
    if isinstance(own, _CONTAINERS) and len(own) <= _LONGEST:
        return list(own.values() if isinstance(own, dict) else own)
    return []


def _is_of_users(value: Any) -> bool:
    return _is_users_class(type(value))  # type: ignore[arg-type]


@cache
def _is_users_class(cls: type) -> bool:
    """Whether it may be one of settings or strategies: of a script, or of plain data.

    Objects of libraries (progress bars, writers, tokenizers) change as they are used.
    """
    if not cls.__dictoffset__ or issubclass(cls, _never_held()):
        return False
    if cls.__module__.partition(".")[0] in _OF_NO_USER:
        return False
    return dataclasses.is_dataclass(cls) or is_users_module(cls.__module__)


@cache
def _never_held() -> tuple[type, ...]:
    gluon = import_mxnet().gluon
    mxnets = (*_of_calls(), gluon.Block, gluon.Parameter)
    return (*_PLAIN, *_CONTAINERS, np.ndarray, BaseException, *mxnets)


@cache
def _of_calls() -> tuple[type, ...]:
    mx = import_mxnet()
    return mx.nd.NDArray, mx.sym.Symbol
