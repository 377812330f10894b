"""Nodes that compute ``x * scale + shift`` with numbers or parameters, one pair per channel.

In inference a BatchNorm is one of them: its statistics are auxiliary states that nothing updates.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.folding.build import FLOATS, Factor, FrozenBuilder, Refused, check_operand
from graphopt.passes.folding.digits import is_to_round

#: The normalisations that use the moving statistics in inference, whatever their attributes.
BATCH_NORMS: Final = frozenset(
    {"BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm"}
)
_SCALARS: Final = frozenset(
    {"_mul_scalar", "_div_scalar", "_plus_scalar", "_minus_scalar", "_rminus_scalar"}
)
_BROADCASTS: Final = frozenset({"broadcast_mul", "broadcast_div", "broadcast_add", "broadcast_sub"})
_SCALE_ONLY: Final = frozenset(
    {
        "_mul_scalar",
        "_div_scalar",
        "negative",
        "_contrib_div_sqrt_dim",
        "broadcast_mul",
        "broadcast_div",
    }
)


@dataclass(frozen=True)
class Affine:
    """A node that scales and shifts ``data``.

    ``axis`` is the channel axis of ``data``, counted from the front, with ``channels`` extents; it
    is ``None`` where one number serves all elements.
    """

    node: Node
    op: str
    data: Value
    axis: int | None = None
    channels: int = 1
    operand: Value | None = None
    number: float = 1.0

    @property
    def is_batch_norm(self) -> bool:
        """Whether the node is a BatchNorm by one of its names."""
        return self.op in BATCH_NORMS

    @property
    def is_number(self) -> bool:
        """Whether no parameter is involved."""
        return self.operand is None and not self.is_batch_norm

    @property
    def has_shift(self) -> bool:
        """Whether zero may become something else."""
        return self.op not in _SCALE_ONLY

    def factors(self, build: FrozenBuilder, dtype: str) -> tuple[Factor, Factor]:
        """Scale and shift; vectors are built in ``dtype``, on the parameters."""
        if self.is_batch_norm:
            return _batch_norm_factors(self.node, build, dtype)
        if self.operand is None:
            return _scalar_factors(self.op, self.number)
        vector = build.cast(build.reshape(self.operand, (self.channels,)), dtype)
        return _broadcast_factors(self, vector, build)


def affine_of(graph: Graph, node: Node, frozen: Collection[NodeId]) -> Affine | None:
    """The node as an affine one, or ``None`` if it is of another kind.

    Raises:
        Refused: it is a BatchNorm or the like, but not one that can be folded.
    """
    op = canonical(node.op)
    if op in BATCH_NORMS:
        return _batch_norm(graph, node, op, frozen)
    if op == "negative":
        return Affine(node, op, node.inputs[0])
    if op in _SCALARS:
        number = float(node.attrs.get("scalar", 1.0))
        usable = math.isfinite(number) and not (op == "_div_scalar" and number == 0)
        if is_to_round(graph, node):
            raise Refused("the scalars cancel, so that rounding may be their purpose")
        return Affine(node, op, node.inputs[0], number=number) if usable else None
    if op == "_contrib_div_sqrt_dim":
        width = (graph.type_of(node.inputs[0]).shape or (None,))[-1]
        return Affine(node, op, node.inputs[0], number=math.sqrt(width)) if width else None
    return _broadcast(graph, node, op, frozen) if op in _BROADCASTS else None


def _batch_norm(graph: Graph, node: Node, op: str, frozen: Collection[NodeId]) -> Affine:
    if any(graph.users(value) or graph.is_output(value) for value in node.values[1:]):
        raise Refused("its mean or variance is read (output_mean_var)")
    for value in node.inputs[1:]:
        check_operand(graph, value, frozen)
    rank = graph.type_of(node.inputs[0]).rank
    channels = graph.type_of(node.inputs[3]).size
    if rank is None or channels is None:
        raise Refused("its shape is not known: give the shapes of the data inputs")
    axis = int(node.attrs.get("axis", 1))
    return Affine(node, op, node.inputs[0], axis % rank, channels)


def _broadcast(graph: Graph, node: Node, op: str, frozen: Collection[NodeId]) -> Affine | None:
    """Data with a parameter that differs along one axis at most, on either side."""
    left, right = node.inputs
    if (left.node in frozen) == (right.node in frozen):
        return None
    data, operand = (right, left) if left.node in frozen else (left, right)
    if op == "broadcast_div" and operand == left:
        return None
    extents, shape = graph.type_of(operand).shape, graph.type_of(data).shape
    if not graph.type_of(operand).is_static or graph.type_of(operand).dtype not in FLOATS:
        return None
    if extents is None or shape is None or len(extents) > len(shape):
        return None
    wide = [at for at, extent in enumerate(extents) if extent != 1]
    if not wide:
        return Affine(node, op, data, operand=operand)
    axis = wide[0] + len(shape) - len(extents)
    if len(wide) > 1 or shape[axis] != extents[wide[0]]:  # the latter would enlarge the data
        return None
    return Affine(node, op, data, axis, extents[wide[0]] or 1, operand)


def _batch_norm_factors(node: Node, build: FrozenBuilder, dtype: str) -> tuple[Value, Value]:
    beta, mean, variance = (build.cast(value, dtype) for value in node.inputs[2:5])
    eps = float(node.attrs.get("eps", 1e-3))
    safe = build.scalar("_plus_scalar", variance, eps, "var_eps")
    fixed = str(node.attrs.get("fix_gamma", True)).lower() in ("true", "1")
    scale = build.unary("rsqrt", safe, "scale" if fixed else "inv_std")
    if not fixed:
        gamma = build.cast(node.inputs[1], dtype)
        scale = build.binary("broadcast_mul", scale, gamma, "scale")
    centre = build.binary("broadcast_mul", mean, scale, "centre")
    return scale, build.binary("broadcast_sub", beta, centre, "shift")


def _scalar_factors(op: str, number: float) -> tuple[Factor, Factor]:
    if op in ("_div_scalar", "_contrib_div_sqrt_dim"):
        return 1.0 / number, None
    table: dict[str, tuple[Factor, Factor]] = {
        "_mul_scalar": (number, None),
        "_plus_scalar": (None, number),
        "_minus_scalar": (None, -number),
        "_rminus_scalar": (-1.0, number),
        "negative": (-1.0, None),
    }
    return table[op]


def _broadcast_factors(
    affine: Affine, vector: Value, build: FrozenBuilder
) -> tuple[Factor, Factor]:
    op, subtrahend = affine.op, affine.node.inputs[1]
    if op == "broadcast_mul":
        return vector, None
    if op == "broadcast_div":
        return build.unary("reciprocal", vector, "reciprocal"), None
    if op == "broadcast_add":
        return None, vector
    if subtrahend == affine.data:  # parameter - x
        return -1.0, vector
    return None, build.unary("negative", vector, "negative")
