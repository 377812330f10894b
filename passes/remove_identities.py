"""Removal of operators that return what they are given."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes, is_loss, written_values
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.pipeline.base import Pass, PassContext
from graphopt.rewrite.substitute import substitute, substitute_outputs

_NAMED = 5

#: The sum of this many gradients does not depend on their order.
_EXACT_READERS = 2

Inputs = tuple[TensorType, ...]

#: Operators that keep the elements in order, so that an equal shape leaves nothing to do. Adaptive
#: pooling to the extent that is there averages single elements.
_SHAPED: Final = frozenset(
    {
        "Crop",
        "Flatten",
        "Pad",
        "Reshape",
        "_contrib_AdaptiveAvgPooling2D",
        "_np_reshape",
        "_np_squeeze",
        "_npi_broadcast_to",
        "_npx_reshape",
        "broadcast_axis",
        "broadcast_like",
        "broadcast_to",
        "repeat",
        "reshape_like",
        "slice_axis",
        "slice_like",
        "squeeze",
        "tile",
    }
)

#: Operators that return their first input whatever it is.
_PLAIN: Final = frozenset({"_copy", "_np_copy", "_identity_with_attr_like_rhs"})

#: Operators that join inputs along an axis they have, or sum them up.
_JOINING: Final = frozenset({"Concat", "_rnn_param_concat", "_npi_concatenate", "add_n"})

#: Operators that return their first input, but whose backward does something else with gradients.
_FORWARD_ONLY: Final = frozenset(
    {"BlockGrad", "make_loss", "MakeLoss", "_contrib_gradientmultiplier"}
)


@dataclass(frozen=True)
class RemoveIdentities(Pass):
    """No operator is left that is known to return an input unchanged.

    In every mode: copies; casts to the dtype that is there; reshapes, slices, broadcasts, pads and
    tiles that keep the shape; transposes that move no elements; joins and sums of one input, splits
    into one; average pooling of single elements; clips to infinity; ``Dropout`` with ``p=0``. In
    inference also what is there for gradients or training only: ``BlockGrad``, ``MakeLoss``,
    ``Dropout`` (not with ``mode="always"``). Types are taken at their word where shapes decide.

    An identity stays where its value is a graph output and its input is a graph input, a constant,
    or an output too: executors must not return the caller's own array, nor one array twice. Else
    the operator before it takes over its name, so that outputs are called as before. In training
    one stays between a graph input and a loss layer too: MXNet's write their gradient also where
    ``grad_req="add"`` asks for a sum.

    Example::

        // before
        graph net(%x: f32[8,4]) {
          %y = relu(%x) : f32[8,4]
          %same = Reshape(%y) {shape=(8, -1)} : f32[8,4]
          %z = exp(%same) : f32[8,4]
          return %z
        }
        // after
        graph net(%x: f32[8,4]) {
          %y = relu(%x) : f32[8,4]
          %z = exp(%y) : f32[8,4]
          return %z
        }
    """

    name: ClassVar[str] = "remove-identities"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Bypass identities from the inputs on, so that chains of them go in one walk."""
        pruned = graph.copy()
        held = held_nodes(graph)
        written = written_values(graph, training=cx.training)
        outputs = {value.node for value in graph.outputs}
        names = _Names(graph)
        exact = cx.training and cx.settings.precise
        reads = Counter(value for node in graph for value in node.inputs)
        reads.update(graph.outputs)
        new: dict[Value, Value] = {}
        gone: list[Node] = []
        refused: dict[str, list[Node]] = defaultdict(list)
        for original in graph:
            node = substitute(pruned, original, new)
            if node.graphs or not node.inputs or not _is_identity(graph, original, cx):
                continue
            source = node.inputs[0]
            reason = _refusal(pruned, node, held, outputs)
            if source in written:
                reason = "they copy a state that another operator writes"
            elif cx.training and pruned[source.node].is_input and _is_of_a_loss(pruned, node):
                reason = "loss layers write gradients where they should be added"
            elif exact and reads[source] + reads[node.out()] > _EXACT_READERS + 1:
                reason = "gradients would be summed up in another order, which precise=True forbids"
            if reason:
                refused[reason].append(node)
                continue
            reads[source] += reads[node.out()] - 1
            if node.id in outputs:
                outputs.add(source.node)
                names.hand_over(node, source.node)
            new[node.out()] = source
            gone.append(node)
        _report(cx, gone, refused)
        if not gone:
            return graph
        substitute_outputs(pruned, new)
        for node in reversed(gone):
            pruned.erase(node.id)
        names.apply(pruned)
        return pruned


class _Names:
    """Names that operators take over from the identities behind them, given out at the end.

    Renaming drops the graph's index of names, so it is done once for all.
    """

    def __init__(self, graph: Graph) -> None:
        self.count = Counter(node.name for node in graph)
        self.heirs: dict[NodeId, Node] = {}

    def hand_over(self, identity: Node, heir: NodeId) -> None:
        self.heirs[heir] = identity

    def apply(self, graph: Graph) -> None:
        for heir, identity in self.heirs.items():
            node = graph[heir]
            name = identity.name if self.count[identity.name] == 1 else node.name
            origin = tuple(dict.fromkeys((*node.origin, *identity.origin)))
            graph.update(node.but(name=name, origin=origin))


