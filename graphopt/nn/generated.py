"""Generated subclasses of users' classes, which code takes for these classes themselves.

``self.__class__`` is the user's class. ``type(self)`` is not, but it compares equal to it, what is
set on it is set on the user's, and so on: only ``is`` and ``super(type(self), self)`` tell.
"""

from __future__ import annotations

from typing import Any


def generated_class(kind: type, mixin: type, cls: Any, body: dict[str, Any]) -> Any:
    """A subclass of a user's class that nothing of the user's hears of.

    A metaclass of the user's may note the classes it makes, and takes arguments that nobody has.

    Args:
        kind: its class, :class:`Generated` or one of that.
        mixin: stands in front of the user's class, and has an ``__init_subclass__`` that is silent.
        cls: the user's.
        body: further attributes.
    """
    # The same name: Gluon derives parameter names from it.
    told = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    told |= {"_graphopt_shown": cls, "__class__": property(lambda _: cls)}
    told["_graphopt_replaced"] = {}
    metaclass: Any = type(cls)
    joined = kind if metaclass is type else type(metaclass.__name__, (kind, metaclass), {})
    return type.__new__(joined, cls.__name__, (mixin, cls), told | body)


def set_own(cls: type, name: str, value: Any) -> None:
    """Set an attribute on a generated class itself."""
    type.__setattr__(cls, name, value)


def delete_own(cls: type, name: str) -> None:
    """Take one from a generated class itself."""
    type.__delattr__(cls, name)


class Generated(type):
    """The class of generated classes."""

    _graphopt_replaced: dict[str, Any]

    def __eq__(cls, other: object) -> bool:
        shown = _shown(cls)
        return super().__eq__(_shown(other)) if shown is cls else bool(shown == _shown(other))

    def __hash__(cls) -> int:
        return hash(_shown(cls)) if _shown(cls) is not cls else super().__hash__()

    def __instancecheck__(cls, value: Any) -> bool:
        """Gluon lets a child be replaced by an instance of its class only."""
        shown = _shown(cls)
        return super().__instancecheck__(value) if shown is cls else isinstance(value, shown)

    def __subclasscheck__(cls, other: Any) -> bool:
        shown = _shown(cls)
        if shown is cls:
            return super().__subclasscheck__(other)
        return type.__subclasscheck__(shown, other)  # ABCMeta would ask all subclasses, so this one

    def __getitem__(cls, key: Any) -> Any:
        shown = _shown(cls)
        return cls.__class_getitem__(key) if shown is cls else shown[key]

    def __setattr__(cls, name: str, value: Any) -> None:
        shown = _shown(cls)
        if shown is cls:
            super().__setattr__(name, value)
            return
        if name in vars(shown):
            cls._graphopt_replaced.setdefault(name, vars(shown)[name])
        setattr(shown, name, value)

    def __delattr__(cls, name: str) -> None:
        """What was set, and stood for what the class had: so tests patch what a class inherits."""
        shown = _shown(cls)
        if shown is cls:
            super().__delattr__(name)
        elif name in cls._graphopt_replaced:
            setattr(shown, name, cls._graphopt_replaced.pop(name))
        else:
            delattr(shown, name)


def _shown(cls: Any) -> Any:
    """The user's class that a generated one is taken for; of all else, subclasses too, itself."""
    return vars(cls).get("_graphopt_shown", cls) if isinstance(cls, Generated) else cls
