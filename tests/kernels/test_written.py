"""Whether arrays were written, as MXNet's engine counts, and digests of what they hold."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.backend.arrays import view_of
from graphopt.backend.holding import digests
from graphopt.compat import import_mxnet
from graphopt.kernels.bridge.versions import fit
from graphopt.kernels.bridge.written import Writes, digest_of

mx = import_mxnet()

pytestmark = pytest.mark.skipif(not fit(mx), reason="this MXNet does not tell")


def test_writes_are_counted_by_array() -> None:
    arrays = [mx.nd.zeros((3,)), mx.nd.ones((2, 2), dtype="int64"), mx.nd.zeros((5,))]
    writes = Writes(mx, arrays)
    assert writes.are_none()
    assert writes.touched() == []
    arrays[1][0] = 7
    assert not writes.are_none()
    assert not writes.are_none(), "asking changes nothing"
    (touched,) = writes.touched()
    assert touched is arrays[1]
    assert writes.are_none()
    arrays[0].reshape((1, 3))[:] = 1
    arrays[2] += 1
    assert [id(array) for array in writes.touched()] == [id(arrays[0]), id(arrays[2])]
    assert Writes(mx, []).are_none()


def test_states_are_written_where_they_hold_something_else() -> None:
    arrays = [mx.nd.zeros((3,)), mx.nd.ones((5,)), mx.nd.ones((2, 2))]
    states = arrays[:2]
    writes = Writes(mx, arrays, states)
    assert writes.are_none()
    view_of(states[1])[2] = 7  # past MXNet's engine
    assert not writes.are_none()
    assert [id(array) for array in writes.touched()] == [id(state) for state in states]
    assert writes.are_none()
    view_of(arrays[2])[0] = 7
    assert writes.are_none()


def test_reading_is_no_write() -> None:
    array = mx.nd.random.uniform(shape=(4, 4))
    writes = Writes(mx, [array])
    mx.nd.dot(array, array).asnumpy()
    array[1].asnumpy()
    assert writes.are_none()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int64"])
@pytest.mark.parametrize("size", [1, 3, 7, 8, 15, 63, 64, 65, 1000])
def test_every_bit_and_place_counts(dtype: str, size: int) -> None:
    values = np.random.default_rng(size).integers(0, 100, size).astype(dtype)
    found = {digest_of(mx, values)}
    assert digests([mx.nd.array(values, dtype=dtype)])[0] in found
    raw = values.view(np.uint8)
    places = range(raw.size) if raw.size < 600 else range(0, raw.size, 37)
    for place in places:
        other = raw.copy()
        other[place] ^= 1 << (place % 8)
        found.add(digest_of(mx, other.view(dtype)))
    assert len(found) == 1 + len(places)


def test_order_and_length_count() -> None:
    zeros = [digest_of(mx, np.zeros(n, np.float32)) for n in range(40)]
    assert len(set(zeros)) == 40
    values = np.arange(64, dtype=np.float32)
    moved = [digest_of(mx, np.roll(values, n)) for n in range(64)]
    assert len(set(moved)) == 64


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_signs_of_two_elements_do_not_cancel(dtype: str) -> None:
    values = np.ones(32, dtype)
    found = {digest_of(mx, values)}
    for first in range(32):
        for second in range(first):
            other = values.copy()
            other[[first, second]] *= -1
            found.add(digest_of(mx, other))
    assert len(found) == 1 + 32 * 31 // 2


def test_strided_arrays_are_read_as_they_look() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert digest_of(mx, values.T) == digest_of(mx, np.ascontiguousarray(values.T))
