"""`plan`: what a model's tensors occupy, where each can lie, and what makes the peak."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphopt.backend.stored import with_stored
from graphopt.errors import GraphoptError, InputError
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, PARAM, TREE
from graphopt.memory.buffers import Buffers, Integers
from graphopt.memory.liveness import Liveness, liveness
from graphopt.memory.order import Order, best_order, reordered
from graphopt.memory.packing import Packing
from graphopt.memory.planner import pack
from graphopt.memory.schedule import Schedule, forward_schedule, training_schedule
from graphopt.memory.training import GradReq, TrainingGraph, training_graph

#: What CPUs and MXNet align storage to.
ALIGNMENT = 64

#: What the name of a repetition has beyond that of the operator it repeats.
_FIRST = re.compile("_(mirror|again)$")


@dataclass(frozen=True)
class Row:
    """One way to lay tensors out: bytes it takes, bytes none can do without, what MXNet takes.

    ``reported`` is MXNet's own figure, rounded down to whole MiB, where there is one.
    """

    name: str
    nbytes: int
    lower_bound: int
    reported: int | None = None


@dataclass(frozen=True)
class Resident:
    """A tensor that is live at the peak, by its layer and by the step that wrote it."""

    name: str
    layer: str
    phase: str
    nbytes: int


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """A place for every tensor of a run.

    Attributes:
        name: of the graph.
        training: whether backward is part of the run.
        liveness: buffers, their lifetimes, and the tensors in each.
        packing: where each buffer lies.
        rows: the ways to lay them out, from the most wasteful.
        reported_bytes: what MXNet's executor says it allocates for the same run, or None.
        order: for a forward run, the best order found and those it was compared with, or None.
    """

    name: str
    training: bool
    liveness: Liveness
    packing: Packing
    rows: tuple[Row, ...]
    reported_bytes: int | None = None
    order: Order | None = None

    @property
    def schedule(self) -> Schedule:
        """What runs, in order."""
        return self.liveness.schedule

    @property
    def buffers(self) -> Buffers:
        """Storages with their lifetimes."""
        return self.liveness.buffers

    @property
    def offsets(self) -> Integers:
        """Bytes from the start of the arena, one per buffer."""
        return self.packing.offsets

    @property
    def arena(self) -> int:
        """Bytes of the plan."""
        return self.packing.arena

    @property
    def lower_bound(self) -> int:
        """Bytes that no plan in this order, with this sharing, can do without."""
        return self.packing.lower_bound

    @property
    def peak(self) -> int:
        """Bytes live at the step that needs most."""
        return self.liveness.peak

    @property
    def peak_step(self) -> int:
        """The first step at which the peak is reached."""
        return self.liveness.peak_step

    @property
    def residents(self) -> tuple[Resident, ...]:
        """The tensors that make the peak, the largest first."""
        at = self.peak_step
        found = []
        for buffer in self.liveness.live_at(at):
            tensor = self.liveness.tensor_at(buffer, at)
            nbytes = int(self.buffers.size[buffer])
            found.append(Resident(tensor.name, tensor.layer, tensor.phase, nbytes))
        return tuple(found)

    @property
    def layers(self) -> dict[str, int]:
        """Bytes each layer has live at the peak, the largest first."""
        found: dict[str, int] = {}
        for resident in self.residents:
            found[resident.layer] = found.get(resident.layer, 0) + resident.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def repeated(self) -> tuple[str, ...]:
        """Operators that are computed again in backward, in the order in which they are."""
        steps = self.schedule.operations
        return tuple(_FIRST.sub("", step.name) for step in steps if step.phase == "recompute")

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Operators that compute in more than is counted here: its size follows from values."""
        return tuple(
            step.name
            for step in self.schedule.operations
            if step.op == TREE and step.phase == "forward"
        )

    def place_of(self, tensor: int) -> tuple[int, int] | None:
        """Offset and bytes of a tensor of the schedule; None for one that lies outside."""
        buffer = self.liveness.buffer_of[tensor]
        if buffer < 0:
            return None
        return int(self.offsets[buffer]), self.schedule.tensors[tensor].nbytes

    def timeline(self, width: int = 64, height: int = 8) -> str:
        """Live bytes over the steps, drawn with characters."""
        from graphopt.memory.report import timeline

        return timeline(self, width, height)

    def report(self, top: int = 10) -> str:
        """All of it as text; ``top`` bounds the lists."""
        from graphopt.memory.report import report

        return report(self, top)

    def to_csv(self) -> str:
        """Lines ``id,lower,upper,size,offset,layer,tensors`` under that heading."""
        from graphopt.memory.report import to_csv

        return to_csv(self)

    def as_dict(self, top: int = 10) -> dict[str, object]:
        """The figures, in a form for JSON."""
        at = self.peak_step
        operations = self.schedule.operations
        return {
            "graph": self.name,
            "training": self.training,
            "arena": self.arena,
            "lower_bound": self.lower_bound,
            "peak": self.peak,
            "peak_step": at,
            "peak_operator": operations[at].name if operations else "",
            "reported": self.reported_bytes,
            "given": self.schedule.given,
            "repeated": list(self.repeated),
            "uncounted": list(self.uncounted),
            "rows": [asdict(row) for row in self.rows],
            "residents": [asdict(resident) for resident in self.residents[:top]],
            "layers": dict(list(self.layers.items())[:top]),
            "packing": self.packing.as_dict(),
            "orders": dict(self.order.peaks) if self.order else {},
            "timeline": [int(nbytes) for nbytes in self.liveness.live_bytes],
            "phases": [operation.phase for operation in operations],
        }