def _refusal(graph: Graph, node: Node, held: frozenset[NodeId], outputs: set[NodeId]) -> str:
    """Why an identity has to stay, or nothing."""
    if node.after or node.id in held:
        return "a control dependency orders them"
    if node.id not in outputs:
        return ""
    source = graph[node.inputs[0].node]
    if source.is_input or source.op == CONSTANT:
        return "a graph output must not be the caller's own array"
    if source.id in outputs or len(source.types) != 1 or source.graphs:
        return "the graph output would lose its name"
    return ""


def _is_of_a_loss(graph: Graph, node: Node) -> bool:
    """Whether a loss layer starts the gradient of the node's output."""
    users = ((graph[use.node], use.position) for use in graph.users(node.out()))
    return any(position == 0 and is_loss(user) for user, position in users)


def _report(cx: PassContext, gone: list[Node], refused: dict[str, list[Node]]) -> None:
    by_op: dict[str, list[Node]] = defaultdict(list)
    for node in gone:
        by_op[canonical(node.op)].append(node)
    for op, nodes in by_op.items():
        cx.count(f"removed {op}", len(nodes))
        cx.passed(f"removed {len(nodes)} {op} that returned an input unchanged", *nodes[:_NAMED])
    for reason, nodes in refused.items():
        cx.missed(f"{len(nodes)} identities stay: {reason}", *nodes[:_NAMED])


def _is_identity(graph: Graph, node: Node, cx: PassContext) -> bool:
    """Whether the node's only output is its first input, and in training their gradients too."""
    if len(node.types) != 1:
        return False
    op = canonical(node.op)
    inputs = tuple(graph.type_of(value) for value in node.inputs)
    if op in _PLAIN or (op in _JOINING and len(inputs) == 1):
        return True
    if op in _SHAPED and _keeps_shape(node, inputs):
        return True
    rule = _RULES.get(op)
    if rule is not None and rule(node, inputs):
        return True
    return not cx.training and _only_for_training(op, node)


def _only_for_training(op: str, node: Node) -> bool:
    if op == "Dropout":
        return node.attrs.get("mode") != "always"
    return op in _FORWARD_ONLY or op == "IdentityAttachKLSparseReg"


def _keeps_shape(node: Node, inputs: Inputs) -> bool:
    return node.type.is_static and inputs[0].is_static and inputs[0].shape == node.type.shape


def _same_dtype(node: Node, inputs: Inputs) -> bool:
    wanted = node.attrs.get("dtype")
    return wanted is not None and wanted == inputs[0].dtype


def _no_drop(node: Node, inputs: Inputs) -> bool:
    # MXNet draws nothing then, so no other random number changes.
    return bool(node.attrs.get("p", 0.5) == 0)


def _clips_nothing(node: Node, inputs: Inputs) -> bool:
    # MXNet's gradient passes at NaN and infinity, too.
    low, high = (node.attrs.get(key) for key in ("a_min", "a_max"))
    return low == -math.inf and high == math.inf


def _takes_everything(node: Node, inputs: Inputs) -> bool:
    steps = node.attrs.get("step") or ()
    forward = all(step in (None, 1) for step in (steps if isinstance(steps, tuple) else (steps,)))
    return forward and _keeps_shape(node, inputs)


def _one_part(node: Node, inputs: Inputs) -> bool:
    return bool(node.attrs.get("num_outputs") == 1 and not node.attrs.get("squeeze_axis", False))


def _pools_nothing(node: Node, inputs: Inputs) -> bool:
    """Windows of one element. A maximum does more: it turns NaN into the lowest number."""
    attrs = node.attrs
    kernel, stride, pad = (attrs.get(key) or () for key in ("kernel", "stride", "pad"))
    ones = ((), 1, (1,), (1, 1), (1, 1, 1))
    return (
        attrs.get("pool_type", "max") in ("avg", "sum")
        and not attrs.get("global_pool", False)
        and kernel in ones[1:]
        and stride in ones
        and pad in ((), (0,), (0, 0), (0, 0, 0))
    )


def _moves_nothing(node: Node, inputs: Inputs) -> bool:
    """A transpose that leaves the order of all axes longer than 1 as it is, and the shape too."""
    axes, rank = node.attrs.get("axes") or (), inputs[0].rank
    if rank is not None and not axes:
        axes = tuple(reversed(range(rank)))
    return _keeps_order(node, inputs, tuple(axes))


def _swaps_nothing(node: Node, inputs: Inputs) -> bool:
    first, second = node.attrs.get("dim1", 0), node.attrs.get("dim2", 0)
    if first == second:
        return True
    rank = inputs[0].rank
    if rank is None:
        return False
    axes = list(range(rank))
    axes[first], axes[second] = axes[second], axes[first]
    return _keeps_order(node, inputs, tuple(axes))


def _keeps_order(node: Node, inputs: Inputs, axes: tuple[int, ...]) -> bool:
    if axes and all(axis == place for place, axis in enumerate(axes)):
        return True
    shape = inputs[0].shape
    if shape is None or not _keeps_shape(node, inputs):
        return False
    long = [axis % len(shape) for axis in axes if shape[axis] != 1]
    return long == sorted(long)


_RULES: Final[dict[str, Callable[[Node, Inputs], bool]]] = {
    "Cast": _same_dtype,
    "amp_cast": _same_dtype,
    "Dropout": _no_drop,
    "clip": _clips_nothing,
    "slice": _takes_everything,
    "SliceChannel": _one_part,
    "Pooling": _pools_nothing,
    "transpose": _moves_nothing,
    "_np_transpose": _moves_nothing,
    "SwapAxis": _swaps_nothing,
}
