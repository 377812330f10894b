"""What the table says about one operator: its kind, its purity, its storage and its gradient."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any


class Kind(enum.Enum):
    """How an output element depends on the inputs, from the simplest to the unknown.

    - ``ELEMENTWISE``: on the elements at the same place; every array input has the output's shape.
    - ``BROADCAST``: the same after numpy's broadcasting of the inputs.
    - ``INJECTIVE``: on elements found by index arithmetic or by an index array (reshape, take).
    - ``REDUCTION``: on whole axes of one input.
    - ``ANCHOR``: on much of the inputs; a kernel of its own that pointwise work may follow.
    - ``OPAQUE``: in no way a pass may rely on. It can still be pure (sort, box_nms).
    """

    ELEMENTWISE = "elementwise"
    BROADCAST = "broadcast"
    INJECTIVE = "injective"
    REDUCTION = "reduction"
    ANCHOR = "anchor"
    OPAQUE = "opaque"


class Gradient(enum.Enum):
    """Which forward values backward may read, over all settings of the attributes.

    ``NONE`` also stands for operators that have no gradient, for which MXNet refuses to
    differentiate. Values read only for their shape do not count.
    """

    NONE = "none"  # the gradient is zero or does not exist
    NEITHER = "neither"  # the head gradient is enough
    INPUTS = "inputs"
    OUTPUTS = "outputs"  # hidden outputs included: a mask, a saved mean
    BOTH = "both"

    @property
    def needs_inputs(self) -> bool:
        """Whether an input must live until backward."""
        return self in (Gradient.INPUTS, Gradient.BOTH)

    @property
    def needs_outputs(self) -> bool:
        """Whether an output must live until backward."""
        return self in (Gradient.OUTPUTS, Gradient.BOTH)


@dataclass(frozen=True)
class OpInfo:
    """Facts that hold for every setting of the operator's attributes.

    Where the attributes are known, `graphopt.ir.ops.info` narrows them. A fact that is missing
    always errs on the side that forbids a rewrite.
    """

    name: str
    """The name that stands in Symbol JSON after MXNet has loaded and saved it."""

    kind: Kind
    pure: bool
    """Equal inputs and attributes give equal outputs, in training too, and nothing else changes."""

    random: bool = False
    """Draws from the generator, perhaps in training mode only (see ``mode_dependent``)."""

    mutates: tuple[int, ...] = ()
    """Inputs that MXNet knows to be written: its auxiliary states, an optimizer's states."""

    period: int = 0
    """If not 0, inputs come in groups of this many, and ``mutates`` holds for each group."""

    hidden_writes: tuple[int, ...] = ()
    """Inputs written behind MXNet's back: BatchNorm sets gamma to 1 where ``fix_gamma`` holds.

    They are no auxiliary states, and the engine does not order their readers after the write.
    """

    inplace: tuple[tuple[int, int], ...] = ()
    """Pairs (input, output) that may share storage if they have the same number of bytes."""

    commutative: bool = False
    """Swapping the two inputs changes no bit of the output."""

    mode_dependent: bool = False
    """Computes something else in training than in inference; rounding does not count."""

    pure_at_inference: bool = False
    """Not ``pure``, but would be if training did not exist."""

    gradient: Gradient = Gradient.BOTH
    loss: bool = False
    """Backward ignores the head gradient: the operator starts a gradient of its own."""

    stops_gradient: bool = False
    """Is there to let no gradient pass: it matters to training though it computes nothing."""

    view: bool = False
    """The first output has the elements of input 0 in the same order, under another shape perhaps.

    Says nothing about backward: ``BlockGrad`` and ``make_loss`` are views too.
    """

    arguments: tuple[str, ...] = ()
    """Array inputs by name, optional ones included; empty where their number is free."""

    aliases: tuple[str, ...] = ()

    def is_pure(self, training: bool) -> bool:
        """Whether the operator is pure in one mode of execution."""
        return self.pure or (self.pure_at_inference and not training)

    def writes(self, num_inputs: int) -> tuple[int, ...]:
        """All input positions below ``num_inputs`` that an execution may write, ascending."""
        starts = range(0, num_inputs, self.period) if self.period else (0,)
        found = {start + at for start in starts for at in self.mutates} | set(self.hidden_writes)
        return tuple(sorted(at for at in found if at < num_inputs))


#: What is said of an operator that nothing is known about.
UNKNOWN = OpInfo(name="", kind=Kind.OPAQUE, pure=False)


def family(names: str, template: OpInfo = UNKNOWN, **facts: Any) -> tuple[OpInfo, ...]:
    """One entry per word of ``names``, alike but for the name."""
    common = replace(template, **facts)
    return tuple(replace(common, name=name) for name in names.split())
