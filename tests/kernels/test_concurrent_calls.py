"""Threads that call one net, or want one kernel, at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import graphopt
from graphopt.kernels import library
from tests.kernels.gate_support import ADD_TANH, data, gate, same


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_threads_that_call_one_net(mode: str) -> None:
    net = gate()
    fast = graphopt.optimize(net, mode=mode)
    inputs = [data(2 + i % 3, 4, seed=i) for i in range(8)]
    want = [net(x) for x in inputs]
    barrier = threading.Barrier(8)

    def work(number: int) -> list[Any]:
        barrier.wait(60)
        return [fast(inputs[number]) for _ in range(300)]  # one in 4,000 went wrong once

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(work, range(8), timeout=100)):
            for got in found:
                same(got, want[number])


def test_threads_that_want_one_kernel_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_kernels", {})
    before = library.STATISTICS.compiled + library.STATISTICS.loaded
    barrier = threading.Barrier(8)

    def work(_: int) -> int:
        barrier.wait(60)
        return library.kernel(ADD_TANH, backward=False).address

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(8), timeout=100))) == 1
    assert library.STATISTICS.compiled + library.STATISTICS.loaded == before + 1
