"""Symbols that Blocks keep on themselves while they are traced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from graphopt.compat import import_mxnet

#: Lists are looked into so deep, and if they are no longer.
_MOST_NESTED: Final = 4
_LONGEST: Final = 10_000
#: Packages whose layers are reset where they keep something, or keep it as MXNet's graphs do.
_RESET: Final = ("mxnet", "graphopt")

#: Where hybridized Blocks keep their graphs.
_GLUONS: Final = frozenset({"_cached_graph"})

#: A value and, of a list or the like, what was in it.
_Snapshot = tuple[Any, Any]


@contextmanager
def without_kept(blocks: Sequence[Any]) -> Iterator[list[str]]:
    """Behind the block of code attributes are what they were, where a Symbol came into them.

    What it yields has then a text for each attribute by which calls of a Block that is not
    hybridized could tell that they were made once: MXNet's are made every time. Of a hybridized one
    MXNet keeps Symbols as well. Cells within another Block are reset by whoever unrolls them.

    Args:
        blocks: the one that is traced, and all within.
    """
    cell = import_mxnet().gluon.rnn.RecurrentCell
    before = [(block, {n: _snapshot(v) for n, v in vars(block).items()}) for block in blocks]
    told: list[str] = []
    try:
        yield told
    finally:
        for block, attributes in before:
            names = _restored(vars(block), attributes)
            is_reset = type(block).__module__.partition(".")[0] in _RESET
            is_reset |= isinstance(block, cell) and block is not blocks[0]
            if not is_reset and not getattr(block, "_active", False):
                told += [
                    f"{type(block).__name__} keeps an array on itself, as {n!r}" for n in names
                ]


def _restored(now: dict[str, Any], before: dict[str, _Snapshot]) -> list[str]:
    """Names of attributes into which Symbols came; they are as before."""
    found = []
    for name in [name for name in now if name not in _GLUONS]:
        known = set(map(id, _symbols(_inside(before[name])))) if name in before else set()
        if all(id(symbol) in known for symbol in _symbols(now[name])):
            continue
        found.append(name)
        if name in before:
            now[name] = _again(before[name])
        else:
            del now[name]
    return found


def _snapshot(value: Any, depth: int = 0) -> _Snapshot:
    if depth == _MOST_NESTED or not isinstance(value, (list, tuple, dict)) or len(value) > _LONGEST:
        return value, None
    if isinstance(value, dict):
        return value, {key: _snapshot(part, depth + 1) for key, part in value.items()}
    return value, [_snapshot(part, depth + 1) for part in value]


def _again(snapshot: _Snapshot) -> Any:
    value, inside = snapshot
    if isinstance(value, list) and inside is not None:
        value[:] = [_again(part) for part in inside]
    elif isinstance(value, dict) and inside is not None:
        for key in value.keys() - inside.keys():
            del value[key]
        value.update({key: _again(part) for key, part in inside.items()})
    return value


def _inside(snapshot: _Snapshot) -> Any:
    value, inside = snapshot
    if inside is None:
        return value
    return [_inside(part) for part in (inside.values() if isinstance(inside, dict) else inside)]


def _symbols(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, import_mxnet().sym.Symbol):
        yield value
    elif (
        isinstance(value, (list, tuple, dict)) and depth <= _MOST_NESTED and len(value) <= _LONGEST
    ):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _symbols(part, depth + 1)
