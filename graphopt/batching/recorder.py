"""What is written down while samples run: groups of like calls, and where arguments come from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.backend.arrays import array_of
from graphopt.batching import calls, speedups
from graphopt.batching.kinds import Kind
from graphopt.batching.lazy import Lazy
from graphopt.batching.runs import STORE_SHIFT, pack, unpack
from graphopt.compat import import_mxnet

_fast: Any = speedups.load()[0]
if TYPE_CHECKING:
    from graphopt.batching.calls import Calls, Group
else:
    Calls, Group = (
        (calls if _fast is None else _fast).Calls,
        (calls if _fast is None else _fast).Group,
    )

if TYPE_CHECKING:
    from graphopt.batching.library import Library
    from graphopt.batching.plan import Plan
    from graphopt.batching.signature import Signature

_NUMBERS = (int, float)

#: Autograd's two flags as one number, and that it does not record now what it did before: there,
#: where only places of rows change, something has to stop the gradient.
PAUSED, RECORDING, TRAINING = 4, 2, 1


class Active(threading.local):
    """The recorder of each thread; ``None`` where nothing is recorded. As in recording/active.h."""

    recorder: Recorder | None = None


ACTIVE: Active = Active() if _fast is None else _fast.Active()


class Unrecorded:
    """Inside the block this thread's calls of MXNet are made at once.

    No generator, as the one of graphopt.recording.
    """

    __slots__ = ("_recorder",)

    def __enter__(self) -> None:
        """Set the recorder aside."""
        self._recorder, ACTIVE.recorder = ACTIVE.recorder, None

    def __exit__(self, *_: Any) -> None:
        """Go on with it."""
        ACTIVE.recorder = self._recorder


class Leaves:
    """Arrays of one kind that come from outside, to be joined to one."""

    __slots__ = ("arrays", "kind", "store", "total")

    def __init__(self, kind: Kind, store: int) -> None:
        """Empty."""
        self.kind, self.store = kind, store
        self.arrays: list[Any] = []
        self.total = 0


class Real:
    """An array that is there already, met while recording.

    Attributes:
        tag: stands for it in keys: its type, or itself once it was used as a shared array.
        value: its rows, if they were ever used as such.
    """

    __slots__ = ("array", "kind", "rows", "tag", "value")

    def __init__(
        self, given: Any, kind: Kind, tag: Any, rows: int = 0, value: Lazy | None = None
    ) -> None:
        """``given`` is kept alive, as its id is what it is found by."""
        self.array, self.kind, self.tag, self.rows = given, kind, tag, rows
        self.value = value


class Recorder(Calls):
    """Everything recorded in one call of a batched Block.

    Attributes:
        state: autograd's flags now, ``RECORDING`` or ``PAUSED``, and ``TRAINING``.
        base: depth of everything that was run; calls go on from there.
        groups: those not run yet, by depth and signature.
        stores: what each output will be, an array once it was run.
        tape: ``RECORDING`` if anything that was run is differentiated.
        hosts: stores as numpy arrays, where samples read values.
        totals: rows of each store, known once it is closed.
        kinds: of the rows of each store.
        homes: the store that has the rows of each store, and from which row on: another than
            itself where groups were run together.
        created: results of calls without inputs.
        owned: their arrays by id: other samples and batches read them, so nobody else may get hold
            of them.
        devices: that constants were asked for on, which are known by where they lie.
        lookups: how embeddings look up each kind of words, once it is known.
        plan: that was run last.
        is_steep: whether anything recorded has a slope that may be infinite; see liveness.py.
        flows: groups that were run, if so.
        guards: of those whose rows may have no gradient.
        asked: runs that may have one besides the results.
        liveness: of all rows, once samples have ended and if there are guards.
        is_in_turn: whether a sample that reads a value goes on before any other does, as one has
            set an attribute, which all of them share.
    """

    def __init__(self, library: Library, state: int, pause: Callable[..., None]) -> None:
        """``pause`` returns when everything recorded so far was run."""
        speedups.configure()
        self.mx = import_mxnet()
        self.library = library
        self.entries, self.units = library.entries, library.units
        self.state = self.outside = state
        self.pause = pause
        self.is_in_turn = False
        self.base = self.calls = 0
        self.groups: dict[int, Group] = {}
        self.views: dict[Any, Lazy] = {}
        self.origins: dict[int, Lazy] = {}
        self.fixed: dict[Any, Any] = {}
        self.parameters: dict[int, Any] | None = None
        self.constants: dict[Any, Lazy] = {}
        self.created: dict[Any, Lazy] = {}
        self.owned: dict[int, Any] = {}
        self.devices: list[Any] = []
        self.lookups: dict[Any, Any] = {}
        self.plan: Plan | None = None
        self.is_steep = False
        self.flows: list[Any] = []
        self.guards: list[Any] = []
        self.asked: list[int] = []
        self.liveness: Any = None
        self.leaves: dict[Kind, Leaves] = {}
        self.reals: dict[int, Real] = {}
        self.stores: list[Any] = []
        self.totals: list[int] = []
        self.kinds: list[Kind] = []
        self.tape = state & RECORDING
        self.hosts: dict[int, Any] = {}
        self.homes: list[tuple[int, int]] = []
        self._padded: dict[Any, Any] = {}
        self._numbers: dict[Any, Any] = {}
        #: Blocks that were run, for values in them that were not asked for then, and the arrays
        #: that these are computed from.
        self.blocks: list[Any] = []

    def enter(
        self, operator: int, args: Sequence[Any], keys: Sequence[str], vals: Sequence[Any]
    ) -> Any:
        """The entry for an operator call."""
        kinds = [
            a.kind if type(a) is Lazy and a.recorder is self else self.real(a).tag for a in args
        ]
        try:
            # 0 and -0.0 are equal keys, but not equal numbers.
            signs = (str(vals),) if any(type(v) in _NUMBERS and v == 0 for v in vals) else ()
            key = (self.state, operator, *kinds, *keys, *vals, *signs)
            entry = self.entries.get(key)
        except (TypeError, ValueError):  # a list or numpy array among the attributes
            vals = [tuple(v) if type(v) is list else v for v in vals]
            key = (self.state, operator, *kinds, *keys, *map(str, vals))
            entry = self.entries.get(key)
        if entry is None:
            attrs = dict(zip(keys, vals, strict=True))
            entry = self.library.enter(self, key, operator, args, attrs)
        return entry

    def join_single(self, signature: Signature, args: Sequence[Any], rows: int) -> Any:
        """Add a call that runs for itself; each argument is one run."""
        depth = max(self.base, *[x.depth for x in args]) + 1
        group = self.groups.get(signature.serial << 24 | depth) or self.open(signature, depth)
        for place, x in zip(group.places, args, strict=True):
            place.append(x.run)
        group.calls += 1
        return self.made(group, depth, rows)

    def check_size(self, group: Group, rows: int) -> None:
        """Refuse what does not fit into a run.

        Raises:
            UnsupportedError: it is too large.
        """
        pack(group.store, group.total - rows, rows)

    def open(self, signature: Signature, depth: int) -> Group:
        """A new group."""
        group = Group(signature, depth, len(self.stores))
        self.stores.extend([None] * len(signature.outs))
        self.totals.extend([0] * len(signature.outs))
        self.kinds.extend(signature.outs)
        self.homes.extend((group.store + at, 0) for at in range(len(signature.outs)))
        self.groups[signature.serial << 24 | depth] = group
        pack(group.store, 0, 1)
        return group

    def real(self, given: Any) -> Real:
        """What is known of an array that is there already."""
        found = self.reals.get(id(given))
        if found is None:
            found = self.reals[id(given)] = self.library.meet(self, given)
        return found

    def rows_of(self, given: Any) -> Lazy:
        """An argument as rows: itself, or a leaf if it is a real array."""
        if type(given) is Lazy and given.recorder is self:
            return given
        real = self.real(given)
        if real.value is None:
            real.value = self._leaf(real)
        return real.value

    def padded(self, given: Any, rank: int) -> Any:
        """A real array with axes of 1 in front."""
        key = (id(given), rank, self.state)
        if key not in self._padded:
            self.real(given)  # which keeps it alive
            shape = (1,) * (rank - len(given.shape)) + tuple(given.shape)
            self._padded[key] = given.reshape(shape)
        return self._padded[key]

    def number(self, value: float, of: Kind, rank: int) -> Any:
        """A real array of extents 1 that has a number, with the dtype and device of ``of``."""
        key = (repr(value), of.dtype, of.ctx, rank)
        if key not in self._numbers:
            with Unrecorded():
                self._numbers[key] = array_of(np.full((1,) * rank, value, of.dtype), of.ctx)
        return self._numbers[key]

    def _leaf(self, real: Real) -> Lazy:
        leaves = self.leaves.get(real.kind)
        if leaves is None:
            leaves = self.leaves[real.kind] = Leaves(real.kind, len(self.stores))
            self.stores.append(None)
            self.totals.append(0)
            self.kinds.append(real.kind)
            self.homes.append((leaves.store, 0))
        rows = real.rows
        run = pack(leaves.store, leaves.total, rows)
        leaves.arrays.append(real.array)
        leaves.total += rows
        return Lazy(self, run, rows, real.kind, 0)

    def scattered(self, runs: Sequence[int], rows: int, kind: Kind, depth: int) -> Lazy:
        """A value made of several runs, or of one."""
        found = Lazy(self, runs[0], rows, kind, depth)
        if len(runs) > 1:
            found.runs = tuple(runs)
        return found

    def close(self) -> list[Group]:
        """The groups recorded since the last time, in an order in which they can run."""
        groups = sorted(self.groups.values(), key=lambda group: group.depth)
        for group in groups:
            for at in range(len(group.signature.outs)):
                self.totals[group.store + at] = group.total
        for leaves in self.leaves.values():
            self.totals[leaves.store] = leaves.total
        return groups

    def reopen(self) -> None:
        """Go on after what was closed has run; it counts as leaves."""
        if self.groups:
            self.base = max(group.depth for group in self.groups.values())
        self.groups.clear()
        self.reset()
        self.leaves.clear()

    def forget(self) -> None:
        """Let go of what only recording needed, so that no cycle keeps the values alive."""
        self.reset()
        for found in (
            self.views,
            self.origins,
            self.constants,
            self.created,
            self.lookups,
            self.fixed,
            self.reals,
        ):
            found.clear()

    def locate(self, run: int) -> tuple[Any, int, int]:
        """The array that has a run (None if it was not run), its first row, its number of rows."""
        store, start, count = unpack(run)
        home, offset = self.homes[store]
        return self.stores[home], start + offset, count

    def has_pending(self) -> bool:
        """Whether anything was recorded that was not run."""
        return bool(self.groups or self.leaves)

    def before_write(self) -> None:
        """Somebody writes into a real array: what was recorded must read it as it is now."""
        if self.has_pending():
            self.pause(at_once=True)
        self.reset()  # values move below
        self.constants.clear()
        self.fixed.clear()
        self.hosts.clear()
        # A leaf alone in its store is that very array; later readers of the store want the old one.
        for real in self.reals.values():
            if real.value is not None:
                store = real.value.run >> STORE_SHIFT
                if self.stores[store] is real.array:
                    with Unrecorded():
                        self.stores[store] = real.array.copy()
                if real.value.array is None:
                    real.value = None
                else:  # an argument of a sample stands for the array itself
                    real.value.run = self._leaf(real).run
