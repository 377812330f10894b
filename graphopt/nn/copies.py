"""Values of Python that can be compared with what they were."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import sys
import types
from functools import cache, partial
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet

_SCALARS: Final = {int, float, str, bool, complex, bytes, type(None)}
_PLAIN: tuple[type, ...] = (*_SCALARS, np.generic, enum.Enum)
_PLAIN += (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, type)
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace)
#: Lists and the like are looked into if they are no longer than this, and so deep.
_LONGEST: Final = 32
_DEEPEST: Final = 3
_OF_NO_USER: Final = {*sys.stdlib_module_names, "mxnet", "graphopt"} - {"__main__"}


class Held:
    """An object of a class of the user's: another if it is not the same one.

    What it has as attributes is compared for itself, as Blocks hold one configuration in common.
    """

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return self.value is (other.value if type(other) is Held else other)


def is_comparable(value: Any, depth: int = 0) -> bool:
    """Whether it is a number, a text, a function and the like, or few of these."""
    if type(value) in _SCALARS:
        return True
    if type(value) in _NAMESPACES:
        value = vars(value)
    if isinstance(value, dict):
        return is_comparable([*value, *value.values()], depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        is_short = len(value) <= _LONGEST and depth < _DEEPEST
        return is_short and all(is_comparable(item, depth + 1) for item in value)
    return isinstance(value, _PLAIN) or _is_of_users(value)


def copied(value: Any) -> Any:
    """What is comparable as it is now, objects as `Held`."""
    if type(value) in _NAMESPACES:
        return type(value)(**copied(vars(value)))
    if isinstance(value, dict):  # as those of libraries whose keys are attributes
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    if type(value) is tuple:
        return tuple(map(copied, value))
    if isinstance(value, set):
        return set(value)
    return Held(value) if _is_of_users(value) else value


def put_back(now: Any, copy: Any) -> Any:
    """What was copied; lists and the like, which others may hold, are set so."""
    before = _given(copy)
    if isinstance(now, list) and isinstance(before, list):
        now[:] = before
    elif isinstance(now, dict) and isinstance(before, dict):
        now.clear()
        now.update(before)
    elif type(now) is type(before) and type(now) in _NAMESPACES:
        vars(now).clear()
        vars(now).update(vars(before))
    else:
        return before
    return now


def are_alike(one: Any, other: Any) -> bool:
    """Equal and of one type; what is no number any more is another."""
    if one is other:
        return True
    return type(one) is type(other) and bool(one == other)


def look_for_held(value: Any, found: dict[int, Any], depth: int = 0) -> None:
    """Note objects of the user's classes by id, with those that they hold."""
    if type(value) in _SCALARS or depth > _DEEPEST + 1 or not is_comparable(value, depth):
        return
    if type(value) in _NAMESPACES:
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            look_for_held(item, found, depth + 1)
    elif _is_of_users(value) and id(value) not in found:
        found[id(value)] = value
        for part in vars(value).values():
            look_for_held(part, found, depth + 1)


@cache
def is_users_module(name: str) -> bool:
    """Whether it is one of the user's, rather than a library's or of Python."""
    if name.partition(".")[0] in _OF_NO_USER:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "-packages" not in file  # of sites and of Debian


def _given(copy: Any) -> Any:
    """What was copied, with the objects themselves."""
    if type(copy) is Held:
        return copy.value
    if type(copy) in _NAMESPACES:
        return type(copy)(**_given(vars(copy)))
    if type(copy) is dict:
        return {key: _given(item) for key, item in copy.items()}
    return type(copy)(map(_given, copy)) if type(copy) in (list, tuple) else copy


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
    mx = import_mxnet()
    of_mxnet = (mx.nd.NDArray, mx.sym.Symbol, mx.gluon.Block, mx.gluon.Parameter)
    return (*_PLAIN, list, tuple, dict, set, frozenset, np.ndarray, BaseException, *of_mxnet)
