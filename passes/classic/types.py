"""What has to hold of types, so that an operator of ``mx.np`` and one of ``mx.nd`` agree.

``mx.np`` has arrays of no axes and of no elements, promotes dtypes and compares to booleans;
``mx.nd`` has none of that.
"""

from __future__ import annotations

from graphopt.ir.node import Node
from graphopt.ir.types import TensorType
from graphopt.rewrite import Edit

FLOATS = frozenset({"float16", "float32", "float64"})


def is_classic(type_: TensorType) -> bool:
    """Whether ``mx.nd`` has arrays of this type: at least one axis, and no axis of length 0."""
    return type_.is_static and bool(type_.shape) and all(type_.shape or ())


def are_classic(edit: Edit, node: Node) -> bool:
    """Whether everything a node reads and its one output are arrays that ``mx.nd`` has."""
    return (
        len(node.types) == 1
        and is_classic(node.type)
        and all(is_classic(edit.type(value)) for value in node.inputs)
    )


def are_floats(edit: Edit, node: Node) -> bool:
    """Whether a node reads and returns arrays of one floating dtype, and ``mx.nd`` has them."""
    return (
        are_classic(edit, node)
        and node.type.dtype in FLOATS
        and all(edit.type(value).dtype == node.type.dtype for value in node.inputs)
    )
