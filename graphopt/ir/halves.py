"""What graphs compute in bfloat16."""

from __future__ import annotations

from graphopt.ir.graph import Graph

_LEFT = "MXNet is left to compute in bfloat16, which not all of its operators can"


def why_left(graph: Graph) -> str | None:
    """Why a graph runs as it is, or ``None``.

    MXNet's operators for bfloat16 are oneDNN's. Others take it and write what is wrong, or behind
    their memory: where a pass put a transpose the process would end.
    """
    return _LEFT if _has_bfloat16(graph) else None


def _has_bfloat16(graph: Graph) -> bool:
    return any(
        any(type_.dtype == "bfloat16" for type_ in node.types)
        or any(map(_has_bfloat16, node.graphs))
        for node in graph
    )
