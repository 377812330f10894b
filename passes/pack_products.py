"""Dense layers with constant weights, computed over packed weights by kernels of our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, PRODUCT, Node, NodeId
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.kernels.products import FEW_ROWS
from graphopt.passes.fusion.region import replace_region
from graphopt.passes.select_gemm import Problem, as_dot, as_timed, of_so_many
from graphopt.pipeline.base import Mode, Pass, PassContext, Target
from graphopt.pipeline.remarks import in_ms
from graphopt.rewrite.substitute import transplant

#: What ``dot`` may be faster for than FullyConnected: as in select-gemm.
_LARGE_MACS: Final = 100_000_000
#: How products are computed: by ours, and by MXNet's.
PACKED: Final = "over packed weights"
IN_PLACE: Final = "over weights where they lie"
_MXNETS: Final = ("FullyConnected", "dot")
#: Packed weights are a copy. They have to be so many times as fast.
_WORTH_A_COPY: Final = 1.1
#: MXNet keeps a copy in oneDNN's order, too, and times differ by this on machines that others use.
_WORTH_MXNETS: Final = 1.25
_NEVER: Final = float("inf")


@dataclass(frozen=True)
class PackProducts(Pass):
    """FullyConnected with constant weights, and the activation after it, are one node.

    Its weights are packed once, into the order in which the kernel reads them, where MXNet's
    libraries pack them in every call; for the few rows of a small batch that takes as long as the
    product. For four rows at most they are read where they lie, unless packed ones are 1.1 times as
    fast: to read them once is all that it takes, and no copy is kept. The activation (ReLU, or GELU
    by the error function) is computed while the product is near. Only float32 on the CPU, and only
    where it was measured to be ``min_gain`` times as fast as MXNet's product. It need only be as
    fast if there is an activation, which is not measured: it saves the pass over the product that
    MXNet's takes. Where weights are read where they lie, MXNet's product, for which oneDNN keeps a
    copy, too, has to be 1.25 times as fast. Each distinct shape is measured once on a machine.

    In no named pipeline, since its result depends on the machine: lowering runs it on frozen
    graphs, and ``explain()`` tells what it chose.

    Args:
        min_gain: how many times as fast it has to be where there is no activation.

    Example::

        // before
        graph net(%x: f32[8,16], param %w: f32[4,16], param %b: f32[4]) {
          %fc = FullyConnected(%x, %w, %b) {num_hidden=4} : f32[8,4]
          %y = relu(%fc) : f32[8,4]
          return %y
        }
        // after
        graph net(%x: f32[8,16], param %w: f32[4,16], param %b: f32[4]) {
          %y_product = graphopt_product(%x, %w, %b)
              {activation="relu", flatten=True, no_bias=False, units=4} : f32[8,4] [
            graph region(%in0: f32[8,16], param %in1: f32[4,16], param %in2: f32[4]) {
              %fc = FullyConnected(%in0, %in1, %in2) {num_hidden=4} : f32[8,4]
              %y = relu(%fc) : f32[8,4]
              return %y
            }
          ]
          return %y_product
        }
    """

    name: ClassVar[str] = "pack-products"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})
    needs_frozen: ClassVar[bool] = True
    cpu_only: ClassVar[str] = "kernels run on CPUs only so far"
    rounding: ClassVar[str] = "its sums are rounded in another order"

    min_gain: float = 1.05

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace nodes; linear besides the measuring."""
        layers = [node for node in graph if canonical(node.op) == "FullyConnected"]
        why = None
        if layers and cx.target is not None:
            why = cx.target.why_no_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"no product was packed: {why}", layers[0])
            return graph
        edited = graph.copy()
        frozen, held = frozen_nodes(graph), held_nodes(graph)
        for node in layers:
            if node.id in frozen:
                continue
            members = _members(graph, node, held)
            way, why = PACKED, _unfit(graph, node, frozen, held)
            if why is None and cx.target is not None:
                way, why = self._fastest(graph, members, cx, cx.target)
            if why is not None:
                cx.missed(f"its weights are not packed: {why}", node)
                continue
            _replace(graph, edited, members, in_place=way == IN_PLACE)
            cx.count("in place" if way == IN_PLACE else "packed")
        return edited if cx.stats else graph

    def _fastest(
        self, graph: Graph, members: list[Node], cx: PassContext, target: Target
    ) -> tuple[str, str | None]:
        """How weights are to be read, and why MXNet's product stays if it does."""
        node, *activation = members
        problem = problem_of(graph, node)
        timed = as_timed(problem)
        ms = _measured(timed, node, target)
        is_near = problem[0] <= FEW_ROWS and ms.get(IN_PLACE, _NEVER) < _WORTH_A_COPY * ms[PACKED]
        way = IN_PLACE if is_near else PACKED
        plain, some = min(ms[name] for name in ms if name in _MXNETS), of_so_many(timed, problem)
        gain = 1 / _WORTH_MXNETS if is_near else 1.0 if activation else self.min_gain
        if plain < gain * ms[way]:
            return way, f"that takes {in_ms(ms[way])}, MXNet's product {in_ms(plain)}{some}"
        cx.passed(f"{way} {in_ms(ms[way])}, by MXNet {in_ms(plain)}{some}", node)
        return way, None


