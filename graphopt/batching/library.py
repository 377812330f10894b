"""What a batched Block remembers between calls: how to record each kind of call, and why so."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from graphopt.batching.changes import Fingerprint
from graphopt.batching.constants import Constants
from graphopt.batching.family import Family
from graphopt.batching.kinds import Kind, typed
from graphopt.batching.lazy import Lazy
from graphopt.batching.recorder import Real, Recorder
from graphopt.batching.signature import Run, Signature
from graphopt.batching.sums import PendingSum
from graphopt.compat import import_mxnet
from graphopt.forking import lock
from graphopt.frontend.blocks import descendants, describe
from graphopt.nn.copies import Budget, copied, holds
from graphopt.nn.sources import is_setting

#: From a recorder and a call's arguments to its result.
Entry = Callable[[Recorder, Sequence[Any]], Any]

#: More kinds of calls than this, and all are forgotten: something in them never comes again.
MAX_SIGNATURES = 4096
MAX_ENTRIES = 32768
#: A Block that changes more often than this, and more than once in so many calls, is traced no
#: more; once an epoch is fine.
MAX_CHANGES, CALLS_PER_CHANGE = 8, 16
#: More Blocks of one class than this that are none of the net's children, and it makes them as it
#: runs.
MAX_STRANGERS = 64


class Tag:
    """Stands for a real array in keys: for all of one type, or for one that is shared."""

    __slots__ = ("shared",)

    def __init__(self, shared: Any = None) -> None:
        self.shared = shared


#: Of arrays that nothing is recorded on: sparse ones, those of ``mx.np``, scalars, no rows.
FOREIGN = Tag()


class Library:
    """Entries per operator call and per child Block.

    Attributes:
        entries: by operator, attributes, types and autograd state.
        units: by Block, types and autograd state.
        remarks: how often each kind of call could not be batched, and why.
        cautions: what is not noticed here.
        plans: by structure.
        families: by Block, state, and ranks and dtypes of inputs.
        traced: fingerprints of the Blocks that units were made of.
        numbers: how many different numbers (see numbers.py) or weights an operator was called with.
        constants: arrays of calls without inputs.
    """

    def __init__(self, net: Any) -> None:
        """Empty; ``net`` is the Block that is batched."""
        self.net = net
        self.lock = lock()
        self.remarks: Counter[str] = Counter()
        self.cautions: set[str] = set()
        self._calls = 0
        self._changes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._strangers: Counter[type] = Counter()
        self._initialized: weakref.WeakSet[Any] = weakref.WeakSet()
        self._set_within: weakref.WeakSet[Any] = weakref.WeakSet()
        self._children: set[int] | None = None  # of the net, as of this call
        self._serial = 0  # never starts anew: groups being recorded are known by it
        self.forget()

    def forget(self) -> None:
        """Drop everything but the remarks."""
        self.entries: dict[Any, Entry] = {}
        self.units: dict[Any, Any] = {}
        self.families: defaultdict[Any, Family] = defaultdict(Family)
        self.traced: dict[Any, Fingerprint] = {}
        self._parts: dict[Any, set[int]] = {}  # of those
        self.plans: dict[Any, Any] = {}
        self.constants = Constants()
        self.numbers: Counter[Any] = Counter()
        self._signatures: dict[Any, Signature] = {}
        self._tags: dict[Any, Tag] = {}
        self._shared: dict[int, Tag] = {}

    def refresh(self) -> None:
        """Forget what was made of Blocks that have changed since."""
        with self.lock:
            self._calls, self._children = self._calls + 1, None
            # A copy: threads that trace more add them without the lock.
            changed = [block for block, was in list(self.traced.items()) if not was.is_same()]
            for block in changed:
                self._changes[block] = self._changes.get(block, 0) + 1
            if changed:
                self.note(f"{describe(changed[0])} has changed and is traced anew")
                self.forget()

    def is_restless(self, block: Any) -> bool:
        """Whether a Block changes so often that tracing it anew each time is too much."""
        most = MAX_CHANGES + self._calls / CALLS_PER_CHANGE
        return block in self._set_within or self._changes.get(block, 0) > most

    def note_set(self, recorder: Recorder, block: Any, name: str, value: Any) -> None:
        """An attribute of a Block is set within a batch: if it is another, trace the Block no more.

        What was recorded of it goes by the attribute as it was, as does the graph that MXNet keeps
        of a hybridized Block.
        """
        if not self.traced or not is_setting(block, name, value):
            return
        if holds(copied(getattr(block, name, None), Budget()), value):
            return
        with self.lock:
            found = [part for part in list(self.traced) if self._has(part, block)]
            for traced in [part for part in found if not _keeps_graph(part)]:
                self._set_within.add(traced)
                self.note(
                    f"{describe(traced)} is recorded operator by operator: a batch sets {name!r}"
                )
                del self.traced[traced]
                for units in (self.units, recorder.units):
                    for key in [key for key in units if key[1] is traced]:
                        del units[key]
                recorder.reset()  # which finds units faster than by the dict

    def _has(self, traced: Any, block: Any) -> bool:
        """Whether a Block is one that was traced, or within."""
        if traced not in self._parts:
            self._parts[traced] = {id(part) for part in descendants(traced)}
        return id(block) in self._parts[traced]

    def is_fleeting(self, recorder: Recorder, block: Any) -> bool:
        """Whether a Block that was not met before is one of many that the net makes as it runs.

        To trace each takes long, and whatever is kept of it is kept for ever.
        """
        if not hasattr(self.net, "_children"):  # a Fold's, which is given Blocks
            return False
        kind = type(block)
        if self._strangers[kind] > MAX_STRANGERS:
            return not self._is_childs(block)
        with self.lock:
            if block not in self.traced and not self._is_childs(block):
                self._strangers[kind] += 1
            if self._strangers[kind] <= MAX_STRANGERS:
                return False
            self.note(f"{describe(block)} is recorded operator by operator: made in every call")
            self._forget_in(recorder)
            return True

    def is_uninitialized(self, block: Any) -> bool:
        """Whether a Block's Python has to run first, which draws parameters as it calls layers.

        Its graph has them in another order, and lacks those that no result is computed from. Once
        is enough: what is not called stays as it is.
        """
        if getattr(block, "_active", False) or block in self._initialized:
            return False
        found = any(p._deferred_init for b in descendants(block) for p in b._reg_params.values())
        if found:
            self._initialized.add(block)
        return found

    def _is_childs(self, block: Any) -> bool:
        if self._children is None:
            self._children = {id(child) for child in descendants(self.net)}
        return id(block) in self._children

    def enter(
        self, recorder: Recorder, key: Any, operator: int, args: Sequence[Any], attrs: Any
    ) -> Entry:
        """The entry of an operator call that was not seen before.

        Raises:
            MXNetError: the arguments do not fit the operator.
            UnsupportedError: the call is refused in a batch.
        """
        from graphopt.batching.entries import make_entry

        with self.lock:
            if len(self._signatures) > MAX_SIGNATURES or len(self.entries) > MAX_ENTRIES:
                self._forget_in(recorder)
            entry, is_kept = make_entry(self, recorder, operator, args, attrs)
            if is_kept:
                self.entries[key] = entry
            return entry

    def _forget_in(self, recorder: Recorder) -> None:
        self.forget()
        recorder.entries, recorder.units = self.entries, self.units

    def known(self, key: Any, state: int) -> Signature | None:
        """The Signature for a key, if there is one."""
        return self._signatures.get((key, state))

    def signature(
        self,
        key: Any,
        name: str,
        inputs: int,
        outs: Sequence[Kind],
        state: int,
        run: Run,
        **more: Any,
    ) -> Signature:
        """The one Signature for a key, made if it is new."""
        with self.lock:
            found = self._signatures.get((key, state))
            if found is None:
                self._serial += 1
                found = Signature(self._serial, name, inputs, outs, state, run, **more)
                self._signatures[(key, state)] = found
            return found

    def meet(self, recorder: Recorder, given: Any) -> Real:
        """What is known of a real array."""
        if type(given) is PendingSum and given.recorder is recorder:
            total = given.settle()
            return Real(given, total.kind, total.kind, total.rows, total)
        is_lazy = isinstance(given, Lazy)  # of an earlier call
        if not is_lazy and type(given) is not _ARRAY:
            return Real(given, _NO_KIND, FOREIGN)
        shape, of = (given.shape, given.kind) if is_lazy else typed(given)
        if not shape or not shape[0]:
            return Real(given, _NO_KIND, FOREIGN)
        tag = self._shared.get(id(given))
        if tag is None or tag.shared is not given:
            tag = self._tags.get((of, shape[0]))
            if tag is None:
                tag = self._tags.setdefault((of, shape[0]), Tag())
        return Real(given, of, tag, shape[0])

    def share(self, recorder: Recorder, given: Any) -> None:
        """From now on a real array is one and the same for all samples, and part of keys."""
        with self.lock:
            self.constants.share(given)
        tag = self._shared.setdefault(id(given), Tag(given))
        recorder.real(given).tag = tag

    def materialize(self, value: Lazy) -> Any:
        """The real array of a Lazy, waiting for it where need be."""
        from graphopt.batching.execute import materialize

        return materialize(value)

    def to_numpy(self, value: Lazy) -> Any:
        """The elements of a Lazy, waiting for it where need be."""
        from graphopt.batching.execute import to_numpy

        return to_numpy(value)

    def note(self, text: str) -> None:
        """Remark that something was not batched."""
        self.remarks[text] += 1


def _keeps_graph(block: Any) -> bool:
    """Whether MXNet runs its Python in its first call only."""
    base = import_mxnet().gluon.HybridBlock
    return bool(getattr(block, "_active", False)) and type(block).forward is base.forward


_ARRAY = import_mxnet().nd.NDArray
_NO_KIND = Kind((), "", None)
