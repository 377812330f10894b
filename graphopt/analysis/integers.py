"""Inputs of integers that gradients may be asked of."""

from __future__ import annotations

from typing import Final

from graphopt.analysis.lookups import only_numbers_of_rows
from graphopt.ir.graph import Graph

_INTEGERS: Final = frozenset({"bool", "int8", "int32", "int64", "uint8"})


def integers_with_gradient(graph: Graph) -> frozenset[str]:
    """Names of inputs of integers, but for those that are numbers of rows and nothing else. Linear.

    MXNet hands gradients through casts to them, truncated.
    """
    found = frozenset(node.name for node in graph.inputs if node.type.dtype in _INTEGERS)
    return found - only_numbers_of_rows(graph) if found else found
