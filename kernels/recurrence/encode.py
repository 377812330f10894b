"""What the bridge asks about a recurrence, answered in numbers."""

from __future__ import annotations

from graphopt.compat import import_mxnet
from graphopt.ir.types import DTYPES
from graphopt.kernels.products import has_matrix_unit, usual_factor
from graphopt.kernels.recurrence.backward import backward
from graphopt.kernels.recurrence.forward import forward
from graphopt.kernels.recurrence.lookup import project
from graphopt.kernels.recurrence.plan import plan
from graphopt.kernels.recurrence.program import Program
from graphopt.kernels.recurrence.spec import RecurrenceSpec
from graphopt.kernels.spec import KernelSpec

#: What is asked for; kernels/bridge/recurrence_signature.h has the same list.
SIGNATURE, INFERENCE, TRAINING, BACKWARD = range(4)


def signature(spec: RecurrenceSpec, *, indexed: bool = False) -> list[int]:
    """What the operator's inputs and outputs are.

    In order: MXNet's type code, columns of the stash, whether backward reads the emitted sequences;
    for sequences, states, matrices (rows, then columns), vectors and emitted sequences how many
    there are and how many columns each has; and, if the first sequence is read by number, columns
    of the projected table and how many factors make it, then these.

    Raises:
        GraphoptError: the first sequence is to be read by number, and cannot be.
    """
    lookup = project(spec) if indexed else None
    agreed = plan(lookup.rest if lookup else spec, training=True)
    found = [DTYPES[spec.dtype][2], agreed.stash_width, int(agreed.reads_outputs)]
    tables = (
        spec.sequences,
        spec.states,
        [rows for rows, _ in spec.matrices],
        [columns for _, columns in spec.matrices],
        spec.vectors,
        [ref.width for ref in spec.emit],
    )
    for table in tables:
        found += [len(table), *table]
    if lookup:
        found += [lookup.width, len(lookup.factors)]
        found += [n for factor in lookup.factors for n in factor.numbers()]
    return found


def program(
    spec: RecurrenceSpec, kind: int, *, indexed: bool = False, by_vectors: bool = False
) -> list[int]:
    """The program of a step, its kernels compiled.

    ``indexed``: of what is left of it. ``by_vectors``: the matrix unit is not used.

    Raises:
        GraphoptError: a kernel cannot be compiled.
    """
    if indexed:
        spec = project(spec).rest
    if kind == BACKWARD:
        return numbers(backward(spec))
    mxnet = import_mxnet()
    has_unit = has_matrix_unit(mxnet) and not by_vectors
    times = usual_factor(mxnet) if has_unit and spec.dtype == "float32" else 1
    found = forward(spec, training=kind == TRAINING, times=times)
    if kind == TRAINING:
        expect_kernels(found, backward(spec))
    return numbers(found, pieces=has_unit)


def expect_kernels(*programs: Program) -> None:
    """Have the kernels of programs that will run compiled at once."""
    from graphopt.kernels.library import expect

    expect(((str(spec), False) for found in programs for spec in found.kernels), index=True)


def numbers(found: Program, *, pieces: bool = False) -> list[int]:
    """A program as the bridge reads it, its kernels compiled.

    ``pieces``: those that can be are compiled to be called for a vector at a time, too, in stages.

    Raises:
        GraphoptError: a kernel cannot be compiled.
    """
    from graphopt.kernels.emit.cpu import comes_apart
    from graphopt.kernels.library import kernel
    from graphopt.kernels.stages import stages

    addresses: list[int] = []
    for spec in found.kernels:
        whole = kernel(str(spec), backward=False, index=True)
        parts, rows = stages(spec) if pieces and comes_apart(spec) else ([], 0)
        addresses += [whole.address, whole.scratch_rows, _has_one_space(spec), rows, len(parts)]
        for part in parts:
            made = kernel(str(part.spec), backward=False, piece=True)
            addresses += [made.address, len(part.operands), *part.operands]
    tables, codes = found.numbers()
    return [*tables, len(found.kernels), *addresses, *codes]


def _has_one_space(spec: KernelSpec) -> bool:
    """Whether rows that lie side by side may be one: elements know of no others and no row."""
    operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
    return not spec.inner and all(operand.covers == set(range(spec.rank)) for operand in operands)
