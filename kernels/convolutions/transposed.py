"""Deconvolutions as convolutions: of every output pixel that one input pixel stands for at once.

An output pixel o = q s + a of a deconvolution with kernel k, stride s and padding p sums over the
inputs q + d with the taps a + p - s d. So each of its s phases a is a convolution with a part of
the taps, and all together are one with filters for each phase and zeros where a phase has no tap.
Its output has the pixels of all phases as channels, and is brought to their places behind it (Shi
et al., Is the deconvolution layer the same as a convolutional layer?, 2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.kernels.convolutions.windows import Images, Pair, Window, pair_of, size_of

#: Channels that a phase has a multiple of, with zeros: whole blocks on every processor.
_WHOLE = 16


@dataclass(frozen=True)
class Transposed:
    """A deconvolution's own window: (vertical, horizontal) pixels each."""

    kernel: Pair
    stride: Pair
    pad: Pair

    @property
    def phases(self) -> int:
        """Output pixels that stand where one input pixel does."""
        return self.stride[0] * self.stride[1]

    @property
    def window(self) -> Window:
        """That of the convolution."""
        kernel, pad = zip(*map(_taps, self.kernel, self.stride, self.pad), strict=True)
        return Window((kernel[0], kernel[1]), pad=(pad[0], pad[1]))


def transposed(node: Node) -> Transposed:
    """The window of a ``Deconvolution``."""
    kernel, stride, pad = (
        pair_of(node.attrs, name, default)
        for name, default in (("kernel", (1, 1)), ("stride", (1, 1)), ("pad", (0, 0)))
    )
    return Transposed(kernel, stride, pad)


def made_by_convolution(graph: Graph, node: Node) -> Images:
    """Sizes of what the convolution makes: channels are phases of whole blocks of filters."""
    count, filters, height, width = size_of(graph, node.out())
    found = transposed(node)
    channels = found.phases * -(-filters // _WHOLE) * _WHOLE
    return count, channels, -(-height // found.stride[0]), -(-width // found.stride[1])


def _taps(kernel: int, stride: int, pad: int) -> Pair:
    """How many inputs an output sums over at most, and how many of them are before its own."""
    before = -math.ceil((pad - kernel + 1) / stride)
    behind = (stride - 1 + pad) // stride
    return before + behind + 1, before
