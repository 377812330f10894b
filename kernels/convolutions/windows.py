"""Which operators a region of convolutions can hold, and what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, Value
from graphopt.ir.ops import canonical
from graphopt.kernels.convolutions.activations import UNARY, unary
from graphopt.kernels.products import FEW_ROWS

Pair = tuple[int, int]
Images = tuple[int, int, int, int]

#: What is joined begins at multiples of so many channels: whole blocks on every processor, so that
#: regions are the same on all.
_JOINT: Final = 16
#: Pixels of a halo at most: more would be mostly zeros.
_MOST_PADDING: Final = 16
#: Of deconvolutions: with larger strides, or fewer channels, too many numbers would be zero.
_MOST_STRIDE: Final = 4
_FEWEST_CHANNELS: Final = 8
#: Bytes of a dense layer's weights from which on they are not packed for few images.
_LARGE_BYTES: Final = 64 << 20
#: Channels of groups that a block has several of.
_NARROW: Final = (1, 2, 4, 8)


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


def tiles_of(made: Images, dilation: Pair, tile: int) -> int:
    """Tiles of Winograd's algorithm; where a window's pixels lie apart, so do those of a tile."""
    count = made[0]
    for size, apart in zip(made[2:], dilation, strict=True):
        count *= apart * -(-size // (apart * tile))
    return count


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


def is_deconvolution(node: Node) -> bool:
    """Whether a node is a transposed convolution."""
    return canonical(node.op) == "Deconvolution"


def has_algorithm(node: Node) -> bool:
    """Whether there are several ways to compute a node."""
    return is_convolution(node) or is_deconvolution(node)


def is_dense(node: Node) -> bool:
    """Whether a node multiplies whole images by a matrix."""
    return canonical(node.op) == "FullyConnected"


def has_weights(node: Node) -> bool:
    """Whether all inputs of a node but the first are learned."""
    return has_algorithm(node) or is_dense(node) or is_prelu(node)


def is_prelu(node: Node) -> bool:
    """Whether a node multiplies what is not positive by a learned slope for each channel."""
    return canonical(node.op) == "LeakyReLU" and node.attrs.get("act_type") == "prelu"


def groups_of(node: Node) -> int:
    """Groups of channels of a convolution, which each are seen by as many filters."""
    return _number(node.attrs, "num_group", 1)


def widths(graph: Graph, node: Node) -> Pair:
    """Channels and filters of each group of a convolution."""
    channels, filters = (size_of(graph, value)[1] for value in (node.inputs[0], node.out()))
    return channels // groups_of(node), filters // groups_of(node)


def is_narrow(channels: int, filters: int) -> bool:
    """Whether a block has several whole groups, or one."""
    return channels == filters and channels in _NARROW


def bundle(groups: int, channels: int, filters: int) -> int:
    """How many groups are whole blocks of channels and of filters together; 0 if too many are."""
    if groups == 1:
        return 1
    blocks = (_JOINT // math.gcd(_JOINT, width) for width in (channels, filters))
    found = math.lcm(*blocks)
    return 0 if groups % found else found


def is_depthwise(graph: Graph, node: Node) -> bool:
    """Whether every channel of a convolution has a filter of its own."""
    given, made = images(graph, node.inputs[0]), images(graph, node.out())
    return given is not None and made is not None and 1 < groups_of(node) == given[1] == made[1]


def window(graph: Graph, node: Node) -> Window:
    """The window of a convolution, of pooling, or of a product with whole images."""
    attrs = node.attrs
    if is_dense(node):
        return Window(size_of(graph, node.inputs[0])[2:])
    if is_adaptive(node) or (not is_convolution(node) and attrs.flag("global_pool")):
        return Window(size_of(graph, node.inputs[0])[2:])
    one, none = (1, 1), (0, 0)
    return Window(
        pair_of(attrs, "kernel", one),
        pair_of(attrs, "stride", one),
        pair_of(attrs, "dilate", one) if is_convolution(node) else one,
        pair_of(attrs, "pad", none),
    )


def is_sum(node: Node) -> bool:
    """Whether a node adds images of one size."""
    return canonical(node.op) in _SUMS


def is_product(node: Node) -> bool:
    """Whether a node multiplies two images."""
    return canonical(node.op) in _PRODUCTS


def is_gate(graph: Graph, value: Value, of: Value) -> bool:
    """Whether ``value`` has a number for each channel of another's images."""
    gate, size = images(graph, value), images(graph, of)
    ranks = graph.type_of(value).rank, graph.type_of(of).rank
    return gate is not None and size is not None and gate == (*size[:2], 1, 1) and ranks == (4, 4)


def is_pooling(node: Node) -> bool:
    """Whether a node reduces windows of pixels."""
    return canonical(node.op) == "Pooling" or is_adaptive(node)


def is_adaptive(node: Node) -> bool:
    """Whether a node averages as many windows as its output has pixels; here it has one."""
    return canonical(node.op) == _ADAPTIVE


