"""Training graphs on MXNet's executor, which prepares their operators once."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from graphopt.analysis.effects import may_draw
from graphopt.backend.documents import document_of
from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.environment import environment
from graphopt.backend.lower import Lowered
from graphopt.backend.openmp import release_threads
from graphopt.backend.pushing import turn_to_call
from graphopt.backend.retiring import bound_executor, free_retired
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.kernels import bridge
from graphopt.modules.group import Group
from graphopt.modules.outputs import copy_into

#: Of what forward computes. Larger steps last so long that autograd and Python do not matter, and
#: their memory is planned for one shape at a time.
_MOST_BYTES: Final = 32 << 20


def prepared(
    lowered: Lowered,
    data: Mapping[str, Any],
    gradients: Mapping[str, Any],
    grad_req: Mapping[str, str],
    group: Group,
    *,
    keeps_operators: bool = False,
) -> PreparedStep | None:
    """A step on arrays that stay the same, if MXNet's executor computes it as autograd does.

    Operators of a CachedOp that trains are set up for each call (docs/adr/0053), since autograd may
    bring other arrays. An executor's arrays are always the same.

    Args:
        lowered: what has run under autograd once, or is to keep operators.
        data: arrays that it was given, by name.
        gradients: an array by the name of an argument that has one to be written.
        grad_req: "write", "add" or "null" by name.
        group: executors that share memory, as one of them runs at a time.
        keeps_operators: as autograd does or not: operators of the user's are to be made once.
    """
    engine, arrays = lowered.bound
    if not isinstance(engine, CachedOpEngine) or not gradients:
        return None
    if any(grad_req[name] != "write" for name in gradients):  # adding is autograd's to do
        return None
    if not keeps_operators and not _is_worth_it(engine, lowered):
        return None
    given = {
        name: data[name] if array is None else array
        for name, array in zip(engine.inputs, arrays, strict=True)
    }
    if any(array.stype != "default" for array in (*given.values(), *gradients.values())):
        return None
    if not {*gradients} <= {*engine.symbol.list_arguments()}:
        return None
    if bridge.why_not(import_mxnet()) is not None:
        return None  # nobody could wait for what it writes into states
    heads = document_of(engine.symbol)["heads"]
    if len({tuple(head[:2]) for head in heads}) < len(heads):
        return None  # of gradients of one value MXNet's executor takes the last
    made = PreparedStep(engine.symbol, given, gradients, group)
    engine.renew()  # whose memory nobody needs any more
    return made


def _is_worth_it(engine: CachedOpEngine, lowered: Lowered) -> bool:
    if not engine.may_be_prepared or engine.planned_bytes > _MOST_BYTES:
        return False
    return not may_draw(lowered.form.graph, training=True)


class PreparedStep:
    """Forward and backward on an executor of MXNet's."""

    name = "MXNet's executor"

    def __init__(
        self, symbol: Any, arrays: Mapping[str, Any], gradients: Mapping[str, Any], group: Group
    ) -> None:
        """Bind.

        Args:
            symbol: what runs.
            arrays: of arguments and states, by name.
            gradients: NDArrays by name of arguments; backward writes them.
            group: of executors that share memory.
        """
        arguments, states = symbol.list_arguments(), symbol.list_auxiliary_states()
        with environment(MXNET_SUBGRAPH_VERBOSE="0"):
            self._executor = bound_executor(
                symbol,
                arrays[arguments[0]].ctx,
                {name: arrays[name] for name in arguments},
                dict(gradients),
                {name: "write" if name in gradients else "null" for name in arguments},
                {name: arrays[name] for name in states},
                shared_exec=group.pool,
            )
        if group.pool is None:
            group.pool = self._executor  # to whose memory MXNet adds what others need
        kept = [arrays[name] for name in states]
        self._states = (ctypes.c_void_p * len(kept))(*[array.handle for array in kept])
        self._kept = kept
        self._is_forward = False
        self._turn = turn_to_call(symbol)

    @property
    def is_ready(self) -> bool:
        """Whether backward finds what forward left: MXNet's reads it once."""
        return self._is_forward

    def forward(self, outputs: Sequence[Any], *, is_train: bool) -> None:
        """Compute the outputs, into arrays."""
        release_threads()
        free_retired()
        self._note_states()
        with self._turn:
            found = self._executor.forward(is_train=is_train)
        self._note_states()
        self._is_forward = True
        for output, array in zip(outputs, found, strict=True):
            copy_into(output, array)

    def backward(self, heads: Sequence[Any], outputs: Sequence[Any], *, is_train: bool) -> None:
        """Compute gradients by those of the outputs, which the last forward made."""
        self._is_forward = False
        release_threads()
        with self._turn:
            self._executor.backward(list(heads), is_train)
        self._note_states()

    def let_go(self) -> None:
        """Keep nothing for backward."""
        self._is_forward = False

    def _note_states(self) -> None:
        """Have others wait for what an executor writes, whose operators count as readers of it."""
        if self._kept and _note_written()(self._states, len(self._kept)):
            raise GraphoptError("states cannot be written: MXNet's engine refuses them")


@cache
def _note_written() -> Any:
    found = bridge.load(import_mxnet()).graphopt_note_written
    found.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    return found
