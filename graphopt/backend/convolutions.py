"""Regions of convolutions on their way to MXNet: their parameters packed, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from graphopt.backend.arrays import view_of
from graphopt.backend.holding import held
from graphopt.backend.kept import Kept, kept
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONVOLUTIONS, PARAM, Node
from graphopt.ir.types import TensorType
from graphopt.kernels.convolutions.native import pack, packed_size
from graphopt.kernels.convolutions.spec import LARGE_TILES, spec_of


def has_convolutions(graph: Graph) -> bool:
    """Whether a graph holds regions of convolutions."""
    return any(node.op == CONVOLUTIONS for node in graph)


def has_large_tiles(graph: Graph) -> bool:
    """Whether a convolution is computed by an algorithm that rounds more than direct ones."""
    return any(
        LARGE_TILES.keys() & spec_of(node).algorithms for node in graph if node.op == CONVOLUTIONS
    )


def with_small_tiles(graph: Graph) -> Graph:
    """A copy where algorithms round no more than direct ones: Winograd's with tiles of 2x2."""
    copy = graph.copy()
    for node in graph:
        if node.op == CONVOLUTIONS:
            names = (LARGE_TILES.get(name, name) for name in spec_of(node).algorithms)
            copy.update(node.but(attrs=node.attrs.set(algorithms=tuple(names))))
    return copy


def with_packed(
    graph: Graph, values: Mapping[str, Any], ctx: Any
) -> tuple[Graph, dict[str, Any], list[Kept]]:
    """A copy whose regions read packed parameters, these parameters, and their keepers.

    Args:
        graph: its regions' parameters are inputs or constants.
        values: NDArray per name of these.
        ctx: where the packed ones are to be.

    Raises:
        GraphoptError: a region is for another processor.
    """
    made, keepers = dict[str, Any](), list[Kept]()
    copy = graph.copy()
    for node in graph:
        if node.op != CONVOLUTIONS:
            continue
        spec = spec_of(node)
        given = [
            values[graph[value.node].name] if inner.op == PARAM else None
            for inner, value in zip(spec.body.inputs, node.inputs, strict=True)
        ]
        arrays = _packed(str(spec), given, ctx)

        def find(name: str, arrays: Iterator[Any] = arrays) -> Any:
            keepers.append(kept(next(arrays)))
            made[name] = keepers[-1].array
            return made[name]

        _read_packed(copy, node, find)
    return copy, made, keepers


def as_packed(graph: Graph, value: Callable[[str], Any]) -> Graph:
    """A copy that reads what :func:`with_packed` made of a graph that differs in sizes only.

    Args:
        graph: its regions read plain parameters.
        value: the packed NDArray of a name.
    """
    copy = graph.copy()
    for node in graph:
        if node.op == CONVOLUTIONS:
            _read_packed(copy, node, value)
    return copy


def _read_packed(copy: Graph, node: Node, find: Callable[[str], Any]) -> None:
    """Make a region read packed parameters under names of their own."""
    inputs = list(copy[node.id].inputs)
    for at, inner in enumerate(node.graphs[0].inputs):
        if inner.op == PARAM:
            name = copy.unique_name(f"{copy[inputs[at].node].name}_packed")
            packed_type = TensorType("float32", find(name).shape)
            inputs[at] = copy.add_input(name, PARAM, packed_type).out()
    copy.update(copy[node.id].but(inputs=tuple(inputs), attrs=node.attrs.set(packed=True)))


def _packed(spec: str, given: Sequence[Any | None], ctx: Any) -> Iterator[Any]:
    """Packed parameters as NDArrays, one by one: those that are there already are let go of."""
    mx = import_mxnet()
    for number, array in enumerate(given):
        if array is not None:
            made = mx.nd.empty((packed_size(mx, spec, number),), ctx)
            held([array], partial(pack, mx, spec, number, into=view_of(made)))
            yield made
