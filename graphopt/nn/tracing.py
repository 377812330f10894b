"""The Symbols of one Block: which of its calls have the same, and making them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
        self._states: dict[Any, dict[State, State]] = {}  # by mode and layout: those traced alike

    def __call__(self, args: Sequence[Any], *, may_run: bool = False) -> Traced:
        """The Block's Symbol for such arguments.

        Raises:
            UnsupportedError: it cannot be traced.
            PythonFirst: its Python has to make this call; only if it ``may_run``.
        """
        if not self._is_kept():
            return steadily_traced(self._block, args, self._on_set, may_run=may_run)
        flat, layout = import_mxnet().gluon.block._flatten(list(args), "input")
        kind = str(layout), *map(type, flat)
        graph, traced = self._kept.get(kind, (None, None))
        if traced is None or not graph or graph is not vars(self._block).get("_cached_graph"):
            traced = trace(self._block, args)
            self._kept[kind] = vars(self._block).get("_cached_graph"), traced
        return traced

    def is_outdated(self) -> bool:
        """Whether a Block that is hybridized has forgotten its graph, as if it was called never.

        ``cast`` does, and methods of users that change what ``hybrid_forward`` reads.
        """
        return bool(self._kept) and not vars(self._block).get("_cached_graph")

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
