"""What Python of Blocks reads besides arrays: attributes that may be others in a later call."""

from __future__ import annotations

import argparse
import enum
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
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
_PLAIN += (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)
_NAMESPACES: Final = (types.SimpleNamespace, argparse.Namespace)
#: Lists and the like are looked into if they are no longer than this, and so deep.
_LONGEST: Final = 32
_DEEPEST: Final = 3
#: What layers and cells of MXNet note of a call.
_NOTED: Final = {"skip_states", "_counter", "_init_counter", "_modified"}
_ABSENT: Final = object()


class Settings:
    """Numbers, names, flags and functions that Blocks have as attributes, as they are now.

    MXNet reads them in every call of a Block that is not hybridized; what hybridized ones hold is
    theirs for good, there as well. Asked at every call, so what is compared is looked up once.
    """

    def __init__(self, block: Any) -> None:
        """Note them as they are."""
        self._blocks = list(_not_hybridized(block))
        self._known = [settings_of(part) for part in self._blocks]
        self._parts: list[tuple[Mapping[str, Any], int, Callable[..., Any], Any]] = []
        self._note()

    def are_same(self) -> bool:
        """Whether none was set otherwise, added or taken away."""
        try:
            for own, count, read, known in self._parts:
                if len(own) != count or read(own) != known:
                    return not self.changed()
        except (KeyError, ValueError, import_mxnet().MXNetError):  # arrays cannot be compared
            return not self.changed()
        return True

    def changed(self) -> list[str]:
        """Those that are others by now, as ``'name' of Class``."""
        found = []
        for part, known in zip(self._blocks, self._known, strict=True):
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
        for part, known in zip(self._blocks, self._known, strict=True):
            own, now = vars(part), settings_of(part)
            for name in {*known, *now}:
                if name not in known:
                    own.pop(name)
                elif not are_alike(known[name], now.get(name, _ABSENT)):
                    own[name] = _again(own.get(name), _copied(known[name]))

    def _note(self) -> None:
        self._parts = []
        for part, known in zip(self._blocks, self._known, strict=True):
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


def settings_of(block: Any) -> dict[str, Any]:
    """Copies of what can be compared."""
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
    return isinstance(value, _PLAIN)


def _copied(value: Any) -> Any:
    """Lists, dicts and namespaces as they are now."""
    if type(value) in _NAMESPACES:
        return type(value)(**_copied(vars(value)))
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return set(value) if type(value) is set else value


def _again(now: Any, before: Any) -> Any:
    """What an attribute was before; lists and the like, which others may hold, are set so."""
    if type(now) is not type(before):
        return before
    if type(now) is list:
        now[:] = before
    elif type(now) is dict or type(now) in _NAMESPACES:
        held, values = (part if type(part) is dict else vars(part) for part in (now, before))
        held.clear()
        held.update(values)
    else:
        return before
    return now


def are_alike(one: Any, other: Any) -> bool:
    """Equal and of one type; what is no number any more is another."""
    if one is other:
        return True
    return type(one) is type(other) and bool(one == other)
