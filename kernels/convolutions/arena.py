"""Where the images of a region lie: one arena, which they share by their lifetimes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphopt.kernels.convolutions.steps import View


@dataclass(eq=False)
class Buffer:
    """Images in the arena: a value, several side by side, or scratch. Equal to itself only.

    Of rows of numbers, images of one pixel, the same block of all lies side by side, as the pixels
    of one image do: so they are multiplied by a matrix together.
    """

    blocks: int
    height: int
    width: int
    lanes: int
    rows: int = 0
    halo: int = 0
    scratch: int = 0
    first: int = -1  # steps that write or read it
    last: int = -1
    at: int = 0

    @property
    def row(self) -> int:
        """Floats from a line of pixels to the next one."""
        return (self.width + 2 * self.halo) * self.lanes

    @property
    def block(self) -> int:
        """Floats from a block to the next one."""
        return self.rows * self.lanes or (self.height + 2 * self.halo) * self.row

    @property
    def image(self) -> int:
        """Floats from an image to the next one."""
        return self.lanes if self.rows else self.blocks * self.block

    def size(self, count: int) -> int:
        """Floats, up to a whole number of cache lines."""
        images = 1 if self.rows else count
        size = self.scratch or images * self.blocks * self.block
        return -(-size // 16) * 16

    def touch(self, step: int) -> None:
        """Note that a step reads or writes it."""
        self.first = step if self.first < 0 else self.first
        self.last = step


@dataclass(frozen=True)
class Place:
    """Some adjacent blocks of a buffer."""

    buffer: Buffer
    block: int
    blocks: int

    def view(self) -> View:
        """Where that is, once the buffer is placed."""
        buffer = self.buffer
        at = buffer.at + self.block * buffer.block
        at += buffer.halo * (buffer.row + buffer.lanes)
        return View(
            at,
            buffer.image,
            buffer.block,
            buffer.row,
            self.blocks,
            buffer.height,
            buffer.width,
            buffer.halo,
        )


def first_fit(buffers: Sequence[Buffer], count: int) -> int:
    """Place the largest buffers first, each as low as it can lie; returns where the highest ends.

    For the few hundred images of a network this is within some percent of the best, and at once;
    :mod:`graphopt.memory` would be compiled first.
    """
    placed: list[Buffer] = []
    end = 0
    for buffer in sorted(buffers, key=lambda b: (-b.size(count), b.first)):
        size = buffer.size(count)
        around = [p for p in placed if p.first <= buffer.last and buffer.first <= p.last]
        buffer.at = 0
        for other in sorted(around, key=lambda p: p.at):
            if other.at >= buffer.at + size:
                break
            buffer.at = max(buffer.at, other.at + other.size(count))
        placed.append(buffer)
        end = max(end, buffer.at + size)
    return end
