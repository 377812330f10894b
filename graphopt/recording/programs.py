"""Programs: what tapes have on them, compiled once each and looked up by all that they are."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphopt.backend.findings import Findings
from graphopt.backend.late import LateError, wait_for
from graphopt.backend.plans import Plans
from graphopt.backend.symbol import first_line
from graphopt.batching.operators import applied, name_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.forking import lock
from graphopt.frontend.gluon import Traced
from graphopt.frontend.symbol import lift_symbol
from graphopt.kernels.bridge.history import has_history
from graphopt.nn.config import Config
from graphopt.nn.entries import MAX_SIGNATURES
from graphopt.nn.entry import Entry, compile_graph
from graphopt.nn.ski_rental import SkiRental
from graphopt.pipeline.base import Mode
from graphopt.recording.calls import Part, operators_of
from graphopt.recording.children import Child
from graphopt.recording.histories import Histories, Split, leaf_set
from graphopt.recording.leaves import Leaves
from graphopt.recording.parts import Share, Sharing

if TYPE_CHECKING:
    from graphopt.recording.calls import Call, Calls
    from graphopt.recording.tape import Tape
    from graphopt.recording.types import Type

#: Recording is in vain where more runs than this, and more than one in three, are of programs that
#: are not worth compiling.
MAX_PLAIN: Final = 64
PLAIN_OF_RUNS: Final = 3
#: Calls of a program that is compiled though nobody asked for recording.
MOST_CALLS: Final = 2000
#: There is no end of programs that come once.
_MAX_HISTORIES: Final = 256


class Key(NamedTuple):
    """All that a program is.

    Attributes:
        mode: which pipeline it is compiled by.
        ctx: where its arrays are.
        names: of the parameters among its leaves; ``None`` where a leaf is none.
        types: of its leaves.
        calls: what it does.
        wanted: numbers of the values that it returns.
    """

    mode: Mode
    ctx: Any
    names: tuple[str | None, ...]
    types: tuple[Type | None, ...]
    calls: tuple[Call, ...]
    wanted: tuple[int, ...]


class Programs:
    """The compiled programs of one Block.

    Attributes:
        notes: what was not compiled, and why.
        rule: which programs are compiled.
        runs: how many programs were run.
        compiled: how many of them were compiled first.
        too_long: calls of a program that was not compiled as it has more than that; 0 if none.
    """

    def __init__(self, block: Any, config: Config) -> None:
        """Nothing is compiled."""
        self._block, self._config = block, config
        self._entries: OrderedDict[Key, Entry | None] = OrderedDict()
        self._lock = lock()
        self._leaves = Leaves(block)
        self._is_known = False  # whether a first step is over
        self._first: Tape | None = None  # its tape
        self._histories: dict[Key, Histories] = {}  # of programs, by their keys
        self._sharings: dict[Key, Sharing] = {}
        self.notes: list[str] = []
        self.rule = SkiRental()
        self.runs = self.compiled = self.too_long = 0

    @property
    def entries(self) -> list[Entry]:
        """What was compiled, the latest used last."""
        with self._lock:
            return [entry for entry in self._entries.values() if entry is not None]

    @property
    def is_in_vain(self) -> bool:
        """Whether most programs come too rarely, as where a number changes from call to call."""
        plain = self.rule.plain_calls
        return plain > MAX_PLAIN and plain * PLAIN_OF_RUNS > self.runs

    def note(self, text: str) -> None:
        """Keep what was not compiled, once."""
        if text not in self.notes:
            self.notes.append(text)

    def type_of(self, array: Any) -> Type | None:
        """The type of an array that is a parameter's, which takes long to ask for."""
        return self._leaves.type_of(array)

    def note_written(self, array: Any, ctx: Any) -> None:
        """Know an array that the Block's Python writes, which is data even if a parameter's."""
        with self._lock:
            self._leaves.note_written(array, ctx)

    def run(
        self, tape: Tape, wanted: tuple[int, ...], returned: frozenset[int] | None
    ) -> list[Any]:
        """The values of those numbers on a tape, as fresh arrays.

        ``returned``: numbers of those that the Block returns, if that is known.
        """
        mx = import_mxnet()
        is_recording = mx.autograd.is_recording()
        differentiating = is_recording or mx.autograd.is_training()
        mode = self._config.graph_mode(differentiating=differentiating)
        if is_recording and self._is_first(tape):
            return tape.replayed(wanted)
        found = self._shares(mode, tape, wanted, returned) if is_recording else None
        if found is None:
            return self._run_whole(mode, tape, wanted)
        if not found:
            self.note(
                "a program runs call by call, as its results have gradients to different arrays"
            )
            return tape.replayed(wanted)
        values: dict[int, Any] = {}
        for share in found:
            part = Part(tape, share.calls, values)
            made = self._run_whole(mode, part, part.numbers(share.wanted))
            values.update(zip(share.wanted, made, strict=True))
        return [values[number] for number in wanted]

    def _shares(
        self, mode: Mode, tape: Calls, wanted: tuple[int, ...], returned: frozenset[int] | None
    ) -> list[Share] | None:
        """What of a program is computed together, as backward reaches it together."""
        mx = import_mxnet()
        if len(wanted) == 1 and not any(call.is_detach for call in tape.calls):
            return None
        with self._lock:
            self._leaves.follow(tape.ctx)
            key = self._key(mode, tape, wanted)
            found = self._sharings.get(key)
            if found is None:
                if len(self._sharings) >= _MAX_HISTORIES:
                    self._sharings.clear()
                learned = [n is not None and n not in self._leaves.constants for n in key.names]
                found = self._sharings[key] = Sharing(key.calls, wanted, learned)
            return found.shares(lambda leaf: has_history(mx, tape.leaves[leaf]), returned)

    def _run_whole(self, mode: Mode, tape: Calls, wanted: tuple[int, ...]) -> list[Any]:
        """The values of a program, or a part of one, that backward reaches as a whole."""
        is_recording = import_mxnet().autograd.is_recording()
        with self._lock:
            self.runs += 1
            self._leaves.follow(tape.ctx)
            key = self._key(mode, tape, wanted)
            split = self._split(key, tape, wanted) if is_recording else Split(wanted)
            if split is None:
                self.note(
                    "a program runs call by call, as its results have gradients to different arrays"
                )
                return tape.replayed(wanted)
            if split.together != wanted:
                key = self._key(mode, tape, split.together)
        found = self._run(key, tape, split)
        values = {
            number: value.detach() if number in split.detached else value
            for number, value in zip(split.together, found, strict=True)
        }
        if split.apart:
            tape.replay(split.apart, values)
        return [values[number] for number in wanted]

    def _is_first(self, tape: Tape) -> bool:
        """Whether it is of the first step: before its end nobody knows which arrays are written."""
        if not self._is_known and self._first is None:
            self._first = tape
        if self._first is not None and self._first is not tape:
            self._is_known, self._first = True, None
        return self._first is tape

    def _run(self, key: Key, tape: Calls, split: Split) -> list[Any]:
        """What is computed together."""
        if key not in self._entries:
            wait_for(leaf for leaf in tape.leaves if leaf.stype == "default")
        with self._lock:
            calls = operators_of(tape.calls)
            is_too_long = self._config.record is None and calls > MOST_CALLS
            if is_too_long:
                self.too_long = calls
            is_rented = not is_too_long and self._is_rented(key)
            is_compiled = not (is_rented or is_too_long)
            entry = self._entry(key, tape) if is_compiled else None
        if is_rented:
            with self.rule.timed(hash(key), is_step=key.mode == "training") as made:
                made += tape.replayed(key.wanted)
            return made
        if entry is None:
            return tape.replayed(key.wanted)
        entry.refresh(tape.ctx)
        given = [at for at in range(len(tape.leaves)) if key.names[at] is None]
        names, numbers = entry.traced.names, entry.numbers
        data = {
            name: self._as_read(tape.leaves[at], is_cut=at in split.cut or name in numbers)
            for name, at in zip(names, given, strict=True)
        }
        try:
            found = entry.built.run(data)
        except LateError:
            raise
        except import_mxnet().MXNetError as error:
            if self._config.strict or entry.has_run:
                raise
            with self._lock:
                self._entries[key] = None
                self._note_refused(tape, error)
            return tape.replayed(key.wanted)
        entry.has_run = True
        return found

    def _as_read(self, leaf: Any, *, is_cut: bool) -> Any:
        """A leaf for a program; a copy if backward may find it written, where it reads it again."""
        mx = import_mxnet()
        array = leaf.detach() if is_cut and has_history(mx, leaf) else leaf
        if not mx.autograd.is_recording() or not self._leaves.may_be_written(leaf):
            return array
        # Not array.copy(), whose backward overwrites a gradient that is to be added to.
        return mx.np.copy(array) if isinstance(array, mx.np.ndarray) else mx.nd.identity(array)

    def _split(self, key: Key, tape: Calls, wanted: tuple[int, ...]) -> Split | None:
        """How values are computed, so that they lead where they do call by call."""
        found = self._histories.get(key)
        if found is None:
            if len(self._histories) >= _MAX_HISTORIES:
                self._histories.clear()
            sets = [leaf_set(at, name, self._leaves.constants) for at, name in enumerate(key.names)]
            found = self._histories[key] = Histories(tuple(tape.calls), wanted, sets)
        return found.split(lambda leaf: has_history(import_mxnet(), tape.leaves[leaf]))

    def _key(self, mode: Mode, tape: Calls, wanted: tuple[int, ...]) -> Key:
        names = tuple(map(self._leaves.name_of, tape.leaves))
        return Key(mode, tape.ctx, names, tuple(tape.leaf_types), tuple(tape.calls), wanted)

    def _is_rented(self, key: Key) -> bool:
        """Whether a program is run call by call, as it is not worth compiling yet."""
        if self._config.strict or key in self._entries:
            return False
        return not self.rule.is_due(hash(key))  # a hash, since programs are long

    def _entry(self, key: Key, tape: Calls) -> Entry | None:
        """The compiled program; ``None`` for one that cannot be."""
        if key in self._entries:
            self._entries.move_to_end(key)
            entry = self._entries[key]
            if entry is None or not entry.lacks_gradients(_given(key, tape)):
                return entry
            entry.built.release()
        self.compiled += 1
        start = time.perf_counter()
        try:
            akin = list(self._akin(key))
            entry = self._compile(key, tape, (one.built.findings for one in akin))
            if key.mode == "training":
                entry.lowered.plans = next((one.lowered.plans for one in akin), None) or Plans()
        except LateError:
            raise
        except (GraphoptError, import_mxnet().MXNetError) as error:
            if self._config.strict:
                raise
            self._note_refused(tape, error)
            entry = None
        self.rule.compiled(hash(key), time.perf_counter() - start)
        self._entries[key] = entry
        if len(self._entries) > MAX_SIGNATURES:
            _, oldest = self._entries.popitem(last=False)
            if oldest is not None:
                oldest.built.release()
        return entry

    def _note_refused(self, tape: Calls, error: Exception) -> None:
        calls = operators_of(tape.calls)
        self.note(f"a program of {calls} calls runs call by call: {first_line(error)}")

    def _akin(self, key: Key) -> Iterator[Entry]:
        """Programs of the same operators, on arrays of other shapes."""
        for other, entry in self._entries.items():
            if entry is None or other._replace(types=key.types, calls=key.calls) != key:
                continue
            if [call.op for call in other.calls] == [call.op for call in key.calls]:
                yield entry

    def _compile(self, key: Key, tape: Calls, akin: Iterable[Findings]) -> Entry:
        leaves, names = self._variables(key)
        symbol = _symbol(tape, key.wanted, leaves)
        read = set(symbol.list_inputs())
        types = {
            leaf.name: type_
            for leaf, type_ in zip(leaves, tape.leaf_types, strict=True)
            if leaf.name in read and type_ is not None
        }
        graph = lift_symbol(
            symbol,
            {n: shape for n, (shape, _) in types.items()},
            {n: dtype for n, (_, dtype) in types.items()},
            data=set(names),
            name=self._block.name,
        )
        parameters = {n: p for n, p in self._leaves.parameters.items() if n in read}
        arrays = dict(zip(names, _given(key, tape), strict=True))
        return compile_graph(
            self._config,
            graph,
            parameters,
            arrays,
            tape.ctx,
            key.mode,
            traced=Traced(symbol, tuple(names), None),
            akin=akin,
        )

    def _variables(self, key: Key) -> tuple[list[Any], list[str]]:
        """A Symbol per leaf, and the names of those that are no parameters."""
        mx = import_mxnet()
        leaves: list[Any] = []
        names: list[str] = []
        for name in key.names:
            if name is None:
                name = f"data{len(names)}"
                while name in self._leaves.parameters:
                    name += "_"
                names.append(name)
            leaves.append(mx.sym.var(name))
        return leaves, names


def _given(key: Key, tape: Calls) -> list[Any]:
    """Leaves that are no parameters."""
    return [leaf for leaf, name in zip(tape.leaves, key.names, strict=True) if name is None]


def _symbol(tape: Calls, wanted: Sequence[int], leaves: Sequence[Any]) -> Any:
    """The program as MXNet's graph."""
    mx = import_mxnet()
    values: list[Any] = []
    for number, call in enumerate(tape.calls):
        args = [values[n] if n >= 0 else leaves[~n] for n in call.args]
        if isinstance(call.op, Child):
            values += call.op.applied(args)
            continue
        attrs = dict(zip(call.keys, call.vals, strict=True))
        name = f"{name_of(call.op).lower().strip('_')}{number}"
        made = applied(call.op, attrs, args, name)
        values += [made[at] for at in range(call.results)] if call.results > 1 else [made]
    return mx.sym.Group([values[number] for number in wanted])
