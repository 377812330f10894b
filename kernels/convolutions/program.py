"""A region of convolutions as the bridge runs it."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.kernels.convolutions.steps import Step


@dataclass(frozen=True)
class Program:
    """What the bridge runs; sizes count floats.

    Attributes:
        arena: where all images lie, by turns.
        inputs: shapes, images first.
        data: how many inputs are images.
        outputs: shapes.
        steps: in their order.
        written: values that steps make for each other, whatever shares a place; not what fills up
            blocks, so that it is the same on all processors.
    """

    arena: int
    inputs: tuple[tuple[int, ...], ...]
    data: int
    outputs: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    written: int

    def numbers(self, lanes: int) -> list[int]:
        """The program as ``ReadConvolutions`` in the bridge reads it."""
        found = [lanes, self.arena, self.data]
        found += [len(self.inputs), len(self.outputs), len(self.steps)]
        for shape in (*self.inputs, *self.outputs):
            found += [len(shape), *shape]
        for step in self.steps:
            found += step.numbers()
        return found
