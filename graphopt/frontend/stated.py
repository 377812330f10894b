"""Types of inputs that the caller states: checked, and taken over into a graph."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence

from graphopt.backend.fitting import require_known, require_mapping
from graphopt.backend.infer import with_types
from graphopt.errors import InputError
from graphopt.ir.graph import Graph
from graphopt.ir.types import DTYPES, TensorType

Shapes = Mapping[str, Sequence[int]]
Dtypes = Mapping[str, str]


def input_types(names: Collection[str], shapes: Shapes, dtypes: Dtypes) -> dict[str, TensorType]:
    """Types the caller stated.

    Raises:
        InputError: a name is no input (close names are suggested), a dtype is unknown, or an extent
            is no integer of at least 0.
    """
    require_mapping(shapes, "shapes")
    require_mapping(dtypes, "dtypes")
    require_known((*shapes, *dtypes), [*names], "the graph")
    for given, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise InputError(f"{dtype!r}, given for {given!r}, is no dtype ({', '.join(DTYPES)})")
    extents = {given: _extents(given, shape) for given, shape in shapes.items()}
    return {n: TensorType(dtypes.get(n), extents.get(n)) for n in (*shapes, *dtypes)}


def retyped(graph: Graph, shapes: Shapes, dtypes: Dtypes) -> Graph:
    """The graph with these types at its inputs, and what follows from them; itself for none.

    Raises:
        InputError: as :func:`input_types`, or the types contradict.
    """
    if not shapes and not dtypes:
        return graph
    stated = input_types([node.name for node in graph.inputs], shapes, dtypes)
    typed = graph.copy()
    for node in graph.inputs:
        new = stated.get(node.name, node.type)
        shape = node.type.shape if new.shape is None else new.shape
        typed.update(node.but(types=(TensorType(new.dtype or node.type.dtype, shape),)))
    return with_types(typed)


def _extents(given: str, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape, which may be of numpy's integers, as shapes are often computed with numpy."""
    try:
        extents = None if isinstance(shape, (str, bytes)) else tuple(map(operator.index, shape))
    except TypeError:
        extents = None
    if extents is None or any(extent < 0 for extent in extents):
        raise InputError(f"shape {shape!r}, given for {given!r}, is no shape")
    return extents
