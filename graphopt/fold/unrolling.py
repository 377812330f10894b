"""Recurrent cells, recorded step by step."""

from __future__ import annotations

from typing import Any

from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.fold.folding import Fold
from graphopt.fold.nodes import Node
from graphopt.frontend.blocks import descendants, describe

mx = import_mxnet()
_NDArray: Any = mx.nd.NDArray


def fold_unroll(
    cell: Any, fold: Fold, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC"
) -> tuple[list[Node], tuple[Node, ...]]:
    """Record a recurrent cell over a sequence, step by step.

    Args:
        cell: a Gluon recurrent cell.
        fold: that records.
        length: number of steps.
        inputs: ``(1, length, C)``, or ``(length, 1, C)`` for layout ``TNC``; or a list of
            ``length`` arrays or nodes ``(1, C)``.
        begin_state: list of states ``(1, H)``, arrays or nodes; None are the cell's own.
        layout: of ``inputs``, if it is one array.

    Returns:
        The outputs of all steps, and the states after the last one.

    Raises:
        InputError: ``inputs`` does not have ``length`` steps, or ``layout`` is unknown.
        UnsupportedError: the cell keeps more between steps than its states.
    """
    keeping = (mx.gluon.rnn.ZoneoutCell, mx.gluon.contrib.rnn.VariationalDropoutCell)
    for block in descendants(cell):
        if isinstance(block, keeping):
            raise UnsupportedError(
                f"{describe(block)} keeps arrays between steps, which would be mixed with those of"
                " other sequences: unroll it inside a Block, and call that by graphopt.batch"
            )
    cell.reset()
    steps = _steps(length, inputs, layout)
    states: Any = begin_state
    if states is None:
        first = steps[0]
        states = (
            fold.record(0, _begin_state, cell).split(len(cell.state_info()))
            if isinstance(first, Node)
            else cell.begin_state(
                batch_size=first.shape[0], func=mx.nd.zeros, ctx=first.ctx, dtype=first.dtype
            )
        )
    outputs = []
    for step in steps:
        output, after = fold.record(0, cell, step, states).split(2)
        outputs.append(output)
        states = after.split(len(states))
    return outputs, tuple(states)


def _begin_state(cell: Any) -> Any:
    """The states of one sequence; a SequentialRNNCell takes their number by name only."""
    return cell.begin_state(batch_size=1)


def _steps(length: int, inputs: Any, layout: str) -> list[Any]:
    if layout not in ("NTC", "TNC"):
        raise InputError(f"layout {layout!r} is none of NTC, TNC")
    axis = layout.index("T")
    is_one = isinstance(inputs, _NDArray)
    if not is_one and not isinstance(inputs, (list, tuple)):
        raise InputError(f"inputs is a {type(inputs).__name__}: give an array, or a list of steps")
    if is_one and len(inputs.shape) < 2:
        raise InputError(f"inputs has shape {inputs.shape}: give an array of layout {layout}")
    found = inputs.shape[axis] if is_one else len(inputs)
    if found != length or length < 1:
        raise InputError(f"inputs has {found} steps, and length is {length}: give one per step")
    if not is_one:
        return list(inputs)
    steps = mx.nd.split(inputs, num_outputs=length, axis=axis, squeeze_axis=True)
    return [steps] if length == 1 else list(steps)
