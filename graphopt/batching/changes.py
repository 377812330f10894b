"""What batched Blocks must not miss: children and arrays that change after they were recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.frontend.gluon import descendants
from graphopt.kernels import bridge

_PLAIN = (int, float, str, bool, type(None))


def fingerprint(block: Any) -> tuple[Any, ...]:
    """Equal as long as a Block's graph stays what it is: its children, parameters and settings."""
    return tuple(_of_one(part) for part in descendants(block))


def _of_one(block: Any) -> tuple[Any, ...]:
    own = _of_every_block()
    return (
        id(block),
        type(block),
        [(name, id(child)) for name, child in block._children.items()],
        [(name, id(p), p.shape, p.dtype) for name, p in block._reg_params.items()],
        bool(block._forward_hooks or block._forward_pre_hooks),
        [(k, value) for k, value in vars(block).items() if k not in own and _is_plain(value)],
    )


@cache
def _of_every_block() -> frozenset[str]:
    """Attributes that MXNet itself sets, some of them in every call."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock()))


def _is_plain(value: Any) -> bool:
    """Whether it can be compared: arrays, also in tuples, compare element by element."""
    if type(value) is tuple:
        return all(_is_plain(item) for item in value)
    return type(value) in _PLAIN


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    """Arrays as they were.

    Attributes:
        arrays: with how often each had been written.
    """

    arrays: tuple[tuple[Any, int], ...]

    def check(self) -> None:
        """Raise if one of them was written since.

        Raises:
            GraphoptError: so it was.
        """
        now = watched(array for array, _ in self.arrays)
        if [count for _, count in now.arrays] != [count for _, count in self.arrays]:
            raise GraphoptError(
                "a value that a batched Block did not return is read for the first time after"
                " parameters or inputs were changed, and can no longer be computed: read it before"
                " (.asnumpy()), or return it from the Block"
            )


def watched(arrays: Iterable[Any]) -> Watched:
    """Arrays as they are when what was started on them is done."""
    count = bridge.load(import_mxnet()).graphopt_version
    found: list[tuple[Any, int]] = []
    for array in arrays:
        array.wait_to_read()
        found.append((array, int(count(array.handle))))
    return Watched(tuple(found))
