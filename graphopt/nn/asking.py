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
    SCALARS,
    Held,
    attributes_of,
    is_users,
    is_users_module,
)

_ENTRIES: Final = frozenset({"forward", "hybrid_forward", "__call__"})
_COMPARING: Final = {"IS_OP", "COMPARE_OP", "CONTAINS_OP"}
_MODULES: Final = {"nd", "ndarray", "sym", "symbol"}
#: Names under which code has these to call their functions.
_USUAL: Final = _MODULES | {"np"}
_KINDS: Final = {"NDArray", "Symbol", "_Symbol"}
_ASKING: Final = {"isinstance", "issubclass", "type", "__class__"}
#: Functions of ``np`` that return tuples of arrays.
_TUPLES: Final = {"diag_indices_from", "unravel_index"}
_WITH_NAMES: Final = {"KW_NAMES", "CALL_FUNCTION_KW"}
#: Instructions that look names up, those of attributes, and names of MXNet.
_OF_OTHERS: Final = {"LOAD_ATTR", "LOAD_METHOD"}
_NAMED: Final = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", *_OF_OTHERS}
_MXNETS: Final = {"mx", "mxnet"}
#: What is compared was loaded so few instructions before.
_NEAR: Final = 4
#: So many items of lists and the like are looked at.
_MOST: Final = 1024


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
        block = import_mxnet().gluon.Block
        size = -1
        while size != (size := self._size()):
            owners = list(self._held.objects.values())
            bases = [cls for owner in owners for cls in type(owner).__mro__]
            classes = {id(cls): cls for cls in (*bases, *self._held.classes)}  # views' equal others
            for cls in filter(is_users, classes.values()):
                yield from self._of_values(cls.__name__, self._named(vars(cls)))
            for owner in owners:
                known = self._named(attributes_of(owner))  # Blocks within are owners, too
                values = [value for value in known if not isinstance(value, block)]
                yield from self._of_values(type(owner).__name__, values)
            self._stack += self._held.functions
            while self._stack:
                yield from self._of_function(self._stack.pop())

    def _size(self) -> int:
        held = self._held
        found = len(self._seen) + len(self._names)
        return found + len(held.objects) + len(held.classes) + len(held.functions)

    def _named(self, attributes: Mapping[str, Any]) -> list[Any]:
        return [value for name, value in list(attributes.items()) if name in self._names]

    def _of_values(self, whose: str, values: Iterable[Any]) -> Iterator[str]:
        for value in values:
            for iterator in _iterators(value, {}):
                yield f"{whose} reads a {type(iterator).__name__}, which its calls use up"
            if not isinstance(value, types.ModuleType):
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
        asked = [value for name, value in read if _asks_for(name, value)]
        compares_kinds = "ndarray" in names and import_mxnet().np in [value for _, value in read]
        if (asked or compares_kinds) and (_ASKING & names or (asked and _compares(code))):
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


def _asks_for(name: str, value: Any) -> bool:
    """Whether a value is a class of arrays, or a module of MXNet's that calls are given.

    Modules have names under which their functions are called, besides.
    """
    if isinstance(value, tuple):
        return len(value) <= _MOST and any(_asks_for("", part) for part in value)
    if isinstance(value, types.ModuleType) and name in _USUAL:
        return False
    return isinstance(value, (type, types.ModuleType)) and value in _asked_for()


@cache
def _asked_for() -> frozenset[Any]:
    mx = import_mxnet()
    modules = mx.nd, mx.sym, mx.np, mx.sym.np
    return frozenset({*modules, mx.nd.NDArray, mx.np.ndarray, mx.sym.Symbol, mx.sym.np._Symbol})


def _iterators(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Those that a value is or holds, among the first so many."""
    if type(value) in SCALARS or id(value) in seen or len(seen) > _MOST:
        return
    seen[id(value)] = value
    if type(value) in NAMESPACES:
        value = vars(value)
    if isinstance(value, Iterator):
        yield value
    elif isinstance(value, CONTAINERS) and len(value) <= _MOST:
        for part in list(value.values() if isinstance(value, dict) else value):
            yield from _iterators(part, seen)


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
    before_op = ""
    attributes: set[str] = set()
    texts: list[str] = []
    given: tuple[Any, ...] = ()  # a constant, which may be the names of arguments
    for instruction in dis.get_instructions(code):
        op, found = instruction.opname, instruction.argval
        if op == "EXTENDED_ARG":
            continue
        compares = op in _COMPARING and found not in ("<", ">", "<=", ">=")
        if compares and _MODULES & {*loaded}:
            return "compares with a module of MXNet's"
        if op == "KW_NAMES":
            given = code.co_consts[instruction.arg or 0]
        if op in _WITH_NAMES and "out" in given:
            return "says out="
        given = found if op == "LOAD_CONST" and isinstance(found, tuple) else ()
        texts += [found.lower()] if op == "LOAD_CONST" and isinstance(found, str) else []
        name = found if op in _NAMED else ""
        before = loaded[-1]
        if name == "seed" and before == "random":
            return "sets a seed"
        if op in _OF_OTHERS:
            attributes |= {name, f"{before}.{name}"} if before_op in _OF_OTHERS else {name}
            name = "" if name in _MODULES and before not in _MXNETS else name
        before_op = op
        loaded.append(name)
    names = {*code.co_names, *code.co_freevars}
    if _KINDS & names or ("np.ndarray" in attributes and _ASKING & names):
        return "asks whether something is an array"
    if "__name__" in attributes and any("ndarray" in text or "symbol" in text for text in texts):
        return "asks for the name of a module or class of MXNet's"
    if "np" in names and _TUPLES & names:
        return "takes arrays in a tuple, which are one Symbol"
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return next(filter(None, map(why_not_alike, inner)), "")
