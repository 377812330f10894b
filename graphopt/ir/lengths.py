"""Shapes of data that are longer, together and apart, to see what holds for all sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import Final

from graphopt.ir.sizes import Shapes

#: By how much data are longer that are to be so than any number in a graph: a power of two, which
#: layers that halve and double images want.
FAR: Final = 1 << 20

#: An axis of an array, by its name.
_Place = tuple[str, int]
_IsOpen = Callable[[Shapes], bool]


def with_extent(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    """The shape with that extent on that axis."""
    return (*shape[:axis], extent, *shape[axis + 1 :])


def others(shapes: Shapes, is_open: _IsOpen, widens: _IsOpen) -> list[Shapes]:
    """Data for which passes have to make the same graph if it is to serve all.

    That are a little longer where they may be, apart from each other where they need not be equal,
    and of one element along which operators broadcast then.

    Args:
        shapes: of the data.
        is_open: whether there may be data of other shapes.
        widens: whether an operator broadcasts to such shapes that does not so to these.
    """
    found = [longer(shapes, is_open), apart(shapes, is_open)]
    found += filter(widens, single(shapes, is_open))
    return [each for at, each in enumerate(found) if each not in (shapes, *found[:at])]


def longer(shapes: Shapes, is_open: _IsOpen) -> Shapes:
    """Data that are longer on all axes that may be, where they are equal together.

    By one, or by so few more that no other array is as long.

    Args:
        shapes: of the data.
        is_open: whether there may be data of other shapes.
    """
    found, done = shapes, set[_Place]()
    for places in _equal(shapes):
        wider = _with_more(found, places, _least(found, places))
        if done.isdisjoint(places) and is_open(wider):
            found = wider
            done |= places
    return found


def far_longer(shapes: Shapes, is_open: _IsOpen) -> Iterator[Shapes]:
    """Data that are as much longer as may be on one axis each, up to ``FAR``.

    Of one at a time, as what is far longer on all has more elements than MXNet counts.

    Args:
        shapes: of the data.
        is_open: whether there may be data of other shapes.
    """
    done = set[_Place]()
    for places in _equal(shapes):
        by = _longest(shapes, places, is_open) if done.isdisjoint(places) else 0
        if by:
            yield _with_more(shapes, places, by)
            done |= places


def apart(shapes: Shapes, is_open: _IsOpen) -> Shapes:
    """Data that are longer, so that arrays have extents in common only where they have to.

    Args:
        shapes: of the data.
        is_open: whether there may be data of other shapes.
    """
    found = shapes
    for name, axis in _shared(shapes):
        places = {(name, axis)}
        wider = _with_more(found, places, _least(found, places))
        if is_open(wider):
            found = wider
    return found


def single(shapes: Shapes, is_open: _IsOpen) -> Iterator[Shapes]:
    """Data with an extent of 1, along which MXNet broadcasts, wherever another array has more.

    Args:
        shapes: of the data.
        is_open: whether there may be data of other shapes.
    """
    places = list(_shared(shapes))
    for order in (places, places[::-1]):
        found = shapes
        for name, axis in order:
            extent = shapes[name][axis]
            wider = found | {name: with_extent(found[name], axis, 1)}
            if extent > 1 and _is_elsewhere(extent, name, found) and is_open(wider):
                found = wider
        if found != shapes:
            yield found


def _equal(shapes: Shapes) -> list[frozenset[_Place]]:
    """Places of equal extents: on one axis, and then those of several arrays on any axis."""
    on_axis: dict[tuple[int, int], set[_Place]] = {}
    anywhere: dict[int, set[_Place]] = {}
    rank = max(map(len, shapes.values()), default=0)
    for axis, name in ((a, n) for a in range(rank) for n in shapes if a < len(shapes[n])):
        extent = shapes[name][axis]
        on_axis.setdefault((axis, extent), set()).add((name, axis))
        anywhere.setdefault(extent, set()).add((name, axis))
    of_several = [places for places in anywhere.values() if len({n for n, _ in places}) > 1]
    return [*map(frozenset, on_axis.values()), *map(frozenset, of_several)]


def _shared(shapes: Shapes) -> Iterator[_Place]:
    """Places of extents that another array has, too."""
    for name, shape in shapes.items():
        yield from ((name, a) for a, e in enumerate(shape) if _is_elsewhere(e, name, shapes))


def _is_elsewhere(extent: int, name: str, shapes: Shapes) -> bool:
    return any(extent in shape for other, shape in shapes.items() if other != name)


def _longest(shapes: Shapes, places: Collection[_Place], is_open: _IsOpen) -> int:
    """By how much data may be longer there: tables of positions end, which is found bit by bit."""
    by, more = 0, FAR
    while more and by < FAR:
        if _are_apart(shapes, places, by + more) and is_open(_with_more(shapes, places, by + more)):
            by += more
        more //= 2
    return by


def _least(shapes: Shapes, places: Collection[_Place]) -> int:
    """By how much to lengthen arrays there for them to be as long as no other one."""
    return next(by for by in count(1) if _are_apart(shapes, places, by))


def _are_apart(shapes: Shapes, places: Collection[_Place], by: int) -> bool:
    """Whether no other array is as long as these if they are longer by so much.

    As others are, by chance, what is one row for all of them would be no more.
    """
    own = {name for name, _ in places}
    taken = {extent for name, shape in shapes.items() if name not in own for extent in shape}
    return taken.isdisjoint(shapes[name][axis] + by for name, axis in places)


def _with_more(shapes: Shapes, places: Iterable[_Place], by: int) -> Shapes:
    found = dict(shapes)
    for name, axis in places:
        found[name] = with_extent(found[name], axis, found[name][axis] + by)
    return found