def activation_of(node: Node) -> str | None:
    """The activation that a node is, as ``graphopt_product`` names it, or ``None``."""
    op, kind = canonical(node.op), node.attrs.get("act_type")
    if op == "relu" or (op == "Activation" and kind == "relu"):
        return "relu"
    return "gelu" if op == "LeakyReLU" and kind == "gelu" else None


def not_ours(graph: Graph, node: Node, held: frozenset[NodeId]) -> str | None:
    """Why no product of ours can stand for a FullyConnected, whatever its size, or ``None``."""
    if node.id in held or node.after:
        return "control dependencies order it"
    types = [graph.type_of(value) for value in (*node.inputs, node.out())]
    if not all(found.is_static for found in types):
        return "its shape or dtype is not known"
    if any(found.dtype != "float32" for found in types):
        return f"it multiplies {node.type.dtype}"
    return None


def _unfit(
    graph: Graph, node: Node, frozen: frozenset[NodeId], held: frozenset[NodeId]
) -> str | None:
    why = not_ours(graph, node, held)
    if why is not None:
        return why
    if any(value.node not in frozen for value in node.inputs[1:]):
        return "its weights are computed from data"
    data = graph.type_of(node.inputs[0])
    if (data.rank or 0) < 2 or not data.size:
        return "its data has no rows"
    return None


def _members(graph: Graph, node: Node, held: frozenset[NodeId]) -> list[Node]:
    """The product, and the activation that alone reads it."""
    users = graph.users(node.out())
    if len(users) != 1 or graph.is_output(node.out()):
        return [node]
    user = graph[next(iter(users)).node]
    if activation_of(user) is None or user.id in held or user.after:
        return [node]
    return [node, user]


def _replace(graph: Graph, edited: Graph, members: list[Node], *, in_place: bool) -> None:
    node = members[0]
    body = Graph("region")
    new = {
        value: body.add_input(f"in{at}", PARAM if at else DATA, graph.type_of(value)).out()
        for at, value in enumerate(node.inputs)
    }
    for member in members:
        transplant(body, member, new)
    last = members[-1].out()
    body.set_outputs([new[last]])
    attrs = _attrs(graph, node, activation_of(members[-1]) or "none")
    if in_place:
        attrs["in_place"] = True
    replace_region(edited, members, node.inputs, [last], PRODUCT, attrs, body, "product")


def _attrs(graph: Graph, node: Node, activation: str) -> dict[str, str | int | bool]:
    return {
        "activation": activation,
        "flatten": "flatten" not in node.attrs or node.attrs.flag("flatten"),
        "no_bias": len(node.inputs) < 3,
        "units": (graph.type_of(node.inputs[1]).shape or (0,))[0] or 0,
    }


def problem_of(graph: Graph, node: Node) -> Problem:
    """What a FullyConnected or a ``graphopt_product`` of static shape computes."""
    units, depth = (extent or 0 for extent in graph.type_of(node.inputs[1]).shape or (0, 0))
    rows = (graph.type_of(node.inputs[0]).size or 0) // max(depth, 1)
    return rows, depth, units, len(node.inputs) > 2


def _measured(problem: Problem, node: Node, target: Target) -> Mapping[str, float]:
    """Milliseconds of the product by each way; all without activation."""
    rows, depth, units, _ = problem

    def measure() -> dict[str, float]:
        plain = alone("FullyConnected", problem, (units, depth))
        size, tiled = target.packed_product(rows, depth, units)
        graphs = {PACKED: alone(PRODUCT, problem, (size,), tiled=tiled), "FullyConnected": plain}
        if rows <= FEW_ROWS:
            graphs[IN_PLACE] = alone(PRODUCT, problem, (units, depth))
        elif rows * depth * units >= _LARGE_MACS:
            graphs["dot"] = as_dot(plain)
        return dict(zip(graphs, target.times_ms([*graphs.values()]), strict=True))

    found: Mapping[str, float] = target.measured_once(
        ("product", *map(str, problem)), measure, (node.name,)
    )
    return found


def alone(op: str, problem: Problem, weights: tuple[int, ...], *, tiled: bool = False) -> Graph:
    """A product by itself, to be timed; ``weights`` is their shape, of one axis if packed."""
    rows, depth, units, has_bias = problem
    graph = Graph("product")
    sources = [
        graph.add_input("x", DATA, TensorType("float32", (rows, depth))),
        graph.add_input("w", PARAM, TensorType("float32", weights)),
    ]
    if has_bias:
        sources.append(graph.add_input("b", PARAM, TensorType("float32", (units,))))
    attrs: dict[str, str | int | bool] = {"flatten": False, "no_bias": not has_bias}
    if op == PRODUCT:
        attrs |= {"units": units, "activation": "none", "tiled": tiled}
        attrs["packed"] = len(weights) == 1
    else:
        attrs["num_hidden"] = units
    made = TensorType("float32", (rows, units))
    graph.set_outputs([graph.add(op, sources, attrs, (made,), "product")])
    return graph
