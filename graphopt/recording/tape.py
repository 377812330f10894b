"""What one call of a Block has called so far, and the arrays that stand for the results."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from graphopt.analysis.sparse import makes_sparse
from graphopt.backend.symbol import first_line
from graphopt.batching.operators import handle, infer, name_of
from graphopt.compat import import_mxnet
from graphopt.recording.active import Unrecorded
from graphopt.recording.arrays import PENDING, Ref, pending, ref_of, settle
from graphopt.recording.calls import INVOKE, Call, Calls, firsts_of, samples, type_of
from graphopt.recording.children import Child, called
from graphopt.recording.types import Type, all_recordable

if TYPE_CHECKING:
    from graphopt.recording.programs import Programs

mx = import_mxnet()
#: References to a pending array that nobody but the tape has: its list's, and the count's own.
_OWN_REFERENCES: Final = 2


@cache
def _unrecordable() -> frozenset[int]:
    """Operators whose work is the user's Python."""
    return frozenset({handle("Custom")})


class _Kind(NamedTuple):
    """What type inference reads."""

    dtype: Any


#: Types of results by operator, attributes, types of arguments and whether shapes may be empty;
#: ``None`` where they are not known before the operator runs.
_TYPES: dict[Any, tuple[Type, ...] | None] = {}
#: There is no end of numbers that an attribute may be.
_MAX_TYPES: Final = 100_000


