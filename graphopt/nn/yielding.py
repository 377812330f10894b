"""What methods return and what code of twins, or what it has, is read for later."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import _GeneratorContextManager
from types import GeneratorType
from typing import Any, Final

from graphopt.nn.pairs import Pairs

_EMPTY: Final[list[Iterable[Any]]] = [[], (), set(), {}, {}.values(), {}.items()]
#: Python's own iterators, which have nothing but what comes next.
_ITERATORS: Final[frozenset[type]] = frozenset(
    [map, filter, zip, enumerate, reversed]
    + [type(iter(each)) for each in _EMPTY]
    + [type(reversed([]))]
)
_VIEWS: Final = {type({}.values()): dict.values, type({}.items()): dict.items}


def owned(found: Any, pairs: Pairs) -> Any:
    """What the user is given of a method's result, also where it is read only later."""
    kind: Any = type(found)
    if kind is GeneratorType:
        return handed_over(found, pairs)
    if kind is _GeneratorContextManager:
        found.gen = handed_over(found.gen, pairs)
        return found
    if kind in _ITERATORS:
        return _each(found, pairs)
    if kind in _VIEWS:
        return _VIEWS[kind](pairs.own(dict(found.mapping)))
    return pairs.own(found)


def _each(made: Iterator[Any], pairs: Pairs) -> Iterator[Any]:
    for value in made:
        found = pairs.own(value)
        pairs.settle()
        yield found


def handed_over(made: Generator[Any, Any, Any], pairs: Pairs) -> Generator[Any, Any, Any]:
    """The same generator to its user: what it yields and returns holds the user's Blocks."""
    step: Any = made.send
    given: Any = None
    try:
        while True:
            try:
                found = pairs.own(step(given))
            except StopIteration as end:
                return pairs.own(end.value)
            finally:
                pairs.settle()
            try:
                step, given = made.send, pairs.given((yield found))
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - all that is thrown in is passed on
                step, given = made.throw, error
    finally:
        try:
            made.close()  # which may run code of its own
        finally:
            pairs.settle()
