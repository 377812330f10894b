"""What happens at every recorded call: it joins its group. Twin of recording/calls.h.

A call joins its group the moment it is recorded: calls of one signature and one depth (the longest
way to a leaf) can never depend on one another, so that running groups by depth is a schedule.

Source: Looks et al., Deep Learning with Dynamic Computation Graphs (TensorFlow Fold), ICLR 2017.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from graphopt.batching.lazy import Lazy
from graphopt.batching.runs import COUNT_BITS, COUNT_MASK, START_MASK, STORE_SHIFT

if TYPE_CHECKING:
    from graphopt.batching.recorder import Recorder
    from graphopt.batching.signature import Signature


class Group:
    """Calls of one signature at one depth, made as one.

    Attributes:
        places: per argument that has rows, the runs of all calls, one behind the other.
        pointers: of reductions of unequal numbers of rows: how many rows each result takes.
        total: rows recorded so far.
    """

    __slots__ = ("base", "calls", "depth", "places", "pointers", "signature", "store", "total")

    def __init__(self, signature: Signature, depth: int, store: int) -> None:
        """An empty group whose outputs go to ``store`` and those behind it."""
        self.signature, self.depth, self.store = signature, depth, store
        self.base = store << STORE_SHIFT
        self.places = [array("q") for _ in range(signature.inputs)]
        self.pointers = array("q")
        self.total = self.calls = 0


class Calls:
    """Adds calls to groups.

    Attributes:
        state: autograd's flags now.
        base: depth of everything that was run; calls go on from there.
        calls: how many were recorded.
        groups: those not run yet, by signature and depth.
        entries: how each kind of operator call is recorded.
        units: child Blocks by types.
        reals: what is known of arrays that are there already, by id.
    """

    state: int
    base: int
    calls: int
    groups: dict[int, Group]
    entries: dict[Any, Any]
    units: dict[Any, Any]
    reals: dict[int, Any]

    def open(self, signature: Signature, depth: int) -> Group:
        """A new group."""
        raise NotImplementedError

    def enter(
        self, operator: int, args: Sequence[Any], keys: Sequence[str], vals: Sequence[Any]
    ) -> Any:
        """The entry for an operator call."""
        raise NotImplementedError

    def check_size(self, group: Group, rows: int) -> None:
        """Refuse what is too large."""
        raise NotImplementedError

    def call(
        self, operator: int, args: Sequence[Any], keys: Sequence[str], vals: Sequence[Any]
    ) -> Any:
        """Record an operator of MXNet, by its handle; returns what the call would."""
        entry = self.enter(operator, args, keys, vals)
        self.calls += 1
        return entry(self, args)

    def reset(self) -> None:
        """Let go of groups and values that are kept to be found faster: here none are."""

    def unary(self, signature: Signature, x: Lazy) -> Any:
        """:meth:`join` for one argument, the most frequent call."""
        depth = x.depth + 1
        if depth <= self.base:
            depth = self.base + 1
        group = self.groups.get(signature.serial << 24 | depth) or self.open(signature, depth)
        if x.runs is None:
            group.places[0].append(x.run)
        else:
            group.places[0].extend(x.runs)
        group.calls += 1
        return self.made(group, depth, x.rows)

    def join(self, signature: Signature, args: Sequence[Any], rows: int) -> Any:
        """Add a call to its group.

        Args:
            signature: of the call.
            args: Lazy values with ``rows`` rows each; or one, to be repeated.
            rows: of its outputs.

        Returns:
            The call's outputs: one Lazy, or a list of them.
        """
        depth = self.base
        for x in args:
            if x.depth > depth:
                depth = x.depth
        depth += 1
        group = self.groups.get(signature.serial << 24 | depth)
        if group is None:
            group = self.open(signature, depth)
        for place, x in zip(group.places, args):  # noqa: B905 - strict= is slower
            if x.rows == rows:
                if x.runs is None:
                    place.append(x.run)
                else:
                    place.extend(x.runs)
            else:
                place.extend((x.run,) * rows)
        group.calls += 1
        return self.made(group, depth, rows)

    def reduce(self, signature: Signature, runs: Sequence[int], rows: int, depth: int) -> Any:
        """Add a call that reduces ``rows`` rows to one."""
        depth += 1
        group = self.groups.get(signature.serial << 24 | depth) or self.open(signature, depth)
        group.places[0].extend(runs)
        group.pointers.append(rows)
        group.calls += 1
        return self.made(group, depth, 1)

    def view(self, signature: Signature, x: Lazy, rows: int) -> Any:
        """Add a call that has the elements of ``x`` as ``rows`` rows."""
        depth = max(x.depth, self.base) + 1
        group = self.groups.get(signature.serial << 24 | depth) or self.open(signature, depth)
        group.places[0].extend((x.run,) if x.runs is None else x.runs)
        group.calls += 1
        return self.made(group, depth, rows)

    def made(self, group: Group, depth: int, rows: int) -> Any:
        """The outputs of the call that was added last."""
        total = group.total
        group.total = end = total + rows
        if end > START_MASK or rows > COUNT_MASK:
            self.check_size(group, rows)
        outs, recorder = group.signature.outs, cast("Recorder", self)
        run = group.base + (total << COUNT_BITS) + rows
        if len(outs) == 1:
            return Lazy(recorder, run, rows, outs[0], depth)
        return [
            Lazy(recorder, run + (at << STORE_SHIFT), rows, out, depth)
            for at, out in enumerate(outs)
        ]
