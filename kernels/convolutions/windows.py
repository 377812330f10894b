"""Which operators a region of convolutions can hold, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical

Pair = tuple[int, int]
Images = tuple[int, int, int, int]

#: What is joined begins at multiples of so many channels: whole blocks on every processor, so that
#: regions are the same on all.
_JOINT: Final = 16
#: Pixels of a halo at most: more would be mostly zeros.
_MOST_PADDING: Final = 16


@dataclass(frozen=True)
class Window:
    """How an operator walks over an image: (vertical, horizontal) pixels each."""

    kernel: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    pad: Pair = (0, 0)

    @property
    def is_pointwise(self) -> bool:
        """Whether every output pixel is made from the one input pixel at its place."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.pad == (0, 0)


@dataclass(frozen=True)
class Activation:
    """What a step does last; ``low`` and ``high`` bound a clip, ``low`` is a leaky slope."""

    kind: Literal["none", "relu", "clip", "leaky"] = "none"
    low: float = 0.0
    high: float = 0.0


def images(graph: Graph, value: Value) -> Images | None:
    """(images, channels, height, width) of a float32 value that has them all, or ``None``.

    Rows of numbers, (rows, columns), are images of one pixel.
    """
    found = graph.type_of(value)
    if found.dtype != "float32" or not found.is_static or not found.size:
        return None
    if found.rank not in (2, 4):
        return None
    n, c, h, w = (*(extent or 0 for extent in found.shape or ()), 1, 1)[:4]
    return n, c, h, w


def size_of(graph: Graph, value: Value) -> Images:
    """As :func:`images`, of a value that a region holds."""
    found = images(graph, value)
    assert found is not None
    return found


def why_not(graph: Graph, node: Node) -> str | None:
    """Why a region cannot hold a node, or ``None``."""
    rule = _RULES.get(canonical(node.op))
    if rule is None:
        return "it has no form over blocked images"
    values = (node.inputs[0], node.out()) if has_weights(node) else (*node.inputs, node.out())
    if any(images(graph, value) is None for value in values):
        return "it does not work on float32 images of known size"
    return rule(graph, node)


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution."""
    return canonical(node.op) == "Convolution"


def is_dense(node: Node) -> bool:
    """Whether a node multiplies whole images by a matrix."""
    return canonical(node.op) == "FullyConnected"


def has_weights(node: Node) -> bool:
    """Whether all inputs of a node but the first are learned."""
    return is_convolution(node) or is_dense(node)


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether every channel of a convolution has a filter of its own."""
    groups = _number(node.attrs, "num_group", 1)
    given, made = images(graph, node.inputs[0]), images(graph, node.out())
    return given is not None and made is not None and 1 < groups == given[1] == made[1]


def window(graph: Graph, node: Node) -> Window:
    """The window of a convolution, of pooling, or of a product with whole images."""
    attrs = node.attrs
    if is_dense(node):
        return Window(size_of(graph, node.inputs[0])[2:])
    if not is_convolution(node) and attrs.flag("global_pool"):
        return Window(size_of(graph, node.inputs[0])[2:])
    one, none = (1, 1), (0, 0)
    return Window(
        _pair(attrs, "kernel", one),
        _pair(attrs, "stride", one),
        _pair(attrs, "dilate", one) if is_convolution(node) else one,
        _pair(attrs, "pad", none),
    )


def activation(node: Node) -> Activation | None:
    """What a pointwise node of one operand does, or ``None`` if it is none that steps end with."""
    op, attrs = canonical(node.op), node.attrs
    if op == "relu" or (op == "Activation" and attrs.get("act_type") == "relu"):
        return Activation("relu")
    if op == "LeakyReLU" and attrs.get("act_type", "leaky") == "leaky":
        return Activation("leaky", _real(attrs, "slope", 0.25))
    if op == "clip":
        return Activation("clip", _real(attrs, "a_min", 0.0), _real(attrs, "a_max", 0.0))
    return None


def is_sum(node: Node) -> bool:
    """Whether a node adds images of one size."""
    return canonical(node.op) in _SUMS


def is_concat(node: Node) -> bool:
    """Whether a node puts channels side by side."""
    return canonical(node.op) == "Concat"


