"""Which calls of a program backward reaches together.

Call by call, backward from a loss comes to what the loss was computed from. What it does not reach
keeps its gradients, and a BatchNorm there its running statistics. To autograd a compiled program is
one operator: backward writes a gradient for all that it reads, zeros mostly, and an operator that
is a loss itself (``SoftmaxOutput``) adds its own. So calls that lead to other results of the
program, and where that would show, are programs of their own.

A slope may be infinite: zero times it is NaN, which backward then writes to all that lies behind.
So a root, a logarithm or a division is in no program that backward may come to without it.

What a Block only keeps, as attention weights to look at, is rarely read by a loss that does not
read what the Block returns as well. So it makes no parts where a returned result leads to all, but
for what leads to it by such a slope.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphopt.recording.calls import firsts_of, is_loss, is_steep, samples

if TYPE_CHECKING:
    from graphopt.recording.calls import Call

#: Of more parts than this one program is made of what leads to some result that all of them lead
#: to, as where many values are held while a Block's Python runs.
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
    live = _live(behind, {makers[number] for number in wanted})
    led, exact, front = _marked(calls, live, wanted, learned, returned, alone)
    kinds = {*_where(exact, led), *([front] if front else [])}
    if not kinds:
        return None
    groups = _grouped(led, exact, kinds, behind, live)
    if len(groups) < 2:
        return None
    ordered = _ordered(groups, behind)
    if ordered is None or sum(any(samples(calls[at].op) for at in g) for g in ordered) > 1:
        return []
    return [_share(calls, group, wanted, live) for group in ordered]


def _marked(
    calls: Sequence[Call],
    live: Collection[int],
    wanted: Collection[int],
    learned: Sequence[bool],
    returned: Collection[int] | None,
    alone: Collection[int],
) -> tuple[list[int], list[bool], int]:
    """The results that each call leads to, as far as they count, as bits.

    With it whether a call is to be where all others lead to the same, and those of the ``alone``
    that one part leads to.
    """
    has_loss = any(is_loss(call.op) for call in calls)
    led = _led(calls, wanted)
    shows = [at in live and _shows(call, learned, has_loss) for at, call in enumerate(calls)]
    others = _bits(wanted, alone)
    told = others | _union(_where(shows, led))  # of other results nobody can tell what leads there
    steep = [bool(own & told) and is_steep(call) for own, call in zip(led, calls, strict=True)]
    exact = [any(both) for both in zip(shows, steep, strict=True)]
    if not has_loss and returned is not None:
        seen = _bits(wanted, returned)
        if _common(_where(shows, led)) & seen:  # what is only kept does not count
            led = [own & seen or own for own in led]
            others &= seen
    elif not has_loss and len({*_where(exact, led)}) + bool(others) > MOST:
        common = _common(_where(shows if any(shows) else exact, led))
        if common:
            led = [common if own & common else own for own in led]
            others = 0
    told = others | _union(_where(exact, led))
    # In front of the others they are one part, unless a slope in it has to be where it leads.
    front = 0 if any(own & others for own in _where(steep, led)) else others
    return [own & front or own & told for own in led], exact, front


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


def _live(behind: Sequence[set[int]], makers: Collection[int]) -> set[int]:
    """What ``makers`` are computed from, and themselves: nobody wants what other calls make."""
    live, pending = set(makers), list(makers)
    while pending:
        more = behind[pending.pop()] - live
        live |= more
        pending += more
    return live


def _where(chosen: Iterable[bool], led: Iterable[int]) -> list[int]:
    return [own for own, yes in zip(led, chosen, strict=True) if yes]


def _grouped(
    led: Sequence[int],
    exact: Sequence[bool],
    kinds: Collection[int],
    behind: Sequence[set[int]],
    live: Collection[int],
) -> dict[int, list[int]]:
    """Live calls by the results they lead to; others than exact ones with what they read.

    A call may join those that lead to more: what it reads leads to as many at least.
    """
    by_size = sorted(kinds, key=int.bit_count)
    of_call: list[int] = []
    groups: dict[int, list[int]] = {}
    for at, own in enumerate(led):
        group = own
        if not exact[at]:
            read = [of_call[other] for other in behind[at]]
            fitting = (
                kind
                for kind in by_size
                if own & kind == own and all(kind & other == kind for other in read)
            )
            group = next(fitting, own)
        of_call.append(group)
        if at in live:
            groups.setdefault(group, []).append(at)
    return groups


def _ordered(
    groups: dict[int, list[int]], behind: Sequence[set[int]]
) -> list[tuple[int, ...]] | None:
    """The groups, each behind those that it reads; ``None`` if they read each other."""
    of_call = {at: group for group, members in groups.items() for at in members}
    read = {
        group: {of_call[other] for at in members for other in behind[at]} - {group}
        for group, members in groups.items()
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


def _share(
    calls: Sequence[Call], group: Sequence[int], wanted: Collection[int], live: Collection[int]
) -> Share:
    members, firsts = {*group}, firsts_of(calls)
    read = {n for at in live if at not in members for n in calls[at].args if n >= 0}
    made = [n for at in group for n in range(firsts[at], firsts[at + 1])]
    return Share(tuple(group), tuple(n for n in made if n in read or n in wanted))
