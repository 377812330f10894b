"""Operators that were called one after the other, and what they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

from graphopt.analysis.effects import MASKING
from graphopt.analysis.slopes import may_be_steep
from graphopt.batching.operators import name_of
from graphopt.compat import import_mxnet
from graphopt.ir.ops import info
from graphopt.recording.children import Child, called
from graphopt.recording.types import Type, recordable

mx = import_mxnet()
#: MXNet's own, whatever is put in its place while something is recorded.
INVOKE: Final = mx.ndarray.register._imperative_invoke


class Call(NamedTuple):
    """One operator call.

    Attributes:
        op: MXNet's handle of the operator, or a hybridized child's graph.
        keys: names of its attributes.
        vals: their values as MXNet is told them.
        args: numbers of values on the tape; leaves count down from -1.
        results: how many values it makes.
        is_detach: whether it is ``detach``, which no gradient comes through; ``BlockGrad``, the
            same operator, lets zeros through.
    """

    op: int | Child
    keys: tuple[str, ...]
    vals: tuple[str, ...]
    args: tuple[int, ...]
    results: int
    is_detach: bool = False


class Calls:
    """Calls, and arrays from outside that they read.

    Attributes:
        ctx: where everything is.
        calls: in their order.
        leaves: the arrays.
        leaf_types: their types; ``None`` for one that is elsewhere or sparse.
        cached_ops: by which MXNet makes the calls of hybridized children.
    """

    ctx: Any
    calls: list[Call]
    leaves: list[Any]
    leaf_types: list[Type | None]
    cached_ops: dict[Child, Any]

    def replayed(self, wanted: Sequence[int]) -> list[Any]:
        """The values of those numbers, computed call by call."""
        values: dict[int, Any] = {}
        self.replay(range(len(self.calls)), values)
        return [values[number] for number in wanted]

    def replay(self, which: Iterable[int], values: dict[int, Any]) -> None:
        """Make some of the calls, in their order; ``values`` has others, and gets theirs."""
        firsts = firsts_of(self.calls)
        for at in which:
            call = self.calls[at]
            args = [values[n] if n >= 0 else self.leaves[~n] for n in call.args]
            if isinstance(call.op, Child):
                found = called(call.op, self.cached_ops[call.op], args)
            else:
                found = INVOKE(call.op, args, call.keys, call.vals, None, False, True)
            if call.is_detach:
                found = [array.detach() for array in found]
            values.update(enumerate(found, firsts[at]))


class Part(Calls):
    """Some of the calls, which read what others computed before as arrays from outside."""

    def __init__(self, whole: Calls, which: Sequence[int], values: Mapping[int, Any]) -> None:
        """``which``: their places; ``values``: by number, all that they read of others."""
        self.ctx, self.calls, self.cached_ops = whole.ctx, [], whole.cached_ops
        self.leaves, self.leaf_types = [], []
        self._whole, self._values = whole, values
        self._numbers: dict[int, int] = {}  # here, by those there
        firsts, made = firsts_of(whole.calls), 0
        for at in which:
            call = whole.calls[at]
            args = tuple(map(self._number, call.args))
            self.calls.append(call._replace(args=args))
            for result in range(call.results):
                self._numbers[firsts[at] + result] = made + result
            made += call.results

    def numbers(self, there: Iterable[int]) -> tuple[int, ...]:
        """The numbers that values have here."""
        return tuple(self._numbers[number] for number in there)

    def _number(self, there: int) -> int:
        found = self._numbers.get(there)
        if found is None:
            found = self._numbers[there] = ~len(self.leaves)
            if there < 0:
                self.leaves.append(self._whole.leaves[~there])
                self.leaf_types.append(self._whole.leaf_types[~there])
            else:
                self.leaves.append(self._values[there])
                self.leaf_types.append(type_of(self._values[there], self.ctx))
        return found


def firsts_of(calls: Sequence[Call]) -> list[int]:
    """The number of the first result of each call, and of all results."""
    return [0, *accumulate(call.results for call in calls)]


def type_of(array: Any, ctx: Any) -> Type | None:
    """A dense array's type; ``None`` for one that is elsewhere or sparse, or in bfloat16."""
    if array.ctx != ctx or array.stype != "default":
        return None
    return recordable(array.shape, array.dtype)


def samples(op: int | Child) -> bool:
    """Whether an operator draws numbers that a seed is to give again, in the program's order."""
    return op.samples if isinstance(op, Child) else _samples(op)


@cache
def _samples(op: int) -> bool:
    name = name_of(op)
    return name not in MASKING and info(name).random


def is_loss(op: int | Child) -> bool:
    """Whether an operator has a gradient of its own, whatever comes from behind it."""
    return op.is_loss if isinstance(op, Child) else info(name_of(op)).loss


def is_steep(call: Call) -> bool:
    """Whether a head gradient of zero may become NaN in its backward."""
    if isinstance(call.op, Child):
        return call.op.is_steep
    return _is_steep(call.op, call.keys, call.vals)


@lru_cache(maxsize=4096)
def _is_steep(op: int, keys: tuple[str, ...], vals: tuple[str, ...]) -> bool:
    return may_be_steep(name_of(op), dict(zip(keys, vals, strict=True)))


def operators_of(calls: Iterable[Call]) -> int:
    """How many operators calls make, those of children counted one by one."""
    return sum(call.op.size if isinstance(call.op, Child) else 1 for call in calls)
