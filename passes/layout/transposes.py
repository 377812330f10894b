"""Transposes: composed, dropped, turned into views, or taken over by what reads them."""

from __future__ import annotations

from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.passes.layout.views import as_ints, static_shape, view
from graphopt.rewrite import Edit, Mismatch, Rule
from graphopt.rewrite.rule import Replacement

TRANSPOSES = ("transpose", "SwapAxis")

Permutation = tuple[int, ...]


def permutation(edit: Edit, node: Node) -> Permutation | None:
    """:func:`order_of` a transpose; ``None`` for an unknown rank."""
    rank = edit.type(node.inputs[0]).rank
    return None if rank is None else order_of(node, rank)


def order_of(node: Node, rank: int) -> Permutation:
    """For each output axis of a transpose, the input axis it is."""
    if canonical(node.op) == "SwapAxis":
        axes = list(range(rank))
        one, two = (node.attrs.get(key, 0) % rank for key in ("dim1", "dim2"))
        axes[one], axes[two] = axes[two], axes[one]
        return tuple(axes)
    given = as_ints(node.attrs.get("axes"))
    return tuple(axis % rank for axis in given) if given else tuple(reversed(range(rank)))


def compose(outer: Permutation, inner: Permutation) -> Permutation:
    """One permutation for ``outer`` applied to the result of ``inner``."""
    return tuple(inner[axis] for axis in outer)


def moves_data(order: Permutation, shape: tuple[int | None, ...]) -> bool:
    """Whether transposing ``shape`` moves anything, which axes of length 1 alone do not."""
    long = [axis for axis in order if shape[axis] != 1]
    return long != sorted(long)


def transposed(edit: Edit, source: Value, order: Permutation, like: Node) -> Value:
    """``source`` with its axes in ``order``: as it is, by a view, or by a transpose."""
    type_ = edit.type(source)
    if order == tuple(range(len(order))):
        return source
    assert type_.shape is not None
    shape = tuple(type_.shape[axis] for axis in order)
    if not moves_data(order, type_.shape) and static_shape(type_) is not None:
        return view(edit, source, tuple(extent or 0 for extent in shape), like)
    return edit.add("transpose", (source,), {"axes": order}, type_.with_shape(shape), like=like)


def _simplify(edit: Edit, node: Node) -> Replacement:
    """A transpose that moves nothing goes or becomes a view; two in a row become one or none."""
    source, order = node.inputs[0], permutation(edit, node)
    if order is None:
        return None
    shape = static_shape(edit.type(source))
    if order == tuple(sorted(order)) or (shape is not None and not moves_data(order, shape)):
        return transposed(edit, source, order, node)
    inner = edit.producer(source, TRANSPOSES, only_user=False)
    if inner is None:
        return None
    below = permutation(edit, inner)
    assert below is not None
    both = compose(order, below)
    if both != tuple(sorted(both)) and edit.uses(source) > 1:
        return None
    return transposed(edit, inner.inputs[0], both, node)


#: Reductions whose axes can be renamed.
REDUCTIONS = ("sum", "mean", "max", "min")


def reduced_axes(node: Node, rank: int) -> tuple[int, ...]:
    """The axes a reduction is over, ascending; MXNet reads no axes as all."""
    given = tuple(sorted({axis % rank for axis in as_ints(node.attrs.get("axis"))}))
    if not given:
        return tuple(range(rank))
    if node.attrs.get("exclude"):
        return tuple(axis for axis in range(rank) if axis not in given)
    return given


def _reduce(edit: Edit, node: Node) -> Replacement:
    """Reduce the source of a transpose over the axes as they are called there."""
    inner = edit.producer(node.inputs[0], TRANSPOSES)
    order = None if inner is None else permutation(edit, inner)
    if inner is None or order is None or node.type.shape is None:
        return None
    if edit.precise and node.op in ("sum", "mean"):
        raise Mismatch("the sum would be taken in another order")
    source = inner.inputs[0]
    shape = edit.type(source).shape
    assert shape is not None
    axes = reduced_axes(node, len(order))
    over = tuple(sorted(order[axis] for axis in axes))
    if node.attrs.get("keepdims"):
        small = tuple(1 if axis in over else extent for axis, extent in enumerate(shape))
        after: Permutation = order
    else:
        left = [axis for axis in range(len(order)) if axis not in over]
        small = tuple(shape[axis] for axis in left) or (1,)
        kept = [order[axis] for axis in range(len(order)) if axis not in axes]
        after = tuple(left.index(axis) for axis in kept) or (0,)
    attrs = node.attrs.set(axis=over).without("exclude")
    result = edit.add(node.op, (source,), attrs, node.type.with_shape(small), like=node)
    return transposed(edit, result, after, node)


PRODUCTS = ("dot", "batch_dot")


def _into_product(edit: Edit, node: Node) -> Replacement:
    """A product reads a transposed matrix as it lies."""
    inputs, attrs = list(node.inputs), node.attrs
    for position, flag in enumerate(("transpose_a", "transpose_b")):
        inner = edit.producer(node.inputs[position], TRANSPOSES)
        order = None if inner is None else permutation(edit, inner)
        if inner is None or order is None or not _swaps_matrix(order, canonical(node.op)):
            continue
        inputs[position] = inner.inputs[0]
        attrs = attrs.set(**{flag: not attrs.get(flag, False)})
    if attrs == node.attrs:
        return None
    if edit.precise:
        raise Mismatch("the product would be summed in another order")
    return edit.add(node.op, inputs, attrs, like=node)


def _swaps_matrix(order: Permutation, op: str) -> bool:
    rank = len(order)
    if (op == "dot" and rank != 2) or rank < 2:
        return False
    return order == (*range(rank - 2), rank - 1, rank - 2)


RULES = (
    Rule("cancel-transposes", TRANSPOSES, _simplify),
    Rule("reduce-untransposed", REDUCTIONS, _reduce),
    Rule("transpose-into-product", PRODUCTS, _into_product),
)
