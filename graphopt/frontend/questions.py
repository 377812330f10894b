"""What Python of Blocks asks of arrays, where Symbols in their place give another answer."""

from __future__ import annotations

import json
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
    "__deepcopy__": "a copy of an array",
    "__copy__": "a copy of an array",
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
    """What a Block that is traced asks for that Symbols do not know, or know otherwise.

    A Symbol of one array is a list of one item, itself, and no state of autograd comes into a
    graph. Hybridized Blocks are given Symbols by MXNet, too.
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


def draws_without_shape(symbol: Any) -> bool:
    """Whether an operator draws as many numbers as others read; of arrays it draws one."""
    text = symbol.tojson()
    if '"op": "_random_' not in text:
        return False
    return any(
        node["op"].startswith("_random_")
        and not node["inputs"]
        and "shape" not in node.get("attrs", {})
        for node in json.loads(text)["nodes"]
    )


def _listen(more: int) -> None:
    """Hear what Symbols are asked as long as a trace is under way."""
    global _traces
    with _TURN:
        was, _traces = _traces, _traces + more
        if bool(was) == bool(_traces):
            return
        for (cls, name), (own, heard) in _methods().items():
            if _traces or own is not None:
                setattr(cls, name, heard if _traces else own)
            else:
                delattr(cls, name)


@cache
def _methods() -> dict[tuple[type, str], tuple[Any, Callable[..., Any]]]:
    """Methods by class and name: MXNet's own, ``None`` where it has none, and one that listens."""
    mx = import_mxnet()
    symbol, refused = mx.sym.Symbol, mx.base.NotImplementedForSymbol
    scope = mx.autograd._RecordingStateScope
    found: dict[tuple[type, str], tuple[Any, Callable[..., Any]]] = {
        (symbol, name): (vars(symbol)[name], _asking(name, vars(symbol)[name]))
        for name in _QUESTIONS
    }
    found[symbol, "__getattr__"] = None, _missing
    found[symbol, "reshape"] = symbol.reshape, _reshaping(symbol.reshape)
    found[refused, "__init__"] = refused.__init__, _refusing(refused.__init__)
    found[scope, "__enter__"] = scope.__enter__, _entering(scope.__enter__)
    return found


def _asking(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    length = import_mxnet().sym.Symbol.__len__

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
    while frame is not None and frame.f_globals.get("__name__") != "graphopt.frontend.gluon":
        caller = frame.f_locals.get("self")
        if isinstance(caller, block) and getattr(caller, "_active", False):
            return True
        frame = frame.f_back
    return False


@cache
def _of_arrays() -> frozenset[str]:
    mx = import_mxnet()
    return frozenset({*dir(mx.nd.NDArray), *dir(mx.np.ndarray)} - {*dir(mx.sym.Symbol)})