def is_reshape(node: Node) -> bool:
    """Whether a node reads images of one pixel as rows of numbers, or rows as such images."""
    return canonical(node.op) in _RESHAPES


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
    width, made = widths(graph, node)
    if not bundle(groups_of(node), width, made) and not is_narrow(width, made):
        return f"it has {groups_of(node)} groups of {width} channels and {made} filters"
    found = window(graph, node)
    if max(found.pad) > _MOST_PADDING:
        return "its padding is large"
    return None


def _deconvolution(graph: Graph, node: Node) -> str | None:
    attrs = node.attrs
    if attrs.get("layout") not in (None, "None", "NCHW"):
        return f"its layout is {attrs['layout']}"
    if groups_of(node) != 1:
        return f"it has {groups_of(node)} groups"
    if pair_of(attrs, "dilate", (1, 1)) != (1, 1):
        return "it is dilated"
    if any(pair_of(attrs, "target_shape", (0, 0))):
        return "its padding follows from target_shape"
    given, made = size_of(graph, node.inputs[0]), size_of(graph, node.out())
    sizes = (pair_of(attrs, name, (1, 1)) for name in ("kernel", "stride"))
    for kernel, stride, pad in zip(*sizes, pair_of(attrs, "pad", (0, 0)), strict=True):
        if stride > min(_MOST_STRIDE, kernel) or pad >= kernel:
            return f"its stride is {stride}, its kernel {kernel} and its padding {pad}"
    if given[1] < _FEWEST_CHANNELS or made[1] < _FEWEST_CHANNELS:
        return "it has few channels"
    return None


def _dense(graph: Graph, node: Node) -> str | None:
    if graph.type_of(node.out()).rank != 2:
        return "it works on the last axis alone"
    rows, weights = size_of(graph, node.out())[0], graph.type_of(node.inputs[1]).nbytes or 0
    if rows <= FEW_ROWS and weights >= _LARGE_BYTES:  # to read them once is all that it takes
        return f"its {weights >> 20} MiB of weights would be packed for {rows} rows"
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


def _adaptive(graph: Graph, node: Node) -> str | None:
    pixels = size_of(graph, node.out())[2:]
    return None if pixels == (1, 1) else "it averages more than the whole image"


def _reshape(graph: Graph, node: Node) -> str | None:
    given, made = size_of(graph, node.inputs[0]), size_of(graph, node.out())
    return None if given == made and made[2:] == (1, 1) else "it moves pixels to other channels"


def _activation(graph: Graph, node: Node) -> str | None:
    if unary(node) is None:
        return "steps do not end with this activation"
    if not is_prelu(node):
        return None
    slopes, channels = graph.type_of(node.inputs[1]), size_of(graph, node.inputs[0])[1]
    fits = slopes.dtype == "float32" and slopes.shape in ((channels,), (1,))
    return None if fits else "its slopes are not one for each channel"


def _are_alike(graph: Graph, node: Node) -> bool:
    """Whether operands and result have one shape; (N, C) and (N, C, 1, 1) would be broadcast."""
    return len({graph.type_of(value).shape for value in (*node.inputs, node.out())}) == 1


def _sum(graph: Graph, node: Node) -> str | None:
    if len(node.inputs) < 2:
        return "it adds nothing"
    return None if _are_alike(graph, node) else "its operands differ in size"


def _product(graph: Graph, node: Node) -> str | None:
    if _are_alike(graph, node):
        return None
    a, b = node.inputs
    found = is_gate(graph, a, b) or is_gate(graph, b, a)
    return None if found else "its operands are neither images of one size nor a gate"


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


_ADAPTIVE: Final = "_contrib_AdaptiveAvgPooling2D"
_RESHAPES: Final = frozenset({"Reshape", "Flatten", "expand_dims", "squeeze"})
_SUMS: Final = frozenset({"elemwise_add", "broadcast_add", "add_n"})
_PRODUCTS: Final = frozenset({"elemwise_mul", "broadcast_mul"})
_RULES: Final[dict[str, Callable[[Graph, Node], str | None]]] = {
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "FullyConnected": _dense,
    "Pooling": _pooling,
    _ADAPTIVE: _adaptive,
    **dict.fromkeys(_RESHAPES, _reshape),
    "Concat": _concat,
    "UpSampling": _up_sampling,
    "repeat": _repeat,
    **dict.fromkeys(UNARY, _activation),
    **dict.fromkeys(_SUMS, _sum),
    **dict.fromkeys(_PRODUCTS, _product),
}


def _number(attrs: Attrs, name: str, default: int) -> int:
    found = attrs.get(name)
    return default if found in (None, "None") else int(str(found))


def pair_of(attrs: Attrs, name: str, default: Pair) -> Pair:
    """An attribute of two extents."""
    found = attrs.get(name)
    if not isinstance(found, tuple) or not found:
        return default
    y, x = (int(str(extent)) for extent in found)
    return y, x
