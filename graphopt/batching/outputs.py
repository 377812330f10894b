"""From one result per sample to one result: arrays joined position by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.batching.execute import NotRecording, owned
from graphopt.batching.lazy import Lazy
from graphopt.batching.lazy import real as array_of
from graphopt.batching.nested import are_laid_out_alike, items_of, remake_of
from graphopt.batching.plan import Joiner, plan_rows
from graphopt.batching.recorder import Recorder
from graphopt.batching.runs import unpack
from graphopt.batching.special import runs_of
from graphopt.compat import import_mxnet


def combine(results: Sequence[Any], batch_axis: int, recorder: Recorder | None) -> Any:
    """Join the results of all samples.

    Args:
        results: one per sample, at least one: arrays, or nested tuples, lists and dicts of them, or
            tuples with names of their own.
        batch_axis: to join along.
        recorder: that has the values, if they were recorded.

    Returns:
        Where all results are laid out alike, the same layout of joined arrays; a list with one
        item per sample where shapes differ, where there is something else than arrays, or where
        arrays have no elements.
    """
    first = results[0]
    kind = type(first)
    if isinstance(first, import_mxnet().nd.NDArray):
        return _arrays(results, batch_axis, recorder)
    remake = remake_of(kind)
    if remake is not None and are_laid_out_alike(results):
        parts = zip(*(_in_order_of(first, result) for result in results), strict=True)
        return remake(first, [combine(part, batch_axis, recorder) for part in parts])
    return [real(result) for result in results]


def _arrays(results: Sequence[Any], batch_axis: int, recorder: Recorder | None) -> Any:
    mx = import_mxnet()
    nd = mx.nd
    first = results[0]
    alike = _are_like_rows(results, recorder) or all(
        isinstance(r, nd.NDArray)
        and r.shape == first.shape
        and r.dtype == first.dtype
        and r.stype == "default"
        for r in results
    )
    if alike and 0 in first.shape and len(results) > 1:
        alike = mx.util.is_np_shape()  # else 0 is an extent that MXNet's operators do not know
    if not alike or not -len(first.shape) <= batch_axis < len(first.shape):
        return [real(result) for result in results]
    is_recorded = recorder is not None and all(
        type(r) is Lazy and r.recorder is recorder for r in results
    )
    if recorder is not None and is_recorded and batch_axis in (0, -len(first.shape)):
        runs = [run for result in results for run in runs_of(result)]
        with NotRecording(recorder.outside):
            joined = Joiner(recorder.stores)(plan_rows(recorder, runs, first.kind.ctx))
            return owned(recorder, joined)
    given = [real(result) for result in results]
    if len(given) == 1:
        return given[0]
    if all(isinstance(array, mx.np.ndarray) for array in given):
        return mx.np.concatenate(given, axis=batch_axis)
    return nd.concat(*given, dim=batch_axis)


def _are_like_rows(results: Sequence[Any], recorder: Recorder | None) -> bool:
    """Whether all were recorded, and are as many rows of one kind: seen faster than by shapes."""
    first = results[0]
    return recorder is not None and all(
        type(r) is Lazy and r.recorder is recorder and r.kind is first.kind and r.rows == first.rows
        for r in results
    )


def real(result: Any) -> Any:
    """A result with real arrays in it, whatever it is."""
    if isinstance(result, Lazy):
        return array_of(result)
    remake = remake_of(type(result))
    return result if remake is None else remake(result, [real(i) for i in items_of(result)])


def _in_order_of(first: Any, result: Any) -> Any:
    return [result[key] for key in first] if isinstance(first, dict) else result


def stores_of(results: Sequence[Any], recorder: Recorder) -> frozenset[int]:
    """Stores that the results of all samples are in."""
    return frozenset(unpack(run)[0] for run in runs_in(results, recorder))


def runs_in(results: Sequence[Any], recorder: Recorder) -> tuple[int, ...]:
    """Runs that the results of all samples are."""
    found: list[int] = []
    pending, seen = list(results), set[int]()
    while pending:
        result = pending.pop()
        if isinstance(result, Lazy):
            if result.recorder is recorder:
                found += runs_of(result)
        elif remake_of(type(result)) is not None and id(result) not in seen:
            seen.add(id(result))
            pending += items_of(result)
    return tuple(found)
