"""Loss layers of old Symbol models as kernels that know their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from graphopt.analysis.effects import held_nodes
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.constant import add_constant
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, FUSED, Node, Value
from graphopt.ir.ops import canonical
from graphopt.ir.types import TensorType
from graphopt.kernels.spec import Arg, KernelSpec, Operand
from graphopt.kernels.spec_builder import Builder
from graphopt.passes.fusion.fuse import FEWEST_COLUMNS
from graphopt.passes.fusion.operators import flag, number
from graphopt.passes.fusion.positions import FLOATS, LONGEST, Positions
from graphopt.passes.fusion.region import origin_of
from graphopt.pipeline.base import Mode, Pass, PassContext
from graphopt.rewrite.substitute import transplant


@dataclass(frozen=True)
class FuseLossHeads(Pass):
    """Loss layers with labels are kernels, forward and backward.

    Such a layer returns probabilities, say, and has a gradient of its own, that of a loss nobody
    computes, whatever reads its output: ``SoftmaxOutput`` the difference of probabilities and
    labels. MXNet computes both one number after the other. All of its attributes are known but
    ``out_grad``, and so are labels that are probabilities, and the three regression outputs. Where
    a gradient is divided by the count of valid labels, that is counted in front of the kernel.

    Example::

        // before
        graph net(%x: f32[4,8], %y: f32[4,8]) {
          %out = LinearRegressionOutput(%x, %y) : f32[4,8]
          return %out
        }
        // after
        graph net(%x: f32[4,8], %y: f32[4,8]) {
          %out_fused = graphopt_fused(%x, %y)
            {spec="f32[a,b] (f32[a,b], f32[a,b]) { %2 = sub %0 %1; %3 = mul %2 0.125; %4 = loss_of %0 %0 %3; return %4:f32[a,b] }"}
            : f32[4,8] [
            graph region(%in0: f32[4,8], %in1: f32[4,8]) {
              %out = LinearRegressionOutput(%in0, %in1) : f32[4,8]
              return %out
            }
          ]
          return %out_fused
        }
    """  # noqa: E501 - as it prints

    name: ClassVar[str] = "fuse-loss-heads"
    modes: ClassVar[frozenset[Mode]] = frozenset({"training"})
    rounding: ClassVar[str] = "sums of a softmax are added in another order"

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        """Replace operators in place; linear."""
        found = [node for node in graph if canonical(node.op) in _LAYERS]
        if not found:
            return graph
        why = None if cx.target is None else cx.target.why_no_fused_kernels(cx.settings.device)
        if why is not None:
            cx.missed(f"loss layers stay: {why}", found[0])
            return graph
        held = held_nodes(graph)
        edited = graph.copy()
        for node in found:
            try:
                if node.id in held or node.after:
                    raise GraphoptError("a control dependency names it")
                head = _head(graph, node, cx.settings.device)
            except GraphoptError as error:
                cx.missed(f"{canonical(node.op)} stays: {error}", node)
                continue
            _replace(edited, node, head)
            cx.count("kernels")
        return edited if cx.stats["kernels"] else graph


@dataclass(frozen=True)
class _Head:
    """A kernel of prediction and label, of positions along an axis, and of a count.

    Attributes:
        spec: the kernel.
        classes: how many positions it reads; 0: none.
        label: the shape in which it reads labels, if that is another.
        uncounted: the label that is not valid, where it reads how many others there are.
    """

    spec: KernelSpec
    classes: int = 0
    label: tuple[int, ...] | None = None
    uncounted: float | None = None


_Maker = Callable[[Node, TensorType, TensorType, str], _Head]
_Slope = Callable[[Builder, Arg, Arg], Arg]


def _head(graph: Graph, node: Node, device: str) -> _Head:
    """The kernel of a loss layer.

    Raises:
        GraphoptError: there is none; the message tells why.
    """
    data, label = (graph.type_of(value) for value in node.inputs)
    if not data.is_static or not label.is_static or not data.size or not label.size:
        raise GraphoptError("its shapes are not known")
    if data.dtype not in FLOATS or label.dtype != data.dtype:
        raise GraphoptError(f"it is {data.dtype} with labels of {label.dtype}")
    return _LAYERS[canonical(node.op)](node, data, label, device)


def _regression(value: str, slope: _Slope) -> _Maker:
    """A layer that returns a function of its input; its gradient is of output and label."""

    def head(node: Node, data: TensorType, label: TensorType, _device: str) -> _Head:
        shape, given = _extents(data), _extents(label)
        axes = tuple(range(len(given)))
        if given != shape and (given != shape[:1] or math.prod(shape) != shape[0]):
            raise GraphoptError(f"its labels are {label.shape}, its predictions {data.shape}")
        emit = Builder(str(data.dtype), len(shape), 0)
        x = emit.input(Operand(str(data.dtype), tuple(range(len(shape)))))
        y = emit.input(Operand(str(label.dtype), axes))
        out = emit(value, x) if value else x
        count = math.prod(given) // given[0]
        scale = number(node.attrs, "grad_scale", 1.0) / count
        loss = emit("loss_of", out, x, emit("mul", slope(emit, out, y), _single(scale)))
        return _Head(emit.build([(loss, Operand(str(data.dtype), tuple(range(len(shape)))))]))

    return head


def _difference(emit: Builder, out: Arg, label: Arg) -> Arg:
    return emit("sub", out, label)


def _side(emit: Builder, out: Arg, label: Arg) -> Arg:
    """1 above the label; MXNet takes what is equal to it, or no number, to be below."""
    return emit("where", emit("gt", out, label), 1.0, -1.0)


def _softmax(node: Node, data: TensorType, label: TensorType, device: str) -> _Head:
    shape, attrs = _extents(data), node.attrs
    multiple = flag(attrs, "multi_output")
    axis = 1 if multiple else len(shape) - 1
    if len(shape) < 2 or not (multiple or flag(attrs, "preserve_shape") or len(shape) == 2):
        raise GraphoptError("it normalizes over several axes at once")
    columns = len(shape) - 1 - axis
    if columns and (device != "cpu" or math.prod(shape[axis + 1 :]) < FEWEST_COLUMNS):
        raise GraphoptError("too few rows lie side by side for a vector")
    if flag(attrs, "out_grad"):
        raise GraphoptError("it has out_grad=True")
    if shape[axis] > LONGEST:
        raise GraphoptError("it has too many classes")
    dtype = str(data.dtype)
    emit = Builder(dtype, len(shape), 1, columns=columns)
    whole = Operand(dtype, tuple(range(len(shape))))
    given, reshaped = _extents(label), None
    if multiple and len(shape) > 3 and given == (shape[0], math.prod(shape[2:])):
        given = reshaped = (shape[0], *shape[2:])
    x, y = emit.input(whole), emit.input(Operand(dtype, _label_axes(shape, given, axis)))
    if given == shape:
        out = emit("softmax", x)
        scaled = emit("mul", emit("sub", out, y), _single(number(attrs, "grad_scale", 1.0)))
        return _Head(emit.build([(emit("loss_of", out, x, scaled), whole)]))
    at = emit.input(Operand(dtype, (axis,)))
    is_counted = attrs.get("normalization") == "valid"
    count = emit.input(Operand(dtype, (None,))) if is_counted else None
    out = emit("softmax", x)
    gradient = _by_class(emit, out, emit("trunc", y), at, attrs, shape, axis)
    gradient = gradient if count is None else emit("div", gradient, count)
    spec = emit.build([(emit("loss_of", out, x, gradient), whole)])
    return _Head(spec, shape[axis], reshaped, _ignored(attrs) if is_counted else None)


def _ignored(attrs: Attrs) -> float:
    """The label that is not valid, whole as MXNet takes it."""
    return float(math.trunc(number(attrs, "ignore_label", -1.0)))


def _by_class(
    emit: Builder, out: Arg, label: Arg, at: Arg, attrs: Attrs, shape: tuple[int, ...], axis: int
) -> Arg:
    """Probabilities, less one at the label, times what scales them."""
    multiple = flag(attrs, "multi_output")
    normalization = attrs.get("normalization")
    scale = number(attrs, "grad_scale", 1.0)
    if multiple and normalization != "valid":
        scale /= math.prod(shape) // (shape[0] * shape[1])
    if normalization == "batch":
        scale /= shape[0] if multiple or len(shape) == 2 else math.prod(shape) // shape[axis]
    alpha = 0.0 if multiple else number(attrs, "smooth_alpha", 0.0)
    is_label = emit("eq", at, label)
    hot = is_label
    if alpha:
        others = alpha / max(shape[axis] - 1, 1)
        hot = emit("where", is_label, _single(1 - alpha), _single(others))
    gradient = emit("mul", emit("sub", out, hot), _single(scale))
    if flag(attrs, "use_ignore"):
        gradient = emit("where", emit("eq", label, _ignored(attrs)), 0.0, gradient)
    return gradient


def _label_axes(
    shape: tuple[int, ...], given: tuple[int, ...], axis: int
) -> tuple[int | None, ...]:
    """The axes of the data that those of the labels run along."""
    rows = tuple(at for at in range(len(shape)) if at != axis)
    if given == shape:
        return tuple(range(len(shape)))
    if given == tuple(shape[at] for at in rows):
        return rows
    if given == tuple(1 if at == axis else extent for at, extent in enumerate(shape)):
        return tuple(None if at == axis else at for at in range(len(shape)))
    raise GraphoptError(f"its labels are {given}, its predictions {shape}")


def _replace(edited: Graph, node: Node, head: _Head) -> None:
    """Make the layer a fused node that stands for it."""
    inputs: list[Value] = [*edited[node.id].inputs]
    name, dtype = node.name or node.op, node.type.dtype
    build = Positions(edited, origin_of([node]))
    label = edited.type_of(inputs[1])
    if head.label is not None:
        type_, shape = TensorType(dtype, head.label), Attrs(shape=head.label)
        inputs[1] = build.add("Reshape", (inputs[1],), shape, type_, f"{name}_label")
    if head.classes:
        positions = np.arange(head.classes, dtype=dtype)
        at = add_constant(edited, positions, edited.unique_name(f"{name}_positions"))
        inputs.append(at.out())
    if head.uncounted is not None:
        whole = build.add("fix", (node.inputs[1],), Attrs(), label, f"{name}_whole")
        other = Attrs(scalar=head.uncounted)
        valid = build.add("_not_equal_scalar", (whole,), other, label, f"{name}_valid")
        one = TensorType(dtype, (1,))
        count = build.add("sum", (valid,), Attrs(axis=()), one, f"{name}_count")
        least = Attrs(scalar=1.0)
        inputs.append(build.add("_maximum_scalar", (count,), least, one, f"{name}_least"))
    body = Graph("region")
    read = [
        body.add_input(f"in{place}", DATA, edited.type_of(value)).out()
        for place, value in enumerate(inputs)
    ]
    new = dict(zip(node.inputs, read, strict=False))
    transplant(body, node, new)
    body.set_outputs([new[node.out()]])
    made = edited.add(
        FUSED,
        inputs,
        {"spec": str(head.spec)},
        (node.type,),
        edited.unique_name(f"{node.name or node.op}_fused"),
        graphs=[body],
        origin=origin_of([node]),
    )
    edited.replace_uses(node.out(), made.out())
    edited.erase(node.id)


def _extents(type_: TensorType) -> tuple[int, ...]:
    return tuple(extent or 0 for extent in type_.shape or ())


def _single(value: float) -> float:
    """As MXNet holds numbers that it multiplies with."""
    return float(np.float32(value))


_LAYERS: Final[dict[str, _Maker]] = {
    "SoftmaxOutput": _softmax,
    "LinearRegressionOutput": _regression("", _difference),
    "LogisticRegressionOutput": _regression("sigmoid", _difference),
    "MAERegressionOutput": _regression("", _side),
}
