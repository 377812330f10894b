"""Which arrays a value of a program has a gradient to, as call by call.

To autograd a compiled program is one operator: each value that it makes leads to every array that
it reads. Call by call a value leads to what it was computed from alone. The difference shows where
an array has a history that is used up already, as a moving mean has that a Block keeps from call to
call: backward from the loss must not come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from graphopt.recording.children import Child

if TYPE_CHECKING:
    from graphopt.recording.calls import Call

#: Bit of all parameters in a set of leaves; leaf n has bit n + 1.
_PARAMETERS: Final = 1


class Split(NamedTuple):
    """How the values of a program are computed.

    Attributes:
        together: numbers of values that are computed as one operator, with all of a hybridized
            child's where backward comes to more of it than to one alone.
        detached: those among them that have no history.
        cut: leaves that no value of the program has a gradient to.
        apart: calls that are made one by one behind it.
    """

    together: tuple[int, ...]
    detached: frozenset[int] = frozenset()
    cut: frozenset[int] = frozenset()
    apart: tuple[int, ...] = ()


class Histories:
    """What the values of one program lead to; computed once a program."""

    def __init__(
        self, calls: Sequence[Call], wanted: Sequence[int], leaf_sets: Sequence[int]
    ) -> None:
        """``leaf_sets``: per leaf the set that it is, see :func:`leaf_set`."""
        self._calls, self._wanted, self._leaf_sets = calls, wanted, leaf_sets
        self._makers: list[int] = []
        self._sets: list[int] = []
        for at, call in enumerate(calls):
            led_to = 0 if call.is_detach else _union(map(self._set_of, call.args))
            self._sets += [led_to] * call.results
            self._makers += [at] * call.results
        self._of_children = [n for n, at in enumerate(self._makers) if _reads_more(calls[at])]
        self._doubtful = self._told_apart() & ~_PARAMETERS
        self._known: dict[int, Split | None] = {}

    def _told_apart(self) -> int:
        """The leaves on whose history it depends how values are computed."""
        found = [self._sets[n] for n in self._wanted if self._sets[n]]
        every = _union(found)
        several = every & ~_intersection(found)
        if every & _PARAMETERS:
            several |= _union(s for s in found if not s & _PARAMETERS)
        return several

    def split(self, has_history: Callable[[int], bool]) -> Split | None:
        """How to compute the values; ``None``: call by call.

        ``has_history``: whether a leaf leads anywhere; asked only where that makes a difference.
        """
        without = 0
        for leaf in range(self._doubtful.bit_length()):
            bit = _PARAMETERS << (leaf + 1)
            if self._doubtful & bit and not has_history(leaf):
                without |= bit
        if without not in self._known:
            self._known[without] = self._found(~without)
        return self._known[without]

    def _found(self, known: int) -> Split | None:
        led = {n: self._sets[n] & known for n in self._wanted}
        kinds = {found & ~_PARAMETERS for found in led.values() if found}
        by_work = sorted(kinds, key=lambda kind: -len(self._behind(self._of(led, kind))))
        for kind in by_work or [0]:
            found = self._around(led, kind, known)
            if found is not None:
                return found
        return None

    def _of(self, led: dict[int, int], kind: int) -> list[int]:
        """The values that lead to those leaves, or nowhere."""
        return [n for n, found in led.items() if not found or found & ~_PARAMETERS == kind]

    def _around(self, led: dict[int, int], kind: int, known: int) -> Split | None:
        """The program of the values that lead to those leaves; None if others would be wrong."""
        together = self._of(led, kind)
        others = [n for n in led if n not in together]
        inside = self._behind(together)
        apart = self._behind(others) - inside
        read = {n for at in apart for n in self._calls[at].args if n >= 0}
        handed = {n for n in read if self._makers[n] in inside} - {*together}
        sets = {n: self._sets[n] & known & ~_PARAMETERS for n in handed}
        if any(self._makers[n] in inside for n in others) or _union(sets.values()) & ~kind:
            return None
        for call in (self._calls[at] for at in apart):
            # What is handed on leads to all that the program reads.
            is_led = any(n in handed and self._sets[n] & known for n in call.args)
            if is_led and kind & ~_union(map(self._set_of, call.args)):
                return None
        numbers = (*together, *sorted(handed))
        computed = {*numbers} | {n for at in inside for n in self._calls[at].args}
        numbers += tuple(
            n for n in self._of_children if self._makers[n] in inside and n not in computed
        )
        detached = frozenset(n for n in numbers if not self._sets[n] & known)
        led_to = _PARAMETERS | _union(self._sets[n] for n in numbers if n not in detached)
        cut = frozenset(n for n, own in enumerate(self._leaf_sets) if own and not own & led_to)
        return Split(numbers, detached, cut, tuple(sorted(apart)))

    def _behind(self, numbers: Iterable[int]) -> set[int]:
        """The calls that values are computed by."""
        found: set[int] = set()
        pending = [n for n in numbers if n >= 0]
        while pending:
            at = self._makers[pending.pop()]
            if at not in found:
                found.add(at)
                pending += [n for n in self._calls[at].args if n >= 0]
        return found

    def _set_of(self, number: int) -> int:
        return self._sets[number] if number >= 0 else self._leaf_sets[~number]


def _reads_more(call: Call) -> bool:
    """Whether it is a child's, and backward comes to more than a result of it is computed from."""
    return isinstance(call.op, Child) and not call.op.is_even


def leaf_set(leaf: int, name: str | None, constants: Collection[str]) -> int:
    """The set of one leaf: parameters are one, but for those that never learn."""
    if name is None:
        return _PARAMETERS << (leaf + 1)
    return 0 if name in constants else _PARAMETERS


def _union(sets: Iterable[int]) -> int:
    found = 0
    for each in sets:
        found |= each
    return found


def _intersection(sets: Iterable[int]) -> int:
    found = -1
    for each in sets:
        found &= each
    return found
