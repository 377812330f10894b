"""One convolution by itself: what its time depends on, and the region to measure it by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Node
from graphopt.ir.types import TensorType
from graphopt.kernels.convolutions.spec import (
    DIRECT,
    PAIRED,
    WINOGRAD,
    ConvolutionsSpec,
    is_paired,
)
from graphopt.kernels.convolutions.transposed import made_by_convolution, transposed
from graphopt.kernels.convolutions.windows import (
    Images,
    Window,
    groups_of,
    is_deconvolution,
    size_of,
    tiles_of,
    window,
)

#: Fewer tiles than this are less work directly, whose weights are a ninth of the memory or so.
_FEWEST_TILES = 4
#: With fewer channels most of a block's are not there: none to be paired.
_FEWEST_PAIRED = 16
#: Channels that Winograd's products sum over at least and at most; see kMostBlocks in the bridge.
_FEWEST_CHANNELS, _MOST_CHANNELS = 8, 2048


@dataclass(frozen=True)
class Layer:
    """What a convolution's time depends on; along one axis, with images of one line."""

    shape: Images
    made: Images
    window: Window
    groups: int = 1
    axes: int = 2


def layer_of(graph: Graph, node: Node) -> Layer:
    """The layer that a node of a region is; a deconvolution is the convolution it becomes."""
    shape, made = size_of(graph, node.inputs[0]), size_of(graph, node.out())
    if is_deconvolution(node):
        return Layer(shape, made_by_convolution(graph, node), transposed(node).window)
    return Layer(shape, made, window(graph, node), groups_of(node))


def layer_along_axis(graph: Graph, node: Node) -> Layer | None:
    """The layer that a convolution along one axis is; ``None`` if it is none, or not known."""
    types = [graph.type_of(value) for value in (node.inputs[0], node.out())]
    if any(t.rank != 3 or t.dtype != "float32" or not t.is_static or not t.size for t in types):
        return None
    if node.attrs.get("layout") not in (None, "None", "NCW"):
        return None
    shape, made = map(_of_one_line, types)
    kernel, stride, dilation, pad = (_one(node, name, usual) for name, usual in _USUAL.items())
    window = Window((1, kernel), (1, stride), (1, dilation), (0, pad))
    return Layer(shape, made, window, groups_of(node), axes=1)


_USUAL: Final = {"kernel": 1, "stride": 1, "dilate": 1, "pad": 0}


def _of_one_line(type_: TensorType) -> Images:
    n, c, w = (extent or 0 for extent in type_.shape or ())
    return n, c, 1, w


def _one(node: Node, name: str, usual: int) -> int:
    """An attribute of one extent."""
    found = node.attrs.get(name)
    if isinstance(found, tuple):
        return int(str(found[0])) if found else usual
    return usual if found in (None, "None") else int(str(found))


def algorithms(layer: Layer) -> tuple[str, ...]:
    """How a layer can be computed, what rounds least first."""
    channels, found = layer.shape[1], layer.window
    if layer.groups > 1:
        return (DIRECT,)
    names = [DIRECT] if channels < _FEWEST_PAIRED else [DIRECT, PAIRED]
    fits = found.kernel == (3, 3) and found.stride == (1, 1)
    if not fits or not _FEWEST_CHANNELS <= channels <= _MOST_CHANNELS:
        return tuple(names)
    for name, tile in WINOGRAD.items():
        if is_paired(name) and channels < _FEWEST_PAIRED:
            continue
        if tiles_of(layer.made, found.dilation, tile) >= _FEWEST_TILES:
            names.append(name)
    return tuple(names)


def weight_bytes(layer: Layer, algorithm: str) -> int:
    """What the weights of a layer take by an algorithm, but for channels that fill up a block."""
    kernel = layer.window.kernel
    each = (WINOGRAD[algorithm] + 2) ** 2 if algorithm in WINOGRAD else kernel[0] * kernel[1]
    return 4 * each * layer.made[1] * layer.shape[1] // layer.groups


def single(layer: Layer, lanes: int, algorithm: str) -> ConvolutionsSpec:
    """A region of one convolution with a bias."""
    body = Graph("region")
    channels, filters = layer.shape[1], layer.made[1]
    found, groups = layer.window, layer.groups
    weights = (filters, channels // groups, *found.kernel)
    x = body.add_input("in0", DATA, TensorType("float32", layer.shape)).out()
    w = body.add_input("in1", PARAM, TensorType("float32", weights)).out()
    b = body.add_input("in2", PARAM, TensorType("float32", (filters,))).out()
    attrs = {
        "kernel": found.kernel,
        "stride": found.stride,
        "dilate": found.dilation,
        "pad": found.pad,
        "num_filter": filters,
        "num_group": groups,
    }
    made = TensorType("float32", layer.made)
    y = body.add("Convolution", [x, w, b], attrs, [made], "convolution")
    body.set_outputs([y.out()])
    return ConvolutionsSpec(body, lanes, (algorithm,))
