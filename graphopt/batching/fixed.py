"""Calls that read parameters only, such as ``weight.data().T``: made once per batch, at once.

Their results are shared arrays as parameters are, so that what reads them can be batched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphopt.batching.lazy import Lazy
from graphopt.batching.operators import infer, text
from graphopt.batching.recorder import Real, Recorder, Unrecorded
from graphopt.batching.signature import Slot
from graphopt.compat import import_mxnet
from graphopt.ir.ops import OpInfo

if TYPE_CHECKING:
    from graphopt.batching.library import Entry, Library


def make_fixed(
    library: Library,
    recorder: Recorder,
    facts: OpInfo,
    operator: int,
    args: Sequence[Any],
    attrs: Mapping[str, Any],
) -> tuple[Entry, bool] | None:
    """The entry for a call of parameters, and whether it may be kept; None if it is no such call.

    Raises:
        MXNetError: the arguments do not fit the operator.
    """
    if not facts.pure or any(isinstance(a, Lazy) for a in args):
        return None
    reals = [recorder.real(a) for a in args]
    if not all(isinstance(r.tag.shared, Slot) or is_parameter(recorder, r.array) for r in reals):
        return None
    kinds = [real.kind for real in reals]
    shapes, _ = infer(operator, attrs, [a.shape for a in args], kinds)
    if len(shapes) != 1 or not shapes[0]:
        return None
    is_kept = all(real.tag.shared is not None for real in reals)
    for real in reals:
        if real.tag.shared is None:
            library.share(recorder, real.array)
    slot = Slot()
    tag = type(reals[0].tag)(slot)
    invoke = import_mxnet().ndarray._internal._imperative_invoke
    names, texts = list(attrs), [text(value) for value in attrs.values()]

    def entry(recorder: Recorder, args: Sequence[Any]) -> Any:
        found = recorder.fixed.get(slot)
        if found is None:
            with Unrecorded():
                found = invoke(operator, args, names, texts, None, False, False)
            met = recorder.real(found)
            recorder.fixed[slot] = slot.array = found
            recorder.reals[id(found)] = Real(found, met.kind, tag, met.rows)
        return found

    return entry, is_kept


def is_parameter(recorder: Recorder, array: Any) -> bool:
    """Whether an array is that of a parameter of the net."""
    if recorder.parameters is None:
        params = recorder.library.net.collect_params().values()
        known = [array for p in params if p._data is not None for array in p.list_data()]
        recorder.parameters = {id(array): array for array in known}
    return id(array) in recorder.parameters
