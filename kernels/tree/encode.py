"""What the bridge asks about message passing over trees, answered in numbers."""

from __future__ import annotations

from graphopt.ir.types import DTYPES
from graphopt.kernels.recurrence.backward import backward
from graphopt.kernels.recurrence.encode import BACKWARD, TRAINING, expect_kernels, numbers
from graphopt.kernels.recurrence.forward import forward
from graphopt.kernels.recurrence.plan import plan
from graphopt.kernels.recurrence.program import SEQUENCE
from graphopt.kernels.recurrence.spec import RecurrenceSpec
from graphopt.kernels.tree.spec import REDUCTIONS, TreeSpec, reduction


def signature(spec: TreeSpec) -> list[int]:
    """What the operator's inputs and outputs are; see ``ReadTreeSignature`` in the bridge.

    In order: MXNet's type code, columns of the stashes of updates and of messages; then, each with
    how many there are: columns of rows that updates read, of rows that messages read, of states, of
    messages, their reductions, columns of what these make, whether backward reads that, columns of
    what is emitted; and of messages, then of updates, the matrices' rows and columns and the
    vectors' columns.
    """
    found = [DTYPES[spec.dtype][2], _stash(spec.update), _stash(spec.message)]
    reductions = tuple(REDUCTIONS.index(reduction(name)[0]) for name in spec.reduce)
    tables = [spec.node_rows, spec.edge_rows, spec.states, spec.messages]
    tables += [reductions, spec.reduced, _kept(spec), spec.emitted]
    for rows in (spec.message, spec.update):
        tables.append(tuple(n for n, _ in rows.matrices))
        tables.append(tuple(n for _, n in rows.matrices))
        tables.append(rows.vectors)
    for table in tables:
        found += [len(table), *table]
    return found


def program(spec: TreeSpec, kind: int) -> list[int]:
    """The programs of messages and of updates, one behind the other, their kernels compiled.

    Raises:
        GraphoptError: a kernel cannot be compiled.
    """
    parts = (spec.message, spec.update)
    forwards = [forward(rows, training=kind == TRAINING) for rows in parts]
    backwards = [backward(rows) for rows in parts] if kind in (TRAINING, BACKWARD) else []
    expect_kernels(*(() if kind == BACKWARD else forwards), *backwards)
    return [n for one in (backwards if kind == BACKWARD else forwards) for n in numbers(one)]


def _kept(spec: TreeSpec) -> tuple[int, ...]:
    """Of what messages are reduced to: whether backward reads it."""
    codes = backward(spec.update).codes
    read = {index for code in codes for place, index, _ in code.views if place == SEQUENCE}
    first = len(spec.node_rows)
    return tuple(
        int(first + n in read or reduction(name)[0] == "max") for n, name in enumerate(spec.reduce)
    )


def _stash(rows: RecurrenceSpec) -> int:
    return plan(rows, training=True).stash_width
