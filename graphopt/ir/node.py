"""Nodes and values: the immutable parts a graph is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from graphopt.ir.attrs import EMPTY, Attrs
from graphopt.ir.types import UNKNOWN, TensorType

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph

NodeId = int

#: Operators of input nodes: what the caller feeds, what is learned, what operators update.
DATA: Final = "data"
PARAM: Final = "param"
AUX: Final = "aux"
ROLES: Final = (DATA, PARAM, AUX)

#: A small tensor that is part of the graph; attrs: ``dtype``, ``shape``, ``data`` (constant.py).
CONSTANT: Final = "constant"

#: A region that one kernel computes; attrs: ``spec``, its printed KernelSpec. Its nested graph, if
#: it has one, is the region in MXNet's operators.
FUSED: Final = "graphopt_fused"

#: A recurrence over the steps of sequences; attrs: ``spec``, the printed RecurrenceSpec of a step,
#: ``reverse``, ``lengths``, ``batch_major``, ``bidirectional``, ``zero_states``, ``indexed``,
#: ``by_vectors``, ``stash`` (see kernels/bridge/recurrence_operator.h); ``keeps``, its packed
#: weights are kept from call to call by the operator KEEPING (kernels/bridge/keeping_operator.h).
#: Its nested graphs are the step in MXNet's operators and, if it has a second one, the whole.
RECURRENCE: Final = "graphopt_recurrence"

#: The operator of MXNet that runs a recurrence with ``keeps``; no graph has it.
KEEPING: Final = "graphopt_keeping_recurrence"

#: Message passing over trees; attrs: ``spec``, the printed TreeSpec, ``stash`` (see
#: kernels/bridge/tree_operator.h).
TREE: Final = "graphopt_tree"

#: Convolutions and what lies between them, in blocked layout; attrs: ``lanes``, channels of a
#: block; ``algorithms``, how each convolution of its nested graph, the region in MXNet's operators,
#: is computed; ``packed``, whether its parameters are in the order in which they are read.
CONVOLUTIONS: Final = "graphopt_convolutions"

#: A dense layer with constant weights; attrs: ``units``, ``activation``, ``flatten``, ``no_bias``;
#: ``packed``, whether its weights are in the order in which they are read; ``tiled``, whether that
#: is the order of kernels/bridge/dense.h; ``in_place``, whether they stay as they are. Its nested
#: graph is the layer in MXNet's operators (see kernels/bridge/product_operator.h).
PRODUCT: Final = "graphopt_product"

#: MXNet's FullyConnected, attributes and all, by faster means (see
#: kernels/bridge/dense_operator.h).
DENSE: Final = "graphopt_dense"

#: MXNet's BatchNorm and what its nested graph has behind it; attrs: those of it; ``function``,
#: ``"relu"``, ``"leaky"`` with ``slope``, or ``"clip"`` with ``a_min`` and ``a_max``; ``residual``,
#: whether the last input is added before it (see kernels/bridge/batch_norm_operator.h).
BATCH_NORM: Final = "graphopt_batch_norm"

#: MXNet's batch_dot with a thread for every product; attrs: ``transpose_a``, ``transpose_b``, and
#: ``heads_a``, ``heads_b``, ``heads_out`` where matrices lie side by side (see
#: kernels/bridge/batch_dot.h, and backend/heads.py for what that is in MXNet's operators).
PARALLEL_BATCH_DOT: Final = "graphopt_batch_dot"

#: The products of attention whose operands are interleaved, a thread for every product; attrs:
#: ``kind``, what comes behind ``_contrib_interleaved_matmul_`` in MXNet's names; ``heads``.
INTERLEAVED_DOT: Final = "graphopt_interleaved_dot"

#: Attention: two products and the kernel between them, and Dropout; the attributes are described in
#: kernels/bridge/attention.h, its nested graph is the region in MXNet's operators.
ATTENTION: Final = "graphopt_attention"

#: MXNet's Dropout by a seed, its second input, int32 of shape (2,); attrs: ``p``; ``salt``, which
#: tells the masks of one seed apart (see kernels/bridge/dropout_operator.h).
DROPOUT: Final = "graphopt_dropout"

#: Operators whose attributes say all: their nested graphs are there to be read and to be put back.
WITH_SPEC: Final = frozenset(
    {
        ATTENTION,
        BATCH_NORM,
        CONVOLUTIONS,
        DENSE,
        DROPOUT,
        FUSED,
        INTERLEAVED_DOT,
        PARALLEL_BATCH_DOT,
        PRODUCT,
        RECURRENCE,
        TREE,
    }
)


#: Those whose nested graphs never run: the others are put back where there is no packed form.
BY_ATTRIBUTES: Final = WITH_SPEC - {CONVOLUTIONS, PRODUCT}


class Value(NamedTuple):
    """One output of one node: what flows along an edge."""

    node: NodeId
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which nobody needs


class Use(NamedTuple):
    """One place where a value is read: input ``position`` of ``node``."""

    node: NodeId
    position: int


@dataclass(frozen=True, slots=True)
class Node:
    """One operator application or graph input. Identity is ``id``; ``name`` is for people.

    ``types`` has one entry per output that other nodes can read, known or not. ``graphs`` are the
    nested graphs of control flow and fused regions. ``after`` lists nodes that have to run first
    although nothing flows from them. ``origin`` names the nodes of the user's graph it stems from.
    """

    id: NodeId
    op: str
    inputs: tuple[Value, ...] = ()
    attrs: Attrs = EMPTY
    types: tuple[TensorType, ...] = (UNKNOWN,)
    name: str = ""
    graphs: tuple[Graph, ...] = field(default=(), hash=False)
    after: tuple[NodeId, ...] = ()
    origin: tuple[str, ...] = field(default=(), compare=False)

    @property
    def label(self) -> str:
        """For messages: name, or else number, and operator."""
        return f"{self.name or self.id!r} ({self.op})"

    @property
    def is_input(self) -> bool:
        """Whether the node is a graph input rather than an operator."""
        return self.op in ROLES

    @property
    def type(self) -> TensorType:
        """Type of the first output."""
        return self.types[0]

    @property
    def values(self) -> tuple[Value, ...]:
        """All outputs."""
        return tuple(Value(self.id, index) for index in range(len(self.types)))

    def out(self, index: int = 0) -> Value:
        """The value of output ``index``."""
        return Value(self.id, index)

    def but(
        self,
        *,
        id: NodeId | None = None,
        op: str | None = None,
        inputs: tuple[Value, ...] | None = None,
        attrs: Attrs | None = None,
        types: tuple[TensorType, ...] | None = None,
        name: str | None = None,
        graphs: tuple[Graph, ...] | None = None,
        after: tuple[NodeId, ...] | None = None,
        origin: tuple[str, ...] | None = None,
    ) -> Node:
        """A copy with what is given changed."""
        return Node(
            self.id if id is None else id,
            self.op if op is None else op,
            self.inputs if inputs is None else inputs,
            self.attrs if attrs is None else attrs,
            self.types if types is None else types,
            self.name if name is None else name,
            self.graphs if graphs is None else graphs,
            self.after if after is None else after,
            self.origin if origin is None else origin,
        )
