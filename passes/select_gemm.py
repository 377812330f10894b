"""The faster of MXNet's two matrix products for every large FullyConnected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from graphopt.analysis.effects import held_nodes
from graphopt.analysis.frozen import frozen_nodes
from graphopt.ir.attrs import EMPTY
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.reshape import codes_for
from graphopt.ir.types import Shape, TensorType
from graphopt.pipeline.base import Mode, Pass, PassContext, Target

#: Activations. oneDNN computes some of them while it stores the product; behind ``dot`` each would
#: be an operator of its own, which the measuring of the product alone does not see.
_FUSED_BEHIND: Final = frozenset(
    {"Activation", "LeakyReLU", "clip", "square", "sqrt", "exp", "abs", "relu", "sigmoid", "tanh"}
)

#: Rows, inputs, outputs, bias.
Problem = tuple[int, int, int, bool]

#: Layers are timed of as many rows, in steps of the last number, as have so many multiplications,
#: and of as many outputs as have so many weights: more than caches hold, and less than matters.
_MOST_TIMED_MACS, _MOST_TIMED_WEIGHTS, _FEWEST_TIMED = 1 << 30, 1 << 24, 128

#: Measured milliseconds of both products; the machine does not change while a process runs.
_MEASURED: Final[dict[Problem, tuple[float, float]]] = {}


@dataclass(frozen=True)
class SelectGemm(Pass):
    """A large FullyConnected becomes ``dot`` where that was measured to be faster on this machine.

    MXNet computes FullyConnected by oneDNN and ``dot`` by its OpenBLAS, and which is faster depends
    on the processor and the shape. Each distinct shape of at least ``min_mega_macs`` million
    multiplications is timed once in a process, and replaced where ``dot``, with its addition of the
    bias, is at least ``min_gain`` times as fast. A product whose only reader is an activation
    stays: oneDNN may compute that in the same loop. Only for float32 on the CPU.

    In no named pipeline, since its result depends on the machine: lowering runs it on frozen
    graphs, and ``explain()`` tells what it chose.

    Args:
        min_mega_macs: millions of multiplications below which a layer is left alone.
        min_gain: how many times as fast ``dot`` has to be.

    Example::

        // before
        graph net(%x: f32[8,128,3072], param %w: f32[768,3072], param %b: f32[768]) {
          %fc = FullyConnected(%x, %w, %b) {flatten=False, num_hidden=768} : f32[8,128,768]
          return %fc
        }
        // after
        graph net(%x: f32[8,128,3072], param %w: f32[768,3072], param %b: f32[768]) {
          %fc_rows = Reshape(%x) {shape=(-1, 3072)} : f32[1024,3072]
          %fc_dot = dot(%fc_rows, %w) {transpose_b=True} : f32[1024,768]
          %fc_shaped = Reshape(%fc_dot) {shape=(-4, -1, 128, 0)} : f32[8,128,768]
          %fc_bias = Reshape(%b) {shape=(1, 1, 768)} : f32[1,1,768]
          %fc = broadcast_add(%fc_shaped, %fc_bias) : f32[8,128,768]
          return %fc
        }
    """

    name: ClassVar[str] = "select-gemm"
    modes: ClassVar[frozenset[Mode]] = frozenset({"inference"})
    needs_frozen: ClassVar[bool] = True
    cpu_only: ClassVar[str] = "it compares products on CPUs only"
    rounding: ClassVar[str] = "dot sums in another order"

    min_mega_macs: int = 100
    min_gain: float = 1.05

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace nodes in place; linear besides the measuring."""
        if cx.target is None:
            return graph
        edited = graph.copy()
        frozen, held = frozen_nodes(graph), held_nodes(graph)
        for node in graph:
            layer = _layer(graph, node, self.min_mega_macs)
            if layer is None or node.id in frozen or node.id in held or _is_fused(graph, node):
                continue
            timed = as_timed(layer.problem)
            fully_connected, dot = _measure(timed, node, cx.target)
            some = of_so_many(timed, layer.problem)
            if fully_connected < self.min_gain * dot:
                cx.note(f"dot is no faster: {dot:.2f} ms for {fully_connected:.2f} ms{some}", node)
                continue
            _replace(edited, layer)
            told = f"dot takes {dot:.2f} ms, FullyConnected {fully_connected:.2f} ms{some}"
            cx.passed(told, node)
            cx.count("replaced")
        return edited


@dataclass(frozen=True)
class _Layer:
    node: Node
    rows: int
    inputs: int
    outputs: int
    data: Value
    weight: Value
    bias: Value | None

    @property
    def problem(self) -> Problem:
        return self.rows, self.inputs, self.outputs, self.bias is not None


