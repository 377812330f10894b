"""Pull a transpose up through pointwise operators, to meet its inverse.

From a transpose the region of pointwise operators above it is collected: operators that nothing
outside the region reads. If all its leaves were transposed instead, those that are transposes
themselves cancel. This is done only if fewer bytes are transposed afterwards than before, so the
rule cannot undo itself. Bool arrays stay as they are: MXNet has no transpose of them. Regions do
not overlap and end at :data:`MAX_REGION` nodes: near-linear.
"""

from __future__ import annotations

from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import Kind, canonical, info
from graphopt.passes.layout.transposes import (
    TRANSPOSES,
    Permutation,
    compose,
    moves_data,
    permutation,
    transposed,
)
from graphopt.passes.layout.views import static_shape
from graphopt.rewrite import Edit, Mismatch, Rule
from graphopt.rewrite.rule import Replacement

MAX_REGION = 64

#: Pointwise by kind, but their attributes count axes or name a shape.
_BOUND_TO_AXES = (
    "broadcast_to",
    "broadcast_axis",
    "broadcast_like",
    "Dropout",
    "_contrib_div_sqrt_dim",
)


def _pull(edit: Edit, node: Node) -> Replacement:
    order = permutation(edit, node)
    nbytes = node.type.nbytes
    if order is None or nbytes is None:
        return None
    region = _region(edit, node)
    if not region:
        return None
    inside = dict.fromkeys(region)
    reads = dict.fromkeys(value for name in region for value in edit.graph[name].inputs)
    leaves = [value for value in reads if value.node not in inside]
    after = sum(_cost(edit, value, order) for value in leaves)
    before = nbytes + sum(_freed(edit, value, inside) for value in leaves)
    if after >= before:
        if any(edit.producer(value, TRANSPOSES, only_user=False) for value in leaves):
            raise Mismatch(f"moving it up would transpose {after} bytes instead of {before}")
        return None
    if any(edit.type(value).dtype == "bool" and _cost(edit, value, order) for value in leaves):
        raise Mismatch("MXNet does not transpose bool arrays")
    moved = {value: _leaf(edit, value, order, node) for value in leaves}
    for name in reversed(region):  # producers come last in the region
        old = edit.graph[name]
        shape = old.type.shape
        assert shape is not None
        moved[old.out()] = edit.add(
            old.op,
            [moved[value] for value in old.inputs],
            old.attrs,
            old.type.with_shape(tuple(shape[axis] for axis in order)),
            like=old,
            name=old.name,
        )
    return moved[node.inputs[0]]


def _region(edit: Edit, node: Node) -> list[NodeId]:
    """The pointwise nodes above a transpose that only it reads, readers before producers."""
    rank = node.type.rank
    seen: dict[NodeId, int] = {}
    region: list[NodeId] = []
    pending = [node.inputs[0]]
    while pending:
        value = pending.pop()
        if value.index:
            continue
        seen[value.node] = seen.get(value.node, 0) + 1
        # It joins once all its readers are inside, and its own inputs are looked at then.
        if seen[value.node] < edit.uses(value):
            continue
        producer = edit.node(value)
        if not _is_pointwise(edit, producer, rank):
            continue
        region.append(producer.id)
        if len(region) > MAX_REGION:
            return []
        pending.extend(producer.inputs)
    return region


def _is_pointwise(edit: Edit, node: Node, rank: int | None) -> bool:
    if node.is_input or not edit.is_movable(node) or len(node.types) != 1 or not node.inputs:
        return False
    facts = info(node.op, node.attrs)
    return (
        facts.pure
        and not facts.loss  # MakeLoss divides by the first extent
        and facts.kind in (Kind.ELEMENTWISE, Kind.BROADCAST)
        and canonical(node.op) not in _BOUND_TO_AXES
        and node.type.is_static
        and all(
            edit.type(value).rank == rank and static_shape(edit.type(value)) is not None
            for value in node.inputs
        )
    )


def _sources(edit: Edit, value: Value, order: Permutation) -> tuple[Value, Permutation]:
    """What to transpose, and how, to get ``value`` transposed."""
    inner = edit.producer(value, TRANSPOSES, only_user=False)
    below = None if inner is None else permutation(edit, inner)
    if inner is None or below is None:
        return value, order
    return inner.inputs[0], compose(order, below)


def _cost(edit: Edit, value: Value, order: Permutation) -> int:
    """Bytes that have to be transposed to get a leaf in the new order."""
    source, both = _sources(edit, value, order)
    moves = moves_data(both, edit.type(source).shape or ())
    return (edit.type(value).nbytes or 0) if moves else 0


def _freed(edit: Edit, value: Value, inside: dict[NodeId, None]) -> int:
    """Bytes of a transpose at a leaf that go away because only the region reads it."""
    if edit.producer(value, TRANSPOSES, only_user=False) is None:
        return 0
    if edit.graph.is_output(value) or any(u.node not in inside for u in edit.graph.users(value)):
        return 0
    return edit.type(value).nbytes or 0


def _leaf(edit: Edit, value: Value, order: Permutation, like: Node) -> Value:
    source, both = _sources(edit, value, order)
    named = like.but(types=(edit.type(value),))
    return transposed(edit, source, both, named)


RULES = (Rule("pull-transpose", TRANSPOSES, _pull),)
