"""What Blocks are made of, and the Symbols that stand for their arguments."""

from __future__ import annotations

from typing import Any, Final

from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError

#: Graphs of so many operators are taken apart by MXNet if it does not say otherwise.
_INLINE_LIMIT: Final = 2


def descendants(block: Any) -> list[Any]:
    """A Block and all Blocks in it, each once, outermost first."""
    found: dict[int, Any] = {}
    stack = [block]
    while stack:
        current = stack.pop()
        if id(current) not in found:
            found[id(current)] = current
            stack.extend(reversed(list(current._children.values())))
    return list(found.values())


def describe(block: Any) -> str:
    """A Block for messages: its class and name, or what its class says of Blocks that are ours."""
    own = getattr(type(block), "graphopt_described", None)
    return own(block) if own is not None else f"{type(block).__name__} {block.name!r}"


def all_parameters(block: Any) -> Any:
    """All parameters of a Block and those in it, by name.

    Raises:
        UnsupportedError: two have one name, as in an ensemble of Blocks of one file, which MXNet
            minds where it needs them all.
    """
    try:
        return block.collect_params()
    except AssertionError as error:
        raise UnsupportedError(f"{describe(block)} cannot collect parameters: {error}") from None


def input_names(count: int, name: str = "data") -> tuple[str, ...]:
    """What a Block's inputs are called in graphs, as Gluon calls them."""
    return (name,) if count == 1 else tuple(f"{name}{i}" for i in range(count))


def variable_like(name: str, array: Any) -> Any:
    """A variable of the interface, ``mx.nd`` or ``mx.np``, that an array or a Symbol is of."""
    mx = import_mxnet()
    variable = mx.sym.var(name)
    is_np = isinstance(array, (mx.np.ndarray, mx.sym.np._Symbol))
    return variable.as_np_ndarray() if is_np else variable


def is_inlined(block: Any, size: int) -> bool:
    """Whether MXNet calls the operators of a hybridized Block's graph, so many, one by one."""
    flags = dict(block._flags)
    limit = int(flags.get("inline_limit", _INLINE_LIMIT))
    return not flags.get("static_alloc") and size <= limit
