"""What Python of Blocks reads besides arrays: attributes that may be others in a later call."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.frontend.gluon import Traced, describe, trace

_PLAIN: tuple[type, ...] = (
    int,
    float,
    str,
    bool,
    complex,
    bytes,
    type(None),
    np.generic,
    enum.Enum,
)
_PLAIN += (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, type)
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace)
#: Lists and the like are looked into if they are no longer than this, and so deep.
_LONGEST: Final = 32
_DEEPEST: Final = 3
_OF_NO_USER: Final = {*sys.stdlib_module_names, "mxnet", "graphopt"} - {"__main__"}
#: What layers and cells of MXNet note of a call.
_NOTED: Final = {"skip_states", "_counter", "_init_counter", "_modified"}
_ABSENT: Final = object()


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


class Settings:
    """Numbers, names, flags and functions that Blocks have as attributes, as they are now.

    MXNet reads them in every call of a Block that is not hybridized; what hybridized ones hold is
    theirs for good, there as well. Asked at every call, so what is compared is looked up once.
    """

    def __init__(self, block: Any) -> None:
        """Note them as they are."""
        self._parts_of = _with_held(_not_hybridized(block))
        self._known = [settings_of(part) for part in self._parts_of]
        self._parts: list[tuple[Mapping[str, Any], int, Callable[..., Any], Any]] = []
        self._note()

    def are_same(self) -> bool:
        """Whether none was set otherwise, added or taken away."""
        try:
            for own, count, read, known in self._parts:
                if len(own) != count or known != read(own):  # `Held` comes first
                    return not self.changed()
        except (KeyError, ValueError, import_mxnet().MXNetError):  # arrays cannot be compared
            return not self.changed()
        return True

    def changed(self) -> list[str]:
        """Those that are others by now, as ``'name' of Class``."""
        found = []
        for part, known in zip(self._parts_of, self._known, strict=True):
            now = settings_of(part)
            names = {
                n
                for n in {*known, *now}
                if not are_alike(known.get(n, _ABSENT), now.get(n, _ABSENT))
            }
            found += [f"{name!r} of {type(part).__name__}" for name in sorted(names)]
        if not found:
            self._note()  # something else was added
        return found

    def restore(self) -> None:
        """Set them as they were."""
        for part, known in zip(self._parts_of, self._known, strict=True):
            own, now = vars(part), settings_of(part)
            for name in {*known, *now}:
                if name not in known:
                    own.pop(name)
                elif not are_alike(known[name], now.get(name, _ABSENT)):
                    own[name] = _again(own.get(name), _given(known[name]))

    def _note(self) -> None:
        self._parts = []
        for part, known in zip(self._parts_of, self._known, strict=True):
            read = itemgetter(*known) if known else _nothing
            values = tuple(known.values())
            self._parts.append(
                (vars(part), len(vars(part)), read, values if len(values) != 1 else values[0])
            )


def steadily_traced(block: Any, args: Sequence[Any]) -> Traced:
    """The Block's Symbol; what its Python does once may be done.

    Raises:
        UnsupportedError: it cannot be traced, or sets attributes in every call.
    """
    before = Settings(block)
    traced = trace(block, args)
    if before.changed():
        then = Settings(block)
        traced = trace(block, args)
        if names := then.changed():
            before.restore()
            raise UnsupportedError(f"{describe(block)} sets {names[0]} in every call")
    return traced


def _nothing(_own: Any) -> tuple[()]:
    return ()


def _not_hybridized(block: Any) -> Iterator[Any]:
    """A Block and all in it, each once, but those that MXNet runs as graphs and what is in them."""
    seen: set[int] = set()
    stack = [block]
    while stack:
        part = stack.pop()
        if id(part) in seen or getattr(part, "_active", False):
            continue
        seen.add(id(part))
        yield part
        stack.extend(part._children.values())


def _with_held(blocks: Iterable[Any]) -> list[Any]:
    """Blocks and the objects that they hold, each once."""
    found = {id(block): block for block in blocks}
    for block in list(found.values()):
        found |= {id(part): part for part in held_by(block)}
    return list(found.values())


def held_by(block: Any) -> list[Any]:
    """Objects of classes of the user's in attributes, and what these hold."""
    found: dict[int, Any] = {}
    _look_for_held([value for value in vars(block).values() if _is_comparable(value)], found, 0)
    return list(found.values())


def _look_for_held(value: Any, found: dict[int, Any], depth: int) -> None:
    if depth > _DEEPEST + 1:
        return
    if type(value) in _NAMESPACES:
        value = vars(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            _look_for_held(item, found, depth + 1)
    elif _is_of_users(value) and id(value) not in found:
        found[id(value)] = value
        held = [part for part in vars(value).values() if _is_comparable(part)]
        _look_for_held(held, found, depth + 1)


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
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return dataclasses.is_dataclass(cls) or "-packages" not in file  # of sites and of Debian


@cache
def _never_held() -> tuple[type, ...]:
    mx = import_mxnet()
    of_mxnet = (mx.nd.NDArray, mx.sym.Symbol, mx.gluon.Block, mx.gluon.Parameter)
    return (*_PLAIN, list, tuple, dict, set, frozenset, np.ndarray, BaseException, *of_mxnet)


def settings_of(block: Any) -> dict[str, Any]:
    """Copies of what can be compared, of a Block or an object that it holds."""
    # Cells of MXNet keep states and masks as attributes, None at first.
    is_cell = isinstance(block, import_mxnet().gluon.rnn.RecurrentCell) and _is_mxnets(block)
    return {
        name: _copied(value)
        for name, value in vars(block).items()
        if is_setting(name, value) and not (is_cell and value is None)
    }


def is_setting(name: str, value: Any) -> bool:
    """Whether an attribute of a Block is one of its user's that can be compared."""
    is_users = name not in _set_by_mxnet() and not name.startswith("_graphopt")
    return is_users and _is_comparable(value)


def _is_mxnets(block: Any) -> bool:
    cls = getattr(type(block), "_graphopt_base", type(block))
    return bool(cls.__module__.partition(".")[0] == "mxnet")


@cache
def _set_by_mxnet() -> frozenset[str]:
    """Attributes that all Blocks have, and those that calls set."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix=""))) | _NOTED


def _is_comparable(value: Any, depth: int = 0) -> bool:
    if type(value) in _NAMESPACES:
        value = vars(value)
    if isinstance(value, dict):
        return _is_comparable([*value, *value.values()], depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        is_short = len(value) <= _LONGEST and depth < _DEEPEST
        return is_short and all(_is_comparable(item, depth + 1) for item in value)
    return isinstance(value, _PLAIN) or _is_of_users(value)


def _copied(value: Any) -> Any:
    """Lists, dicts and namespaces as they are now."""
    if type(value) in _NAMESPACES:
        return type(value)(**_copied(vars(value)))
    if isinstance(value, dict):  # as those of libraries whose keys are attributes
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if type(value) is tuple:
        return tuple(map(_copied, value))
    if isinstance(value, set):
        return set(value)
    return Held(value) if _is_of_users(value) else value


def _given(copied: Any) -> Any:
    """What was copied, with the objects themselves."""
    if type(copied) is Held:
        return copied.value
    if type(copied) in _NAMESPACES:
        return type(copied)(**_given(vars(copied)))
    if type(copied) is dict:
        return {key: _given(item) for key, item in copied.items()}
    return type(copied)(map(_given, copied)) if type(copied) in (list, tuple) else copied


def _again(now: Any, before: Any) -> Any:
    """What an attribute was before; lists and the like, which others may hold, are set so."""
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