def _layer(graph: Graph, node: Node, min_mega_macs: int) -> _Layer | None:
    if node.op != "FullyConnected" or len(node.inputs) < 2:
        return None
    weight = graph.type_of(node.inputs[1])
    size = graph.type_of(node.inputs[0]).size
    if not node.type.is_static or node.type.dtype != "float32" or size is None:
        return None
    if weight.shape is None or None in weight.shape:
        return None
    outputs, inputs = (extent or 0 for extent in weight.shape)
    rows = size // max(inputs, 1)
    if rows * inputs * outputs < min_mega_macs * 1_000_000:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return _Layer(node, rows, inputs, outputs, node.inputs[0], node.inputs[1], bias)


def _is_fused(graph: Graph, node: Node) -> bool:
    users = graph.users(node.out())
    return len(users) == 1 and graph[users[0].node].op in _FUSED_BEHIND


def _replace(graph: Graph, layer: _Layer) -> None:
    node, origin = layer.node, layer.node.origin
    name = node.name or "gemm"
    shape = node.type.shape
    assert shape is not None
    codes = codes_for((layer.rows, layer.outputs), [extent or 0 for extent in shape])

    def add(op: str, inputs: list[Value], made: Shape, what: str, **attrs: object) -> Value:
        label = graph.unique_name(f"{name}_{what}")
        types = (TensorType("float32", made),)
        return graph.add(op, inputs, attrs, types, label, origin=origin).out()

    flat = (layer.rows, layer.inputs)
    rows = add("Reshape", [layer.data], flat, "rows", shape=(-1, layer.inputs))
    flat = (layer.rows, layer.outputs)
    product = add("dot", [rows, layer.weight], flat, "dot", transpose_b=True)
    if layer.bias is None:
        attrs = type(node.attrs)({"shape": codes})
        graph.update(node.but(op="Reshape", inputs=(product,), attrs=attrs))
        return
    # The bias comes last, in the result's shape: what reads the result may be fused with it.
    shaped = add("Reshape", [product], shape, "shaped", shape=codes)
    row = (*(1 for _ in shape[1:]), layer.outputs)
    bias = add("Reshape", [layer.bias], row, "bias", shape=row)
    graph.update(node.but(op="broadcast_add", inputs=(shaped, bias), attrs=EMPTY))


def as_dot(graph: Graph) -> Graph:
    """A graph whose only operator is a FullyConnected, with ``dot`` in its place."""
    edited = graph.copy()
    layer = _layer(graph, graph[graph.outputs[0].node], 0)
    assert layer is not None
    _replace(edited, layer)
    return edited


def as_timed(problem: Problem) -> Problem:
    """The same layer, of as many rows and outputs as are worth timing: all take the same time."""
    rows, depth, units, has_bias = problem
    units = min(units, _in_steps(_MOST_TIMED_WEIGHTS // max(depth, 1)))
    return min(rows, _in_steps(_MOST_TIMED_MACS // max(depth * units, 1))), depth, units, has_bias


def _in_steps(most: int) -> int:
    return max(most // _FEWEST_TIMED * _FEWEST_TIMED, _FEWEST_TIMED)


def of_so_many(timed: Problem, problem: Problem) -> str:
    """What a message says of how many rows and outputs were timed, if not of all."""
    parts = [
        f"{timed[at]} of its {problem[at]} {what}"
        for at, what in ((0, "rows"), (2, "outputs"))
        if timed[at] < problem[at]
    ]
    return f" for {' and '.join(parts)}" if parts else ""


def _measure(problem: Problem, node: Node, target: Target) -> tuple[float, float]:
    """Milliseconds of FullyConnected and of ``dot`` with its bias, timed in turns."""
    if problem not in _MEASURED:
        plain = _alone(problem)
        other = as_dot(plain)
        found = target.measured_once(
            ("gemm", *map(str, problem)),
            lambda: target.times_ms([plain, other]),
            (node.name,),
        )
        _MEASURED[problem] = found[0], found[1]
    return _MEASURED[problem]


def _alone(problem: Problem) -> Graph:
    rows, inputs, outputs, has_bias = problem
    graph = Graph("gemm")
    sources = [
        graph.add_input("x", "data", TensorType("float32", (rows, inputs))),
        graph.add_input("w", "param", TensorType("float32", (outputs, inputs))),
    ]
    if has_bias:
        sources.append(graph.add_input("b", "param", TensorType("float32", (outputs,))))
    attrs = {"flatten": False, "no_bias": not has_bias, "num_hidden": outputs}
    out = TensorType("float32", (rows, outputs))
    graph.set_outputs([graph.add("FullyConnected", sources, attrs, (out,), "fc")])
    return graph
