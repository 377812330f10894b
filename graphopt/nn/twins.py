"""Twins of Blocks: objects of subclasses of the user's classes, which have other children.

A twin shares the user's ``__dict__``. Only what holds children is looked up elsewhere, and only
the code of the Block itself is given the twin.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.nn.generated import Generated, delete_own, generated_class, set_own
from graphopt.nn.held_blocks import is_container
from graphopt.nn.pairs import Pairs
from graphopt.nn.slots import Slot, members_of
from graphopt.nn.twin_children import Children

#: What no attribute is.
_NOTHING: Final = object()
#: What Gluon reads at each call, and no code of users fills with Blocks.
_GLUONS: Final = {"_reg_params", "_forward_hooks", "_forward_pre_hooks"}


def twin_of(block: Any, pairs: Pairs, names: dict[str, Any]) -> Any:
    """A twin of a Block, all of whose attributes are the Block's so far.

    Args:
        block: the user's.
        pairs: what stands for which of the user's objects.
        names: attributes of its class.
    """
    base = type(block)
    body = {
        "__new__": _new_of(base),
        "__setattr__": _set_on(block, pairs),
        "__reduce_ex__": _reduce_own(block),
        "_graphopt_pairs": pairs,
    }
    for name, member in members_of(base).items():
        body[name] = Slot(member, lambda _twin: block, pairs.read)
    if hasattr(base, "__del__"):
        body["__del__"] = _stay  # the user's object has one
    body |= {name: _Swapped(name, _NOTHING, None) for name in _cached_properties(base)}
    twin: Any = object.__new__(generated_class(_OfTwins, _Twin, base, body | names))
    object.__setattr__(twin, "__dict__", vars(block))
    return twin


def swap_attribute(cls: Any, name: str, own: Any, pairs: Pairs) -> None:
    """Have a twin's class look an attribute up elsewhere, if something stands for its value."""
    swapped = pairs.twin(own)
    if pairs.held_in([own]):
        set_own(cls, name, _SwappedIn(name, own, swapped, pairs))
    elif swapped is not own:
        set_own(cls, name, _Swapped(name, own, swapped))
    elif is_container(own) and not own and name not in _GLUONS:
        set_own(cls, name, _Empty(name, own, pairs))


def _swap_kept(cls: Any, name: str, own: Any, pairs: Pairs) -> None:
    """:func:`swap_attribute` for what :meth:`Pairs.kept` has found what holds Blocks in."""
    if not is_container(own) or not own or pairs.knows(own):
        swap_attribute(cls, name, own, pairs)


def pairs_of(twin: Any) -> Pairs:
    """What a twin's code is given in place of the user's objects, and what these are."""
    found: Pairs = type(twin)._graphopt_pairs
    return found


def _cached_properties(cls: type) -> list[str]:
    """Their names: these write into ``__dict__`` themselves, past ``__setattr__``."""
    found = [vars(base).items() for base in cls.__mro__]
    return [name for name, value in chain(*found) if isinstance(value, functools.cached_property)]


def keep_python(twin: Any) -> None:
    """Have MXNet not make one graph of a twin, whatever the user's Block says."""
    set_own(type(twin), "_active", _Swapped("_active", None, swapped=False, always=True))


class _Swapped:
    """An attribute of a twin: what holds optimized children, as long as the user's is unchanged."""

    def __init__(self, name: str, own: Any, swapped: Any, *, always: bool = False) -> None:
        self.name = name
        self.own = own
        self.swapped = swapped
        self.always = always

    def __get__(self, block: Any, owner: type | None = None) -> Any:
        if block is None:  # asked of the class
            found: Any = owner
            return getattr(found._graphopt_shown, self.name)
        try:
            found = vars(block)[self.name]
        except KeyError:
            return self._of_class(block)
        return self.swapped if self.always or found is self.own else found

    def __set__(self, block: Any, value: Any) -> None:
        """By ``object.__setattr__``, as twins set all else on the user's Block."""
        pairs = pairs_of(block)
        own = vars(block)[self.name] = pairs.kept(value)
        _swap_kept(type(block), self.name, own, pairs)

    def __delete__(self, block: Any) -> None:
        try:
            del vars(block)[self.name]
        except KeyError:
            raise self._missing(block) from None

    def _of_class(self, block: Any) -> Any:
        """What the class has in place of it, which a cached property sets."""
        if not hasattr(type(block), self.name):
            raise self._missing(block)
        found = getattr(super(type(block), block), self.name)
        if self.name not in vars(block):
            return found
        pairs = pairs_of(block)
        own = vars(block)[self.name] = pairs.kept(found)
        _swap_kept(type(block), self.name, own, pairs)
        return found

    def _missing(self, block: Any) -> AttributeError:
        return AttributeError(f"{type(block).__name__!r} object has no attribute {self.name!r}")


