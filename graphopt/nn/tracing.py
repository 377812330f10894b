"""The Symbols of one Block: which of its calls have the same, and making them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.frontend.alone import traced_alone
from graphopt.frontend.gluon import Traced, trace
from graphopt.nn.steady import steadily_traced, undone
from graphopt.pipeline.base import Mode

#: Whether autograd records, and whether it trains.
State = tuple[bool, bool]


class Tracer:
    """Traces a Block for its calls: anew for each, or once if MXNet keeps its graph as well."""

    def __init__(self, block: Any, on_set: Callable[[], None]) -> None:
        """Nothing is traced yet.

        Args:
            block: a HybridBlock.
            on_set: is called when Python of it ran and has set attributes.
        """
        self._block, self._on_set = block, on_set
        self._kept: dict[Any, tuple[Any, Traced]] = {}  # of a Block that is hybridized
        # Graphs that were read, and the attributes of the Blocks that hold them.
        self._read: list[tuple[dict[str, Any], Any]] = []
        self._states: dict[Any, dict[State, State]] = {}  # by mode and layout: those traced alike

    def __call__(self, args: Sequence[Any], *, may_run: bool = False) -> Traced:
        """The Block's Symbol for such arguments.

        Raises:
            UnsupportedError: it cannot be traced.
            PythonFirst: its Python has to make this call; only if it ``may_run``.
        """
        traced = self._traced(args, may_run=may_run)
        self._read = [(own, own["_cached_graph"]) for own in _with_graphs(self._block)]
        return traced

    def is_outdated(self) -> bool:
        """Whether a Block that is hybridized, or one within, has forgotten the graph it had.

        ``cast`` has it do so, and methods of users that change what ``hybrid_forward`` reads.
        """
        for own, graph in self._read:  # noqa: SIM110 - every call asks, and any() takes longer
            if own["_cached_graph"] is not graph:
                return True
        return False

    def forget_states(self) -> None:
        """In which states of autograd the Block is traced alike is to be found out anew."""
        self._states.clear()

    def _traced(self, args: Sequence[Any], *, may_run: bool) -> Traced:
        if not self._is_kept():
            return steadily_traced(self._block, args, self._on_set, may_run=may_run)
        flat, layout = import_mxnet().gluon.block._flatten(list(args), "input")
        kind = str(layout), *map(type, flat)
        graph, traced = self._kept.get(kind, (None, None))
        if traced is None or not graph or graph is not vars(self._block).get("_cached_graph"):
            traced = trace(self._block, args)
            self._kept[kind] = vars(self._block).get("_cached_graph"), traced
        return traced

    def state(self, mode: Mode, layout: Hashable, args: Sequence[Any]) -> State:
        """Autograd's state, or one of an earlier call in which the Block is traced alike."""
        autograd = import_mxnet().autograd
        state = autograd.is_recording(), autograd.is_training()
        if self._is_kept():
            state = (False, False)
        known = self._states.setdefault((mode, layout), {})
        if state not in known:
            others = dict.fromkeys(known.values())
            known[state] = next((o for o in others if self._is_traced_alike(o, args)), state)
        return known[state]

    def _is_kept(self) -> bool:
        return bool(getattr(self._block, "_active", False))

    def _is_traced_alike(self, state: State, args: Sequence[Any]) -> bool:
        """Whether the Block's Python makes the same graph in that state of autograd as in this."""
        is_recording, is_training = state
        autograd = import_mxnet().autograd
        scope = autograd.record if is_recording else autograd.pause
        with traced_alone(self._block), undone(self._block):
            now = trace(self._block, args, keeping=False)
            with scope(train_mode=is_training):
                return now.is_like(trace(self._block, args, keeping=False))


def _with_graphs(block: Any) -> Iterator[dict[str, Any]]:
    """Attributes of a Block and of those within it that MXNet runs as graphs, if there are any."""
    stack, seen = [block], set[int]()
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if not getattr(part, "_active", False):
            stack.extend(part._children.values())
        elif vars(part).get("_cached_graph"):
            yield vars(part)
