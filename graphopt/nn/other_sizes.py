"""Which graph of a Block runs calls of sizes that it was not compiled for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphopt.backend.late import LateError
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.frontend.gluon import Traced
from graphopt.ir.sizes import Sized, Sizes, are_near, covers, distance, sized_of
from graphopt.nn.any_size import AnySize, Run
from graphopt.nn.entries import CallKind
from graphopt.nn.entry import Entry
from graphopt.nn.signatures import Signature, shapes_of, sizes_of, types_of
from graphopt.nn.ski_rental import SkiRental

#: Share of a call's time that is worth compiling for, which takes as long as many calls.
_WORTH_IT: Final = 0.2
#: What compiling is taken to save at least, of sizes that are near those that are known, and far.
_LEAST, _LEAST_FAR = 0.05, 0.15
#: Sizes that are compiled to find two that are alike, where it takes long.
_ENOUGH_SIZES: Final = 3
#: Signatures that are remembered, and sizes of one graph that are looked at for each.
_REMEMBERED, _LOOKED_AT = 4096, 16


@dataclass(frozen=True)
class Match:
    """A graph that calls of some sizes may run."""

    graph: AnySize
    is_near: bool  # to sizes that it was compiled for
    sized: Sized  # what follows the sizes

    @property
    def saved(self) -> float:
        """The share of a call's time that compiling for its sizes is taken to save."""
        return max(_LEAST if self.is_near else _LEAST_FAR, self.graph.saved)

    @property
    def suffices(self) -> bool:
        """Whether compiling would save little."""
        return self.saved < _WORTH_IT


