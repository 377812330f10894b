"""What a signature is to the bridge: a program on rows, a reduction, or a view of other rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphopt.batching.kinds import Kind
from graphopt.batching.native.graphs import ordered
from graphopt.batching.operators import applied, handle, variables
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, UnsupportedError
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.attrs import from_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.ops import canonical
from graphopt.kernels.instructions import INSTRUCTIONS
from graphopt.kernels.recurrence.spec import RecurrenceSpec
from graphopt.passes.recurrence.body import translate
from graphopt.passes.recurrence.trees import Learned, hoist, learned_of

#: Two rows: one could be taken for something that is stretched.
_ROWS = 2
_DTYPES = ("float32", "float64")
#: Those that a block can have.
REDUCTIONS = ("sum", "mean", "max")

#: From a context to a parameter's array on it.
Parameter = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)  # arrays are compared element by element
class Fixed:
    """An array that is the same on all contexts: the parameter of an operator."""

    array: Any

    def __call__(self, _ctx: Any) -> Any:
        """The array."""
        return self.array


@dataclass(frozen=True, slots=True)
class Row:
    """A parameter (1, columns) as (columns,), which programs read; autograd sees what it is of."""

    parameter: Parameter

    def __call__(self, ctx: Any) -> Any:
        """The array on a context."""
        return import_mxnet().nd.Reshape(self.parameter(ctx), shape=(-1,))


@dataclass(frozen=True, slots=True)
class Block:
    """A child Block's graph; ``parameters`` by name, the other inputs are ``names``."""

    graph: Graph
    names: tuple[str, ...]
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """A call of an operator; ``template`` has shared arrays, and None where rows go."""

    op: str
    attrs: tuple[tuple[str, str], ...]
    template: tuple[Any, ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Adjacent elements of every row: ``width`` of them from ``offset`` on."""

    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The same elements as other rows."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """Rows reduced to one: ``sum``, ``mean`` or ``max``."""

    how: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The elements of all arguments' rows, one behind the other."""


#: What a signature is made from, as far as the bridge may be able to compute it.
Source = Block | Operator | Cut | Reshaped | Reduction | Joined


@dataclass(frozen=True, slots=True)
class Rows:
    """A program on rows.

    Attributes:
        spec: without states; sequences are the arguments, what is emitted the outputs.
        learned: matrices, then vectors; each is the sum of what is named.
    """

    spec: RecurrenceSpec
    learned: tuple[tuple[Parameter, ...], ...]


Native = Rows | Cut | Reshaped | Reduction | Joined


@dataclass(frozen=True, slots=True)
class Split:
    """A program, parted at one of its arguments.

    Attributes:
        position: of the argument.
        prepare: what its rows alone make.
        needed: what ``rest`` reads in place of the argument, in front of the others: numbers of
            what ``prepare`` emits, -1 for the argument itself.
        rest: all else.
    """

    position: int
    prepare: Rows
    needed: tuple[int, ...]
    rest: Rows


def native_of(source: Source | None, inputs: Sequence[Kind], outs: Sequence[Kind]) -> Native | str:
    """What the bridge makes of a signature's source, or why it cannot.

    Args:
        source: what the signature was made from.
        inputs: kinds of the arguments with rows.
        outs: kinds of the outputs.
    """
    if source is None:
        return "it is no operator that the bridge knows"
    if inputs[0].ctx.device_type != "cpu" or inputs[0].dtype not in _DTYPES:
        return f"it computes in {inputs[0].dtype} on {inputs[0].ctx}"
    if len({(of.dtype, of.ctx) for of in (*inputs, *outs)}) > 1:
        return "it has arrays of several dtypes or devices"
    if isinstance(source, Reduction) and source.how not in REDUCTIONS:
        return f"it has no reduction {source.how}"
    if isinstance(source, (Cut, Reshaped, Reduction, Joined)):
        return source
    mx = import_mxnet()
    try:
        described = _block(source) if isinstance(source, Block) else _operator(source)
        return _rows(*described)
    except (GraphoptError, mx.MXNetError) as error:
        return str(error)


def source_of(
    op: str, attrs: Mapping[str, Any], template: Sequence[Any], kinds: Sequence[Kind]
) -> Source | None:
    """The source of a call of an operator.

    Args:
        op: the operator that is called.
        attrs: its attributes.
        template: shared arrays, and None where rows go.
        kinds: of all arguments.
    """
    mx = import_mxnet()
    rows = tuple(k for k, array in zip(kinds, template, strict=True) if array is None)
    if not all(array is None or isinstance(array, mx.nd.NDArray) for array in template):
        return None
    texts = {key: str(value) for key, value in attrs.items()}
    if op == "slice":
        parsed = from_mxnet(texts)
        bounds = [parsed.get(key, ()) for key in ("begin", "end", "step")]
        parts = [part if isinstance(part, tuple) else (part,) for part in bounds]
        return cut_of(parts[0], parts[1], parts[2], rows[0])
    joins = {"Concat": ("dim", 1), "stack": ("axis", 0)}
    if op in joins and len(rows) == len(template):
        key, default = joins[op]
        axis = from_mxnet(texts).get(key, default)
        rank = 1 + len(rows[0].tail) + (op == "stack")
        if isinstance(axis, int) and axis % rank == 1:  # behind that rows would be interleaved
            return Joined()
    if op == "slice_axis":
        parsed = from_mxnet(texts)
        axis, begin, end = (parsed.get(key) for key in ("axis", "begin", "end"))
        if not isinstance(axis, int):
            return None
        before = (None,) * (axis % (1 + len(rows[0].tail)))
        return cut_of((*before, begin), (*before, end), (), rows[0])
    return Operator(op, tuple(texts.items()), tuple(template), rows)


def width_of(of: Kind) -> int:
    """Elements of a row."""
    return math.prod(of.tail)


def cut_of(begin: Sequence[Any], end: Sequence[Any], step: Sequence[Any], of: Kind) -> Cut | None:
    """A slice of rows of this kind, if what it takes of each row is adjacent.

    Args:
        begin: of the operator ``slice``, over rows and their axes; None means from the start.
        end: the same, None means to the end.
        step: the same.
        of: what is sliced; rows are taken whole.
    """
    if any(s not in (None, 1) for s in step):
        return None
    if begin[:1] not in ((), (None,)) or end[:1] not in ((), (None,)):
        return None
    offset, width, is_whole = 0, 1, True
    # From the last axis to the first: once a part is taken, axes before it must have one place.
    for axis in range(len(of.tail) - 1, -1, -1):
        extent = of.tail[axis]
        low, high = _bounds(begin, end, axis + 1, extent)
        if not is_whole and high - low != 1:
            return None
        offset += low * math.prod(of.tail[axis + 1 :])
        width *= high - low
        is_whole = is_whole and (low, high) == (0, extent)
    return Cut(offset, width)


def _bounds(begin: Sequence[Any], end: Sequence[Any], axis: int, extent: int) -> tuple[int, int]:
    low = begin[axis] if axis < len(begin) else None
    high = end[axis] if axis < len(end) else None
    first, last, _ = slice(low, high).indices(extent)
    return first, max(first, last)


def split_of(source: Block | Operator, position: int) -> Split | None:
    """The program of a source, parted at an argument; None if no product could be made ahead.

    Args:
        source: what the bridge can compute.
        position: which of the arguments with rows.
    """
    graph, names, getter = _block(source) if isinstance(source, Block) else _operator(source)
    first = names[position]
    try:
        found = hoist(ordered(graph, [first, *(name for name in names if name != first)]))
    except GraphoptError:
        return None  # it stays in one piece
    if found is None:
        return None

    return Split(
        position,
        Rows(found.prepare, _parameters(found.prepared, getter)),
        found.needed,
        Rows(found.rest, _parameters(found.learned, getter)),
    )


def parameters_of(source: Source | None) -> list[Parameter]:
    """The arrays that calls read besides rows."""
    if isinstance(source, Block):
        return [parameter.data for parameter in source.parameters.values()]
    if isinstance(source, Operator):
        return [Fixed(array) for array in source.template if array is not None]
    return []


#: A graph, its inputs with rows, and where the arrays of the others come from.
Described = tuple[Graph, Sequence[str], Callable[[str], Parameter]]


def _block(source: Block) -> Described:
    parameters = source.parameters

    def getter(name: str) -> Parameter:
        return parameters[name].data  # type: ignore[no-any-return]

    return source.graph, source.names, getter


def _operator(source: Operator) -> Described:
    names = [f"input{at}" for at in range(len(source.template))]
    shapes: dict[str, tuple[int, ...]] = {}
    kinds = iter(source.kinds)
    data = []
    for name, array in zip(names, source.template, strict=True):
        if array is None:
            shapes[name] = (_ROWS, *next(kinds).tail)
            data.append(name)
        else:
            shapes[name] = tuple(array.shape)
    symbol = applied(handle(source.op), dict(source.attrs), variables(len(names)))
    dtypes = dict.fromkeys(names, source.kinds[0].dtype)
    graph = lift_symbol(symbol, shapes, dtypes, data=data)
    arrays = dict(zip(names, source.template, strict=True))

    def getter(name: str) -> Parameter:
        return Fixed(arrays[name])

    return graph, data, getter


def _rows(graph: Graph, names: Sequence[str], getter: Callable[[str], Parameter]) -> Rows:
    made = ordered(graph, names)
    for node in made.topological():
        found = INSTRUCTIONS.get(canonical(node.op))
        if found is not None and found.gradient is None:
            # The plan of a block is one that has a backward, at inference too.
            raise UnsupportedError(f"{node.op}: kernels have no derivative of it")
    body = translate(made, len(names), 0)
    return Rows(body.spec, _parameters(learned_of(made, body), getter))


def _parameters(
    learned: Learned, getter: Callable[[str], Parameter]
) -> tuple[tuple[Parameter, ...], ...]:
    """What a program reads besides rows, as :class:`Rows` has it."""

    def vector(name: str) -> Parameter:
        return Row(getter(name)) if name in learned.rows else getter(name)

    matrices = ((getter(name),) for name in learned.matrices)
    return (*matrices, *(tuple(map(vector, group)) for group in learned.vectors))
