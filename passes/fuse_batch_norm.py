"""BatchNorm in training, the sum it goes into and the function behind, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.ir.attrs import AttrValue
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, BATCH_NORM, DATA, PARAM, Node, NodeId, Value
from graphopt.ir.ops import canonical
from graphopt.passes.fusion.region import replace_region
from graphopt.passes.fusion.swish import swish_of
from graphopt.pipeline.base import Mode, Pass, PassContext
from graphopt.rewrite.substitute import transplant

_ROLES: Final = (DATA, PARAM, PARAM, AUX, AUX, DATA)
#: Attributes of BatchNorm that the kernel heeds.
_KEPT: Final = ("eps", "momentum", "fix_gamma", "use_global_stats")
#: MXNet's, of a leaky relu that does not tell.
_SLOPE: Final = 0.25


@dataclass(frozen=True)
class FuseBatchNorm(Pass):
    """A BatchNorm in training and the function that alone reads it are one node.

    MXNet's BatchNorm reads its data three times and writes them once, a relu reads and writes them
    once more, and backward likewise. The kernel reads data twice, for their statistics and for the
    result, and computes the function on the way; backward reads data and gradient twice, and
    computes from the data again where the gradient passes. Functions are relu, leaky relu, clip,
    swish and hard swish. With relu it takes along the sum that the BatchNorm goes into, as at the
    end of a residual block.

    Arrays may lie in rows or in blocks of 8 or 16 channels, as the convolutions around leave them.
    Moving statistics are updated in backward, as MXNet does. Only float32, along axis 1 of images,
    on the CPU; a BatchNorm with another function behind it, or none, stays MXNet's.

    Example::

        // before
        graph net(%x: f32[8,16,28,28], param %g: f32[16], param %b: f32[16],
                  aux %m: f32[16], aux %v: f32[16]) {
          %bn = BatchNorm(%x, %g, %b, %m, %v) {fix_gamma=False} : f32[8,16,28,28]
          %y = Activation(%bn) {act_type="relu"} : f32[8,16,28,28]
          return %y
        }
        // after
        graph net(%x: f32[8,16,28,28], param %g: f32[16], param %b: f32[16],
                  aux %m: f32[16], aux %v: f32[16]) {
          %y_norm = graphopt_batch_norm(%x, %g, %b, %m, %v)
              {fix_gamma=False, function="relu"} : f32[8,16,28,28] [
            graph region(%in0: f32[8,16,28,28], param %in1: f32[16], param %in2: f32[16],
                         aux %in3: f32[16], aux %in4: f32[16]) {
              %bn = BatchNorm(%in0, %in1, %in2, %in3, %in4) {fix_gamma=False} : f32[8,16,28,28]
              %y = Activation(%bn) {act_type="relu"} : f32[8,16,28,28]
              return %y
            }
          ]
          return %y_norm
        }
    """

    name: ClassVar[str] = "fuse-batch-norm"
    modes: ClassVar[frozenset[Mode]] = frozenset({"training"})
    cpu_only: ClassVar[str] = "kernels run on CPUs only so far"
    rounding: ClassVar[str] = "its sums are rounded in another order"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace nodes; linear."""
        norms = [node for node in graph if canonical(node.op) == "BatchNorm"]
        why = None
        if norms and cx.target is not None:
            why = cx.target.why_no_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"BatchNorms stay as they are: {why}", norms[0])
            return graph
        edited, held = graph.copy(), held_nodes(graph)
        taken: set[NodeId] = set()
        for norm in norms:
            why = _unfit(graph, norm, held)
            found = None if why else _found(graph, norm, held, taken)
            if found is None:
                cx.missed(f"it stays: {why or _why_alone(graph, norm, taken)}", norm)
                continue
            taken |= {node.id for node in found.members}
            _replace(graph, edited, found)
            cx.count("fused")
            if found.residual is not None:
                cx.count("with a sum")
        return edited if taken else graph


