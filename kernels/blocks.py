"""A kernel over arrays whose channels lie in blocks: ``(n, c / b, ..., b)`` for ``(n, c, ...)``.

Of a spec without reductions that is another spec, with the place in a block as its last axis. What
runs along the channels alone, or along samples and channels, has its numbers in the same order in
blocks and in rows.
"""

from __future__ import annotations

from dataclasses import replace

from graphopt.errors import GraphoptError
from graphopt.kernels.spec import KernelSpec, Operand, Result

#: In front of a spec, what the bridge asks for.
PREFIX = "blocks "


def in_blocks(spec: KernelSpec) -> KernelSpec:
    """The kernel over blocks.

    Args:
        spec: over (samples, channels, and more); operands along all axes are in blocks.

    Raises:
        GraphoptError: it has reductions or too few axes, or an operand along channels and some of
            the axes behind them, whose numbers are in another order in blocks.
    """
    if spec.inner or spec.rank < 3:
        raise GraphoptError(f"no kernel over blocks of channels: {spec}")
    outputs = (Result(found.value, _operand(found.operand, spec.rank)) for found in spec.outputs)
    return replace(
        spec,
        rank=spec.rank + 1,
        inputs=tuple(_operand(operand, spec.rank) for operand in spec.inputs),
        outputs=tuple(outputs),
    )


def _operand(operand: Operand, rank: int) -> Operand:
    if 1 not in operand.axes:
        return operand
    behind = operand.axes[operand.axes.index(1) + 1 :]
    if operand.axes != tuple(range(rank)) and any(axis is not None for axis in behind):
        raise GraphoptError(f"{operand} is in another order in blocks of channels")
    return Operand(operand.dtype, (*operand.axes, rank))
