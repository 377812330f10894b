"""Recurrences step by step in numpy: the oracle of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.kernels.interpret import evaluate
from graphopt.kernels.recurrence.spec import Map, Product, RecurrenceSpec, Ref

Array = np.ndarray[Any, Any]


def run(
    spec: RecurrenceSpec,
    inputs: Sequence[Array],
    *,
    reverse: bool = False,
    lengths: bool = False,
    batch_major: bool = False,
    bidirectional: bool = False,
    zero_states: bool = False,
    flat: bool = False,
    indexed: bool = False,
) -> list[Array]:
    """Apply the steps.

    Args:
        spec: what a step computes.
        inputs: sequences (steps, batch, columns), states (batch, columns), matrices, vectors, with
            ``indexed`` the numbers of rows (steps, batch), and with ``lengths`` the number of steps
            of each sequence.
        reverse: from the last step of each sequence to its first.
        lengths: whether sequences have lengths of their own; outputs behind the end are zero.
        batch_major: whether sequences are (batch, steps, columns).
        bidirectional: whether there are states, matrices and vectors for two directions.
        zero_states: whether the states are zeros at first, and no inputs.
        flat: whether there is one step only, and sequences are (batch, columns).
        indexed: whether the first sequence is a table (rows, columns), which is read by number;
            numbers outside of it are clipped.

    Returns:
        The emitted sequences and the final states.
    """
    given = iter(inputs)
    axes = (1, 0, 2) if batch_major else (0, 1, 2)
    rows = [next(given) for _ in spec.sequences]
    if indexed:
        numbers = inputs[-2 if lengths else -1]
        rows[0] = rows[0][np.clip(numbers, 0, len(rows[0]) - 1).astype(int)]
    sequences = [x[None] if flat else x.transpose(axes) for x in rows]
    steps, batch = sequences[0].shape[:2]
    directions = (False, True) if bidirectional else (reverse,)
    zeros = [np.zeros((batch, width), sequences[0].dtype) for width in spec.states]
    states = [zeros if zero_states else [next(given) for _ in spec.states] for _ in directions]
    matrices = [[next(given) for _ in spec.matrices] for _ in directions]
    vectors = [[next(given) for _ in spec.vectors] for _ in directions]
    ends = np.asarray(inputs[-1], dtype=int) if lengths else np.full(batch, steps)
    found = [
        _walk(spec, sequences, *own, ends=ends, reverse=backwards)
        for backwards, *own in zip(directions, states, matrices, vectors, strict=True)
    ]
    emitted = [np.concatenate(parts, axis=2) for parts in zip(*(e for e, _ in found), strict=True)]
    finals = [state for _, own in found for state in own]
    return [out[0] if flat else out.transpose(axes) for out in emitted] + finals


def _walk(
    spec: RecurrenceSpec,
    sequences: Sequence[Array],
    states: Sequence[Array],
    matrices: Sequence[Array],
    vectors: Sequence[Array],
    *,
    ends: Array,
    reverse: bool,
) -> tuple[list[Array], list[Array]]:
    """One direction: what is emitted, and the final states."""
    steps, batch = sequences[0].shape[:2]
    emitted = [np.zeros((steps, batch, ref.width), sequences[0].dtype) for ref in spec.emit]
    rows = np.arange(batch)
    states = [np.array(state) for state in states]
    for step in range(steps):
        live = step < ends
        times = np.where(live, ends - 1 - step if reverse else step, 0)
        found = one_step(spec, [x[times, rows] for x in sequences], states, matrices, vectors)
        after = [read(ref, found) for ref in spec.next]
        for out, ref in zip(emitted, spec.emit, strict=True):
            out[times[live], rows[live]] = read(ref, found)[live]
        states = [np.where(live[:, None], new, old) for new, old in zip(after, states, strict=True)]
    return emitted, list(states)


def one_step(
    spec: RecurrenceSpec,
    rows: Sequence[Array],
    states: Sequence[Array],
    matrices: Sequence[Array],
    vectors: Sequence[Array],
) -> dict[tuple[str, int], Array]:
    """What a step reads and computes, by kind and number; rows are (batch, columns)."""
    found: dict[tuple[str, int], Array] = {}
    for kind, arrays in (("x", rows), ("s", states), ("v", vectors)):
        found |= {(kind, index): array for index, array in enumerate(arrays)}
    for first, step in spec.numbered():
        if isinstance(step, Product):
            found["t", first] = _product(spec, step, found, matrices)
            continue
        made = evaluate(step.kernel, _operands(spec, step, found))
        shape = (len(rows[0]), -1)
        for n, array in enumerate(made):
            found["t", first + n] = array.reshape(shape)
    return found


def _operands(spec: RecurrenceSpec, step: Map, found: dict[tuple[str, int], Array]) -> list[Array]:
    return [read(ref, found) for ref in step.sources]


def _product(
    spec: RecurrenceSpec,
    step: Product,
    found: dict[tuple[str, int], Array],
    matrices: Sequence[Array],
) -> Array:
    total: Any = 0
    for term in step.terms:
        part = term.part
        matrix = matrices[part.matrix][
            part.row : part.row + part.rows, part.column : part.column + part.columns
        ]
        total = total + read(term.source, found) @ (matrix.T if term.transposed else matrix)
    return np.asarray(total)


def read(ref: Ref, found: dict[tuple[str, int], Array]) -> Array:
    """The columns that a reference names."""
    return found[ref.key][..., ref.start : ref.end]
