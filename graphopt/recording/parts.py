"""Which calls of a program backward reaches together.

Call by call, backward from a loss comes to what the loss was computed from. What it does not reach
keeps its gradients, and a BatchNorm there its running statistics. To autograd a compiled program is
one operator: backward writes a gradient for all that it reads, zeros mostly, and an operator that
is a loss itself (``SoftmaxOutput``) adds its own. So calls that lead to other results of the
program, and where that would show, are programs of their own.

What a Block only keeps, as attention weights to look at, is rarely read by a loss that does not
read what the Block returns as well. So it makes no parts where a returned result leads to all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from graphopt.batching.operators import name_of
from graphopt.ir.ops import info
from graphopt.recording.calls import firsts_of, samples

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


def shares(
    calls: Sequence[Call],
    wanted: Collection[int],
    learned: Sequence[bool],
    returned: Collection[int] | None = None,
) -> list[Share] | None:
    """The parts of a program, each behind those that it reads.

    Args:
        calls: of the program.
        wanted: numbers of the values that it returns.
        learned: of each leaf, whether it is a parameter that learns, or a state.
        returned: those that the Block returns, all where nobody can tell; ``None`` while it runs.

    Returns:
        ``None`` if the program is one; nothing if it can only run call by call.
    """
    has_loss = any(map(_is_loss, calls))
    led, shows = _led(calls, wanted), [_shows(call, learned, has_loss) for call in calls]
    kinds = {own for own, yes in zip(led, shows, strict=True) if yes}
    if returned is not None and not has_loss:
        seen = sum(1 << bit for bit, number in enumerate(wanted) if number in returned)
        if _common(kinds) & seen:  # what is only kept does not count
            led = [own & seen or own for own in led]
            kinds = {own & seen or own for own in kinds}
    if len(kinds) < 2:
        return None
    makers = [at for at, call in enumerate(calls) for _ in range(call.results)]
    behind = [{makers[n] for n in call.args if n >= 0} for call in calls]
    groups = _grouped(led, shows, kinds, behind)
    ordered = _ordered(groups, behind)
    if ordered is None or sum(any(samples(calls[at].op) for at in g) for g in ordered) > 1:
        return []
    if returned is None and len(ordered) > MOST and not has_loss and _common(kinds):
        return None
    found = [_share(calls, group, wanted) for group in ordered]
    return [share for share in found if share.wanted]


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


def _shows(call: Call, learned: Sequence[bool], has_loss: bool) -> bool:
    """Whether anybody can tell that backward came to a call.

    Where a loss adds a gradient of its own, also by what an array from outside gets.
    """
    read = [~number for number in call.args if number < 0]
    return _is_loss(call) or any(has_loss or learned[leaf] for leaf in read)


def _is_loss(call: Call) -> bool:
    return info(name_of(call.op)).loss


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


def _share(calls: Sequence[Call], group: Sequence[int], wanted: Collection[int]) -> Share:
    members, firsts = {*group}, firsts_of(calls)
    read = {n for at, call in enumerate(calls) if at not in members for n in call.args if n >= 0}
    made = [n for at in group for n in range(firsts[at], firsts[at + 1])]
    return Share(tuple(group), tuple(n for n in made if n in read or n in wanted))
