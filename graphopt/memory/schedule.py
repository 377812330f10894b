"""Operators in the order in which they run, and the tensors they read and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphopt.analysis.effects import is_pure, written_values
from graphopt.analysis.frozen import frozen_nodes
from graphopt.errors import InputError
from graphopt.ir.graph import Graph
from graphopt.ir.node import (
    BATCH_NORM,
    CONSTANT,
    CONVOLUTIONS,
    DROPOUT,
    FUSED,
    WITH_SPEC,
    Node,
    NodeId,
    Value,
)
from graphopt.ir.ops import Kind, info
from graphopt.kernels.convolutions.plan import plan as plan_region
from graphopt.kernels.convolutions.spec import spec_of
from graphopt.kernels.plan import inplace_pairs
from graphopt.memory.training import Entry, Step, TrainingGraph

Pairs = tuple[tuple[int, int], ...]

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """What one operator writes.

    ``layer`` is the node of the user's model it belongs to. A tensor that ``escapes`` outlives the
    run: an output. One that is ``outside`` lies in memory the caller gave: a parameter, an input,
    an array for a gradient; it takes no room here.
    """

    name: str
    layer: str
    phase: str
    nbytes: int
    escapes: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator; tensors by number.

    ``pairs`` (position among what is read, position among what is written) may share storage where
    the first dies here; ``view`` tells that the first output is the first input by another name.
    ``after`` are operations that have to run first although nothing flows from them; those that are
    ``ordered`` have to keep their order among each other.
    """

    name: str
    op: str
    layer: str
    phase: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    pairs: Pairs = ()
    view: bool = False
    after: tuple[int, ...] = ()
    ordered: bool = False


@dataclass(frozen=True)
class Schedule:
    """All of a run.

    ``given`` has the bytes of what the caller gives, by kind; ``numbers`` the tensor of each value
    of the graph, or entry of the training graph.
    """

    name: str
    operations: tuple[Operation, ...]
    tensors: tuple[Tensor, ...]
    given: Mapping[str, int]
    numbers: Mapping[Any, int]

    @property
    def total(self) -> int:
        """Bytes of all tensors, each in a place of its own."""
        return sum(tensor.nbytes for tensor in self.tensors if not tensor.outside)


def forward_schedule(graph: Graph, *, frozen: bool = False) -> Schedule:
    """The forward run of a graph in its topological order. Linear.

    Outputs that no other node can read (a BatchNorm's batch statistics) are not counted, nor is
    what an operator takes while it runs.

    Args:
        graph: with static types.
        frozen: whether what depends on parameters alone was computed once, before.

    Raises:
        InputError: the type of a value is not static; the node is named.
    """
    once = frozen_nodes(graph) if frozen else frozenset()
    outputs = set(graph.outputs)
    tensors: list[Tensor] = []
    operations: list[Operation] = []
    number: dict[Value, int] = {}
    kinds: dict[int, str] = {}
    place: dict[NodeId, int] = {}
    written = written_values(graph, training=False)
    for node in graph.topological():
        outside = node.is_input or node.op == CONSTANT or node.id in once
        for value, type_ in zip(node.values, node.types, strict=True):
            nbytes = type_.nbytes
            if nbytes is None:
                if outside and not graph.users(value) and value not in outputs:
                    continue
                raise InputError(
                    f"the type of {node.label} in graph {graph.name!r} is {type_}; its shape and"
                    " dtype have to be known"
                )
            number[value] = len(tensors)
            kinds[len(tensors)] = node.op if node.is_input else "constant"
            name = f"{node.name}:{value.index}" if len(node.types) > 1 else node.name
            layer = layer_of(node)
            escapes = value in outputs
            tensors.append(Tensor(name, layer, "forward", nbytes, escapes, outside))
        if outside:
            continue
        facts = info(node.op, node.attrs)
        plain = not node.graphs or node.op in WITH_SPEC
        writes = [number[value] for value in node.values]
        if node.op == CONVOLUTIONS:
            writes.append(len(tensors))
            arena = _FLOAT * plan_region(spec_of(node)).arena
            name = f"{node.name}:images"
            tensors.append(Tensor(name, layer_of(node), "forward", arena, False, False))
        ordered = not is_pure(node, training=False) or any(v in written for v in node.inputs)
        place[node.id] = len(operations)
        operations.append(
            Operation(
                node.name,
                node.op,
                layer_of(node),
                "forward",
                tuple(number[value] for value in node.inputs),
                tuple(writes),
                _fused_pairs(node.attrs) if node.op == FUSED else facts.inplace if plain else (),
                facts.view and plain and not node.after,
                tuple(place[before] for before in node.after if before in place),
                ordered,
            )
        )
    given: dict[str, int] = {}
    for at in sorted({at for operation in operations for at in operation.reads}):
        if tensors[at].outside:
            given[kinds[at]] = given.get(kinds[at], 0) + tensors[at].nbytes
    return Schedule(graph.name, tuple(operations), tuple(tensors), given, number)


