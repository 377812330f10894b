"""What calls of one group have in common, and how the group is run on its joined arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from graphopt.batching.gather import segment_reduce
from graphopt.batching.kinds import Kind
from graphopt.batching.operators import handle, name_of, text
from graphopt.compat import import_mxnet
from graphopt.ir.ops import canonical


class Slot(threading.local):
    """A shared array that is another one in every batch and thread; see fixed.py."""

    array: Any = None


#: From the arrays of a group's arguments to those of its outputs.
Run = Callable[[Sequence[Any]], Sequence[Any]]

#: Operators on equal shapes, and those that repeat a lonely row.
_BROADCAST = {
    "elemwise_add": "broadcast_add",
    "elemwise_sub": "broadcast_sub",
    "elemwise_mul": "broadcast_mul",
    "elemwise_div": "broadcast_div",
    "_maximum": "broadcast_maximum",
    "_minimum": "broadcast_minimum",
    "_power": "broadcast_power",
    "_mod": "broadcast_mod",
    "_hypot": "broadcast_hypot",
    "_equal": "broadcast_equal",
    "_not_equal": "broadcast_not_equal",
    "_greater": "broadcast_greater",
    "_greater_equal": "broadcast_greater_equal",
    "_lesser": "broadcast_lesser",
    "_lesser_equal": "broadcast_lesser_equal",
    "_logical_and": "broadcast_logical_and",
    "_logical_or": "broadcast_logical_or",
    "_logical_xor": "broadcast_logical_xor",
}


class Signature:
    """One kind of call.

    Attributes:
        serial: its number, part of keys.
        name: for messages.
        inputs: number of arguments with rows.
        outs: type of each output.
        state: autograd's flags it was recorded under.
        run: makes the one call for the group.
        form: ``rows``, ``reduce`` (has pointers), ``single`` (call by call).
        can_broadcast: an argument that is one row for all may be passed as one row.
        source: what it was made from, for those that compute it in another way.
    """

    __slots__ = (
        "can_broadcast",
        "form",
        "inputs",
        "name",
        "native",
        "outs",
        "run",
        "serial",
        "source",
        "splits",
        "state",
        "steep",
    )

    def __init__(
        self,
        serial: int,
        name: str,
        inputs: int,
        outs: Sequence[Kind],
        state: int,
        run: Run,
        *,
        form: str = "rows",
        can_broadcast: bool = False,
        source: Any = None,
    ) -> None:
        self.serial, self.name, self.inputs = serial, name, inputs
        self.outs, self.state, self.run = tuple(outs), state, run
        self.form, self.can_broadcast = form, can_broadcast
        self.source = source
        self.native: Any = None
        self.steep: bool | None = None  # see liveness.py
        #: Of each argument that was asked for, the program parted there, or None.
        self.splits: dict[int, Any] = {}

    def __repr__(self) -> str:
        return f"Signature({self.serial}, {self.name!r})"


def broadcasting(op: str) -> str | None:
    """The operator that computes the same, and repeats a lonely row."""
    name = canonical(op)
    return name if name.startswith("broadcast_") else _BROADCAST.get(name)


def run_operator(
    operator: int, shared: Sequence[Any], keys: Sequence[str], vals: Sequence[Any]
) -> Run:
    """Calls an operator; ``shared`` has an array, or None where the next argument goes."""
    run = _calling(operator, shared, keys, vals)
    name = name_of(operator)
    if name == "broadcast_like":
        return shape_detached(run)
    return numbers_detached(run) if name == "Embedding" else run


def numbers_detached(run: Run) -> Run:
    """An embedding's call, whose first argument with rows is the numbers, without their gradient.

    There is none, and backward fails where MXNet asks for it nevertheless: as that of take does,
    see gather.py.
    """
    return lambda arrays: run([arrays[0].detach(), *arrays[1:]])


def shape_detached(run: Run) -> Run:
    """The call of an operator whose last argument only has a shape, without that one's gradient.

    MXNet's node for it has no array, and the process ends where one is read.
    """
    return lambda arrays: run([*arrays[:-1], arrays[-1].detach()])


def _calling(operator: int, shared: Sequence[Any], keys: Sequence[str], vals: Sequence[Any]) -> Run:
    invoke = _original()
    texts = [text(value) for value in vals]
    names = list(keys)
    if all(array is None for array in shared):

        def run(arrays: Sequence[Any]) -> Sequence[Any]:
            found = invoke(operator, arrays, names, texts, None, False, True)
            return found if isinstance(found, list) else [found]

        return run

    def run_with_shared(arrays: Sequence[Any]) -> Sequence[Any]:
        rest = iter(arrays)
        args = [next(rest) if array is None else _array(array) for array in shared]
        found = invoke(operator, args, names, texts, None, False, True)
        return found if isinstance(found, list) else [found]

    return run_with_shared


def _array(shared: Any) -> Any:
    return shared.array if isinstance(shared, Slot) else shared


def run_view(tail: tuple[int, ...]) -> Run:
    """Gives the same elements another number of rows."""
    return run_operator(handle("Reshape"), [None], ["shape"], [(-1, *tail)])


def run_reduction(how: str, tail: tuple[int, ...] | None) -> Run:
    """Reduces each segment; ``tail`` is another shape for the results' rows."""
    reshape = None if tail is None else run_view(tail)

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        values, pointers = arrays
        found = segment_reduce(values, pointers, how)
        return [found] if reshape is None else reshape([found])

    return run


def _original() -> Any:
    return import_mxnet().ndarray._internal._imperative_invoke


def run_identity(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arguments themselves, brought together."""
    return arrays