def plan(
    model: Any,
    *,
    training: bool = False,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    grad_req: GradReq | None = None,
    gradients: bool = False,
    frozen: bool = False,
    inplace: bool = True,
    reorder: bool = False,
    compare: bool = True,
    alignment: int = ALIGNMENT,
    time_limit: float = 1.0,
    ctx: Any = None,
) -> MemoryPlan:
    """Plan the memory of a model's tensors; nothing is run.

    Args:
        model: a `Graph` with static types, an ``mx.sym.Symbol``, a Gluon ``HybridBlock`` (whose
            inputs are called ``data``, or ``data0``, ``data1`` ...), or a `TrainingGraph`.
        training: plan forward and backward, in MXNet's own order, a `Graph` as graphopt lowers it.
        shapes: shape per input name, where the model does not know it.
        dtypes: dtype per input name.
        grad_req: what gets a gradient; default: learned parameters of a floating dtype.
        gradients: count the parameters' gradients too, which otherwise lie in arrays that the
            caller gives, as the parameters do.
        frozen: forward only: what depends on parameters alone was computed before.
        inplace: let operators write over inputs that nobody needs any more.
        reorder: forward only: run operators in the order with the lowest peak that is found.
        compare: fill the rows of other layouts, and MXNet's own figures.
        alignment: bytes that offsets are multiples of.
        time_limit: seconds for each packing that does not reach its lower bound.
        ctx: MXNet context, for MXNet's own figures; default ``mx.cpu()``.

    Raises:
        InputError: types are missing or contradict, or a training step is to be reordered.
    """
    from graphopt.memory.binding import step_bytes, unshared

    graph: Graph | None = None
    made: TrainingGraph | None = None
    if isinstance(model, TrainingGraph):
        made, name = model, "training graph"
    else:
        from graphopt.memory.binding import as_graph

        graph = as_graph(model, shapes or {}, dtypes or {})
        name = graph.name
        if training:
            wanted = learned(graph) if grad_req is None else grad_req
            step = with_stored(graph, sized=True) if isinstance(model, Graph) else graph
            made = training_graph(step, grad_req=wanted, ctx=ctx)
    if made is not None and reorder:
        raise InputError("a training step runs in MXNet's order; reorder is for forward runs only")
    if made is not None:
        schedule = training_schedule(made, gradients=gradients, name=name)
    elif graph is not None:
        schedule = forward_schedule(graph, frozen=frozen)
    order = best_order(schedule, inplace=inplace) if made is None and (reorder or compare) else None
    if order is not None and reorder:
        schedule = reordered(schedule, order.operations)
    limits = {"alignment": alignment, "time_limit": time_limit}
    live = liveness(schedule, inplace=inplace)
    packing = pack(live.buffers, **limits)  # type: ignore[arg-type]
    forward = unshared_bytes = None
    if compare and graph is not None and not _leaves_out(schedule, graph):
        forward = _forward_figure(graph, ctx)
        with unshared():
            unshared_bytes = (
                _forward_figure(graph, ctx) if made is None else step_bytes(step, wanted, ctx)
            )
    reported = made.reported_bytes if made is not None else forward
    rows: list[Row] = []
    if compare:
        other = liveness(schedule, inplace=not inplace)
        with_inplace, without = (live, other) if inplace else (other, live)
        packed = {id(live): packing, id(other): pack(other.buffers, **limits)}  # type: ignore[arg-type]
        own, shared = packed[id(with_inplace)], packed[id(without)]
        rows = [
            Row("nothing shared", schedule.total, shared.lower_bound),
            Row("in place only", with_inplace.buffers.total, own.lower_bound, unshared_bytes),
            Row("sharing only", shared.arena, shared.lower_bound),
            Row("both", own.arena, own.lower_bound, reported),
        ]
        if made is not None and graph is not None:
            alone = pack(liveness(forward_schedule(graph)).buffers, **limits)  # type: ignore[arg-type]
            rows.append(Row("forward only", alone.arena, alone.lower_bound, forward))
    return MemoryPlan(name, made is not None, live, packing, tuple(rows), reported, order)


def learned(graph: Graph) -> dict[str, str]:
    """A grad_req for the parameters of a floating dtype that something reads, labels left out."""
    return {
        node.name: "write"
        for node in graph.role(PARAM)
        if graph.node_users(node.id)
        and not node.name.endswith("label")
        and (node.type.dtype or "").startswith(("float", "bfloat"))
    }


def _leaves_out(schedule: Schedule, graph: Graph) -> bool:
    """Whether the schedule has fewer operators than the graph: MXNet would run them all."""
    count = sum(not node.is_input and node.op != CONSTANT for node in graph)
    return len(schedule.operations) < count


def _forward_figure(graph: Graph, ctx: Any) -> int | None:
    """What MXNet takes to run the graph forward; None where it cannot be bound."""
    from graphopt.memory.binding import forward_bytes

    try:
        return forward_bytes(graph, ctx)
    except GraphoptError:
        return None