def _unfit(graph: Graph, norm: Node, held: frozenset[NodeId]) -> str | None:
    """Why no kernel computes a BatchNorm, whatever is behind it."""
    if norm.id in held or norm.after:
        return "control dependencies order it"
    data = graph.type_of(norm.inputs[0])
    if any(graph.type_of(value).dtype != "float32" for value in norm.inputs):
        return f"it normalizes {data.dtype}"
    if data.rank != 4 or int(str(norm.attrs.get("axis", 1))) != 1:
        return "it is not over the channels of images"
    if norm.attrs.flag("output_mean_var") or len(norm.types) > 1:
        return "its statistics are read"
    return None


@dataclass(frozen=True)
class _Found:
    """What becomes one node: its nodes, the function as attributes, what is added before it."""

    members: Sequence[Node]
    function: dict[str, AttrValue]
    residual: Value | None = None


def _found(graph: Graph, norm: Node, held: frozenset[NodeId], taken: set[NodeId]) -> _Found | None:
    """``None`` without a function behind the BatchNorm."""
    gate = _gate(graph, norm, held)
    if gate is not None:
        name, nodes = gate
        return _Found([norm, *nodes], {"function": name})
    reader = _only_reader(graph, norm, held)
    if reader is None or reader.id in taken:
        return None
    function = _function(reader)
    if function is not None:
        return _Found([norm, reader], function)
    if canonical(reader.op) not in ("elemwise_add", "broadcast_add"):
        return None
    others = [value for value in reader.inputs if value != norm.out()]
    if len(others) != 1 or graph.type_of(others[0]) != norm.type:
        return None
    last = _only_reader(graph, reader, held)
    if last is None or _function(last) != {"function": "relu"}:
        return None
    return _Found([norm, reader, last], {"function": "relu"}, others[0])


def _why_alone(graph: Graph, norm: Node, taken: set[NodeId]) -> str:
    if any(user.node in taken for user in graph.users(norm.out())):
        return "another BatchNorm takes their sum along"
    return "no function that its kernel has alone reads it"


def _gate(graph: Graph, norm: Node, held: frozenset[NodeId]) -> tuple[str, list[Node]] | None:
    """Swish or hard swish, which read the BatchNorm more than once, and their nodes."""
    if graph.is_output(norm.out()):
        return None
    return swish_of(
        graph, norm.out(), lambda node: not (node.id in held or node.after or node.graphs)
    )


def _only_reader(graph: Graph, node: Node, held: frozenset[NodeId]) -> Node | None:
    users = graph.users(node.out())
    if len(users) != 1 or graph.is_output(node.out()):
        return None
    reader = graph[next(iter(users)).node]
    return None if reader.id in held or reader.after or reader.graphs else reader


def _function(node: Node) -> dict[str, AttrValue] | None:
    """The attributes that name the function a node is, if the kernel has it."""
    op = canonical(node.op)
    if op == "relu" or (op == "Activation" and node.attrs.get("act_type") == "relu"):
        return {"function": "relu"}
    if op == "LeakyReLU" and node.attrs.get("act_type", "leaky") == "leaky":
        slope = float(str(node.attrs.get("slope", _SLOPE)))
        # With a negative one the gradient depends on how MXNet was built.
        return {"function": "leaky", "slope": slope} if slope >= 0 else None
    if op == "clip":
        low, high = (float(str(node.attrs[key])) for key in ("a_min", "a_max"))
        return {"function": "clip", "a_min": low, "a_max": high} if low <= high else None
    return None


def _replace(graph: Graph, edited: Graph, found: _Found) -> None:
    members, residual = found.members, found.residual
    norm, last = members[0], members[-1]
    inputs = [*norm.inputs, *([] if residual is None else [residual])]
    body = Graph("region")
    new = {
        value: body.add_input(f"in{at}", _ROLES[at], graph.type_of(value)).out()
        for at, value in enumerate(inputs)
    }
    for member in members:
        transplant(body, member, new)
    body.set_outputs([new[last.out()]])
    attrs = {key: norm.attrs[key] for key in _KEPT if key in norm.attrs}
    attrs |= found.function
    if residual is not None:
        attrs["residual"] = True
    replace_region(edited, members, inputs, [last.out()], BATCH_NORM, attrs, body, "norm")