class _SwappedIn(_Swapped):
    """The same of a list or the like, or a tuple of some, which both sides may write into."""

    def __init__(self, name: str, own: Any, swapped: Any, pairs: Pairs) -> None:
        super().__init__(name, own, swapped)
        self.pairs, self.held = pairs, pairs.held_in([own])

    def __get__(self, block: Any, owner: type | None = None) -> Any:
        found = super().__get__(block, owner)
        if found is self.swapped:
            self.pairs.look(self.held)
        return found


class _Empty(_Swapped):
    """The same of a list or the like that is empty.

    Code of the twin writes into the user's. Whether that holds Blocks is found out once, when
    there is something in it: reading it stays cheap if it holds thousands of numbers later.
    """

    def __init__(self, name: str, own: Any, pairs: Pairs) -> None:
        super().__init__(name, own, own)
        self.pairs = pairs

    def __get__(self, block: Any, owner: type | None = None) -> Any:
        found = super().__get__(block, owner)
        if block is None or found is not self.own:
            return found
        if found and not self.pairs.awaits(found):
            self._leave(type(block))
            return getattr(block, self.name)
        self.pairs.wait(self, type(block))
        return found

    def settle(self, cls: type) -> None:
        """Code of a twin of that class read it, and may have written into it."""
        if self.own:
            self.pairs.own(self.own)
            self._leave(cls)

    def _leave(self, cls: type) -> None:
        if vars(cls).get(self.name) is self:  # else the attribute was set since
            delete_own(cls, self.name)
            swap_attribute(cls, self.name, self.own, self.pairs)


class _Twin:
    """In front of the user's class."""

    __slots__ = ()

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Generated classes are none that the user's would want to hear of."""
        if "_graphopt_shown" not in vars(cls):
            super().__init_subclass__(**arguments)


class _OfTwins(Generated, type):
    """The class of classes of twins, of which there is one object each.

    What code of a twin makes by its class is of the user's.
    """

    _graphopt_shown: Any
    _graphopt_pairs: Pairs

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._graphopt_shown(*args, **kwargs)

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, cls._graphopt_pairs.own(value))

    @property
    def __signature__(cls) -> inspect.Signature:
        return inspect.signature(cls._graphopt_shown)


def _new_of(base: Any) -> Callable[..., Any]:
    def new(_cls: type, *args: Any, **kwargs: Any) -> Any:
        return base.__new__(base, *args, **kwargs)

    return new


def _set_on(own: Any, pairs: Pairs) -> Callable[[Any, str, Any], None]:
    """Attributes are set on the user's Block, where Gluon compares with what is really there."""
    block = import_mxnet().gluon.Block

    def set_on_own(twin: Any, name: str, value: Any) -> None:
        value = pairs.kept(value)
        setattr(own, name, value)
        if vars(own).get(name) is value:
            _swap_kept(type(twin), name, value, pairs)
        if isinstance(value, block) and isinstance(twin._children, Children):
            twin._children.follow(name)

    return set_on_own


def _reduce_own(own: Any) -> Callable[[Any, Any], Any]:
    """Copies and pickles of a twin are those of the user's Block."""
    return lambda _twin, protocol: own.__reduce_ex__(protocol)


def _stay(twin: Any) -> None:
    """Nothing ends with a twin."""
