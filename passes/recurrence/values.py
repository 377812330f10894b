"""The values of a step: what they are, whatever computes them."""

from __future__ import annotations

from collections import defaultdict

from graphopt.errors import GraphoptError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.fusion.pointwise import POINTWISE

_COPIES = frozenset({"_copy", "identity"})


class Values:
    """The values of a body graph, whose inputs are rows of sequences, states and parameters."""

    def __init__(self, body: Graph, sequences: int, states: int) -> None:
        """Of a body.

        Raises:
            GraphoptError: it computes in several dtypes, or in one that kernels of steps do not, or
                some of what it is fed has one row for all sequences.
        """
        self.body, self.n_sequences, self.n_states = body, sequences, states
        self.inputs = {node.id: n for n, node in enumerate(body.inputs)}
        dtypes = {t.dtype for node in body for t in node.types}
        if len(dtypes) != 1 or not dtypes <= {"float32", "float64"}:
            told = ", ".join(sorted(map(str, dtypes)))
            raise GraphoptError(f"a step computes in one of float32 and float64, not in {told}")
        self.dtype = str(dtypes.pop())
        self.first_parameter = sequences + states
        fed = [self.shape(self.input(number)) for number in range(self.first_parameter)]
        if len({shape[:1] for shape in fed}) > 1:
            told = ", ".join(map(str, fed))
            raise GraphoptError(f"sequences and states differ in how many rows they have: {told}")

    def input(self, number: int) -> Value:
        """An input by its number."""
        return self.body.inputs[number].out()

    def shape(self, value: Value) -> tuple[int, ...]:
        """Extents of a value.

        Raises:
            GraphoptError: they are not known.
        """
        shape = self.body.type_of(value).shape
        if shape is None or any(extent is None for extent in shape):
            raise GraphoptError(f"{self.body[value.node].label}: its shape is not known")
        return tuple(extent or 0 for extent in shape)

    def width(self, value: Value) -> int:
        """Columns of a value with a row for every sequence.

        Raises:
            GraphoptError: it is something else.
        """
        shape = self.shape(value)
        if len(shape) != 2 or 0 in shape:
            raise GraphoptError(
                f"{self.body[value.node].label}: {shape} is no matrix of a row for each sequence"
            )
        return shape[1]

    def matrix_shape(self, node: NodeId) -> tuple[int, int]:
        """Rows and columns of a parameter.

        Raises:
            GraphoptError: it is no matrix.
        """
        shape = self.shape(self.body[node].out())
        if len(shape) != 2:
            raise GraphoptError(f"{self.body[node].label}: {shape} is no matrix")
        return shape[0], shape[1]

    def is_parameter(self, value: Value) -> bool:
        """Whether a value is the same in all steps."""
        return self.inputs.get(value.node, -1) >= self.first_parameter

    def resolve(self, value: Value) -> Value:
        """The value behind copies."""
        node = self.body[value.node]
        while canonical(node.op) in _COPIES or self._is_trivial_reshape(node):
            value = node.inputs[0]
            node = self.body[value.node]
        return value

    def _is_trivial_reshape(self, node: Node) -> bool:
        return canonical(node.op) in ("Reshape", "Flatten") and self.shape(
            node.inputs[0]
        ) == self.shape(node.out())

    def sliced(self, value: Value) -> tuple[Value, int] | None:
        """If a value is columns of another one: that, and the first column.

        Raises:
            GraphoptError: it is another slice than of columns.
        """
        node = self.body[value.node]
        if node.is_input:
            return None
        op = canonical(node.op)
        if op in ("SliceChannel", "slice_axis", "slice"):
            return node.inputs[0], _first_column(node, value.index, self.shape(node.inputs[0]))
        return None

    def parts(self, value: Value) -> list[Value] | None:
        """What a value is put together from, side by side; ``None`` if it is not.

        Raises:
            GraphoptError: its parts lie one below the other.
        """
        node = self.body[value.node]
        if canonical(node.op) != "Concat":
            return None
        axis = int(node.attrs.get("dim", 1)) % 2
        if axis != 1:
            raise GraphoptError(f"{node.label} puts the sequences of the batch together")
        return list(node.inputs)

    def is_source(self, value: Value) -> bool:
        """Whether a value is there before the step."""
        return value.node in self.inputs

    def is_pointwise(self, value: Value) -> bool:
        """Whether columns of a value are computed from the same columns of others."""
        node = self.body[value.node]
        if node.is_input:
            return True
        op = canonical(node.op)
        return op in POINTWISE or self.sliced(value) is not None

    def uses(self) -> dict[Value, int]:
        """How often each value is read, behind copies."""
        uses: dict[Value, int] = defaultdict(int)
        for node in self.body:
            for value in node.inputs:
                uses[self.resolve(value)] += 1
        for value in self.body.outputs:
            uses[self.resolve(value)] += 1
        return uses


def _first_column(node: Node, output: int, shape: tuple[int, ...]) -> int:
    """Where the columns begin that a slicing node takes."""
    op = canonical(node.op)
    if len(shape) != 2:
        raise GraphoptError(f"{node.label}: it slices {shape}, no matrix")
    if op == "SliceChannel":
        if int(node.attrs.get("axis", 1)) % 2 != 1 or node.attrs.flag("squeeze_axis"):
            raise GraphoptError(f"{node.label} does not slice columns")
        return output * (shape[1] // int(node.attrs["num_outputs"]))
    if op == "slice_axis":
        if int(node.attrs["axis"]) % 2 != 1:
            raise GraphoptError(f"{node.label} does not slice columns")
        begin = int(node.attrs["begin"])
        return begin % shape[1] if begin else 0
    begins, steps = (_tuple(node.attrs.get(key)) for key in ("begin", "step"))
    if any(step not in (None, 1) for step in steps) or node.type.shape is None:
        raise GraphoptError(f"{node.label} takes not every column")
    if node.type.shape[0] != shape[0]:
        raise GraphoptError(f"{node.label} takes some sequences of the batch only")
    first = begins[1] if len(begins) > 1 else None
    return 0 if not first else int(first) % shape[1]


def _tuple(found: object) -> tuple[int | None, ...]:
    return found if isinstance(found, tuple) else ()
