"""Values of Python that can be compared with what they were."""

from __future__ import annotations

import enum
import pickle
import random
import types
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.nn.users import CONTAINERS, NAMESPACES, SCALARS

_PLAIN: tuple[type, ...] = (*SCALARS, np.generic, np.dtype, enum.Enum, range, slice, Decimal)
_PLAIN += (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, type)
_WITH_NAN: Final = (float, complex, np.inexact)
_METHODS: Final = (types.BuiltinFunctionType, types.MethodType)
_GENERATORS: Final = (random.Random, np.random.RandomState, np.random.Generator)
_DEEPEST: Final = 4


@dataclass
class Budget:
    """How much is copied of one net; of what is beyond it another object or length is seen.

    Attributes:
        left: items of lists and the like.
        of_a_value: the same, of each attribute.
        bytes_of_an_array: of numpy.
        is_thorough: whether MXNet's arrays in lists and the like count, too, and what generators of
            random numbers draw next.
    """

    left: int = 8192
    of_a_value: int = 256
    bytes_of_an_array: int = 1024
    is_thorough: bool = False

    @classmethod
    def thorough(cls) -> Budget:
        """For a look before and one after, rather than one in every call."""
        return cls(100_000, 20_000, 1 << 24, is_thorough=True)


class Container:
    """A list, dict, namespace or the like, as it was."""

    __slots__ = ("items", "keys", "size", "value")

    def __init__(self, value: Any, budget: Budget, depth: int) -> None:
        self.value = value
        own = self.own
        self.size = len(own)
        self.keys: Any = None
        self.items: list[Any] | None = None
        if self.size > budget.left or depth >= _DEEPEST:
            return
        budget.left -= self.size
        if isinstance(own, (set, frozenset)):
            self.keys = set(own)
            return
        if isinstance(own, dict):
            self.keys, own = list(own), own.values()
        self.items = [_copied(item, budget, depth + 1) for item in own]

    @property
    def own(self) -> Any:
        """What its items are in."""
        return vars(self.value) if type(self.value) in NAMESPACES else self.value

    def holds(self, value: Any) -> bool:
        """Whether it is like that."""
        if type(value) is not type(self.value):
            return False
        own = vars(value) if type(value) in NAMESPACES else value
        if len(own) != self.size:
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
        keys = range(self.size) if self.keys is None else self.keys
        for key, item in zip(keys, self.items, strict=True):
            if type(item) is not _Any:
                yield own, key

    def put_back(self) -> Any:
        """The same object, like that again."""
        own = self.own
        items = [put_back(item) for item in self.items or ()]
        if self.holds(self.value):
            return self.value
        with suppress(Exception):  # a subclass may refuse it
            if self.items is None and self.keys is None:
                if isinstance(own, list):
                    del own[self.size :]
            elif isinstance(own, list):
                own[:] = items
            elif isinstance(own, dict):
                for key in [key for key in own if key not in self.keys]:
                    del own[key]
                for key, item in zip(self.keys, items, strict=True):
                    if key not in own or own[key] is not item:
                        own[key] = item  # a counter's `update` adds up
            elif isinstance(own, deque):
                own.clear()
                own.extend(items)
            elif isinstance(own, set):
                own ^= own ^ self.keys
        return self.value


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


class _Generator:
    """A generator of random numbers, or a method of one, as it was."""

    __slots__ = ("generator", "state", "value")

    def __init__(self, value: Any, generator: Any) -> None:
        self.value, self.generator, self.state = value, generator, _state_of(generator)

    def holds(self, value: Any) -> bool:
        """Whether it is that one and draws the same numbers."""
        return value is self.value and _state_of(self.generator) == self.state

    def put_back(self) -> Any:
        """The same object, which draws the same again."""
        generator, state = self.generator, pickle.loads(self.state)
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state
        return self.value


def generator_of(value: Any) -> Any:
    """The generator of random numbers that a value is or is a method of; ``None`` if it is none.

    Nor if it is Python's or numpy's for all, of which other threads draw, too.
    """
    found = getattr(value, "__self__", value) if isinstance(value, _METHODS) else value
    is_for_all = found is random._inst or found is np.random.mtrand._rand
    return found if isinstance(found, _GENERATORS) and not is_for_all else None


def _state_of(generator: Any) -> bytes:
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state())
    return pickle.dumps(generator.bit_generator.state)


class _Any:
    """An array of MXNet's, in whose place another may be."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def holds(self, _value: Any) -> bool:
        """As it may be."""
        return True

    def put_back(self) -> Any:
        """What it was."""
        return self.value


def is_of_calls(value: Any) -> bool:
    """Whether it is an array of MXNet's or a Symbol, which calls make."""
    return isinstance(value, _of_calls())


def copied(value: Any, budget: Budget) -> Any:
    """What is needed to tell later whether a value is what it was."""
    if type(value) in SCALARS:
        return value
    own = replace(budget, left=min(budget.left, budget.of_a_value))
    left = own.left
    copy = _copied(value, own, 0)
    budget.left -= left - own.left
    return copy


def _copied(value: Any, budget: Budget, depth: int) -> Any:
    if budget.is_thorough and (generator := generator_of(value)) is not None:
        return _Generator(value, generator)
    if type(value) in SCALARS or isinstance(value, _PLAIN):
        return value
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return _Array(value) if value.nbytes <= budget.bytes_of_an_array else value
    if isinstance(value, CONTAINERS) or type(value) in NAMESPACES:
        return Container(value, budget, depth)
    return value if budget.is_thorough or not is_of_calls(value) else _Any(value)


def copies_in(copy: Any) -> Iterator[Container | _Array | _Generator]:
    """A copy of what may be written into, and those in it."""
    if isinstance(copy, (Container, _Array, _Generator)):
        yield copy
        for item in getattr(copy, "items", None) or ():
            yield from copies_in(item)


def is_copy(copy: Any) -> bool:
    """Whether a copy stands for something that may be written into."""
    return isinstance(copy, (Container, _Array, _Generator, _Any))


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


def has_symbols(value: Any, depth: int = 0) -> bool:
    """Whether it is a Symbol or holds one."""
    if isinstance(value, import_mxnet().sym.Symbol):
        return True
    own = vars(value) if type(value) in NAMESPACES else value
    if not isinstance(own, CONTAINERS) or depth >= _DEEPEST:
        return False
    return any(has_symbols(v, depth + 1) for v in (own.values() if isinstance(own, dict) else own))


@cache
def _of_calls() -> tuple[type, ...]:
    mx = import_mxnet()
    return mx.nd.NDArray, mx.sym.Symbol
