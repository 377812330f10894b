"""Memory of gradients that nobody computed, which goes back to the kernel."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.arrays import address_of, bytes_of, view_of
from graphopt.backend.memory import _resident
from graphopt.backend.zero_pages import give_back_zeros
from graphopt.compat import import_mxnet

mx = import_mxnet()
MANY = 16 << 20


def assert_near(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got.asnumpy(), wanted.asnumpy(), rtol=1e-4, atol=1e-5)


def _touched(array: Any) -> int:
    """How many pages of its memory somebody has written to."""
    begin, pages = address_of(array) // mmap.PAGESIZE, bytes_of(array) // mmap.PAGESIZE + 1
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(8 * begin)
        entries = np.frombuffer(pagemap.read(8 * pages), np.uint64)
    return int((entries >> np.uint64(63)).sum())


def _zeros(count: int = MANY, **more: Any) -> Any:
    array = mx.nd.zeros((count,), **more)
    array.wait_to_read()
    return array


def test_zeros_go_back_and_are_zeros_still() -> None:
    array = _zeros()
    before = _resident()
    given = give_back_zeros([array])
    assert 4 * MANY - 8192 < given <= 4 * MANY
    assert before - _resident() > given - (8 << 20)
    assert not array.asnumpy().any()
    array[:] = 3
    assert (array.asnumpy() == 3).all()


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_other_dtypes(dtype: str) -> None:
    array = _zeros(1 << 20, dtype=dtype)
    assert give_back_zeros([array]) >= array.size * np.dtype(dtype).itemsize - 8192
    assert not array.asnumpy().any()


def test_what_was_written_stays() -> None:
    written, past_the_engine = _zeros(1 << 20), _zeros(1 << 20)
    written[:] = 2
    view_of(past_the_engine)[-1] = 5
    assert give_back_zeros([written, past_the_engine]) == 0
    assert (written.asnumpy() == 2).all()
    assert past_the_engine.asnumpy()[-1] == 5


def test_small_arrays_stay() -> None:
    assert give_back_zeros([_zeros(64), _zeros(1)]) == 0
    assert give_back_zeros([]) == 0


def _net() -> Any:
    net = mx.gluon.nn.HybridSequential()
    dense = mx.gluon.nn.Dense
    net.add(dense(1024, activation="tanh", in_units=512), dense(8, in_units=1024))
    mx.random.seed(3)
    net.initialize(mx.init.Xavier())
    return net


def _gradients(net: Any, x: Any) -> list[Any]:
    with mx.autograd.record():
        loss = net(x).square().sum()
    loss.backward()
    return [p.grad() for p in net.collect_params().values() if p.grad_req != "null"]


@pytest.mark.parametrize("request_", ["write", "add"])
def test_a_net_that_inferred_first_learns(request_: str) -> None:
    plain, net = _net(), _net()
    x = mx.nd.random.uniform(shape=(4, 512))
    for each in (plain, net):
        each.collect_params().setattr("grad_req", request_)
    fast = graphopt.optimize(net)
    for _ in range(3):
        assert_near(fast(x), plain(x))
    for _ in range(2):
        for got, wanted in zip(_gradients(fast, x), _gradients(plain, x), strict=True):
            assert_near(got, wanted)


def test_gradients_go_back_with_the_first_inference() -> None:
    net = mx.gluon.nn.Dense(4096, in_units=1024)
    net.initialize()
    x = mx.nd.random.uniform(shape=(4, 1024))
    net.weight.grad().wait_to_read()
    touched = _touched(net.weight.grad())
    graphopt.optimize(net)(x).wait_to_read()
    assert _touched(net.weight.grad()) <= 2 < touched  # the ends of pages are others', too


def test_a_net_between_two_steps_keeps_its_gradients() -> None:
    net = _net()
    fast = graphopt.optimize(net)
    x = mx.nd.random.uniform(shape=(4, 512))
    found = [g.asnumpy() for g in _gradients(fast, x)]
    fast(x).wait_to_read()
    now = [p.grad().asnumpy() for p in net.collect_params().values()]
    for got, wanted in zip(now, found, strict=True):
        assert np.array_equal(got, wanted)
