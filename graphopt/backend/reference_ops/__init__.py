"""The values of MXNet operators in plain numpy: slow, obvious, the oracle of the tests.

One function per operator, found by its MXNet name or any of its aliases in the tables of the topic
modules. What a value is follows MXNet 1.9.1: shapes, dtypes, defaults, special codes. How it is
computed does not: sums and transcendental functions run in float64 and are rounded once, so the
result is closer to the exact one than MXNet's.

    >>> import numpy as np
    >>> evaluate("Reshape", [np.zeros((2, 3, 4), np.float32)], {"shape": (0, -3)})[0].shape
    (2, 12)
"""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.backend.reference_ops import (
    arithmetic,
    convolution,
    creation,
    detection,
    dropout,
    elementwise,
    indexing,
    joining,
    matmul,
    normalize,
    ordering,
    pooling,
    reduce,
    rnn,
    shape,
    softmax,
)
from graphopt.backend.reference_ops.call import Array, Attrs, Call, Table, UnsupportedOp

__all__ = ["Attrs", "UnsupportedOp", "evaluate", "supported_ops", "supports"]

_TABLE: Table = {
    **arithmetic.TABLE,
    **convolution.TABLE,
    **creation.TABLE,
    **detection.TABLE,
    **dropout.TABLE,
    **elementwise.TABLE,
    **indexing.TABLE,
    **joining.TABLE,
    **matmul.TABLE,
    **normalize.TABLE,
    **ordering.TABLE,
    **pooling.TABLE,
    **reduce.TABLE,
    **rnn.TABLE,
    **shape.TABLE,
    **softmax.TABLE,
}


def supports(op: str) -> bool:
    """Whether the reference knows the operator, by its name or an alias."""
    return op in _TABLE


def supported_ops() -> tuple[str, ...]:
    """All names that `supports` knows, sorted."""
    return tuple(sorted(_TABLE))


def evaluate(
    op: str, inputs: Sequence[Array], attrs: Attrs, *, training: bool = False
) -> list[Array]:
    """The visible outputs of one operator.

    Args:
        op: the MXNet name or alias.
        inputs: the operator's inputs in order, auxiliary states last. They are not written to; an
            output may share memory with them.
        attrs: parsed Python values, such as kernel=(3, 3); an absent key means MXNet's default.
        training: whether MXNet would run with is_train, which matters to BatchNorm, Dropout, RNN
            and LeakyReLU.

    Raises:
        UnsupportedOp: the reference has no such operator, or not this use of it.
        ValueError, TypeError: inputs or attributes that MXNet refuses too.
    """
    if op not in _TABLE:
        raise UnsupportedOp(f"The numpy reference has no operator {op!r}.")
    return _TABLE[op](Call(op, inputs, attrs, training))
