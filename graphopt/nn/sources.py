"""Where Python of Blocks reads values from: attributes, those of classes, names by functions."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterable, MutableMapping
from functools import cache
from itertools import chain
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.nn.by_class import kept_by_class
from graphopt.nn.copies import Budget, copied, generator_of, is_of_calls
from graphopt.nn.reached import Enclosing, Names, Reached
from graphopt.nn.users import Held, attributes_of, is_users

#: What layers and cells of MXNet note of a call.
_NOTED: Final = {"skip_states", "_counter", "_init_counter", "_modified"}
#: What stands in front of the user's classes in those of views and twins.
_MIXINS: Final = {"Optimized", "Noted", "_Twin"}


class Source:
    """Names and values of one Block, object or class, or of a module or around a function.

    Attributes:
        own: by name, as they are at any time.
        only: which of them, or None for all.
        is_whole: whether what is added to it may count.
    """

    is_whole = True

    def __init__(self, owner: Any, only: Collection[str] | None) -> None:
        """``owner`` is what has them as attributes."""
        self.owner, self.only = owner, only
        self.own: MutableMapping[str, Any] = attributes_of(owner)

    def values(self, budget: Budget) -> dict[str, Any]:
        """Copies of them."""
        return {n: copied(self.own[n], budget) for n in self.names_now(arrays=budget.is_thorough)}

    def names_now(self, *, arrays: bool) -> set[str]:
        """Names of what can be compared; with MXNet's arrays, but for those of Blocks."""
        gluon = import_mxnet().gluon
        is_block = isinstance(self.owner, gluon.Block)
        # Cells of MXNet keep states and masks as attributes, None at first.
        keeps = isinstance(self.owner, gluon.rnn.RecurrentCell) and _is_mxnets(self.owner)
        only = self.only
        return {
            name
            for name, value in self.own.items()
            if (only is None or name in only)
            and (is_setting(self.owner, name, value) if is_block else name[:2] != "__")
            and not (keeps and value is None)
            and (not is_of_calls(value) or (arrays and not is_block))
        }

    def is_writer(self, _name: str) -> bool:
        """Whether functions that are known may set it."""
        return True

    def set(self, name: str, value: Any) -> None:
        """Give a name a value."""
        if isinstance(self.owner, type):
            setattr(self.owner, name, value)
        else:
            self.own[name] = value

    def drop(self, name: str) -> None:
        """Take a name away."""
        if isinstance(self.owner, type):
            delattr(self.owner, name)
        else:
            del self.own[name]

    def describe(self, name: str) -> str:
        """A name and whose it is."""
        cls = self.owner if isinstance(self.owner, type) else type(self.owner)
        return f"{name!r} of {cls.__name__}"


class _NamesSource(Source):
    """Names that functions look up in one namespace."""

    is_whole = False

    def __init__(self, names: Names) -> None:
        self.owner, self.only, self.own = names.own, names.read, names.own
        self._stored = names.stored

    def names_now(self, *, arrays: bool) -> set[str]:
        own = self.own
        found = {name for name in self.only or () if name in own}
        return {name for name in found if arrays or not is_of_calls(own[name])}

    def is_writer(self, name: str) -> bool:
        return name in self._stored

    def describe(self, name: str) -> str:
        if isinstance(self.own, Enclosing):
            return f"{name!r} around {self.own.function.__qualname__}"
        return f"{name!r} of module {self.own.get('__name__')}"


class _DefaultsSource(Source):
    """Lists and the like, and generators, that arguments of a function are if none is given."""

    is_whole = False

    def __init__(self, function: types.FunctionType) -> None:
        self.owner, self.only = function, None
        code, defaults = function.__code__, function.__defaults__ or ()
        names = reversed(code.co_varnames[: code.co_argcount])  # the last ones have defaults
        values = dict(zip(names, reversed(defaults), strict=False))
        values |= function.__kwdefaults__ or {}
        self.own = {
            name: value
            for name, value in values.items()
            if isinstance(value, (list, dict, set)) or generator_of(value) is not None
        }

    def describe(self, name: str) -> str:
        return f"{name!r} of {self.owner.__qualname__}"


def sources(blocks: Iterable[Any]) -> tuple[list[Source], bool]:
    """What Python of Blocks reads, and whether it may draw numbers.

    Their attributes, those of objects they hold, of their classes, and names that these read.
    """
    parts = {id(block): block for block in blocks}
    reached, held = Reached(), Held()
    for block in parts.values():
        reached.add(block)
    before = -1
    while before != (before := len(parts) + len(reached.classes) + len(reached.attributes)):
        reached.run()
        for part in (*parts.values(), *reached.classes):
            only = _only(part, reached)
            for name, value in list(attributes_of(part).items()):
                if (only is None or name in only) and not _is_gluons(part, name):
                    held.look(value)
        for names in list(reached.names.values()):
            for name in names.read & names.own.keys():
                held.look(names.own[name])
        for value in list(reached.values):
            held.look(value)
        for cls in held.classes:
            reached.add_class(cls)
        for function in held.functions:
            reached.add_function(function)
        for module in (*held.modules.values(), *reached.modules.values()):
            reached.add_module(module)
        for key in held.objects.keys() - parts.keys():
            parts[key] = held.objects[key]
            reached.add(held.objects[key])
    owners = chain(parts.values(), reached.classes, filter(vars, reached.functions))
    found = [
        *(Source(part, _only(part, reached)) for part in owners),
        *map(_NamesSource, reached.names.values()),
        *filter(lambda source: source.own, map(_DefaultsSource, reached.functions)),
    ]
    return found, reached.may_draw


def is_setting(block: Any, name: str, value: Any) -> bool:
    """Whether an attribute of a Block is one of the user's that can be compared."""
    if name in _set_by_mxnet() or name.startswith(("_graphopt", "__")):
        return False
    if name in _NOTED and not _is_known(block):
        return False
    gluon = import_mxnet().gluon  # which has registers of its own for these
    return not (isinstance(value, (gluon.Block, gluon.Parameter)) or is_of_calls(value))


def is_of_users(block: Any, name: str) -> bool:
    """Whether code of the user's sets an attribute of that name, and not MXNet's in its calls."""
    if type(block).__module__.partition(".")[0] in ("mxnet", "graphopt"):
        return False  # asked first, as the names are those of a Block that is made to see them
    return not (name in _set_by_mxnet() or name in _NOTED or name.startswith("_graphopt"))


def _is_gluons(part: Any, name: str) -> bool:
    return name in _set_by_mxnet() and isinstance(part, import_mxnet().gluon.Block)


def _only(part: Any, reached: Reached) -> set[str] | None:
    """Names of attributes that known code reads; None for any, as code of libraries reads them."""
    return reached.attributes if _is_known(part) and not reached.are_any else None


def _is_known(part: Any) -> bool:
    """Whether all code of its class is the user's, or what all Blocks have."""
    return _is_known_class(part if isinstance(part, type) else type(part))


@kept_by_class
def _is_known_class(cls: type) -> bool:
    known = (object, dict, list, import_mxnet().gluon.Block, import_mxnet().gluon.HybridBlock)
    return all(b in known or is_users(b) for b in cls.__mro__ if b.__name__ not in _MIXINS)


def _is_mxnets(block: Any) -> bool:
    cls = getattr(type(block), "_graphopt_base", type(block))
    return bool(cls.__module__.partition(".")[0] == "mxnet")


@cache
def _set_by_mxnet() -> frozenset[str]:
    """Attributes that all Blocks have."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix="")))
