"""Which calls of a program backward reaches together.

Call by call, backward from a loss comes to what the loss was computed from. What it does not reach
keeps its gradients, and a BatchNorm there its running statistics. To autograd a compiled program is
one operator: backward writes a gradient for all that it reads, zeros mostly, and an operator that
is a loss itself (``SoftmaxOutput``) adds its own. So calls that lead to other results of the
program, and where that would show, are programs of their own.

What a Block only keeps, as attention weights to look at, is rarely read by a loss that does not
read what the Block returns as well. So it makes no parts where a returned result leads to all.

A slope may be infinite: zero times it is NaN, which backward then writes to all that lies behind.
So parts are cut once more where a root, a logarithm or a division leads to other results than what
is around it, also to those that are only kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphopt.recording.calls import firsts_of, is_loss, is_steep, samples

if TYPE_CHECKING:
    from graphopt.recording.calls import Call

#: Of more parts than this one program is made if some result leads to all of them, as where many
#: values are held while a Block's Python runs.
MOST: Final = 4


class Share(NamedTuple):
    """What is computed together.

    Attributes:
        calls: their places among the calls of the program, in order.
        wanted: numbers of the values that others read or the program returns.
    """

    calls: tuple[int, ...]
    wanted: tuple[int, ...]


class Sharing:
    """How one program is cut, by who has a history and what is returned."""

    def __init__(
        self, calls: Sequence[Call], wanted: Sequence[int], learned: Sequence[bool]
    ) -> None:
        """See :func:`shares`."""
        self._calls, self._wanted, self._learned = calls, wanted, learned
        self._of_data = _of_data(calls, wanted, learned)
        self._known: dict[Any, list[Share] | None] = {}

    def shares(
        self, has_history: Callable[[int], bool], returned: frozenset[int] | None
    ) -> list[Share] | None:
        """See :func:`shares`; ``has_history``: of a leaf, asked where it makes a difference."""
        alone = frozenset(
            number
            for number, leaves in self._of_data.items()
            if any(has_history(leaf) for leaf in leaves)
        )
        key = returned, alone
        if key not in self._known:
            found = shares(self._calls, self._wanted, self._learned, returned, alone)
            self._known[key] = found
        return self._known[key]


def shares(
    calls: Sequence[Call],
    wanted: Collection[int],
    learned: Sequence[bool],
    returned: Collection[int] | None = None,
    alone: Collection[int] = (),
) -> list[Share] | None:
    """The parts of a program, each behind those that it reads.

    Args:
        calls: of the program.
        wanted: numbers of the values that it returns.
        learned: of each leaf, whether it is a parameter that learns, or a state.
        returned: those that the Block returns, all where nobody can tell; ``None`` while it runs.
        alone: those that lead to no call that shows, and to an array that has a history. A loss
            that reads such a result has gradients in MXNet, and leaves what shows alone.

    Returns:
        ``None`` if the program is one; nothing if it can only run call by call.
    """
    makers = [at for at, call in enumerate(calls) for _ in range(call.results)]
    behind = [{makers[n] for n in call.args if n >= 0} for call in calls]
    led, has_loss = _led(calls, wanted), any(is_loss(call.op) for call in calls)
    shows = [_shows(call, learned, has_loss) for call in calls]
    seen = None if returned is None or has_loss else _bits(wanted, returned)
    groups, may_be_one = _by_what_shows(led, shows, behind, seen, _bits(wanted, alone))
    found = _in_order(calls, groups, wanted, behind)
    if found == []:
        return found
    if may_be_one and returned is None and not has_loss:
        groups, found = [[*range(len(calls))]], None
    finer = _by_slopes(groups, led, shows, _steep(calls, behind), behind)
    return (len(finer) > len(groups) and _in_order(calls, finer, wanted, behind)) or found


def _in_order(
    calls: Sequence[Call],
    groups: Sequence[Sequence[int]],
    wanted: Collection[int],
    behind: Sequence[set[int]],
) -> list[Share] | None:
    """See :func:`shares`."""
    if len(groups) < 2:
        return None
    ordered = _ordered(groups, behind)
    if ordered is None or sum(any(samples(calls[at].op) for at in g) for g in ordered) > 1:
        return []
    found = [_share(calls, group, wanted) for group in ordered]
    return [share for share in found if share.wanted]


def _by_what_shows(
    led: list[int],
    shows: Sequence[bool],
    behind: Sequence[set[int]],
    seen: int | None,
    others: int,
) -> tuple[list[list[int]], bool]:
    """Calls by the results they lead to, as far as that shows; all in one where it does not.

    With it whether these are more than ``MOST``, and some result is one that all of them lead to.

    Args:
        led: the results that each call leads to, as bits.
        shows: whether anybody can tell that backward came to a call.
        behind: the calls that each reads.
        seen: those results that are returned, if that is known and makes a difference.
        others: those that lead to no call that shows, and are read alone.
    """
    kinds = {own for own, yes in zip(led, shows, strict=True) if yes}
    if seen is not None and _common(kinds) & seen:  # what is only kept does not count
        led = [own & seen or own for own in led]
        kinds = {own & seen or own for own in kinds}
        others &= seen
    if not kinds or (len(kinds) < 2 and not others):
        return [[*range(len(led))]], False
    may_be_one = len(kinds) + bool(others) > MOST and bool(_common(kinds))
    told = others | _union(kinds)  # of other results nobody can tell what leads to them
    led = [others if own & others else own & told for own in led]
    return [*_grouped(led, shows, kinds, behind).values()], may_be_one


def _by_slopes(
    groups: Sequence[Sequence[int]],
    led: Sequence[int],
    shows: Sequence[bool],
    steep: Sequence[bool],
    behind: Sequence[set[int]],
) -> list[list[int]]:
    """The groups, cut where a slope may be infinite and leads to fewer results than its group.

    Where that would be many parts, all such slopes of a group are one.
    """
    exact = [one or other for one, other in zip(shows, steep, strict=True)]
    kinds = {own for own, yes in zip(led, exact, strict=True) if yes and own}
    kind_of = {
        at: kind for kind, members in _grouped(led, exact, kinds, behind).items() for at in members
    }
    found: dict[tuple[int, int], list[int]] = {}
    for number, group in enumerate(groups):
        whole = _union(led[at] for at in group)
        apart = {led[at] for at in group if steep[at]} - {0, whole}
        one = next(iter(apart)) if len(apart) > MOST else 0
        for at in group:
            kind = kind_of[at] if kind_of[at] in apart else 0
            found.setdefault((number, kind and (one or kind)), []).append(at)
    return [*found.values()]


def _steep(calls: Sequence[Call], behind: Sequence[set[int]]) -> list[bool]:
    """Which calls have slopes that may be infinite, on the way of a gradient to an array.

    There is none behind numbers that were drawn, as those of a Gumbel softmax.
    """
    is_varied: list[bool] = []
    for call, before in zip(calls, behind, strict=True):
        reads = any(n < 0 for n in call.args) or any(is_varied[at] for at in before)
        is_varied.append(reads and not call.is_detach)
    return [varied and is_steep(call) for varied, call in zip(is_varied, calls, strict=True)]


def _of_data(
    calls: Sequence[Call], wanted: Sequence[int], learned: Sequence[bool]
) -> dict[int, list[int]]:
    """The results that no gradient comes through to what shows, and the leaves it comes to."""
    led, has_loss = _led(calls, wanted), any(is_loss(call.op) for call in calls)
    shown, read = 0, [0] * len(learned)
    for call, own in zip(calls, led, strict=True):
        shown |= own if _shows(call, learned, has_loss) else 0
        for number in call.args:
            if number < 0 and not call.is_detach:
                read[~number] |= own
    bits = {number: 1 << bit for bit, number in enumerate(wanted)}
    return {
        number: [leaf for leaf, own in enumerate(read) if own & bit]
        for number, bit in bits.items()
        if not shown & bit
    }


def _led(calls: Sequence[Call], wanted: Iterable[int]) -> list[int]:
    """The results that a gradient comes to each call from, as bits."""
    firsts = firsts_of(calls)
    of_value = [0] * firsts[-1]
    for bit, number in enumerate(wanted):
        of_value[number] |= 1 << bit
    found = [0] * len(calls)
    for at in reversed(range(len(calls))):
        call = calls[at]
        for number in range(firsts[at], firsts[at + 1]):
            found[at] |= of_value[number]
        if not call.is_detach:
            for number in call.args:
                if number >= 0:
                    of_value[number] |= found[at]
    return found


def _bits(wanted: Iterable[int], chosen: Collection[int]) -> int:
    return sum(1 << bit for bit, number in enumerate(wanted) if number in chosen)


def _shows(call: Call, learned: Sequence[bool], has_loss: bool) -> bool:
    """Whether anybody can tell that backward came to a call.

    Where a loss adds a gradient of its own, also by what an array from outside gets.
    """
    read = [~number for number in call.args if number < 0]
    return is_loss(call.op) or any(has_loss or learned[leaf] for leaf in read)


def _grouped(
    led: Sequence[int], shows: Sequence[bool], kinds: Collection[int], behind: Sequence[set[int]]
) -> dict[int, list[int]]:
    """Calls by the results they lead to; where nothing shows, with what they read if that may be.

    A call may join those that lead to more: what it reads leads to as many at least.
    """
    by_size = sorted(kinds, key=int.bit_count)
    of_call: list[int] = []
    groups: dict[int, list[int]] = {}
    for at, own in enumerate(led):
        group = own
        if not shows[at]:
            read = [of_call[other] for other in behind[at]]
            fitting = (
                kind
                for kind in by_size
                if own & kind == own and all(kind & other == kind for other in read)
            )
            group = next(fitting, own)
        of_call.append(group)
        groups.setdefault(group, []).append(at)
    return groups


def _ordered(
    groups: Sequence[Sequence[int]], behind: Sequence[set[int]]
) -> list[tuple[int, ...]] | None:
    """The groups, each behind those that it reads; ``None`` if they read each other."""
    of_call = {at: group for group, members in enumerate(groups) for at in members}
    read = {
        group: {of_call[other] for at in members for other in behind[at]} - {group}
        for group, members in enumerate(groups)
    }
    found: list[tuple[int, ...]] = []
    while read:
        ready = [group for group, others in read.items() if not others & read.keys()]
        if not ready:
            return None
        for group in ready:
            del read[group]
            found.append(tuple(groups[group]))
    return found


def _common(kinds: Iterable[int]) -> int:
    """The results whose gradients come to all that shows."""
    found = -1
    for kind in kinds:
        found &= kind
    return found


def _union(kinds: Iterable[int]) -> int:
    found = 0
    for kind in kinds:
        found |= kind
    return found


def _share(calls: Sequence[Call], group: Sequence[int], wanted: Collection[int]) -> Share:
    members, firsts = {*group}, firsts_of(calls)
    read = {n for at, call in enumerate(calls) if at not in members for n in call.args if n >= 0}
    made = [n for at in group for n in range(firsts[at], firsts[at + 1])]
    return Share(tuple(group), tuple(n for n in made if n in read or n in wanted))
