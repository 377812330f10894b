"""What Python of Blocks asks of arrays, where Symbols in their place give another answer."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import FrameType
from typing import Any, Final

from graphopt.backend.documents import every_node, text_of
from graphopt.compat import import_mxnet
from graphopt.forking import lock

_QUESTIONS: Final = {
    "__len__": "the length of an array",
    "__iter__": "the rows of an array",
    "__getitem__": "a part of an array",
    "__bool__": "the truth of an array",
    "__deepcopy__": "a copy of an array",
    "__copy__": "a copy of an array",
}
#: Their code knows which of both it has.
_KNOWING: Final = ("mxnet", "graphopt")
#: Who calls Blocks with Symbols.
_TRACING: Final = ("graphopt.frontend.gluon", "graphopt.batching.tracing")


class _Notes(threading.local):
    """What this thread's Blocks asked, while they are traced."""

    found: list[str] | None = None


_NOTES: Final = _Notes()
_TURN: Final = lock()
_traces = 0  # under way, in all threads
#: Methods that listen: their class or module, their name, MXNet's own, and what is there instead.
_HEARD: Final[list[tuple[Any, str, Any, Any]]] = []


@contextmanager
def noting_questions(block: Any) -> Iterator[list[str]]:
    """What a Block that is traced asks for that Symbols do not know, or know otherwise.

    A Symbol of one array is a list of one item, itself, and no state of autograd comes into a
    graph. Hybridized Blocks are given Symbols by MXNet, too.
    """
    found: list[str] = []
    if getattr(block, "_active", False):
        yield found
        return
    _length()  # before somebody listens
    _listen(1)
    before, _NOTES.found = _NOTES.found, found
    try:
        yield found
    finally:
        _NOTES.found = before
        _listen(-1)


def draws_without_shape(symbol: Any) -> bool:
    """Whether an operator draws as many numbers as others read; of arrays it draws one."""
    text = text_of(symbol)
    if '"op": "_random_' not in text:
        return False
    return any(
        node["op"].startswith("_random_")
        and not node["inputs"]
        and "shape" not in node.get("attrs", {})
        for node in every_node(json.loads(text))
    )


def _listen(more: int) -> None:
    """Hear what Symbols are asked as long as a trace is under way."""
    global _traces
    with _TURN:
        if not _traces:
            for cls, name, listening in _methods():
                own = vars(cls).get(name)
                heard = listening(own)
                setattr(cls, name, heard)
                _HEARD.append((cls, name, own, heard))
        _traces += more
        while not _traces and _HEARD:
            cls, name, own, heard = _HEARD.pop()
            if vars(cls).get(name) is not heard:
                continue  # somebody has set another one since
            if own is None:
                delattr(cls, name)
            else:
                setattr(cls, name, own)


@cache
def _methods() -> list[tuple[Any, str, Callable[[Any], Callable[..., Any]]]]:
    """Classes, or modules, and their methods, and what makes of MXNet's own one that listens."""
    mx = import_mxnet()
    symbol, array = mx.sym.Symbol, mx.sym.np._Symbol
    found: list[tuple[Any, str, Callable[[Any], Callable[..., Any]]]] = [
        (cls, name, partial(_asking, name))
        for cls in (symbol, array)
        for name in _QUESTIONS
        if name in vars(cls) and (cls is symbol or name != "__getitem__")  # which is as arrays'
    ]
    return [
        *found,
        (symbol, "__getattr__", lambda _: _missing),
        (symbol, "reshape", _reshaping),
        (mx.sym.np._symbol, "_ufunc_helper", _calculating),
        (mx.base.NotImplementedForSymbol, "__init__", _refusing),
        (mx.autograd._RecordingStateScope, "__enter__", _entering),
    ]


@cache
def _length() -> Callable[[Any], int]:
    """How many arrays a Symbol is of."""
    found: Callable[[Any], int] = import_mxnet().sym.Symbol.__len__
    return found


def _asking(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    length = _length()

    def method(symbol: Any, *args: Any) -> Any:
        if _NOTES.found is not None and length(symbol) == 1:
            _note(_QUESTIONS[name], sys._getframe(1))
        return own(symbol, *args)

    return method


def _missing(symbol: Any, name: str) -> Any:
    """What no Symbol has."""
    if _NOTES.found is not None and name in _of_arrays():
        _note(f"{name!r} of an array", sys._getframe(1))
    raise AttributeError(f"{type(symbol).__name__!r} object has no attribute {name!r}")


def _reshaping(own: Callable[..., Any]) -> Callable[..., Any]:
    """``x.reshape(2, -1)``, which is of one extent, and reversed, of a Symbol."""

    def method(symbol: Any, *args: Any, **options: Any) -> Any:
        is_of_arrays = len(args) > 1 and _NOTES.found is not None and _counts(sys._getframe(1))
        return own(symbol, args, **options) if is_of_arrays else own(symbol, *args, **options)

    return method


def _calculating(own: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic with a number, of which Symbols say whether it is whole, and arrays do not."""

    def method(lhs: Any, rhs: Any, *functions: Any, **options: Any) -> Any:
        if _NOTES.found is not None and not _is_in_hybridized(sys._getframe(1)):
            functions = tuple(map(_as_of_arrays, functions))
        return own(lhs, rhs, *functions, **options)

    return method


def _as_of_arrays(function: Any) -> Any:
    """An operator that is not told whether a number is whole, if that is what it is."""
    if not callable(function):
        return function

    def called(*args: Any, **options: Any) -> Any:
        options.pop("is_int", None)
        return function(*args, **options)

    return called


def _refusing(own: Callable[..., None]) -> Callable[..., None]:
    def method(error: Any, function: Any, *args: Any) -> None:
        asking = sys._getframe(1).f_back  # of the method that raises it
        if _NOTES.found is not None and asking is not None:
            _note(f"{getattr(function, '__name__', function)!r} of an array", asking)
        own(error, function, *args)

    return method


def _entering(own: Callable[..., None]) -> Callable[..., None]:
    autograd = import_mxnet().autograd

    def method(scope: Any) -> None:
        now = autograd.is_recording(), autograd.is_training()
        then = scope._enter_is_record, scope._enter_train_mode
        changes = any(new not in (None, old) for new, old in zip(then, now, strict=True))
        if _NOTES.found is not None and changes:
            _note("another state of autograd", sys._getframe(1))
        own(scope)

    return method


def _note(what: str, asking: FrameType) -> None:
    assert _NOTES.found is not None
    if _counts(asking):
        _NOTES.found.append(what)


def _counts(asking: FrameType) -> bool:
    """Whether code asks that was written for arrays, for all it knows."""
    found: FrameType | None = asking
    while found is not None and found.f_globals.get("__name__") == "copy":
        found = found.f_back
    if found is None:
        return False
    module = str(found.f_globals.get("__name__"))
    return module.partition(".")[0] not in _KNOWING and not _is_in_hybridized(found)


def _is_in_hybridized(frame: FrameType | None) -> bool:
    """Whether a Block called it, of those that are traced, that MXNet gives Symbols as well."""
    block = import_mxnet().gluon.HybridBlock
    while frame is not None and frame.f_globals.get("__name__") not in _TRACING:
        caller = frame.f_locals.get("self")
        if isinstance(caller, block) and getattr(caller, "_active", False):
            return True
        frame = frame.f_back
    return False


@cache
def _of_arrays() -> frozenset[str]:
    mx = import_mxnet()
    return frozenset({*dir(mx.nd.NDArray), *dir(mx.np.ndarray)} - {*dir(mx.sym.Symbol)})
