"""The pass protocol.

A pass is a frozen dataclass; its fields are its options. It takes a graph and returns one: the
same object when it changed nothing, else an edited copy. It never writes to the graph it got.
"""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from graphopt.ir.attrs import print_value
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId
from graphopt.ir.types import Shape, TensorType
from graphopt.pipeline.remarks import Remark, RemarkKind

if TYPE_CHECKING:
    import numpy as np

    from graphopt.kernels.convolutions.single import Layer

Mode = Literal["inference", "training"]


class Target(Protocol):
    """What passes may ask of the system the graph will run on."""

    def infer_types(self, graph: Graph) -> Mapping[NodeId, tuple[TensorType, ...]]:
        """Types of all values, from the types of the inputs."""

    def evaluate(
        self,
        graph: Graph,
        feeds: Mapping[str, np.ndarray[Any, Any]],
        *,
        training: bool = False,
        gradients: bool = False,
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Run the graph; outputs as ``output0`` ..., with ``gradients`` also ``grad:<input>``."""

    def why_no_kernels(self, device: str) -> str | None:
        """Why fused kernels cannot run on ``device``, or ``None`` if they can."""

    def why_no_fused_kernels(self, device: str) -> str | None:
        """The same of pointwise operators and reductions, whose kernels are for GPUs as well."""

    def block_lanes(self) -> int:
        """How many channels make a block in blocked layout."""

    def dense_means(self) -> str | None:
        """By what means dense layers can be faster than MXNet's ("in pairs"), or ``None``."""

    def packed_product(self, rows: int, depth: int, units: int) -> tuple[int, bool]:
        """How many numbers the weights of a dense layer are once packed for so many rows.

        And whether they are packed for such means.
        """

    def layer_times_ms(self, layer: Layer, algorithms: Sequence[str]) -> dict[str, float]:
        """Milliseconds of a convolution by each algorithm, in turns, the best of some."""

    def direction_times_ms(
        self, layer: Layer, ways: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Mapping[str, float]]:
        """Milliseconds of a convolution and of its gradients, MXNet's way and by others."""

    def measured_once(
        self, parts: Sequence[str], measure: Callable[[], Any], place: tuple[str, ...] = ()
    ) -> Any:
        """``measure()``, or what it gave on this machine before; ``parts`` say what it is about.

        Where it is one choice among many of a graph, ``place`` names it by what does not depend on
        sizes: what was measured there in a graph of about these sizes may be returned then.
        """

    def times_ms(self, graphs: Sequence[Graph], *, training: bool = False) -> list[float]:
        """Milliseconds of one call of each, in turns, the best of some.

        With ``training`` forward and backward, by all inputs.
        """


@dataclass(frozen=True)
class Settings:
    """What the pipeline may assume.

    Attributes:
        mode: ``training`` graphs keep gradients exact; ``inference`` graphs only outputs.
        frozen: parameters never change, so what depends on them alone is computed once.
        precise: keep every value to the last bit where a pass could round differently.
        strict: raise where a pass fails, instead of rolling it back.
        device: ``cpu`` or ``gpu``: where the graph will run.
        plans_memory: memory counts: what operators allocate for themselves cannot be shared.
        integers_learn: gradients of integer inputs are asked for, which kernels have none of.
    """

    mode: Mode = "inference"
    frozen: bool = False
    precise: bool = False
    strict: bool = False
    device: str = "cpu"
    plans_memory: bool = False
    integers_learn: bool = False


@dataclass
class PassContext:
    """Handed to a pass: settings, the target, and a place for remarks, statistics and shapes."""

    settings: Settings = field(default_factory=Settings)
    target: Target | None = None
    pass_name: str = ""
    remarks: list[Remark] = field(default_factory=list)
    stats: Counter[str] = field(default_factory=Counter)
    error: Exception | None = None
    shapes: set[Shape] = field(default_factory=set)

    @property
    def training(self) -> bool:
        """Whether gradients have to stay exact."""
        return self.settings.mode == "training"

    def passed(self, message: str, *nodes: Node | str) -> None:
        """Tell what was done."""
        self._remark(RemarkKind.PASSED, message, nodes)

    def missed(self, message: str, *nodes: Node | str) -> None:
        """Tell what was not done, and why."""
        self._remark(RemarkKind.MISSED, message, nodes)

    def note(self, message: str, *nodes: Node | str) -> None:
        """Tell a fact found on the way."""
        self._remark(RemarkKind.ANALYSIS, message, nodes)

    def count(self, what: str, times: int = 1) -> None:
        """Add to a statistic of this pass."""
        self.stats[what] += times

    def goes_by(self, shapes: Iterable[Shape]) -> None:
        """Tell shapes of which a value was computed that may be any other for other shapes."""
        self.shapes.update(shapes)

    def _remark(self, kind: RemarkKind, message: str, nodes: Sequence[Node | str]) -> None:
        names = tuple(node if isinstance(node, str) else node.name for node in nodes)
        self.remarks.append(Remark(kind, self.pass_name, message, names))


@dataclass(frozen=True)
class Pass(abc.ABC):
    """A transformation from graph to graph.

    Class attributes:
        name: kebab-case, as in pipelines.
        modes: in which modes it is legal.
        needs_frozen: whether it assumes that parameters never change.
        cpu_only: why it does nothing on other devices, if so.
        rounding: what rounds differently behind it, which ``precise=True`` does not allow, if so.
        idempotent: whether a second run changes nothing.
        draws: what random numbers are others behind it, so that values cannot be compared, if so.

    Contract: the input graph is not written to; the output verifies; inputs keep their names, roles
    and order, outputs their order and number; outputs are equal within the dtype's tolerance (in
    training mode gradients too); time is near-linear.
    """

    name: ClassVar[str]
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference", "training"})
    needs_frozen: ClassVar[bool] = False
    cpu_only: ClassVar[str | None] = None
    rounding: ClassVar[str | None] = None
    idempotent: ClassVar[bool] = True
    draws: ClassVar[str | None] = None

    @abc.abstractmethod
    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Return ``graph`` itself if there is nothing to do, else a changed copy."""

    def __str__(self) -> str:
        """The pass as it stands in a pipeline: name, and the options that are not the default."""
        options = [
            f"{f.name}={print_value(getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"{self.name}{{{','.join(options)}}}" if options else self.name

    def refusal(self, settings: Settings) -> str | None:
        """Why the pass must not run under these settings, or ``None``."""
        if self.cpu_only and settings.device != "cpu":
            return f"{self.cpu_only}, not on the {settings.device}"
        if self.rounding and settings.precise:
            return f"{self.rounding}, which precise=True does not allow"
        if settings.mode not in self.modes:
            return f"it would change what {settings.mode} computes"
        if self.needs_frozen and not settings.frozen:
            return "it needs frozen parameters: use mode='inference'"
        return None
