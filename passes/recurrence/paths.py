"""Anchors of recurrences whose states meet no weight.

A state that is gated, scaled or added to goes from step to step through operators of single
elements and rows. The longest way through these is one along the steps, and on it operators repeat.
Where they do, one node of each round is an anchor, as a node with the weight of a cell is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from graphopt.ir.graph import Graph
from graphopt.ir.node import PARAM, Node, NodeId
from graphopt.ir.ops import canonical
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.recurrence.anchors import MIN_STEPS

_COLUMNS = frozenset({"SliceChannel", "slice_axis", "Concat"})
#: Steps of more operators on one path are not looked for, so that each path takes linear time.
_LONGEST_ROUND: Final = 64
#: As many nodes behind the last round may look like the beginning of another.
_MOST_ENDS: Final = 8


class _Path(NamedTuple):
    """Nodes that read one another, and at which input each reads the one before it."""

    nodes: list[NodeId]
    positions: list[int]


class _Run(NamedTuple):
    """A part of a path that repeats itself: where it begins and ends, and the length of a round."""

    start: int
    end: int
    round: int


def path_anchors(graph: Graph) -> Iterator[list[NodeId]]:
    """Nodes that follow one another through equal operators, as far as there are enough of them.

    Whether what lies between them are steps is for the comparison to find out, unless they have
    parameters of their own, as the layers of a residual net have. Linear for each path, and
    looked for one by one, as there may be many and the first that is rolled up is an end to them.
    """
    for path in _paths(graph):
        labels = _labels(graph, path)
        for run in _apart(_runs(labels)):
            if not _read_something_new(graph, path, run):
                continue
            anchors = _anchors(graph, path, run)
            if len(anchors) >= MIN_STEPS and _share_parameters(graph, path, run):
                yield anchors


def _paths(graph: Graph) -> Iterator[_Path]:
    """The longest path through operators that kernels of steps compute, then the longest besides.

    No node is on two of them, and those too short for a recurrence are left out.
    """
    depth: dict[NodeId, int] = {}
    deepest: dict[NodeId, int] = {}
    for node in graph:
        if not _is_in_steps(graph, node):
            continue
        depths = [depth.get(value.node, 0) for value in node.inputs]
        most = max(depths)
        depth[node.id] = most + 1
        if most:
            deepest[node.id] = depths.index(most)
    taken: set[NodeId] = set()
    for last in sorted(depth, key=depth.__getitem__, reverse=True):
        if depth[last] < MIN_STEPS:
            break
        path, current = _Path([], []), last
        while current not in taken:
            taken.add(current)
            path.nodes.append(current)
            path.positions.append(deepest.get(current, 0))
            if current not in deepest:
                break
            current = graph[current].inputs[deepest[current]].node
        if len(path.nodes) >= MIN_STEPS:
            yield _Path(path.nodes[::-1], path.positions[::-1])


def _is_in_steps(graph: Graph, node: Node) -> bool:
    """Whether a node may be between a state and the next one."""
    op = canonical(node.op)
    if not node.inputs or node.graphs or node.after:
        return False
    if op not in POINTWISE and op not in ROWS and op not in _COLUMNS:
        return False
    return node.types[0].rank == 2 and any(graph.type_of(v).rank == 2 for v in node.inputs)


def _labels(graph: Graph, path: _Path) -> list[int]:
    """A number for each node of a path, equal for those that compute alike."""
    numbers: dict[tuple[object, ...], int] = {}
    labels = []
    for number, position in zip(path.nodes, path.positions, strict=True):
        node = graph[number]
        label = (node.op, node.attrs, node.types, position, node.inputs[position].index)
        labels.append(numbers.setdefault(label, len(numbers)))
    return labels


def _runs(labels: Sequence[int]) -> list[_Run]:
    """Where labels repeat, with every length of rounds; enough times for a recurrence."""
    found = []
    for length in range(1, min(_LONGEST_ROUND, (len(labels) - 1) // (MIN_STEPS - 1)) + 1):
        start: int | None = None
        for at in range(length, len(labels) + 1):
            if at < len(labels) and labels[at] == labels[at - length]:
                start = at - length if start is None else start
            elif start is not None:
                if at - start > (MIN_STEPS - 1) * length:
                    found.append(_Run(start, at, length))
                start = None
    return found


def _apart(runs: Sequence[_Run]) -> list[_Run]:
    """The longest run, then the longest that has nothing in common with it, and so on.

    Of equally long ones that of the shortest rounds: the others are multiples of it.
    """
    chosen: list[_Run] = []
    taken = bytearray(max((run.end for run in runs), default=0))
    for run in sorted(runs, key=lambda run: (run.start - run.end, run.round)):
        if not any(taken[run.start : run.end]):
            taken[run.start : run.end] = b"\1" * (run.end - run.start)
            chosen.append(run)
    return chosen


def _anchors(graph: Graph, path: _Path, run: _Run) -> list[NodeId]:
    """The first nodes of all rounds, which end where there are most of them.

    Of ends with equally many rounds in front, all but the first have a gate behind the last step
    in them, which looks like that in front of a state.
    """
    ends = range(run.end - min(run.round, _MOST_ENDS) + 1, run.end + 1)
    return max((_one_of_each(graph, path, run, end - run.round) for end in ends), key=len)


def _one_of_each(graph: Graph, path: _Path, run: _Run, last: int) -> list[NodeId]:
    """The counterparts of the node at ``last``, which is in the last round, in all rounds.

    The first step often has a longer path behind its state, so the way back is gone on with.
    """
    anchors = [path.nodes[last]]
    while (before := _before(graph, path, run, last, anchors[-1])) is not None:
        anchors.append(before)
    return anchors[::-1]


def _before(graph: Graph, path: _Path, run: _Run, last: int, anchor: NodeId) -> NodeId | None:
    """What is one round before an anchor, if all on the way there is as it is on the run."""
    current = graph[anchor]
    for role in range(last, last - run.round, -1):
        position, wanted = path.positions[role], graph[path.nodes[role - 1]]
        value = current.inputs[position]
        current = graph[value.node]
        ours = (current.op, current.attrs, current.types, len(current.inputs))
        if ours != (wanted.op, wanted.attrs, wanted.types, len(wanted.inputs)):
            return None
        index = graph[path.nodes[role]].inputs[position].index
        if value.index != index or current.graphs or current.after:
            return None
    return current.id


def _read_something_new(graph: Graph, path: _Path, run: _Run) -> bool:
    """Whether any round reads something besides the path that the round before it does not.

    Nothing else is between the steps, so that rounds are an iteration otherwise: told from the path
    alone, as comparing steps takes time linear in the graph, and there may be many of them.
    """
    return any(
        one != other
        for at in range(run.start + run.round, run.end)
        for position, (one, other) in enumerate(
            zip(
                graph[path.nodes[at - run.round]].inputs, graph[path.nodes[at]].inputs, strict=False
            )
        )
        if position != path.positions[at]
    )


def _share_parameters(graph: Graph, path: _Path, run: _Run) -> bool:
    """Whether the last two rounds of a run read the same parameters, as far as they are alike."""
    length = run.round
    known = {(path.nodes[at - length], path.nodes[at]) for at in range(run.start + length, run.end)}
    pending = [(path.nodes[at - length], path.nodes[at]) for at in range(run.end - length, run.end)]
    while pending:
        one, other = (graph[number] for number in pending.pop())
        if one.op == other.op == PARAM:
            return False
        if (one.op, one.attrs, len(one.inputs)) != (other.op, other.attrs, len(other.inputs)):
            continue
        for first, second in zip(one.inputs, other.inputs, strict=True):
            pair = first.node, second.node
            if first.node != second.node and pair not in known:
                known.add(pair)
                pending.append(pair)
    return True
