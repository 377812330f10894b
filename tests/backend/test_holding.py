"""Reading arrays where they lie, beside others that use them."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import holding
from graphopt.backend.holding import digests, held
from graphopt.compat import import_mxnet
from tests.recording.test_interrupts import Interrupting, in_time

mx = import_mxnet()
nn = mx.gluon.nn


def laid_out_weights() -> tuple[mx.nd.NDArray, np.ndarray]:
    """Weights that oneDNN has brought into an order of its own, and what they hold."""
    numbers = np.random.default_rng(0).normal(size=(32, 16, 3, 3)).astype("float32")
    weights, x = mx.nd.array(numbers), mx.nd.ones((1, 16, 8, 8))
    mx.nd.Convolution(x, weights, no_bias=True, num_filter=32, kernel=(3, 3)).wait_to_read()
    mx.nd.waitall()
    return weights, numbers


def test_writes_wait_until_it_is_over() -> None:
    first, second = mx.nd.ones((4, 5)), mx.nd.zeros((3,))

    def read(one: Any, two: Any, same: Any) -> None:
        first[:] = 7
        np.testing.assert_array_equal(one, np.ones((4, 5)))
        np.testing.assert_array_equal(two, np.zeros(3))
        np.testing.assert_array_equal(same, one)

    held([first, second, first], read)
    np.testing.assert_array_equal(first.asnumpy(), np.full((4, 5), 7))


def test_writes_go_on_after_an_error() -> None:
    array = mx.nd.ones((4,))

    def read(_: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        held([array], read)
    array[:] = 2
    assert array.asnumpy().tolist() == [2] * 4


def test_writes_go_on_after_an_interrupt_wherever_it_comes() -> None:
    place = 0
    while True:
        array, state = mx.nd.ones((4,)), mx.autograd.is_recording()
        error: KeyboardInterrupt | None = None
        try:
            with Interrupting((holding,), place):
                held([array], np.sum)
        except KeyboardInterrupt as raised:
            error = raised  # held, as a console does: so are its frames
        mx.autograd.set_recording(state)
        array[:] = 2
        assert in_time(array.asnumpy).tolist() == [2] * 4
        if error is None:
            break
        place += 1
    assert place > 4  # of them


def test_writes_go_on_after_an_interrupt_while_the_bridge_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library, array = holding._functions(mx), mx.nd.ones((4,))

    def hold(*arguments: Any) -> int:
        library.graphopt_hold(*arguments)
        raise KeyboardInterrupt

    interrupted = SimpleNamespace(graphopt_hold=hold, graphopt_release=library.graphopt_release)
    monkeypatch.setattr(holding, "_functions", lambda _: interrupted)
    with pytest.raises(KeyboardInterrupt):
        held([array], np.sum)
    array[:] = 2
    assert in_time(array.asnumpy).tolist() == [2] * 4


def test_arrays_in_another_order_stay_in_it() -> None:
    weights, numbers = laid_out_weights()
    np.testing.assert_array_equal(held([weights], np.copy), numbers)
    assert digests([weights]) == digests([mx.nd.array(numbers)])


def test_an_array_that_could_not_be_written() -> None:
    broken = mx.nd.random.normal(0, -1, shape=(4,))
    with pytest.raises(mx.MXNetError, match="scale parameter"):
        held([broken], np.copy)


def test_forks_wait_until_it_is_over() -> None:
    # In a process of its own, which a signal ends if it waits for ever.
    lines = """
import os, signal, threading, graphopt, mxnet as mx
from graphopt.backend.holding import held
array, begun, go_on = mx.nd.ones((4,)), threading.Event(), threading.Event()
signal.alarm(60)
def read(numbers):
    begun.set()
    go_on.wait(0.5)
    return numbers.sum()
thread = threading.Thread(target=lambda: print(held([array], read)))
thread.start()
begun.wait()
child = os.fork()
array[:] = 2
array.wait_to_read()
if child == 0:
    os._exit(0)
thread.join()
assert os.waitpid(child, 0)[1] == 0
print(array.sum().asscalar())
"""
    ended = subprocess.run(
        [sys.executable, "-c", lines], check=True, capture_output=True, text=True, timeout=120
    )
    assert ended.stdout.split() == ["4.0", "8.0"]


def test_nothing_is_recorded() -> None:
    weights, numbers = laid_out_weights()
    weights.attach_grad()
    with mx.autograd.record():
        np.testing.assert_array_equal(held([weights], np.copy), numbers)


@pytest.mark.parametrize("layer", [nn.Conv2D, nn.Conv2DTranspose])
def test_a_first_call_while_other_threads_call_the_plain_net(layer: type) -> None:
    net = nn.HybridSequential()
    net.add(layer(32, 3, padding=1), nn.Activation("relu"), layer(32, 3, padding=1))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.random.uniform(shape=(1, 32, 16, 16))
    want = net(x).asnumpy()
    is_over = threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            net(x).wait_to_read()

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        nets = [graphopt.optimize(net) for _ in range(4)]
        for fast in nets:
            fast(x).wait_to_read()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    for fast in nets:
        np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-3, atol=1e-5)
