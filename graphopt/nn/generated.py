"""Generated subclasses of users' classes."""

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
    told["_graphopt_shown"] = cls
    metaclass: Any = type(cls)
    joined = kind if metaclass is type else type(metaclass.__name__, (kind, metaclass), {})
    return type.__new__(joined, cls.__name__, (mixin, cls), told | body)


class Generated(type):
    """The class of generated classes."""

    def __instancecheck__(cls, value: Any) -> bool:
        """Gluon lets a child be replaced by an instance of its class only."""
        shown = _shown(cls)
        return super().__instancecheck__(value) if shown is cls else isinstance(value, shown)


def _shown(cls: Any) -> Any:
    """The user's class that a generated one is taken for; of all else, subclasses too, itself."""
    return vars(cls).get("_graphopt_shown", cls) if isinstance(cls, Generated) else cls
