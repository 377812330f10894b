"""The kernel of one step of a recurrence's program."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.errors import GraphoptError
from graphopt.ir.node import Value
from graphopt.ir.ops import canonical
from graphopt.kernels.recurrence.spec import Map, Ref
from graphopt.kernels.spec import Arg, Operand
from graphopt.kernels.spec_builder import Builder
from graphopt.passes.fusion.pointwise import POINTWISE, prepared
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.recurrence.needs import SUMS, Needs
from graphopt.passes.recurrence.places import Places
from graphopt.passes.recurrence.values import Values


class StepKernel:
    """Put together from what its outputs need."""

    def __init__(self, values: Values, needs: Needs, places: Places, width: int) -> None:
        """Over so many columns."""
        self.values, self.needs, self.places, self.width = values, needs, places, width
        self.sources: dict[Ref, int] = {}
        self.has_rows = False

    def build(self, values: Sequence[Value]) -> Map:
        """The step that computes some values."""
        # First what it reads, as inputs come before instructions.
        self._walk(values, _Survey())
        self._check_width(values)
        emit = Builder(self.values.dtype, 2, int(self.has_rows))
        args = {ref: emit.input(self._operand(ref)) for ref in self.sources}
        results = self._walk(values, emit, args)
        outputs = []
        for value, result in zip(values, results, strict=True):
            whole = self.values.width(value) == self.width
            outputs.append((result, Operand(self.values.dtype, (0, 1 if whole else None))))
        spec = emit.build(outputs)
        return Map(spec, tuple(self.sources), tuple(self.values.width(value) for value in values))

    def _check_width(self, values: Sequence[Value]) -> None:
        """A kernel has as many columns as an operand that is not stretched."""
        if self.sources and all(ref.width != self.width for ref in self.sources):
            label = self.values.body[values[0].node].label
            raise GraphoptError(
                f"{label}: one column becomes {self.width}, with nothing that has as many beside it"
            )

    def _operand(self, ref: Ref) -> Operand:
        along = 1 if ref.width == self.width else None
        return Operand(self.values.dtype, (along,) if ref.kind == "v" else (0, along))

    def _walk(
        self, values: Sequence[Value], emit: Builder | _Survey, args: dict[Ref, int] | None = None
    ) -> list[Arg]:
        """Emit what the values need; depth first without recursion."""
        done: dict[tuple[Value, int], Arg] = {}
        for wanted in values:
            pending = [(wanted, 0)]
            while pending:
                value, start = pending[-1]
                if (value, start) in done:
                    pending.pop()
                    continue
                reads = self._reads(value, start)
                if isinstance(reads, Ref):
                    self.sources.setdefault(reads, len(self.sources))
                    done[value, start] = 0 if args is None else args[reads]
                    pending.pop()
                    continue
                missing = [read for read in reads if read not in done]
                if missing:
                    pending += missing
                    continue
                done[value, start] = self._emit(value, [done[read] for read in reads], emit)
                pending.pop()
        return [done[value, 0] for value in values]

    def _reads(self, value: Value, start: int) -> Ref | list[tuple[Value, int]]:
        """Where a value lies, or else the values (each from a first column) it is computed from."""
        of = self.values
        node = of.body[value.node]
        if of.is_parameter(value):
            ref = self.places.vector(value)
            return ref if ref.width == 1 else ref.part(start, self.width)
        if self.places.lies_somewhere(value):
            width = of.width(value)
            refs = self.places.columns(value, start, 1 if width == 1 else self.width)
            if len(refs) == 1:
                return refs[0]
            raise GraphoptError(f"{node.label}: parts of it are read together")
        sliced = of.sliced(value)
        if sliced is not None:
            return [(of.resolve(sliced[0]), start + sliced[1])]
        parts = of.parts(value)
        if parts is not None:
            at = 0
            for part in map(of.resolve, parts):
                size = of.width(part)
                if at <= start and start + self.width <= at + size:
                    return [(part, start - at)]
                at += size
            raise GraphoptError(f"{node.label}: parts of it are read together")
        op = canonical(node.op)
        if op in ROWS:
            self.has_rows = True
            if start != 0:
                raise GraphoptError(f"{node.label}: a part of its rows is read")
            reduced = of.width(of.resolve(node.inputs[0]))
            if reduced != self.width:  # it would be reduced as often as it is stretched
                raise GraphoptError(
                    f"{node.label}: its rows of {reduced} are read where {self.width} are computed"
                )
        # Inputs that are stretched along the columns have one column only.
        found = []
        for source in map(of.resolve, node.inputs):
            if op in SUMS and self.needs.is_absorbed(source):
                continue
            shape = of.shape(source)
            found.append((source, 0 if shape[-1:] == (1,) else start))
        return found

    def _emit(self, value: Value, args: Sequence[Arg], emit: Builder | _Survey) -> Arg:
        node = self.values.body[value.node]
        op = canonical(node.op)
        if isinstance(emit, _Survey):
            return 0
        if op in SUMS:
            total: Arg = args[0] if args else 0.0
            for arg in args[1:]:
                total = emit("add", total, arg)
            return total
        if op in POINTWISE:
            return POINTWISE[op].build(emit, args, prepared(node, self.values.body))
        if op in ROWS:
            return ROWS[op].build(emit, args, prepared(node, self.values.body))
        return args[0]  # a slice


class _Survey:
    """Stands in for a builder while a kernel's operands are found out."""