class Tape(Calls):
    """Calls since the last flush, and pending arrays, of one run of a Block's Python."""

    def __init__(self, programs: Programs, ctx: Any) -> None:
        """Nothing is recorded."""
        self.ctx = ctx
        self._device = str(ctx)
        self._np_shape = mx.util.is_np_shape()
        self._programs = programs
        self._lock = threading.RLock()
        self._forget()

    def _forget(self) -> None:
        self.calls, self.leaves, self.leaf_types = [], [], []
        self.cached_ops = {}
        self._numbers: dict[int, int] = {}  # of leaves, by their id
        self._pending: list[Any] = []
        self._views: dict[int, tuple[int, str, Any]] = {}

    def call(
        self,
        operator: int | str,
        args: Sequence[Any],
        keys: Sequence[str],
        vals: Sequence[Any],
        *,
        is_np: bool,
        as_list: bool = False,
        is_detach: bool = False,
    ) -> Any:
        """Record an operator, or run it at once where its results have no type before.

        Returns:
            A pending array, or a list of them.
        """
        op = handle(operator) if isinstance(operator, str) else operator
        texts = tuple(map(str, vals))
        with self._lock:  # threads that the Block started may ask for values meanwhile
            found = self._noted(op, args, tuple(keys), texts, is_np=is_np, is_detach=is_detach)
            if found is None:
                self.flush()
                return INVOKE(op, args, keys, vals, None, is_np, as_list)
        return found if as_list or len(found) > 1 else found[0]

    def call_child(self, child: Child, cached_op: Any, args: Sequence[Any]) -> list[Any]:
        """Record a call of a hybridized child's graph, or make it where its results have no type.

        Args:
            child: the graph.
            cached_op: by which MXNet makes its calls.
            args: arrays in the order of its inputs.
        """
        with self._lock:
            found = self._noted(child, args, (), (), is_np=child.is_np, is_detach=False)
            if found is None:
                self.flush()
                return called(child, cached_op, args)
            self.cached_ops[child] = cached_op
        return found

    def _noted(
        self,
        op: int | Child,
        args: Sequence[Any],
        keys: tuple[str, ...],
        texts: tuple[str, ...],
        *,
        is_np: bool,
        is_detach: bool,
    ) -> list[Any] | None:
        """Pending arrays for the results of a call; ``None`` where these have no type before."""
        if not self.calls:
            self._np_shape = mx.util.is_np_shape()  # a decorator of the Block may have set it
        numbers: list[int] = []
        types: list[Type | None] = []
        for array in args:
            if type(array) in PENDING:
                ref = ref_of(array)
                if ref.tape is self:
                    numbers.append(ref.number)
                    types.append(ref.type)
                    continue
            number = self._leaf(array)
            numbers.append(number)
            types.append(self.leaf_types[~number])
        if "ctx" in keys and texts[keys.index("ctx")] not in ("None", self._device):
            types.append(None)
        made = self._types(op, keys, texts, tuple(types))
        if made is None:
            return None
        self.calls.append(Call(op, keys, texts, tuple(numbers), len(made), is_detach))
        first = len(self._pending)
        found = [
            pending(Ref(self, first + at, type_), is_np=is_np) for at, type_ in enumerate(made)
        ]
        self._pending += found
        return found

    def is_view(self, found: Any, of: Any, method: str, argument: Any) -> Any:
        """Note that MXNet's result shares the memory of ``of``; returns ``found``."""
        if type(found) in PENDING and type(of) in PENDING:
            self._views[ref_of(found).number] = (ref_of(of).number, method, argument)
        return found

    def take_back(self, found: Any) -> None:
        """Forget the last call, which has no other result than ``found``, and nobody is to use."""
        with self._lock:
            if type(found) in PENDING and self._pending and self._pending[-1] is found:
                self._pending.pop()
                self.calls.pop()

    def flush_before_writing(self, *arrays: Any) -> None:
        """What was recorded reads arrays as they are now; what comes, as they will be."""
        pending = [array for array in arrays if type(array) in PENDING]
        for array in arrays:
            if type(array) not in PENDING:
                self._programs.note_written(array, self.ctx)
        self.flush()
        for array in pending:  # they are there by now
            self._programs.note_written(array, self.ctx)

    def flush(self, result: Any = None) -> None:
        """Run what was recorded; every pending array that somebody holds is there after it.

        ``result``: what the Block returns, once it does.
        """
        with self._lock:
            if not self.calls:
                return
            held = self._held()
            if held or self.draws():  # what comes behind is to draw what it draws in MXNet
                returned = self._returned(result)
                with Unrecorded():
                    values = self._computed(held, returned)
                for number in held:
                    settle(self._pending[number], values[number])
            self._forget()

    def _returned(self, result: Any) -> frozenset[int] | None:
        """Numbers of the values in lists, tuples and dicts; all if there is anything else."""
        if result is None:
            return None
        found: set[int] = set()
        known: set[int] = set()  # lists may hold themselves
        pending = [result]
        while pending:
            item = pending.pop()
            if id(item) in known:
                continue
            known.add(id(item))
            if type(item) in PENDING:
                ref = ref_of(item)
                if ref.tape is self:
                    found.add(self._root(ref.number))
            elif isinstance(item, dict):
                pending += item.values()
            elif isinstance(item, (list, tuple)):
                pending += item
            elif not isinstance(item, (mx.nd.NDArray, int, float, str, type(None))):
                found.clear()
                break
        return frozenset(found or map(self._root, range(len(self._pending))))

    def _computed(self, held: Sequence[int], returned: frozenset[int] | None) -> dict[int, Any]:
        """The values of those numbers; arrays that share memory in MXNet do so here."""
        if mx.util.is_np_shape() != self._np_shape:  # the scope that recorded them is over
            with mx.util.np_shape(self._np_shape):
                return self._computed(held, returned)
        members = Counter(self._root(number) for number in held)
        shared = {root for root, count in members.items() if count > 1}
        wanted = [n for n in held if self._root(n) not in shared]
        wanted += sorted(shared)
        drawn = self._drawn()
        wanted = [*drawn, *(n for n in wanted if n not in drawn)]
        if returned is not None:
            returned = frozenset(n for n in wanted if self._root(n) in returned)
        found = self._programs.run(self, tuple(wanted), returned)
        values = dict(zip(wanted, found, strict=True))
        for number in held:
            self._seen(number, values)
        return values

    def draws(self) -> bool:
        """Whether anything recorded draws numbers, masks aside."""
        return any(samples(call.op) for call in self.calls)

    def _drawn(self) -> list[int]:
        """Values of calls that draw numbers.

        A graph makes calls in the order in which its outputs need them, if at all. So these are
        its first outputs.
        """
        numbers = zip(firsts_of(self.calls), self.calls, strict=False)
        return [
            first + at
            for first, call in numbers
            if samples(call.op)
            for at in range(call.results if isinstance(call.op, Child) else 1)
        ]

    def _root(self, number: int) -> int:
        """The value whose memory a value lies in, as MXNet would have it."""
        while number in self._views:
            number = self._views[number][0]
        return number

    def _seen(self, number: int, values: dict[int, Any]) -> Any:
        """A value, made by MXNet's own view of another where it is one."""
        if number not in values:
            base, method, argument = self._views[number]
            values[number] = _view(self._seen(base, values), method, argument)
        return values[number]

    def _held(self) -> list[int]:
        """Numbers of pending arrays that somebody beside the tape holds.

        After an interrupted flush some of them are there already.
        """
        return [
            number
            for number in range(len(self._pending))
            if sys.getrefcount(self._pending[number]) > _OWN_REFERENCES
            and type(self._pending[number]) in PENDING
        ]

    def _leaf(self, array: Any) -> int:
        """The number of an array from outside."""
        number = self._numbers.get(id(array))
        if number is None:
            if type(array) in PENDING:  # of another tape: there after this
                array.handle  # noqa: B018
            number = self._numbers[id(array)] = ~len(self.leaves)
            self.leaves.append(array)
            self.leaf_types.append(self._programs.type_of(array) or type_of(array, self.ctx))
        return number

    def _types(
        self,
        op: int | Child,
        keys: tuple[str, ...],
        texts: tuple[str, ...],
        types: tuple[Type | None, ...],
    ) -> tuple[Type, ...] | None:
        if isinstance(op, Child):
            return op.types(types, np_shape=self._np_shape)
        key = (op, keys, texts, types, self._np_shape)
        try:
            return _TYPES[key]
        except KeyError:
            found = None
            if None not in types:
                attrs = dict(zip(keys, texts, strict=True))
                found = self._inferred(op, attrs, [t for t in types if t is not None])
            if len(_TYPES) >= _MAX_TYPES:
                _TYPES.clear()
            _TYPES[key] = found
            return found

    def _inferred(
        self, op: int, attrs: dict[str, str], types: Sequence[Type]
    ) -> tuple[Type, ...] | None:
        if op in _unrecordable() or makes_sparse(name_of(op), attrs):
            return None
        kinds: Any = [_Kind(np.dtype(dtype)) for _, dtype in types]
        try:
            shapes, dtypes = infer(op, attrs, [shape for shape, _ in types], kinds)
        except Exception as error:  # noqa: BLE001 - MXNet says so again, in its own words
            self._programs.note(f"an operator has no type: {first_line(error)}")
            return None
        if not shapes or not dtypes or any(d is None for d in dtypes):
            return None
        unknown = -1 if self._np_shape else 0
        if any(extent == unknown for shape in shapes for extent in shape):
            return None
        if not self._np_shape and not all(shapes):
            return None
        return all_recordable(shapes, dtypes)


def _view(array: Any, method: str, argument: Any) -> Any:
    """What a method of MXNet's makes in the memory of an array."""
    if method == "detach":
        return array.detach()
    if method == "reshape_view" and not isinstance(array, mx.np.ndarray):
        method = "reshape"
    return getattr(array, method)(argument)
