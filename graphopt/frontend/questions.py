"""What Python of Blocks asks of arrays, where Symbols in their place give another answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any, Final

from graphopt.compat import import_mxnet

_QUESTIONS: Final = {
    "__len__": "the length of an array",
    "__iter__": "the rows of an array",
    "__getitem__": "a part of an array",
    "__bool__": "the truth of an array",
}
#: Their code knows which of both it has.
_KNOWING: Final = ("mxnet", "graphopt")


class _Notes(threading.local):
    """What this thread's Blocks asked, while they are traced."""

    found: list[str] | None = None


_NOTES: Final = _Notes()
_TURN: Final = threading.Lock()
_traces = 0  # under way, in all threads


@contextmanager
def noting_questions(block: Any) -> Iterator[list[str]]:
    """What a Block that is traced asks of arrays that Symbols do not know, or know otherwise.

    A Symbol of one array is a list of one item, itself. Hybridized Blocks are given Symbols by
    MXNet, too.
    """
    found: list[str] = []
    if getattr(block, "_active", False):
        yield found
        return
    before, _NOTES.found = _NOTES.found, found
    _listen(1)
    try:
        yield found
    finally:
        _listen(-1)
        _NOTES.found = before


def _listen(more: int) -> None:
    """Hear what Symbols are asked as long as a trace is under way."""
    global _traces
    symbol = import_mxnet().sym.Symbol
    with _TURN:
        was, _traces = _traces, _traces + more
        if bool(was) == bool(_traces):
            return
        for name, own in _own_methods().items():
            setattr(symbol, name, _heard(name, own) if _traces else own)
        if _traces:
            symbol.__getattr__ = _missing
        else:
            del symbol.__getattr__


def _heard(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    def method(symbol: Any, *args: Any) -> Any:
        if _NOTES.found is not None and _own_methods()["__len__"](symbol) == 1:
            _note(_QUESTIONS[name], sys._getframe(1))
        return own(symbol, *args)

    return method


def _missing(symbol: Any, name: str) -> Any:
    """What no Symbol has."""
    if _NOTES.found is not None and name in _of_arrays():
        _note(f"{name!r} of an array", sys._getframe(1))
    raise AttributeError(f"{type(symbol).__name__!r} object has no attribute {name!r}")


def _note(what: str, asking: FrameType) -> None:
    assert _NOTES.found is not None
    module = str(asking.f_globals.get("__name__"))
    if module.partition(".")[0] not in _KNOWING and not _is_in_hybridized(asking):
        _NOTES.found.append(what)


def _is_in_hybridized(frame: FrameType | None) -> bool:
    """Whether a Block called it, of those that are traced, that MXNet gives Symbols as well."""
    block = import_mxnet().gluon.HybridBlock
    while frame is not None and frame.f_globals.get("__name__") != "graphopt.frontend.gluon":
        caller = frame.f_locals.get("self")
        if isinstance(caller, block) and getattr(caller, "_active", False):
            return True
        frame = frame.f_back
    return False


@cache
def _own_methods() -> dict[str, Callable[..., Any]]:
    return {name: vars(import_mxnet().sym.Symbol)[name] for name in _QUESTIONS}


@cache
def _of_arrays() -> frozenset[str]:
    mx = import_mxnet()
    return frozenset({*dir(mx.nd.NDArray), *dir(mx.np.ndarray)} - {*dir(mx.sym.Symbol)})
