"""Message passing node by node in numpy: the oracle of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphopt.kernels.recurrence.interpret import one_step, read
from graphopt.kernels.recurrence.spec import RecurrenceSpec
from graphopt.kernels.tree.spec import TreeSpec

Array = np.ndarray[Any, Any]


def run(spec: TreeSpec, inputs: Sequence[Array], *, indexed: bool = False) -> list[Array]:
    """Compute all nodes, children first.

    Args:
        spec: what is computed.
        inputs: rows that updates read and rows that messages read, (nodes, columns) each; with
            ``indexed`` the number of each node's row; the parent of each node, -1 for roots, or
            edges (source, target); matrices and vectors of messages, then of updates.
        indexed: whether nodes share rows.

    Returns:
        What updates emit, (nodes, columns) each.
    """
    given = iter(inputs)
    node_rows = [next(given) for _ in spec.node_rows]
    edge_rows = [next(given) for _ in spec.edge_rows]
    if indexed:
        index = next(given)
        node_rows, edge_rows = [x[index] for x in node_rows], [x[index] for x in edge_rows]
    structure = next(given)
    learned = {}
    for rows in (spec.message, spec.update):
        matrices = [next(given) for _ in rows.matrices]
        learned[id(rows)] = (matrices, [next(given) for _ in rows.vectors])
    nodes = len((node_rows or edge_rows)[0])  # one of them has rows
    children = _children(structure, nodes)
    made: dict[int, list[Array]] = {}

    def apply(rows: RecurrenceSpec, read_rows: list[Array]) -> list[Array]:
        matrices, vectors = learned[id(rows)]
        found = one_step(rows, [row[None] for row in read_rows], [], matrices, vectors)
        return [read(ref, found)[0] for ref in rows.emit]

    def visit(node: int) -> None:
        messages = [
            apply(
                spec.message,
                [x[node] for x in edge_rows] + made[child][: len(spec.states)],
            )
            for child in children[node]
        ]
        reduced = [
            _reduce(kind, width, [message[j] for message in messages], spec.dtype)
            for j, (kind, width) in enumerate(zip(spec.reduce, spec.reduced, strict=True))
        ]
        made[node] = apply(spec.update, [x[node] for x in node_rows] + reduced)

    pending = list(range(nodes))
    while pending:
        ready = [n for n in pending if all(child in made for child in children[n])]
        if not ready:
            raise ValueError("the edges form a cycle")
        for node in ready:
            visit(node)
        pending = [n for n in pending if n not in made]
    return [np.stack([made[n][k] for n in range(nodes)]) for k in range(len(spec.emitted))]


def _children(structure: Any, nodes: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(nodes)]
    for n, entry in enumerate(structure):
        source, target = (n, entry) if np.ndim(entry) == 0 else entry
        if target != -1:
            found[target].append(int(source))
    return found


def _reduce(kind: str, width: int, messages: list[Array], dtype: str) -> Array:
    if not messages:
        return np.zeros(width, dtype)
    if kind.startswith("concat"):
        joined = np.concatenate(messages)
        return np.concatenate([joined, np.zeros(width - len(joined), dtype)])
    rows = np.stack(messages)
    if kind == "max":
        return np.asarray(rows.max(axis=0))
    total = rows.sum(axis=0)
    return np.asarray(total / len(messages) if kind == "mean" else total)
