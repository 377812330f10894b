"""What an interrupt leaves, wherever it raises: the next call computes what it always did."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import turns
from graphopt.batching import batched, hooks, samples
from graphopt.compat import import_mxnet
from graphopt.recording import active, arrays, patches, recorded
from tests.recording.conftest import replaced
from tests.recording.nets import array, block

mx = import_mxnet()
nn = mx.gluon.nn

_RECORDING = (turns, active, arrays, patches, recorded)
_BATCHING = (turns, batched, hooks, samples)
#: Where Python looks for signals: at the start of its functions, and after those in C.
_EVENTS = ("call", "c_return")
_FINALIZER = arrays._keep.__code__  # what one raises is ignored


class Interrupting:
    """Raises KeyboardInterrupt at one of the places in the code of some modules."""

    def __init__(self, modules: tuple[Any, ...], place: int) -> None:
        self._files = {str(Path(module.__file__)) for module in modules}
        self._left = place

    def __enter__(self) -> None:
        sys.setprofile(self._seen)

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event in _EVENTS and code.co_filename in self._files and code is not _FINALIZER:
            self._left -= 1
            if self._left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


def interrupted_everywhere(
    modules: tuple[Any, ...], every: int, call: Callable[[], Any], check: Callable[[], None]
) -> int:
    """Interrupt a call at its first place, at its next, and so on; check after each."""
    place = 0
    while True:
        state = mx.autograd.is_recording(), mx.autograd.is_training()
        error: KeyboardInterrupt | None = None
        try:
            with Interrupting(modules, place):
                call()
        except KeyboardInterrupt as raised:
            error = raised  # held, as a console does: so are its frames
        mx.autograd.set_recording(state[0])  # as MXNet's own scopes, which can be interrupted too
        mx.autograd.set_training(state[1])
        check()
        if error is None:
            return place
        place += every


def in_time(call: Callable[[], Any]) -> Any:
    """What a call returns in another thread, which would hang where a turn were lost."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it hangs"
    return found[0]


def forward(self: Any, x: Any) -> Any:
    y = self.first(x)
    with mx.autograd.pause():
        scale = self.second(y) * 2
    return y * scale if float(y.sum().asscalar()) > -1e9 else y


def gradient_and_loss(call: Callable[[], Any], parameter: Any) -> list[np.ndarray]:
    with mx.autograd.record():
        loss = call().sum()
    loss.backward()
    return [loss.asnumpy(), parameter.grad().asnumpy()]


#: One of how many places.
EVERY = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])


@pytest.fixture
def net() -> Any:
    return block(forward, first=nn.Dense(4, in_units=4), second=nn.Dense(4, in_units=4))


@EVERY
def test_an_interrupted_recorded_call(net: Any, every: int) -> None:
    x, weight = array(3, 4), net.first.weight
    fast, batch = graphopt.optimize(net, record=True), graphopt.batch(nn.Dense(2, in_units=4))
    batch.net.initialize()
    wanted, before = gradient_and_loss(lambda: net(x), weight), replaced()
    gradient_and_loss(lambda: fast(x), weight)  # compiles

    def check() -> None:
        assert active.ACTIVE.tape is None
        for one, other in zip(wanted, gradient_and_loss(lambda: fast(x), weight), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
        assert replaced() == before
        assert in_time(lambda: batch([(x,)])).shape == (3, 2)

    places = interrupted_everywhere(
        _RECORDING, every, lambda: gradient_and_loss(lambda: fast(x), weight), check
    )
    assert places > 50


@EVERY
def test_an_interrupted_batch(net: Any, every: int) -> None:
    weight, given = net.first.weight, [(array(1, 4),), (array(1, 4) + 1,)]
    batch, fast = graphopt.batch(net), graphopt.optimize(net, record=True)

    def plain() -> Any:
        return mx.nd.concat(*[net(*sample) for sample in given], dim=0)

    wanted, before = gradient_and_loss(plain, weight), replaced()
    gradient_and_loss(lambda: batch(given), weight)

    def check() -> None:
        assert hooks.ACTIVE.recorder is None
        for one, other in zip(wanted, gradient_and_loss(lambda: batch(given), weight), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
        assert replaced() == before
        assert gc.isenabled()
        assert in_time(lambda: fast(given[0][0])).shape == (1, 4)

    places = interrupted_everywhere(
        _BATCHING, every, lambda: gradient_and_loss(lambda: batch(given), weight), check
    )
    assert places > 50
