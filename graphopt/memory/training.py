"""What MXNet's executor runs in a training step: forward and backward, in its own order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from graphopt.cached import cached_property
from graphopt.ir.types import DTYPES

Phase = Literal["forward", "backward", "recompute"]
GradReq = str | Mapping[str, str]


class Entry(NamedTuple):
    """One output of a step (numbered in execution order), or a variable (step -1)."""

    step: int
    output: int = 0
    variable: str = ""


class Type(NamedTuple):
    """What an entry holds."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype][1]


@dataclass(frozen=True)
class Step:
    """One operator as the executor runs it.

    ``of`` is the forward node that a step of backward is the gradient of, or that one of recompute
    repeats; a forward step is its own, and a sum of gradients belongs to none (""). ``block`` is
    the node of the user's model it stems from, or "". ``after`` are steps that have to run first
    although nothing flows from them. ``attrs`` are MXNet's, as text.
    """

    name: str
    op: str
    phase: Phase
    of: str
    block: str
    inputs: tuple[Entry, ...]
    outputs: tuple[Type, ...]
    after: tuple[int, ...] = ()
    attrs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingGraph:
    """All steps in execution order, and what has to outlive them.

    ``gradients`` has the entry that becomes the gradient of each argument that wants one.
    ``reported_bytes`` is what MXNet says it allocates for entries, rounded down to whole MiB.
    ``guessed`` counts reads of which the executor's listing leaves open which of several steps of
    one name they mean, and for which structure and sizes did not decide either.
    """

    steps: tuple[Step, ...]
    variables: Mapping[str, Type]
    outputs: tuple[Entry, ...]
    gradients: Mapping[str, Entry]
    reported_bytes: int
    guessed: int = 0

    def type_of(self, entry: Entry) -> Type:
        """Shape and dtype of an entry."""
        if entry.step < 0:
            return self.variables[entry.variable]
        return self.steps[entry.step].outputs[entry.output]

    @cached_property
    def forward(self) -> Mapping[str, int]:
        """Number of the step of each forward node."""
        return {s.name: n for n, s in enumerate(self.steps) if s.phase == "forward"}


def training_graph(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    grad_req: GradReq = "write",
    ctx: Any = None,
) -> TrainingGraph:
    """The training graph MXNet's executor makes of a model; nothing is run. Near-linear.

    Args:
        model: an ``mx.sym.Symbol``, or a `Graph`, whose inputs' types are taken where ``shapes``
            and ``dtypes`` say nothing.
        shapes: shape per input name; of the others what follows.
        dtypes: dtype per input name, float32 otherwise.
        grad_req: ``write``, ``add`` or ``null``, for all arguments or by name (others ``null``).
        ctx: MXNet context; default ``mx.cpu()``.

    Raises:
        InputError: types are missing or contradict, or no argument wants a gradient.
        UnsupportedError: a shape is not known before it is computed.
    """
    from graphopt.memory.binding import bind
    from graphopt.memory.gradients import Resolver

    bound = bind(model, shapes or {}, dtypes or {}, grad_req, ctx)
    return Resolver(bound).graph()


def backward_reads(graph: TrainingGraph) -> dict[str, tuple[Entry, ...]]:
    """For each forward node with a gradient, the forward entries and variables it reads.

    Entries that are recomputed are those they are recomputed from. Shapes alone count as reads
    where MXNet's executor lets them.
    """
    reads: dict[str, dict[Entry, None]] = {}
    for step in graph.steps:
        if step.phase != "backward" or not step.of:
            continue
        found = reads.setdefault(step.of, {})
        for entry in step.inputs:
            producer = graph.steps[entry.step] if entry.step >= 0 else None
            if producer is None:
                if entry.variable in graph.variables:
                    found[entry] = None
            elif producer.phase == "forward":
                found[entry] = None
            elif producer.phase == "recompute":
                found[Entry(graph.forward[producer.of], entry.output)] = None
    return {name: tuple(found) for name, found in reads.items()}
