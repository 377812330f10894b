"""Making optimized views of Gluon Blocks: the subclasses of users' classes, and instances."""

from __future__ import annotations

import functools
import os
from types import FunctionType
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.nn.calls import forwarding, has_symbol, run, taken_apart
from graphopt.nn.config import Config
from graphopt.nn.generated import Generated, generated_class
from graphopt.nn.optimized import OWN, STATE, Optimized
from graphopt.nn.originals import beside, original
from graphopt.nn.slots import Slot, members_of
from graphopt.nn.twins import pairs_of
from graphopt.nn.yielding import owned
from graphopt.recording.active import ACTIVE


def view(block: Any, config: Config) -> Any:
    """An optimized view of a Block.

    Raises:
        InputError: it is no Gluon Block.
    """
    mx = import_mxnet()
    if not isinstance(block, mx.gluon.Block):
        if block is None:
            raise InputError("cannot optimize None: does what builds the net return it?")
        kind = type(block).__name__
        others = "a Symbol, a module, an executor or a Trainer"
        hint = "; graphopt.load reads files" if isinstance(block, (str, os.PathLike)) else ""
        raise InputError(f"cannot optimize a {kind}: give a Gluon Block, {others}{hint}")
    if isinstance(block, Optimized):
        block = original(block)
    twin: Any = object.__new__(view_class(type(block), config))
    twin.__dict__ = block.__dict__
    return share(twin, block)


def share(view: Any, own: Any) -> Any:
    """The view, of that object of the user's, whose ``__dict__`` it has."""
    object.__setattr__(view, OWN, own)
    return view


def instance(cls: type, config: Config) -> Any:
    """An instance of a decorated class as it is before ``__init__``, for what copies it."""
    twin: Any = object.__new__(view_class(cls, config, is_decorated=True))
    return share(twin, beside(twin))


def view_class(
    cls: Any, config: Config, *, plain: type | None = None, is_decorated: bool = False
) -> type:
    """A subclass of a Block class whose instances compile themselves.

    Args:
        cls: the user's class.
        config: what the user asked for.
        plain: the class of the user's objects, if that is another one.
        is_decorated: instances are the user's objects themselves.
    """
    body: dict[str, Any] = {
        "__slots__": (STATE, OWN),
        "_graphopt_config": config,
        "_graphopt_base": plain or cls,
        "_graphopt_is_decorated": is_decorated,
        "_graphopt_has_call": _has_call(cls),
    }
    body |= {name: Slot(member, original) for name, member in members_of(cls).items()}
    if hasattr(cls, "__del__"):
        body["__del__"] = _stay  # the user's object has one
    hybrid, sequential = import_mxnet().gluon.HybridBlock, import_mxnet().gluon.nn.Sequential
    forward, is_hybrid = cls.forward, issubclass(cls, hybrid)
    for name, method in methods_of(cls).items():
        if not is_hybrid:
            body[name] = _on_children(name, method)
        elif hasattr(Optimized, name):
            body[name] = method
    if is_hybrid and not _is_gluons(cls.export.__module__):  # where use_np() wraps it, too
        body["export"] = cls.export  # its files have other names, or more in them
    if forward in (hybrid.forward, sequential.forward):
        body["forward"] = _forward(forward)
    if not is_decorated and getattr(cls, "__getitem__", None) in _getitems():
        body["__getitem__"] = _getitem
    made: type = generated_class(Generated, Optimized, cls, body)
    return made


def _has_call(cls: type) -> bool:
    """Whether ``__call__`` is the user's."""
    owner = next(base for base in cls.__mro__ if "__call__" in vars(base))
    return not _is_gluons(owner.__module__)


def _is_gluons(module: str) -> bool:
    return module.partition(".")[0] == "mxnet"


def _stay(view: Any) -> None:
    """Nothing ends with a view."""


def _forward(plain: Any) -> Any:
    """``forward`` of a Block whose code is Gluon's, which methods of it and other Blocks may call.

    It is where Gluon runs the graph of a hybridized Block, so it runs ours.
    """

    @functools.wraps(plain)
    def forward(self: Any, *args: Any) -> Any:
        if ACTIVE.tape or has_symbol(args):
            return plain(self, *args)
        with forwarding(self):
            return run(self, args)

    return forward


def _getitems() -> tuple[Any, ...]:
    """Gluon's own, which make slices by calling the class of what is sliced."""
    nn = import_mxnet().gluon.nn
    return nn.Sequential.__getitem__, nn.HybridSequential.__getitem__


def _getitem(self: Any, key: Any) -> Any:
    """A layer, or a view of a slice of the user's Block."""
    found = original(self)[key]
    return view(found, self._graphopt_config) if isinstance(key, slice) else found


def _on_children(name: str, method: Any) -> Any:
    """A method of a plain Block, run on one whose children are optimized.

    What it returns holds the user's Blocks; itself it is the view that was called.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if ACTIVE.tape or "_children" not in vars(self):
            return method(self, *args, **kwargs)
        twin = taken_apart(self)
        pairs = pairs_of(twin)
        try:
            given = {key: pairs.given(value) for key, value in kwargs.items()}
            found = getattr(twin, name)(*map(pairs.given, args), **given)
            return self if found is twin else owned(found, pairs)
        finally:
            pairs.settle()

    return call


def methods_of(cls: type) -> dict[str, Any]:
    """Methods by name that a plain Block's classes define, none of Gluon's and none of ours."""
    found: dict[str, Any] = {}
    gluon = import_mxnet().gluon
    own = gluon.HybridBlock if issubclass(cls, gluon.HybridBlock) else gluon.Block
    for base in cls.__mro__:
        for name, value in vars(base).items():
            found.setdefault(name, value if base.__module__.partition(".")[0] != "mxnet" else None)
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, FunctionType)
        and not name.startswith("__")
        and not name.startswith("_graphopt")
        and not hasattr(own, name)
    }
