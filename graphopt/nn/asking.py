"""Code that means something else for Symbols than for arrays, or uses up what it reads."""

from __future__ import annotations

import dis
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.nn.reached import Enclosing, functions_of
from graphopt.nn.users import (
    CONTAINERS,
    NAMESPACES,
    Held,
    attributes_of,
    is_users,
    is_users_module,
)

_ENTRIES: Final = frozenset({"forward", "hybrid_forward", "__call__"})
_COMPARING: Final = {"IS_OP", "COMPARE_OP", "CONTAINS_OP"}
_MODULES: Final = {"nd", "ndarray", "sym", "symbol"}
_KINDS: Final = {"NDArray", "Symbol", "_Symbol"}
_ASKING: Final = {"isinstance", "issubclass", "type", "__class__"}
#: Functions of ``np`` that return tuples of arrays.
_TUPLES: Final = {"diag_indices_from", "unravel_index"}
_WITH_NAMES: Final = {"KW_NAMES", "CALL_FUNCTION_KW"}
#: Instructions that look names up, and names of numpy, whose arrays are no Symbols' kin.
_NAMED: Final = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"}
_NUMPYS: Final = {"numpy", "onp", "_np", "_numpy"}
#: What is compared was loaded so few instructions before.
_NEAR: Final = 4
#: Lists are looked into so deep, and if they are no longer.
_DEEPEST: Final = 4
_LONGEST: Final = 256


def why_every_call(blocks: Iterable[Any]) -> str:
    """Why Python of Blocks has to run in every call, by its code; empty if nothing speaks for it.

    Followed are methods of the user's Blocks and of objects that these hold or read, by their
    names, and functions: less than what settings are looked for in, as a comparison in code that no
    call runs would cost as much as one in a call.
    """
    return next(_Walk(blocks).reasons(), "")


class _Walk:
    """Functions that calls of Blocks run, as far as code tells, and what these read."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        self._names = set(_ENTRIES)
        self._held = Held()
        self._held.objects |= {id(block): block for block in blocks}
        self._seen: set[types.FunctionType] = set()
        self._stack: list[types.FunctionType] = []

    def reasons(self) -> Iterator[str]:
        """Each why they are called every time."""
        size = -1
        while size != (size := len(self._seen) + len(self._names) + len(self._held.objects)):
            owners = list(self._held.objects.values())
            classes = {cls for owner in owners for cls in type(owner).__mro__}
            for cls in filter(is_users, classes.union(self._held.classes)):
                yield from self._of_values(cls.__name__, self._named(vars(cls)))
            for owner in owners:
                yield from self._of_values(type(owner).__name__, self._named(attributes_of(owner)))
            self._stack += self._held.functions
            while self._stack:
                yield from self._of_function(self._stack.pop())

    def _named(self, attributes: Mapping[str, Any]) -> list[Any]:
        return [value for name, value in list(attributes.items()) if name in self._names]

    def _of_values(self, whose: str, values: Iterable[Any]) -> Iterator[str]:
        for value in values:
            for iterator in _iterators(value):
                yield f"{whose} reads a {type(iterator).__name__}, which its calls use up"
            if not isinstance(value, (types.ModuleType, import_mxnet().gluon.Block)):
                self._held.look(value)
            self._stack += functions_of(value)

    def _of_function(self, function: types.FunctionType) -> Iterator[str]:
        if function in self._seen or not is_users(function):
            return
        self._seen.add(function)
        code = function.__code__
        if why := why_not_alike(code):
            yield f"{function.__qualname__} {why}"
        names = _names(code)
        self._names |= names
        read = list(_read(function, names))
        may_ask = _ASKING & names or _compares(code)
        if may_ask and any(name not in _MODULES and _asks_for(value) for name, value in read):
            yield f"{function.__qualname__} asks whether something is an array"
        yield from self._of_values(function.__qualname__, [value for _, value in read])


def _read(function: types.FunctionType, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Names of its module, of the user's modules that it reads, and around it, with values."""
    yield from (("", value) for value in function.__defaults__ or ())
    yield from (function.__kwdefaults__ or {}).items()
    around = Enclosing(function)
    yield from [(name, around[name]) for name in around if name in around]
    own = function.__globals__
    for name, value in [(name, own[name]) for name in names if name in own]:
        if isinstance(value, types.ModuleType) and is_users_module(value.__name__):
            yield from [(inner, vars(value)[inner]) for inner in names if inner in vars(value)]
        else:
            yield name, value


def _asks_for(value: Any) -> bool:
    """Whether a value is a module of MXNet's that calls are given, or a class of arrays."""
    if isinstance(value, tuple):
        return len(value) <= _LONGEST and any(map(_asks_for, value))
    return isinstance(value, (type, types.ModuleType)) and value in _asked_for()


@cache
def _asked_for() -> frozenset[Any]:
    mx = import_mxnet()
    modules = mx.nd, mx.sym, mx.np, mx.sym.np
    return frozenset({*modules, mx.nd.NDArray, mx.np.ndarray, mx.sym.Symbol, mx.sym.np._Symbol})


def _iterators(value: Any, depth: int = 0) -> Iterator[Any]:
    if type(value) in NAMESPACES:
        value = vars(value)
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
def _compares(code: types.CodeType) -> bool:
    return any(instruction.opname in _COMPARING for instruction in dis.get_instructions(code))


@lru_cache(maxsize=4096)
def why_not_alike(code: types.CodeType) -> str:
    """Why what a function does for Symbols tells nothing of arrays; empty if nothing speaks for it.

    ``F is mx.nd`` and ``isinstance(x, NDArray)`` have another answer, and MXNet's functions ignore
    ``out=`` where they are given Symbols. A seed counts in the call that sets it.
    """
    loaded: deque[str] = deque([""] * _NEAR, maxlen=_NEAR)
    attributes: set[str] = set()
    given: tuple[Any, ...] = ()  # a constant, which may be the names of arguments
    for instruction in dis.get_instructions(code):
        op, found = instruction.opname, instruction.argval
        if op in _COMPARING and _MODULES & {*loaded}:
            return "compares with a module of MXNet's"
        if op == "KW_NAMES":
            given = code.co_consts[instruction.arg or 0]
        if op in _WITH_NAMES and "out" in given:
            return "says out="
        given = found if op == "LOAD_CONST" and isinstance(found, tuple) else ()
        is_named = op in _NAMED
        if is_named and found == "ndarray" and loaded[-1] not in _NUMPYS:
            attributes.add("mxnet's ndarray")
        attributes |= {found} if is_named and op != "LOAD_GLOBAL" else set()
        loaded.append(found if is_named else "")
    names = {*code.co_names, *code.co_freevars}
    if _KINDS & names or ("mxnet's ndarray" in attributes and _ASKING & names):
        return "asks whether something is an array"
    texts = [const.lower() for const in code.co_consts if isinstance(const, str)]
    if "__name__" in attributes and any("ndarray" in text or "symbol" in text for text in texts):
        return "asks for the name of a module or class of MXNet's"
    if {"random", "seed"} <= names:
        return "sets a seed"
    if "np" in names and _TUPLES & names:
        return "takes arrays in a tuple, which are one Symbol"
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return next(filter(None, map(why_not_alike, inner)), "")
