"""Runs plans, and cuts single values out of what was run."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.batching.changes import Watched, why_unwatched
from graphopt.batching.kinds import typed
from graphopt.batching.lazy import Lazy, real
from graphopt.batching.liveness import Guard, Liveness
from graphopt.batching.native.block import NativeBlock
from graphopt.batching.native.lookups import Table, run_lookup
from graphopt.batching.native.run import run_block
from graphopt.batching.plan import Joiner, LookupStep, Plan, Planner, Step, step_of
from graphopt.batching.recorder import ACTIVE, RECORDING, Recorder
from graphopt.batching.runs import unpack
from graphopt.batching.sums import PendingSum
from graphopt.batching.used_up import apart
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError


class NotRecording:
    """Inside the block calls of MXNet are made at once, under these flags of autograd."""

    __slots__ = ("_before", "_recorder", "_state")

    def __init__(self, state: int) -> None:
        self._state = state

    def __enter__(self) -> None:
        """Set the recorder and the flags aside."""
        from graphopt.batching.hooks import autograd_state, set_autograd_state

        self._before = autograd_state()
        self._recorder, ACTIVE.recorder = ACTIVE.recorder, None
        try:
            set_autograd_state(self._state)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: Any) -> None:
        """Go on with them."""
        from graphopt.batching.hooks import set_autograd_state

        ACTIVE.recorder = self._recorder
        set_autograd_state(self._before)


def run_plan(recorder: Recorder, plan: Plan) -> None:
    """Fill the recorder's stores.

    Raises:
        GraphoptError: MXNet refuses a call that it accepted sample by sample.
    """
    nd = import_mxnet().nd
    stores = recorder.stores
    arrays = {leaves.store: leaves.arrays for leaves in recorder.leaves.values()}
    state = recorder.outside
    for step in plan.steps:
        if isinstance(step, Step):  # what is in blocks was recorded under the flags outside
            state |= step.signature.state & RECORDING
    recorder.tape |= state & RECORDING
    with NotRecording(state):
        for store, _ in plan.leaves:
            given = apart(arrays[store]) if state & RECORDING else arrays[store]
            stores[store] = given[0] if len(given) == 1 else nd.concat(*given, dim=0)
        # Rows are joined with the gradient wherever anybody outside or in the sample may want it,
        # even for calls that do not: the joined array may serve others.
        join = Joiner(stores)
        tables: dict[int, Table] = {}
        for step in plan.steps:
            if isinstance(step, Step):
                guard = None
                if step.live is not None:
                    guard = Guard(step.store, step.live, step.signature.outs[0].ctx)
                    recorder.guards.append(guard)
                _run_step(step, join, stores, plan.totals, state, guard)
            elif isinstance(step, LookupStep):
                numbers = join(step.step.arguments[0]).detach()
                run = step.step.signature.run
                tables[step.lookup.store] = run_lookup(step.lookup, run, numbers, state)
            else:
                run_block(step, stores, tables, state)
                recorder.blocks.append((step, _watched(recorder, step)))


def _watched(recorder: Recorder, block: NativeBlock) -> Watched | None:
    """What a block that has run was computed from; None where MXNet does not tell of changes."""
    reason = why_unwatched()
    if reason is not None:
        recorder.library.cautions.add(reason)
        return None
    ctx = block.calls[0].signature.outs[0].ctx
    return Watched(block.reads, block.parameters, ctx, recorder.stores)


def run_again(recorder: Recorder, store: int) -> None:
    """Compute in MXNet what a block computed and did not hand out: it is wanted only now.

    Raises:
        GraphoptError: what it is computed from has changed since.
    """
    found = (b for b in recorder.blocks if any(store in c.stores for c in b[0].calls))
    block, seen = next(found, (None, None))
    if block is None:
        return
    if seen is not None:
        seen.check(recorder.stores)
    planner = Planner(recorder.totals, recorder.homes)
    join = Joiner(recorder.stores)
    with NotRecording(recorder.outside):
        for call in block.calls:
            if any(recorder.stores[each] is None for each in call.stores):
                group = (call.signature, call.store, call.rows, call.arguments, call.lengths)
                _run_step(
                    step_of(group, planner),
                    join,
                    recorder.stores,
                    recorder.totals,
                    recorder.outside,
                )


def _run_step(
    step: Step,
    join: Joiner,
    stores: list[Any],
    totals: Sequence[int],
    outside: int,
    guard: Guard | None = None,
) -> None:
    from graphopt.batching.hooks import set_autograd_state

    signature = step.signature
    mx = import_mxnet()
    arrays = [join(argument) for argument in step.arguments]
    if signature.state != outside:
        set_autograd_state(signature.state)
    try:
        if signature.form == "single":
            found: Sequence[Any] = _run_singly(step, stores)
        else:
            if step.segments is not None:
                arrays.append(step.segments)
            if guard is not None:
                arrays = [guard(array) for array in arrays]
            found = signature.run(arrays)
    except mx.MXNetError as error:
        raise GraphoptError(
            f"{signature.name} could not be run for {len(step.calls) or 'all'} calls at once:"
            f" {str(error).strip().splitlines()[-1]}; graphopt.batch(net, debug=True) runs"
            " sample by sample"
        ) from error
    finally:
        if signature.state != outside:
            set_autograd_state(outside)
    for at, out in enumerate(signature.outs):
        shape, kind = typed(found[at])
        if kind is not out or shape[0] != totals[step.store + at]:
            raise GraphoptError(
                f"{signature.name} gave {kind.dtype}{list(shape)} where {out} of"
                f" {totals[step.store + at]} rows was expected: if a Block was changed or cast,"
                " call graphopt.batch(net) anew"
            )
        stores[step.store + at] = found[at]


def _run_singly(step: Step, stores: Sequence[Any]) -> list[Any]:
    """Call by call; the results of all calls are joined."""
    nd = import_mxnet().nd
    results = []
    for call in step.calls:
        args = [_rows(stores[store], start, count) for store, start, count in call]
        results.append(step.signature.run(args))
    if len(results) == 1:
        return list(results[0])
    return [nd.concat(*parts, dim=0) for parts in zip(*results, strict=True)]


def _wait(recorder: Recorder, runs: Sequence[int]) -> None:
    """Return when runs were run, and are there."""
    missing = _missing(recorder, runs)
    made = {store for block, _ in recorder.blocks for call in block.calls for store in call.stores}
    if missing - made:
        recorder.pause()
    for store in _missing(recorder, runs):
        run_again(recorder, store)


def _missing(recorder: Recorder, runs: Sequence[int]) -> set[int]:
    stores = {recorder.homes[unpack(run)[0]][0] for run in runs}
    return {store for store in stores if recorder.stores[store] is None}


def _rows(array: Any, start: int, count: int) -> Any:
    if start == 0 and count == array.shape[0]:
        return array
    return import_mxnet().nd.slice_axis(array, axis=0, begin=start, end=start + count)


def to_numpy(value: Lazy) -> Any:
    """The elements of a value, waiting until it was run.

    Raises:
        GraphoptError: it never will be, as it belongs to another thread or a failed call.
    """
    recorder = value.recorder
    if type(value) is PendingSum:
        return real(value).asnumpy()
    runs = (value.run,) if value.runs is None else value.runs
    _wait(recorder, runs)
    parts = []
    for run in runs:
        array, start, count = recorder.locate(run)
        if array is None:
            return materialize(value).asnumpy()  # which says what is wrong
        host = recorder.hosts.get(id(array))
        if host is None:
            host = recorder.hosts[id(array)] = array.asnumpy()
        parts.append(host[start : start + count])
    return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)


def keep_gradients(recorder: Recorder, runs: Sequence[int]) -> None:
    """These values may take part in the gradient."""
    if recorder.liveness is None:
        recorder.asked.extend(runs)
    else:
        _reach(recorder, recorder.liveness, runs)


def settle_gradients(recorder: Recorder, runs: Sequence[int]) -> None:
    """All samples have ended: only these values, and what was asked for, have gradients."""
    if recorder.guards:
        recorder.liveness = Liveness(recorder.flows, recorder.totals)
        _reach(recorder, recorder.liveness, [*runs, *recorder.asked])


def _reach(recorder: Recorder, liveness: Liveness, runs: Sequence[int]) -> None:
    planner = Planner(recorder.totals, recorder.homes)
    liveness.reach(*planner.rows([array("q", runs)]))
    with NotRecording(0):
        for guard in recorder.guards:
            guard.write(liveness.rows_of(guard.store))


def owned(recorder: Recorder, array: Any) -> Any:
    """The array, or a copy of a constant, so that whoever gets it may write into it."""
    return array.copy() if id(array) in recorder.owned else array


def materialize(value: Lazy) -> Any:
    """The real array of a value, waiting until it was run.

    Raises:
        GraphoptError: it never will be, as it belongs to another thread or a failed call.
    """
    recorder = value.recorder
    if type(value) is PendingSum:
        if value.total is None and ACTIVE.recorder is not recorder:  # kept after the call
            with NotRecording(value.state):
                return import_mxnet().nd.add_n(*[real(term) for term in value.terms])
        return real(value.settle())
    runs = (value.run,) if value.runs is None else value.runs
    _wait(recorder, runs)
    keep_gradients(recorder, runs)
    parts = []
    # Whatever is asked here, the array may take part in the gradient later.
    state = recorder.outside | recorder.tape
    with NotRecording(state):
        for run in runs:
            array, start, count = recorder.locate(run)
            if array is None:
                raise GraphoptError(
                    "a value of a batched call is read that was never computed: the call failed,"
                    " or is still recording in another thread"
                )
            parts.append(_rows(array, start, count))
        if len(parts) == 1:
            return owned(recorder, parts[0])
        return import_mxnet().nd.concat(*parts, dim=0)
