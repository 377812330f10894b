"""Classes of Blocks whose instances compile themselves."""

from __future__ import annotations

import sys
from typing import Any

from graphopt.nn.config import Config
from graphopt.nn.optimized import Optimized
from graphopt.nn.originals import beside
from graphopt.nn.views import methods_of, share, view_class

#: Of a class: the generated one of its instances, and what that was generated of.
_MADE = "_graphopt_made"
#: Of a class that optimizes in place of another one: that one.
_OF = "_graphopt_of"


class _Another:
    """In front of a class that has to stay as it is, in one that optimizes."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        if _OF not in vars(cls):  # a subclass that the user wrote
            super().__init_subclass__(**arguments)


def optimized_class(cls: type, config: Config) -> Any:
    """What makes optimized instances: the class itself where it is being decorated.

    So ``super(Net, self)``, ``isinstance``, pickles by name and subclasses mean what they did. One
    that is in use by its name stays as it is, and another one of that name is returned.
    """
    if issubclass(cls, Optimized):
        cls = cls._graphopt_base
    if _is_in_use(cls):
        body = {_OF: cls, "__doc__": cls.__doc__}
        body |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        cls = type(cls)(cls.__name__, (_Another, cls), body)
    optimized: Any = cls
    optimized.__new__ = staticmethod(_new(cls, config))
    return optimized


def _is_in_use(cls: type) -> bool:
    """Whether a name refers to it: none does while it is being decorated."""
    found: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split("."):
        found = getattr(found, name, None)
    frame: Any = sys._getframe(1)
    while found is not cls and frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("graphopt."):
            found = frame.f_locals.get(cls.__name__, found)
        frame = frame.f_back
    return found is cls


def _new(cls: type, config: Config) -> Any:
    """Makes an instance of a generated subclass, which ``__init__`` takes for one of its own."""
    own = vars(cls).get("__new__")

    def make(kind: Any, *args: Any, **kwargs: Any) -> Any:
        is_made = issubclass(kind, Optimized)  # by the class of a decorated subclass
        generated = kind if is_made else _class_of_instances(kind, config)
        before: Any = super(cls, kind)
        new = before.__new__ if own is None else own.__get__(None, kind)
        is_objects = new is object.__new__  # which takes no arguments
        found = new(generated) if is_objects else new(generated, *args, **kwargs)
        if not is_made and type(found) is generated:
            share(found, beside(found))
        return found

    return make


def _class_of_instances(cls: Any, config: Config) -> Any:
    """Generated once, and anew where methods are others since, as notebooks reload them."""
    methods = {name: id(method) for name, method in methods_of(cls).items()}
    parts = config, methods, cls.forward
    known = vars(cls).get(_MADE)
    if known is None or known[0] != parts:
        plain = vars(cls).get(_OF, cls)
        known = parts, view_class(cls, config, plain=plain, is_decorated=True)
        setattr(cls, _MADE, known)
    return known[1]
