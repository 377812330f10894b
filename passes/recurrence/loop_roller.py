"""A chain of steps whose values are no matrices made one recurrence."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from graphopt.errors import GraphoptError
from graphopt.passes.recurrence import sequences
from graphopt.passes.recurrence.layout import Layout
from graphopt.passes.recurrence.loops import Loop, add_loop
from graphopt.passes.recurrence.roller import Roller

#: Operators of a step on rows. Kernels of larger ones, as of a CRF over 16 tags, take more than
#: three seconds longer to compile than those of unrolled steps, and are little faster.
_MOST_OPERATORS: Final = 200


class LoopRoller(Roller):
    """Takes the steps of a chain as the body of a loop.

    Its values may have any number of axes behind that of the batch. The step comes out with one
    state for each part of those.
    """

    takes = Roller.takes | {"expand_dims", "squeeze"}

    def roll(self) -> str:
        """Replace the chain; returns what was done.

        Raises:
            GraphoptError: kernels cannot compute its steps; the message says why.
        """
        varying, constant = self._prepared()
        if not all(sequences.extents(self.graph, self.slots[n][0]) for n in varying):
            raise GraphoptError("its steps read values without a row for each sequence")
        emitted = self._emitted()
        over, arrays = self._sequences(varying)
        if over.batch_major:
            over = replace(over, batch_major=False)
            arrays = [sequences.swapped(self.graph, value, "steps_swap") for value in arrays]
        body = self._body(varying, [], constant, emitted)
        states = len(self.chain.states)
        body.set_outputs([*body.outputs[states:], *body.outputs[:states]])
        inputs = [node.out() for node in body.inputs]
        read, behind = inputs[: len(varying)], inputs[len(varying) + states :]
        loop = Loop(
            body,
            Layout(over.steps, over.batch, batched=True),
            dict(zip(read, arrays, strict=True)),
            dict(zip(inputs[len(varying) :], self.chain.initial, strict=False)),
            dict(zip(behind, (self.slots[n][0] for n in constant), strict=True)),
            over.reverse,
        )
        leaving = add_loop(self.graph, loop, self._name(), self._origin(), _MOST_OPERATORS)
        self._hand_out(leaving, over, emitted)
        return self._done()