def training_schedule(graph: TrainingGraph, *, gradients: bool = False, name: str = "") -> Schedule:
    """A training step in MXNet's own order. Linear.

    Views count as operators that may work in place, since that is what MXNet makes of them.

    Args:
        graph: what MXNet's executor runs.
        gradients: count the gradients of arguments, which live to the end; otherwise they lie in
            arrays that the caller gives, as parameters do.
        name: for reports.
    """
    tensors: list[Tensor] = []
    operations: list[Operation] = []
    number: dict[Entry, int] = {}
    given = {"arguments": sum(type_.nbytes for type_ in graph.variables.values())}
    for variable, type_ in graph.variables.items():
        number[Entry(-1, 0, variable)] = len(tensors)
        tensors.append(Tensor(variable, variable, "forward", type_.nbytes, outside=True))
    wanted = set(graph.gradients.values())
    if not gradients:
        given["gradients"] = sum(graph.type_of(entry).nbytes for entry in wanted)
    escaping = {*graph.outputs, *wanted}
    layers: list[str] = []
    for at, step in enumerate(graph.steps):
        layer = shorten(step.block)
        if not layer:  # a sum of gradients belongs where its first term does
            layer = next((layers[e.step] for e in step.inputs if e.step >= 0), "")
        layers.append(layer)
        for index, type_ in enumerate(step.outputs):
            entry = Entry(at, index)
            number[entry] = len(tensors)
            title = f"{step.name}:{index}" if len(step.outputs) > 1 else step.name
            outside = entry in wanted and not gradients
            escapes = entry in escaping
            tensors.append(Tensor(title, layer, step.phase, type_.nbytes, escapes, outside))
        operations.append(
            Operation(
                step.name,
                step.op,
                layer,
                step.phase,
                tuple(number[entry] for entry in step.inputs),
                tuple(number[Entry(at, index)] for index in range(len(step.outputs))),
                _pairs(step),
                after=step.after,
                ordered=True,
            )
        )
    return Schedule(name, tuple(operations), tuple(tensors), given, number)


def _fused_pairs(attrs: Mapping[str, Any]) -> Pairs:
    if str(attrs.get("apart")) == "True":
        return ()
    return inplace_pairs(str(attrs["spec"]), backward=False)


def layer_of(node: Node) -> str:
    """The node of the user's model that a node stems from."""
    return shorten(node.origin[0] if node.origin else node.name)


def shorten(name: str) -> str:
    """The name of a Block for that of the operator it calls."""
    return name.removesuffix("_fwd")


#: Gradients that MXNet computes in place of what they read. All of their kernels go element by
#: element; those of products write the gradient of the left factor first.
_BACKWARD_PAIRS: dict[str, Pairs] = {
    "_backward_reshape": ((0, 0),),
    "_backward_copy": ((0, 0),),
    "_backward_Dropout": ((0, 0),),
    f"_backward_{DROPOUT}": ((0, 0),),
    "_backward_mul": ((0, 1),),
    "_backward_div": ((0, 1),),
    "_identity_with_attr_like_rhs": ((0, 0),),
    "_grad_add": ((0, 0),),
}


#: Without and with scratch of their own.
_FUSED_GRADIENTS = (f"_backward_{FUSED}", f"_backward_{FUSED}_alone")


def _pairs(step: Step) -> Pairs:
    if step.op == FUSED:
        return _fused_pairs(step.attrs)
    if step.op in _FUSED_GRADIENTS:
        return inplace_pairs(step.attrs["spec"], backward=True)
    if step.op == f"_backward_{BATCH_NORM}":
        return ((0, 3),) if step.attrs.get("residual") == "True" else ((0, 0),)
    if step.op in _BACKWARD_PAIRS:
        return _BACKWARD_PAIRS[step.op]
    if not step.op.startswith("_backward_"):
        return info(step.op).inplace
    facts = info(step.op.removeprefix("_backward_"))
    is_unary = facts.kind is Kind.ELEMENTWISE and facts.inplace and len(step.outputs) == 1
    return ((0, 0),) if is_unary else ()
