"""Nets whose Python runs where they learn, though their inference may be compiled whole."""

from __future__ import annotations

from graphopt.analysis.sparse import makes_sparse
from graphopt.errors import UnsupportedError
from graphopt.ir.graph import Graph
from graphopt.nn.control_flow import with_nested


class LearnsInPythonError(UnsupportedError):
    """A net is left to MXNet where it learns, as gradients of one graph would be others."""


def require_dense(graph: Graph) -> None:
    """Refuse to learn by a graph that makes sparse arrays of dense ones.

    MXNet's operators leave some gradients unwritten then, as that of a csr array that is
    multiplied: its backward only computes it where it falls back to dense arrays, which depends on
    what else is in the graph.

    Raises:
        LearnsInPythonError: the message names the operator.
    """
    for node in with_nested(graph):
        if makes_sparse(node.op, node.attrs):
            raise LearnsInPythonError(
                f"where it learns, {node.name!r} ({node.op}) makes a sparse array, through which"
                " a graph of MXNet's may leave gradients unwritten"
            )