class OtherSizes:
    """The graphs of one Block that may be run at any size."""

    def __init__(self, rule: SkiRental) -> None:
        """None is known; ``rule`` says what is worth compiling."""
        self._rule = rule
        self._known: dict[tuple[object, ...], AnySize] = {}
        self._found: dict[Signature, tuple[int, Match | None]] = {}
        self._alike: set[tuple[object, ...]] = set()
        self._counts: dict[tuple[object, ...], int] = {}  # of sizes that are compiled, by types

    @property
    def graphs(self) -> list[AnySize]:
        """Those that were tried."""
        return [each for each in self._known.values() if each.is_tried]

    def find(self, key: Signature, entries: Mapping[Signature, Entry]) -> Match | None:
        """The graph of the nearest sizes of those that a call with such a signature may run."""
        known = self._found.get(key)
        if known is None or known[0] != len(entries):
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            known = self._found[key] = len(entries), self._covering(key, entries)
        return known[1]

    def settle(
        self,
        match: Match,
        given: Sequence[Any],
        plain: Callable[[], Run | None],
        *,
        is_compiled_else: bool,
    ) -> None:
        """Try a graph, unless that takes longer than all compiling so far.

        Args:
            match: which graph.
            given: arrays of a call.
            plain: makes what runs arrays as MXNet would, or nothing where that cannot be.
            is_compiled_else: whether these sizes are compiled for if it is not tried.
        """
        graph = match.graph
        if graph.is_tried or (is_compiled_else and graph.trial_s > self._rule.spent):
            return
        run = plain()
        if run is not None:
            graph.settle(given, match.sized, run)

    def run(
        self,
        match: Match,
        key: Signature,
        given: Sequence[Any],
        plain: Callable[[], Run | None],
        *,
        is_compiled_else: bool = False,
    ) -> tuple[list[Any], Traced] | None:
        """The outputs of a call, and what tells their layout; ``None`` if they cannot be had so.

        Args:
            match: which graph.
            key: the signature of the call.
            given: its arrays.
            plain: as for :meth:`settle`.
            is_compiled_else: whether these sizes are compiled for if not, which takes longer than
                to make a graph for them.

        Raises:
            MXNetError: MXNet does not run them either.
        """
        graph, is_step = match.graph, key[0] == "training"
        engine = graph.engine_for(sizes_of(key), is_compiled_else=is_compiled_else)
        if not engine or not graph.is_for(key[2]) or graph.lacks_gradients(given):
            return None
        try:
            with self._rule.timed(key, is_step=is_step, saved=match.saved) as done:
                outputs, traced = graph.run(key, given, match.sized, engine)
                done += outputs
        except LateError:
            raise
        except (GraphoptError, import_mxnet().MXNetError) as error:
            run = plain()
            if run is not None:
                run(given)  # fails where the arguments are to blame
            graph.failed(error)
            return None
        return outputs, traced

    def look_again(self, key: Signature, entry: Entry, given: Sequence[Any]) -> None:
        """Learn from a size that was compiled though a graph would have run it.

        Args:
            key: the signature, which :meth:`find` was asked for before.
            entry: what was compiled.
            given: arrays of a call.
        """
        _, match = self._found.get(key, (0, None))
        if match is not None and match.graph.is_tried and not entry.computed:
            match.graph.look_again(entry, given, match.sized)

    def only_kind(self, kind: CallKind) -> None:
        """Forget the graphs of other calls, which may be made anew in another way."""
        self._known = {types: graph for types, graph in self._known.items() if types[:2] == kind}
        self._found.clear()

    def would_widen(self, key: Signature) -> bool:
        """Whether graphs of such types came out alike, so one more may do for other sizes, too."""
        return types_of(key) in self._alike

    def kind_to_widen(self, key: Signature) -> Hashable:
        """What one more size is worth compiling for, as two may show that a graph is for all.

        ``None`` if none is compiled yet, or several came out in different ways. Known for what
        :meth:`find` was asked for.
        """
        types = types_of(key)
        return types if 0 < self._counts.get(types, 0) < _ENOUGH_SIZES else None

    def _covering(self, key: Signature, entries: Mapping[Signature, Entry]) -> Match | None:
        types, new = types_of(key), sizes_of(key)
        alike: dict[str, list[tuple[Signature, Entry]]] = {}
        for other, entry in entries.items():
            if types_of(other) == types and entry.has_run and not entry.computed:
                alike.setdefault(entry.structure, []).append((other, entry))
        self._counts[types] = sum(map(len, alike.values()))
        nearest: tuple[float, Match | None] = math.inf, None
        for structure, found in alike.items():
            found.sort(key=lambda each: distance(sizes_of(each[0]), new))
            if len(found) > 1:
                self._alike.add(types)
            own, entry = found[0]
            far = distance(sizes_of(own), new)
            sized = _sized_for(key, found[:_LOOKED_AT]) if far < nearest[0] else None
            if sized is not None:
                graph = self._known.setdefault((*types, structure), AnySize(entry))
                nearest = far, Match(graph, are_near(sizes_of(own), new), sized)
        return nearest[1]


def _sized_for(key: Signature, alike: Sequence[tuple[Signature, Entry]]) -> Sized | None:
    """What follows the sizes; ``None`` if no two of them tell of the new one."""
    (_, nearest), *_ = alike  # whose Symbol tells of the new size for all, as they are alike
    for one, other in itertools.combinations(alike, 2):
        a, b = sizes_of(one[0]), sizes_of(other[0])
        if not covers(a, b, sizes_of(key)):
            continue
        if _covers_within(one, other, nearest.inner_sizes.of(shapes_of(key))):
            found = sized_of(one[1].forms, other[1].forms, a, b)
            if found is not None:
                return found
    return None


def _covers_within(
    one: tuple[Signature, Entry], other: tuple[Signature, Entry], new: Sizes | None
) -> bool:
    """The same of all that the net computes on the way, by which passes went as well."""
    a, b = (entry.inner_sizes.of(shapes_of(own)) for own, entry in (one, other))
    if a is None or b is None or new is None:
        return False
    return len(a) == len(b) == len(new) and covers(a, b, new)
