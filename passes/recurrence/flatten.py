"""The body of a loop -> a step whose values are matrices.

What only moves elements vanishes. What computes becomes operators on matrices: one, or one for each
part, where operands lie in several, or a reduction or a softmax runs along one of several axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Final

import numpy as np

from graphopt.analysis.needed import needed_for
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.recurrence.columns import MAX_PARTS, Numbers, Run, segments
from graphopt.passes.recurrence.moves import MOVES, moved
from graphopt.passes.recurrence.numbered import Numbered

#: Operators of operands of one shape, and those that stretch them.
_STRETCHING: Final = {
    "elemwise_add": "broadcast_add",
    "elemwise_sub": "broadcast_sub",
    "elemwise_mul": "broadcast_mul",
    "elemwise_div": "broadcast_div",
    **{
        name: f"broadcast{name}"
        for name in POINTWISE
        if name.startswith("_") and f"broadcast{name}" in POINTWISE
    },
}
#: For reductions to one of the numbers: the operator that chooses between two.
_LARGER: Final = {
    **dict.fromkeys(("max", "_np_max"), "_maximum"),
    **dict.fromkeys(("min", "_np_min"), "_minimum"),
}
_NONE: Final = Attrs()
_FILLS: Final = frozenset({"_zeros", "_ones", "_full"})


def flatten(values: Numbered) -> None:
    """Compute in the step what the outputs of the body need.

    Raises:
        GraphoptError: some of it is no computation on rows; the message says what and why.
    """
    needed = needed_for(values.body, values.body.outputs)
    for node in values.body:
        if node.id in needed and not node.is_input:
            _Flattened(values, node).add()


class _Flattened:
    """One operator of a body."""

    def __init__(self, values: Numbered, node: Node) -> None:
        self.values, self.columns, self.node = values, values.columns, node
        self.op = canonical(node.op)

    def add(self) -> None:
        values, node, op = self.values, self.node, self.op
        if node.inputs and all(values.is_captured(value) for value in node.inputs):
            # What is pure of these is in front of the loop already.
            raise GraphoptError(f"{node.label}: a recurrence cannot compute it")
        if op in MOVES:
            shape = values.shape(node.out())
            found = moved(node, self._moving(), shape, batched=values.batched)
            for index, numbers in enumerate(found):
                values.put(node.out(index), numbers)
        elif op in POINTWISE:
            values.put(node.out(), self._pointwise())
        elif op in ROWS:
            values.put(node.out(), self._rows())
        elif op in ("FullyConnected", "dot"):
            values.put(node.out(), self._product())
        else:
            raise GraphoptError(f"{node.label}: a recurrence cannot compute it")

    def _moving(self) -> list[Numbers]:
        values, node = self.values, self.node
        if self.op.startswith("broadcast_"):
            return [values.beside(node, node.inputs[0], len(values.shape(node.out())))]
        read = node.inputs if self.op in ("Concat", "stack") else node.inputs[:1]
        return [values.whole(value) for value in read]

    # -- element by element ----------------------------------------------------------------

    def _pointwise(self) -> Numbers:
        values, node = self.values, self.node
        shape = values.shape(node.out())
        self._check(POINTWISE[self.op].check(node, values.body))
        if self.op == "LeakyReLU" and len(node.inputs) > 1:
            self._check_slopes()
        operands = [values.beside(node, value, len(shape)) for value in node.inputs]
        return self._each([np.broadcast_to(numbers, shape) for numbers in operands], shape)

    def _check_slopes(self) -> None:
        """Those of prelu lie along the second axis, whichever is the last."""
        values, (data, slopes) = self.values, self.node.inputs
        is_matrix = values.batched and len(values.extents(data)) == 2
        if not (is_matrix and values.is_captured(slopes)):
            raise GraphoptError(f"{self.node.label}: its slopes are not those of columns")

    def _check(self, why: str | None) -> None:
        if why is not None:
            raise GraphoptError(f"{self.node.label}: {why}")

    def _each(self, operands: Sequence[Numbers], shape: tuple[int, ...]) -> Numbers:
        """The node on operands of one shape, part by part."""
        size = math.prod(shape)
        flat = [numbers.reshape(-1) for numbers in operands]
        cuts = segments(flat, size)
        self._limit(len(cuts))
        result = np.empty(size, dtype=np.int64)
        for cut in cuts:
            width = cut.stop - cut.start
            result[cut] = self._part([self.columns.run(each[cut]) for each in flat], width)
        return result

    def _limit(self, parts: int) -> None:
        if parts > MAX_PARTS:
            raise GraphoptError(
                f"{self.node.label}: its columns lie in {parts} parts, of {MAX_PARTS} at most"
            )

    def _part(self, runs: Sequence[Run], width: int) -> Numbers:
        if runs and all(run.is_stretched or run.width == 1 for run in runs):
            runs, width = [Run(run.source, run.start, 1) for run in runs], 1
        op, attrs = self.op, self.node.attrs
        if op == "_contrib_div_sqrt_dim":
            op, attrs = "_div_scalar", Attrs(scalar=math.sqrt(self._last_extent()))
        if op in _FILLS:
            attrs = attrs.set(shape=(self.values.batch, width))
        op, reads = self._stretched(op, runs, width)
        return self._result(op, reads, attrs, width)

    def _stretched(self, op: str, runs: Sequence[Run], width: int) -> tuple[str, list[Value]]:
        """An operator and operands that it stretches to so many columns of all rows."""
        columns, step = self.columns, self.values.step
        reads = [columns.operand(run) for run in runs]
        if all(step.type_of(read).shape == (self.values.batch, width) for read in reads):
            return op, reads
        op = _STRETCHING.get(op, op)
        if op == "LeakyReLU":
            return op, [columns.wide(runs[0]), *reads[1:]]
        if len(runs) == 1 or not op.startswith(("broadcast_", "_npi_")):
            return op, [columns.wide(run) for run in runs]
        if all(columns.is_parameter(run.source) for run in runs):
            return op, [columns.wide(runs[0]), *reads[1:]]
        return op, reads

    def _last_extent(self) -> int:
        return self.values.extents(self.node.inputs[0])[-1]

    def _result(
        self, op: str, reads: Sequence[Value], attrs: Attrs, width: int, *rest: TensorType
    ) -> Numbers:
        step, node = self.values.step, self.node
        types = [TensorType(node.types[0].dtype, (self.values.batch, width)), *rest]
        name = step.unique_name(node.name)
        made = step.add(op, reads, attrs, types, name, origin=node.origin)
        return self.columns.number(made.out())

    # -- along rows ------------------------------------------------------------------------

    def _rows(self) -> Numbers:
        values, node, entry = self.values, self.node, ROWS[self.op]
        whole = values.whole(node.inputs[0])
        axes = entry.axes(node.attrs, whole.ndim)
        if values.batched and 0 in axes:
            raise GraphoptError(f"{node.label}: it runs over the batch")
        self._check(entry.check(node, values.body))
        if self.op == "InstanceNorm":
            raise GraphoptError(f"{node.label}: a recurrence cannot compute it")
        moved_last = np.moveaxis(whole, axes, range(-len(axes), 0))
        kept = moved_last.shape[: -len(axes)]
        table = moved_last.reshape(math.prod(kept), -1)
        if entry.reduces:
            return self._reduced(table)
        self._limit(len(table))
        found = np.stack([self._row(row) for row in table]).reshape(moved_last.shape)
        return np.moveaxis(found, range(-len(axes), 0), axes)

    def _row(self, numbers: Numbers) -> Numbers:
        """The node on one row, or on some columns of all sequences."""
        width = numbers.size
        if width == 1:
            return self._one_column(numbers)
        attrs = self.node.attrs
        if ROWS[self.op].reduces:
            attrs = attrs.without("exclude").set(axis=1, keepdims=True)
            return self._result(self.op, [self.columns.matrix(numbers)], attrs, 1)
        if self.op in ("L2Normalization", "SoftmaxActivation"):
            attrs = attrs.set(mode="instance")
        else:
            attrs = attrs.set(axis=-1)
        scales = [self._scale(value, width) for value in self.node.inputs[1:]]
        column = TensorType(self.node.types[0].dtype, (self.values.batch, 1))
        rest = [column for _ in self.node.types[1:]]
        return self._result(self.op, [self.columns.matrix(numbers), *scales], attrs, width, *rest)

    def _one_column(self, numbers: Numbers) -> Numbers:
        """The node on one column, which a kernel of more would take for as many of it."""
        if not ROWS[self.op].reduces or self.op == "norm":
            raise GraphoptError(f"{self.node.label}: its rows have a single element")
        return numbers

    def _scale(self, value: Value, width: int) -> Value:
        if not self.values.is_captured(value) or self.values.extents(value) != (width,):
            raise GraphoptError(f"{self.node.label}: its scale is not the same in all steps")
        return self.values.parameter(value)

    def _reduced(self, table: Numbers) -> Numbers:
        """A number for each row of the table."""
        rows, width = table.shape
        if all(len(self.columns.runs(row)) == 1 for row in table) and rows <= MAX_PARTS:
            return np.concatenate([self._row(row) for row in table])
        if self.op in _LARGER and width <= MAX_PARTS:
            return reduce(self._larger, table.T)
        if self.op not in ("sum", "mean", "_np_sum", "_npi_mean"):
            raise GraphoptError(f"{self.node.label}: what it reduces lies in several parts")
        if width <= MAX_PARTS:
            return self._shared(self._sum(list(table.T)), width)
        self._limit(rows)
        return np.concatenate([self._shared(self._sum_of_parts(row), width) for row in table])

    def _sum_of_parts(self, row: Numbers) -> Numbers:
        cuts = segments([row], row.size)
        self._limit(len(cuts))
        attrs = Attrs(axis=1, keepdims=True)
        return self._sum(
            [
                self._result("sum", [self.columns.matrix(row[cut])], attrs, 1)
                if cut.stop - cut.start > 1
                else row[cut]
                for cut in cuts
            ]
        )

    def _larger(self, one: Numbers, other: Numbers) -> Numbers:
        """Of two numbers the larger, or the smaller where that is what the node looks for.

        Both get the gradient of a tie, as they do of the node; of ``_maximum`` only the first does.
        """
        name = _LARGER[self.op]
        is_tie = self._as("_equal")._each([one, other], one.shape)
        halves = [self._scaled(numbers, "_mul_scalar", 0.5) for numbers in (one, other)]
        tied = self._as("elemwise_add")._each(halves, one.shape)
        tied = self._scaled(tied, "_contrib_gradientmultiplier", 2.0)
        larger = self._as(name)._each([one, other], one.shape)
        return self._as("where")._each([is_tie, tied, larger], one.shape)

    def _scaled(self, numbers: Numbers, op: str, scalar: float) -> Numbers:
        return self._as(op, Attrs(scalar=scalar))._each([numbers], numbers.shape)

    def _sum(self, summands: Sequence[Numbers]) -> Numbers:
        adding = Attrs(num_args=len(summands))
        return self._as("add_n", adding)._each(summands, summands[0].shape)

    def _shared(self, sums: Numbers, count: int) -> Numbers:
        if not self.op.endswith("mean"):
            return sums
        return self._scaled(sums, "_div_scalar", float(count))

    def _as(self, op: str, attrs: Attrs = _NONE) -> _Flattened:
        """Another operator in the place of this one."""
        return _Flattened(self.values, self.node.but(op=op, attrs=attrs))

    # -- products --------------------------------------------------------------------------

    def _product(self) -> Numbers:
        values, node = self.values, self.node
        if self.op == "FullyConnected":
            return self._products(node.inputs[0], node.inputs[1:], node.attrs)
        first, second = node.inputs
        if values.is_captured(first) and not values.batched:
            if values.whole(second).ndim == 2 and node.attrs.flag("transpose_b"):
                raise GraphoptError(f"{node.label}: a recurrence cannot compute it")
            attrs = Attrs(transpose_b=not node.attrs.flag("transpose_a"))
            return self._products(second, [first], attrs)
        if node.attrs.flag("transpose_a") or values.whole(first).ndim < 1 + values.batched:
            raise GraphoptError(f"{node.label} sums over the batch")
        return self._products(first, [second], node.attrs)

    def _products(self, factor: Value, learned: Sequence[Value], attrs: Attrs) -> Numbers:
        """The product of what has rows with what is learned."""
        matrix = learned[0]
        if not all(map(self.values.is_captured, learned)):
            raise GraphoptError(f"{self.node.label}: a matrix that is not the same in all steps")
        shape = self.values.extents(matrix)
        if len(shape) > 2:
            raise GraphoptError(f"{self.node.label}: its matrix has {len(shape)} axes")
        rows, columns = (*shape, 1)[:2]
        is_transposed = self.op == "FullyConnected" or attrs.flag("transpose_b")
        inner, width = (columns, rows) if is_transposed else (rows, columns)
        table = self.values.whole(factor).reshape(-1, inner)
        # A row of each sequence, or of several for each: these are as many products.
        self._limit(len(table) if self.values.batched else MAX_PARTS * len(table))
        reads = [self._matrix(matrix), *map(self.values.parameter, learned[1:])]
        found = [
            self._result(self.op, [self.columns.matrix(row), *reads], attrs, width) for row in table
        ]
        return np.concatenate(found)

    def _matrix(self, value: Value) -> Value:
        """A matrix to multiply with; a row is made one of a single column."""
        found = self.values.parameter(value)
        if len(self.values.extents(value)) == 2:
            return found
        step, type_ = self.values.step, self.values.step.type_of(found)
        column = type_.with_shape((type_.size, 1))
        attrs = {"shape": (-1, 1)}
        return step.add("Reshape", [found], attrs, [column], step.unique_name("column")).out()
