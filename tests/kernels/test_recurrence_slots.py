"""Sequences of different lengths forward: one that has ended makes room for the next."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from tests.kernels.recurrence_support import (
    Call,
    cell,
    check,
    check_forward,
    expect,
    in_double,
    in_single,
    inputs_of,
    near,
    operator,
)

mx = import_mxnet()

#: More than fit in at once, of up to 32 for each of two threads, or twice that with a matrix unit.
MANY = 150
WIDE = (57, 101)  # wide enough for a matrix unit

FLAGS: list[dict[str, bool]] = [
    {},
    {"reverse": True},
    {"batch_major": True},
    {"batch_major": True, "reverse": True},
    {"indexed": True},
    {"indexed": True, "reverse": True},
    {"zero_states": True},
    {"bidirectional": True},
]


@pytest.mark.parametrize("stash", [False, True])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(flags) or "plain")
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_more_sequences_than_there_is_room_for(
    mode: str, flags: dict[str, bool], stash: bool
) -> None:
    check_forward(cell(5, 7, "float64", mode), Call(7, MANY, lengths=True, **flags), stash=stash)


@pytest.mark.parametrize("stash", [False, True])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(flags) or "plain")
def test_more_wide_ones(flags: dict[str, bool], stash: bool) -> None:
    spec = in_single(cell(*WIDE, "float64", "lstm"))
    check_forward(spec, Call(5, 2 * MANY, lengths=True, **flags), stash=stash)


@pytest.mark.parametrize("flags", [{}, {"reverse": True}, {"indexed": True}])
def test_gradients_of_more_sequences(flags: dict[str, bool]) -> None:
    check(cell(3, 4, "float64", "lstm"), Call(4, 70, lengths=True, **flags))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [(5, 7), WIDE])
@pytest.mark.parametrize(
    "ends",
    [
        [0] * MANY,
        [0] * (MANY - 1) + [3],
        [1] * MANY,
        [4] * MANY,
        [1] * (MANY - 1) + [9],
        [0, 6] * MANY,
        [1, 2] * MANY,
        [5, 0],
    ],
    ids=["none", "one", "single", "equal", "one long", "every other", "short", "few"],
)
def test_all_kinds_of_lengths(ends: list[int], sizes: tuple[int, int], reverse: bool) -> None:
    spec = in_single(cell(*sizes, "float64", "lstm"))
    call = Call(max(*ends, 1), len(ends), reverse=reverse, lengths=True, chosen=tuple(ends))
    check_forward(spec, call)


@pytest.mark.parametrize("stash", [False, True])
@pytest.mark.parametrize("count", [1, 5])
def test_those_that_are_no_numbers_stay_alone(count: int, stash: bool) -> None:
    """Whom they share a block with changes from call to call; to the last bit, nobody sees it."""
    spec = in_single(cell(*WIDE, "float64", "lstm"))
    call = Call(6, 2 * MANY, lengths=True)
    inputs = inputs_of(spec, call)
    want, _ = operator(spec, inputs, call, stash=stash)
    rows = np.argsort(call.ends())[-count:]
    others = ~np.isin(np.arange(call.batch), rows)
    for value in (np.nan, np.inf, 3.4e38):
        spoiled = [inputs[0].copy(), *inputs[1:]]
        spoiled[0][2, rows, 5] = value
        found, _ = operator(spec, spoiled, call, stash=stash)
        for got, right in zip(found, want, strict=True):
            axis = got.ndim - 2
            np.testing.assert_array_equal(*(np.compress(others, a, axis) for a in (got, right)))
        assert (np.isnan(found[0][2, rows]).any(axis=-1) == np.isnan(value)).all()
        np.testing.assert_array_equal(found[0][:2, rows], want[0][:2, rows])


def test_the_same_bits_every_time() -> None:
    spec = in_single(cell(*WIDE, "float64", "gru"))
    call = Call(9, 2 * MANY, lengths=True)
    inputs = inputs_of(spec, call)
    want, _ = operator(spec, inputs, call)
    right = expect(spec, [*map(in_double, inputs)], call)
    for _ in range(5):
        found, _ = operator(spec, inputs, call)
        for got, first, value in zip(found, want, right, strict=True):
            np.testing.assert_array_equal(got, first)
            near(got, value, 2e-5)
