"""Code that means something else for Symbols than for arrays, or uses up what it reads."""

from __future__ import annotations

import dis
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from graphopt.nn.reached import Enclosing, functions_of
from graphopt.nn.users import CONTAINERS, Held, attributes_of, is_users, is_users_module

_ENTRIES: Final = ("forward", "hybrid_forward", "__call__")
_MODULES: Final = {"nd", "ndarray", "sym", "symbol"}
_KINDS: Final = {"NDArray", "ndarray", "Symbol", "_Symbol"}
_ASKING: Final = {"isinstance", "issubclass", "type"}
#: What is compared was loaded so few instructions before.
_NEAR: Final = 4
#: Lists are looked into so deep, and if they are no longer.
_DEEPEST: Final = 4
_LONGEST: Final = 256


def why_every_call(blocks: Iterable[Any]) -> str:
    """Why Python of Blocks has to run in every call, by its code; empty if nothing speaks for it.

    Followed are methods of the user's Blocks and of objects that they hold, by their names, and
    functions that these read: less than what settings are looked for in, as a comparison in code
    that no call runs would cost as much as one in a call.
    """
    owners = _owners(blocks)
    methods = _methods(owners)
    attributes: set[str] = set()
    seen: set[types.FunctionType] = set()
    stack = [function for name in _ENTRIES for function in methods[name]]
    while stack:
        function = stack.pop()
        if function in seen or not is_users(function):
            continue
        seen.add(function)
        if why := why_not_alike(function.__code__):
            return f"{function.__qualname__} {why}"
        names = _names(function.__code__)
        attributes |= names
        for value in _read(function, names):
            if isinstance(value, Iterator):
                return _used_up(function.__qualname__, value)
            stack += functions_of(value)
        stack += [found for name in names & methods.keys() for found in methods[name]]
    for owner in owners:
        for name, value in list(attributes_of(owner).items()):
            for iterator in _iterators(value) if name in attributes else ():
                return _used_up(type(owner).__name__, iterator)
    return ""


def _used_up(whose: str, iterator: Any) -> str:
    return f"{whose} reads a {type(iterator).__name__}, which its calls use up"


def _owners(blocks: Iterable[Any]) -> list[Any]:
    """Blocks, and objects of the user's classes that their attributes are or hold."""
    blocks = list(blocks)
    held = Held()
    for block in blocks:
        for name, value in list(attributes_of(block).items()):
            if not name.startswith("_"):
                held.look(value)
    return list({id(owner): owner for owner in (*blocks, *held.objects.values())}.values())


def _methods(owners: Iterable[Any]) -> defaultdict[str, list[types.FunctionType]]:
    found: defaultdict[str, list[types.FunctionType]] = defaultdict(list)
    for cls in {base for owner in owners for base in type(owner).__mro__ if is_users(base)}:
        for name, value in vars(cls).items():
            found[name] += functions_of(value)
    for owner in owners:
        for name, value in list(attributes_of(owner).items()):
            found[name] += functions_of(value)
    return found


def _read(function: types.FunctionType, names: frozenset[str]) -> Iterator[Any]:
    """Values of names of its module, of the user's modules that it reads, and around it."""
    around = Enclosing(function)
    yield from (around[name] for name in around if name in around)
    own = function.__globals__
    for value in [own[name] for name in names if name in own]:
        if isinstance(value, types.ModuleType) and is_users_module(value.__name__):
            yield from [vars(value)[name] for name in names if name in vars(value)]
        else:
            yield value


def _iterators(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, Iterator):
        yield value
    elif isinstance(value, CONTAINERS) and depth < _DEEPEST and len(value) <= _LONGEST:
        for part in list(value.values() if isinstance(value, dict) else value):
            yield from _iterators(part, depth + 1)


@lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(code.co_names).union(*map(_names, inner))


@lru_cache(maxsize=4096)
def why_not_alike(code: types.CodeType) -> str:
    """Why what a function does for Symbols tells nothing of arrays; empty if nothing speaks for it.

    ``F is mx.nd`` and ``isinstance(x, NDArray)`` have another answer, and MXNet's functions ignore
    ``out=`` where they are given Symbols.
    """
    loaded: deque[object] = deque(maxlen=_NEAR)
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("IS_OP", "COMPARE_OP", "CONTAINS_OP") and _MODULES & {*loaded}:
            return "compares with a module of MXNet's"
        named = "LOAD" in instruction.opname and isinstance(instruction.argval, str)
        loaded.append(instruction.argval if named else None)
    names = {*code.co_names, *code.co_freevars}
    if _KINDS & names and _ASKING & names:
        return "asks whether something is an array"
    texts = [const.lower() for const in code.co_consts if isinstance(const, str)]
    if "__name__" in names and any("ndarray" in text or "symbol" in text for text in texts):
        return "asks for the name of a module or class of MXNet's"
    if any(isinstance(const, tuple) and "out" in const for const in code.co_consts):
        return "says out="
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return next(filter(None, map(why_not_alike, inner)), "")