def stretch(node: Node) -> Pair | None:
    """How often a node repeats lines and columns of pixels, or ``None`` if it is none that does."""
    attrs = node.attrs
    if canonical(node.op) == "UpSampling":
        scale = _number(attrs, "scale", 1)
        return scale, scale
    if canonical(node.op) != "repeat":
        return None
    times = _number(attrs, "repeats", 1)
    return (times, 1) if _number(attrs, "axis", 0) in (2, -2) else (1, times)


def _convolution(graph: Graph, node: Node) -> str | None:
    attrs = node.attrs
    if attrs.get("layout") not in (None, "None", "NCHW"):
        return f"its layout is {attrs['layout']}"
    groups = _number(attrs, "num_group", 1)
    if groups != 1 and not is_depthwise(graph, node):
        return f"it has {groups} groups"
    found = window(graph, node)
    if max(found.pad) > _MOST_PADDING:
        return "its padding is large"
    return None


def _dense(graph: Graph, node: Node) -> str | None:
    if graph.type_of(node.out()).rank != 2:
        return "it works on the last axis alone"
    return None


def _pooling(graph: Graph, node: Node) -> str | None:
    attrs = node.attrs
    kind = attrs.get("pool_type", "max")
    if kind not in ("max", "avg"):
        return f"pool_type={kind!r} has no form over blocked images"
    if attrs.get("layout") not in (None, "None", "NCHW"):
        return f"its layout is {attrs['layout']}"
    convention = attrs.get("pooling_convention", "valid")
    if convention not in ("valid", "full"):
        return f"pooling_convention={convention!r} has no form over blocked images"
    given, made = size_of(graph, node.inputs[0]), size_of(graph, node.out())
    found = window(graph, node)
    for kernel, stride, pad, size, count in zip(
        found.kernel, found.stride, found.pad, given[2:], made[2:], strict=True
    ):
        start = (count - 1) * stride - pad
        if pad >= kernel or start >= size or (kind == "avg" and start + kernel > size + pad):
            return "a window of it lies outside the image"
    return None


def _activation(graph: Graph, node: Node) -> str | None:
    return None if activation(node) else "steps do not end with this activation"


def _sum(graph: Graph, node: Node) -> str | None:
    if len(node.inputs) < 2:
        return "it adds nothing"
    sizes = {images(graph, value) for value in node.inputs}
    return None if len(sizes) == 1 else "its operands differ in size"


def _up_sampling(_graph: Graph, node: Node) -> str | None:
    if len(node.inputs) != 1:
        return "it joins images of several sizes"
    kind = node.attrs.get("sample_type")
    return None if kind == "nearest" else f"sample_type={kind!r} has no form over blocked images"


def _repeat(graph: Graph, node: Node) -> str | None:
    if graph.type_of(node.out()).rank == 4 and _number(node.attrs, "axis", 0) in (2, 3, -2, -1):
        return None
    return "it repeats something else than lines and columns"


def _concat(graph: Graph, node: Node) -> str | None:
    rank = graph.type_of(node.out()).rank or 0
    if _number(node.attrs, "dim", 1) not in (1, 1 - rank):
        return "it does not join channels"
    for value in node.inputs[:-1]:
        found = images(graph, value)
        if found is not None and found[1] % _JOINT:
            return f"it joins {found[1]} channels, which are no whole blocks of {_JOINT}"
    return None


_SUMS: Final = frozenset({"elemwise_add", "broadcast_add", "add_n"})
_RULES: Final[dict[str, Callable[[Graph, Node], str | None]]] = {
    "Convolution": _convolution,
    "FullyConnected": _dense,
    "Pooling": _pooling,
    "Activation": _activation,
    "relu": _activation,
    "LeakyReLU": _activation,
    "clip": _activation,
    "Concat": _concat,
    "UpSampling": _up_sampling,
    "repeat": _repeat,
    **dict.fromkeys(_SUMS, _sum),
}


def _number(attrs: Attrs, name: str, default: int) -> int:
    found = attrs.get(name)
    return default if found in (None, "None") else int(str(found))


def _real(attrs: Attrs, name: str, default: float) -> float:
    found = attrs.get(name)
    return default if found in (None, "None") else float(str(found))


def _pair(attrs: Attrs, name: str, default: Pair) -> Pair:
    found = attrs.get(name)
    if not isinstance(found, tuple) or not found:
        return default
    y, x = (int(str(extent)) for extent in found)
    return y, x
