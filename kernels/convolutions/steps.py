"""Steps of a program over blocked images, as kernels/bridge/blocked.h reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, get_args

from graphopt.kernels.convolutions.activations import Activation, Function
from graphopt.kernels.convolutions.transposed import Transposed
from graphopt.kernels.convolutions.windows import Window

_ACTIVATIONS = get_args(Function)


class Kind(IntEnum):
    """What a step does."""

    LOAD = 0
    LOAD_PLANAR = 1
    DIRECT = 2
    WINOGRAD = 3
    DEPTHWISE = 4
    POOL = 5
    COMBINE = 6
    STORE = 7
    STRETCH = 8
    SHUFFLE = 9


class Combination(IntEnum):
    """What a step that combines does with its other operand."""

    SUM = 0
    PRODUCT = 1
    GATE = 2  # of a number for each channel


class View(NamedTuple):
    """Where images lie in the arena; everything counts floats."""

    at: int = 0
    image_stride: int = 0
    block_stride: int = 0
    row_stride: int = 0
    blocks: int = 0
    height: int = 0
    width: int = 0
    halo: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether the rows of a block lie one behind the other without a gap."""
        return self.halo == 0

    def as_pixels(self, count: int) -> View:
        """Images of one pixel as the pixels of one image."""
        return View(self.at, 0, self.block_stride, self.block_stride, self.blocks, 1, count)

    def as_row(self) -> View:
        """The same pixels as one long row."""
        pixels = self.height * self.width
        return View(
            self.at, self.image_stride, self.block_stride, self.block_stride, self.blocks, 1, pixels
        )


@dataclass(frozen=True)
class Step:
    """One step; see ``struct Step`` in the bridge for the fields."""

    kind: Kind
    images: int
    into: View = field(default_factory=View)
    source: View = field(default_factory=View)
    other: View | None = None
    array: int = -1
    weights: int = -1
    bias: int = -1
    slopes: int = -1
    combination: Combination = Combination.SUM
    channels: int = 0
    filters: int = 0
    groups: int = 1
    bundle: int = 1
    window: Window = field(default_factory=lambda: Window((1, 1)))
    is_planar: bool = False
    is_paired: bool = False
    transposed: Transposed | None = None
    tile: int = 0
    chunk: int = 0
    scratch: int = 0
    is_average: bool = False
    counts_padding: bool = False
    activation: Activation = field(default_factory=Activation)

    def numbers(self) -> Iterator[int]:
        """The fields in the order of the bridge."""
        yield from (int(self.kind), self.images)
        for view in (self.source, self.into, self.other or View()):
            yield from view
        yield int(self.other is not None)
        yield from (self.array, self.weights, self.bias, self.slopes, int(self.combination))
        yield from (self.channels, self.filters, self.groups, self.bundle)
        window = self.window
        for pair in (window.kernel, window.stride, window.dilation, window.pad):
            yield from pair
        yield from (int(self.is_planar), int(self.is_paired), 0)
        yield from (self.tile, self.chunk, self.scratch)
        yield from (int(self.is_average), int(self.counts_padding))
        turned = self.transposed or Transposed((0, 0), (0, 0), (0, 0))
        for pair in (turned.kernel, turned.stride, turned.pad):
            yield from pair
        last = self.activation
        yield from (_ACTIVATIONS.index(last.kind), int(last.gated))
        numbers = struct.pack("=dddd", last.low, last.high, last.scale, last.shift)
        yield from struct.unpack("=qqqq", numbers)
