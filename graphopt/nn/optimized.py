"""Optimized views of Gluon Blocks.

A view is an instance of a subclass of the user's own class that shares the user's ``__dict__``:
same parameters, same children, same attributes and methods, ``isinstance`` holds. What the class
has slots for is looked up on the user's object (:mod:`graphopt.nn.slots`). Only the call is
different. The user's object and class are not touched. Instances of decorated classes are of such
a subclass from the start (see :mod:`graphopt.nn.decorated`). :mod:`graphopt.nn.views` makes both.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.blocks import describe
from graphopt.frontend.composing import drop_graphs
from graphopt.ir.graph import Graph
from graphopt.nn.calls import has_own_call, has_symbol, is_whole, run
from graphopt.nn.config import Config
from graphopt.nn.entry import Entry
from graphopt.nn.noted import Noted
from graphopt.nn.originals import original
from graphopt.nn.partition import parts_of, tried_of
from graphopt.nn.slots import values_in_slots
from graphopt.nn.state import State
from graphopt.pipeline.manager import Receipt
from graphopt.pipeline.remarks import Remark
from graphopt.recording.active import ACTIVE

#: Of objects that have none of their own; Python 3.10 has none at all.
_GETSTATE = getattr(object, "__getstate__", None)

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan

#: What Block.hybridize and Block.optimize_for take alike.
_FLAGS = {"static_alloc", "static_shape", "inline_limit", "forward_bulk_size", "backward_bulk_size"}
#: What is kept beside ``__dict__``, which is the user's object's as well: what graphopt knows, and
#: that object.
STATE, OWN = "_graphopt_state", "_graphopt_own"

#: Taken to replace what is known, which takes no time: nothing is made or let go of within. Not
#: Lock: a signal handler may call the net again.
_TURN: Final = threading.RLock()
os.register_at_fork(
    before=_TURN.acquire, after_in_parent=_TURN.release, after_in_child=_TURN.release
)

#: Attributes that are others after fewer calls, more than so often in a row, are not compiled in.
CALLS_OF_A_SETTING, HASTY_CHANGES = 64, 3


class Optimized(Noted):
    """Mixin in front of the user's class; see the module's docstring."""

    _graphopt_state: State
    _graphopt_config: Config
    _graphopt_base: type
    _graphopt_is_decorated: bool
    _graphopt_has_call: bool

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Generated classes are none that the user's would want to hear of."""
        if "_graphopt_base" not in vars(cls):
            super().__init_subclass__(**arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the user's Block, on the compiled graph for these types."""
        if kwargs or ACTIVE.tape or has_symbol(args):
            # A Symbol comes from an outer Block that is being traced, a tape from one that is
            # recorded; keywords only layers of gluon.rnn take, which handle them before any graph
            # is made.
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        if has_own_call(self) and not is_whole(self):
            return run(self, args)  # hooks are called where that calls Gluon's
        for hook in self._forward_pre_hooks.values():  # type: ignore[attr-defined]
            hook(self, args)
        found = run(self, args)
        for hook in self._forward_hooks.values():  # type: ignore[attr-defined]
            hook(self, args, found)
        return found

    @property
    def graphopt_state(self) -> State:
        """What graphopt knows about this view."""
        try:  # past a `__getattr__` of the user's
            found: State = object.__getattribute__(self, STATE)
        except AttributeError:
            found = self._graphopt_replace(None)
        return found

    def _graphopt_current(self, args: tuple[Any, ...] | None = None) -> State:
        """What graphopt knows about this view, nothing if it consists of others since.

        Args:
            args: of the call that is to be made, if that is known.
        """
        state = self.graphopt_state
        if not state.structure.is_same():
            return self._graphopt_replace(state)
        if state.compiled.is_outdated() and not (args and state.compiled.follows(args)):
            return self._graphopt_replace(state)
        state.calls += 1
        if state.reason:
            state.settings = None  # Python that runs reads them itself
            return state
        if state.settings is None or state.settings.are_same():
            return state
        return self._graphopt_reread(state)

    def _graphopt_reread(self, before: State) -> State:
        """Begin anew, as attributes are others; compile nothing if they change all along."""
        if not before.compiled.entries:
            before.note_settings()
            return before
        names = before.settings.changed() if before.settings else []
        if not names:  # another thread has set it back
            return before
        is_hasty = before.calls < CALLS_OF_A_SETTING
        state = self._graphopt_replace(before, before.hasty + 1 if is_hasty else 0)
        if state.hasty > HASTY_CHANGES and not (state.config.strict or state.config.plans_memory):
            state.reason = f"{names[0]} changes from call to call"
        return state

    def _graphopt_replace(self, before: State | None, hasty: int = 0) -> State:
        """Begin anew, unless another thread has since this one found what there was.

        Threads that call at once share what is compiled, and wait for the one that compiles it.
        """
        made = State(self, self._graphopt_config, hasty)
        with _TURN:
            try:
                known: State | None = object.__getattribute__(self, STATE)
            except AttributeError:
                known = None
            if known is not None and known is not before:
                return known
            object.__setattr__(self, STATE, made)
        return made

    def _graphopt_forget(self) -> None:
        """Begin anew, with nothing compiled."""
        object.__setattr__(self, STATE, State(self, self._graphopt_config))

    def receipts(self) -> dict[str, tuple[Receipt, ...]]:
        """Per compiled signature (mode and input types), a receipt per pass."""
        return {_title(entry): entry.result.receipts for entry in self._graphopt_entries()}

    def remarks(self) -> tuple[Remark, ...]:
        """All remarks of the graph compiled last."""
        entries = self._graphopt_entries()
        return entries[-1].result.remarks if entries else ()

    def graph(self, mode: str | None = None) -> Graph:
        """The optimized graph compiled last (of that mode).

        Raises:
            InputError: nothing was compiled yet.
        """
        return self._graphopt_last(mode).result.graph

    def memory_plan(self, mode: str | None = None) -> MemoryPlan:
        """The memory plan of what runs of the graph compiled last (of that mode); nothing is run.

        Of a training step with ``memory=`` or ``max_shapes=`` that is the step as planned last: in
        its order, and with all that is computed again (phase ``recompute``). Print ``.report()``
        for its peak, the tensors there, bytes by layer, and live bytes over time.

        Raises:
            InputError: nothing was compiled yet, or MXNet cannot bind it for training.
        """
        return self._graphopt_last(mode).lowered.memory_plan()

    def explain(self) -> str:
        """What was done to this Block, on which engine it runs, and why not more was done."""
        from graphopt.nn.explain import explain

        return explain(self)

    def report(self, path: str | Path) -> Path:
        """Write an HTML report about the graph compiled last; returns the path.

        Raises:
            InputError: nothing was compiled yet.
        """
        from graphopt.api.reporting import write_report

        entry = self._graphopt_last()
        return write_report(
            entry.original,
            self._graphopt_config.pipeline(entry.mode),
            path,
            mode=entry.mode,
            frozen=entry.built.frozen,
            title=f"{entry.original.name}, {_title(entry)}",
            step=entry.lowered.step_plan(),
        )

    @property
    def on_trial(self) -> bool:
        """Whether calls still go different ways to tell which is the fastest.

        The first calls of plain Blocks do, and of Blocks within that methods call; who times a net
        waits for their end. ``False`` before the first call, and for Blocks that compile whole.
        """
        found = (way for each in views_of(self) for way in each.graphopt_state.ways.values())
        return any(way.chosen is None for way in found)

    def reset(self) -> None:
        """Forget what was compiled: frozen parameters are read anew at the next call.

        So are attributes that Python of hybridized Blocks reads.
        Cells of ``gluon.rnn`` forget their states besides, as MXNet's ``reset`` has them do.
        """
        self._graphopt_forget()
        drop_graphs(self)
        own = getattr(super(), "reset", None)
        if own is not None:
            own()

    def hybridize(self, active: bool = True, *args: Any, **kwargs: Any) -> None:
        """As Block.hybridize, of the user's Block, too; it is compiled anew at the next call.

        A hybridized Block is one graph, as in MXNet: what its Python reads is its first call's.
        """
        super().hybridize(active, *args, **kwargs)  # type: ignore[misc]
        self._graphopt_forget()

    def optimize_for(self, x: Any, *args: Any, backend: Any = None, **kwargs: Any) -> None:
        """As :meth:`hybridize`, and compiled for inference on such arguments now.

        Of backends the fastest of those that graphopt knows runs, whichever is named.

        Raises:
            InputError: none is named.
        """
        if not backend:
            raise InputError("name the backend: optimize_for(x, backend='MKLDNN')")
        self.hybridize(True, **{name: kwargs[name] for name in _FLAGS & kwargs.keys()})
        with import_mxnet().autograd.pause():
            self(x, *args)

    def register_op_hook(self, callback: Any, monitor_all: bool = False) -> None:
        """Have a function look at what MXNet's operators compute, as Block.register_op_hook does.

        MXNet runs the user's Block from then on, hybridized, as it tells of such operators only
        then; with ``None`` for the function it is compiled again.
        """
        own = original(self)
        own.register_op_hook(callback, monitor_all)
        self.__dict__["_callback"] = callback  # of a Block that is not hybrid as well
        if callback is not None and getattr(own, "_active", True) is False:
            own.hybridize()
        self._graphopt_forget()

    def summary(self, *inputs: Any) -> None:
        """As Block.summary, of the user's Block as MXNet runs it."""
        original(self).summary(*inputs)

    def cast(self, dtype: Any) -> None:
        """As Block.cast; compiled graphs are dropped."""
        super().cast(dtype)  # type: ignore[misc]
        self._graphopt_forget()

    def load_parameters(self, *args: Any, **kwargs: Any) -> None:
        """As Block.load_parameters; frozen graphs are dropped."""
        super().load_parameters(*args, **kwargs)  # type: ignore[misc]
        if self._graphopt_config.mode == "inference":
            self._graphopt_forget()

    def export(
        self,
        path: str | Path,
        epoch: int = 0,
        remove_amp_cast: bool = True,
        *,
        kernels: bool = False,
    ) -> None:
        """Write ``path-symbol.json`` and ``path-<epoch>.params``, which plain MXNet loads.

        With ``mode="inference"`` the optimized graph is written, with its folded parameters and for
        the input types of the last call; otherwise the Block's own graph, as Gluon would.

        Args:
            path: prefix of the files.
            epoch: a number for the name of the parameters.
            remove_amp_cast: leave out what ``mx.contrib.amp`` casts, as Gluon does. An optimized
                graph keeps it: its folded parameters have those dtypes.
            kernels: keep fused kernels in an inference graph. Such files load in processes that
                imported graphopt; without it plain MXNet loads them, and ``graphopt.load`` fuses
                anew.

        Raises:
            InputError: the Block was not called yet, or was taken child by child.
        """
        from graphopt.nn.exporting import export

        export(self, str(path), epoch, remove_amp_cast=remove_amp_cast, kernels=kernels)

    def __repr__(self) -> str:
        return f"Optimized[{super().__repr__()}]"

    def __dir__(self) -> list[str]:
        """With what views have beside the user's class, which ``__class__`` is."""
        return sorted({*super().__dir__(), *dir(Optimized)})

    def __copy__(self) -> Any:
        """With a ``__dict__`` of its own, as copies of Blocks have."""
        import copy

        from graphopt.nn.views import instance, view  # which are made of this

        if not self._graphopt_is_decorated:
            return view(copy.copy(original(self)), self._graphopt_config)
        twin = instance(self._graphopt_base, self._graphopt_config)
        twin.__dict__.update(self.__dict__)
        for name, value in values_in_slots(original(self)).items():
            object.__setattr__(twin, name, value)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles hold what the user's Block holds; they are compiled anew."""
        from graphopt.nn.views import instance, view

        if not self._graphopt_is_decorated:
            return view, (original(self), self._graphopt_config)
        state: Any = self.__dict__
        getstate = getattr(self._graphopt_base, "__getstate__", _GETSTATE)
        if getstate is not None and getstate is not _GETSTATE:
            state = getstate(self)
        elif in_slots := values_in_slots(original(self)):
            state = state, in_slots
        return instance, (self._graphopt_base, self._graphopt_config), state

    def _graphopt_last(self, mode: str | None = None) -> Entry:
        """What was compiled last (of that mode)."""
        for entry in reversed(self._graphopt_entries()):
            if mode in (None, entry.mode):
                return entry
        raise InputError(f"{describe(self)} has no compiled graph yet: call it once first")

    def _graphopt_entries(self) -> list[Entry]:
        """Own entries, then those of children where the Block was taken apart."""
        state = self.graphopt_state
        found = state.compiled.entries
        if state.recorded is not None:
            found += state.recorded.programs.entries
        for child in views_in(state.fallback):
            found += child._graphopt_entries()
        return found


def views_in(block: Any) -> list[Any]:
    """Optimized views among the descendants of a partitioned Block."""
    if block is None:
        return []
    found: dict[int, Any] = {}
    for child in (*parts_of(block), *block._children.values()):
        inner = [child] if isinstance(child, Optimized) else _tried_in(child) + views_in(child)
        found |= {id(each): each for each in inner}
    return list(found.values())


def views_of(block: Any) -> list[Any]:
    """A view, and those of its children where it was taken apart."""
    inner = views_in(block.graphopt_state.fallback)
    return [block, *(view for each in inner for view in views_of(each))]


def _tried_in(twin: Any) -> list[Any]:
    """The view that calls of a twin may go to, if it was called."""
    found = tried_of(twin)
    return [] if found is None or not found.graphopt_state.ways else [found]


def _title(entry: Entry) -> str:
    return f"{entry.mode} ({entry.types})"
