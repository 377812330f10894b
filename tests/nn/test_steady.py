"""What Python of Blocks does in some calls only, or leaves behind in each."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from tests.nn.settings_support import Net, check, data

mx = import_mxnet()
nn = mx.gluon.nn


def counting(change: Callable[[Any], None]) -> Any:
    class Counting(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__(prefix="counting_")
            self.count = 0

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            change(self)
            return F.tanh(x) * self.count

    return Counting()


def counted(block: Any) -> None:
    block.count += 1


def counted_once(block: Any) -> None:
    block.count = 7


def test_what_every_call_sets_is_set_in_every_call() -> None:
    plain, net = counting(counted), counting(counted)
    fast = graphopt.optimize(net)
    for _ in range(6):
        check(fast, plain)
    assert net.count == plain.count == 6
    assert "sets 'count' of Counting in every call" in fast.explain()
    with pytest.raises(UnsupportedError, match="sets 'count' of Counting in every call"):
        graphopt.optimize(counting(counted), strict=True)(data())


def test_what_a_first_call_sets_is_compiled_in() -> None:
    plain, net = counting(counted_once), counting(counted_once)
    fast = graphopt.optimize(net)
    for _ in range(4):
        check(fast, plain)
    assert net.count == 7
    assert fast._graphopt_entries()


class Once(mx.gluon.HybridBlock):
    """Does in its first call what it does not in others."""

    ready = False

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        if not self.ready:
            self.ready = True
            return x * 7
        return F.tanh(x) * 2


class Carrying(mx.gluon.HybridBlock):
    """Takes what the call before has left."""

    scale: Any = None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        by, self.scale = self.scale or 1.0, 3.0
        return F.tanh(x) * by


@pytest.mark.parametrize("kind", [Once, Carrying])
def test_what_only_a_first_call_does_is_done_in_it(kind: Any) -> None:
    plain, own = kind(), kind()
    fast = graphopt.optimize(own)
    for _ in range(3):
        for _ in range(3):
            check(fast, plain)
            assert vars(own).get("scale") == vars(plain).get("scale")
        assert fast._graphopt_entries()
        for block in (plain, own):
            block.ready, block.scale = False, None


@pytest.mark.parametrize("options", [{}, {"max_shapes": [(2, 3)]}], ids=["plain", "planned"])
def test_what_a_first_call_of_each_mode_does(options: dict[str, Any]) -> None:
    class OncePerMode(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.ready = {False: False, True: False}

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            mode = mx.autograd.is_training()
            if not self.ready[mode]:
                self.ready[mode] = True
                return x * 7
            return F.tanh(x) * 2

    plain, fast = OncePerMode(), graphopt.optimize(OncePerMode())
    for _ in range(2):
        check(fast, plain)
    for _ in range(2):
        with mx.autograd.record():
            found, want = fast(data()), plain(data())
        np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("of_numpy", [False, True])
def test_numbers_that_python_draws(of_numpy: bool) -> None:
    class Drawing(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            number = np.random.uniform() if of_numpy else random.random()
            return F.tanh(x) * (2 if number < 0.5 else 3)

    def results(net: Any) -> list[np.ndarray]:
        random.seed(1)
        np.random.seed(1)
        return [net(data()).asnumpy() for _ in range(8)]

    fast = graphopt.optimize(Drawing())
    np.testing.assert_allclose(results(fast), results(Drawing()), rtol=1e-5)
    assert "draws numbers in Python" in fast.explain()


def test_numbers_that_another_thread_draws() -> None:
    """As one does that prepares data."""
    ended = threading.Event()

    def draw() -> None:
        while not ended.is_set():
            np.random.uniform()
            random.random()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        fast = graphopt.optimize(Net())
        fast(data())
    finally:
        ended.set()
        thread.join()
    assert fast._graphopt_entries()


def test_what_a_trace_that_fails_has_set_is_undone() -> None:
    class Asking(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            self.calls += 1
            return F.tanh(x) * x.shape[0]

    net = Asking()
    fast = graphopt.optimize(net, record=False)
    for number in range(1, 4):
        fast(data())
        assert net.calls == number


def test_a_long_list_that_calls_append_to() -> None:
    class History(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.history = [0] * 200

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            self.history.append(0)
            return F.tanh(x) * len(self.history)

    plain, own = History(), History()
    fast = graphopt.optimize(own)
    for _ in range(4):
        check(fast, plain)
    assert len(own.history) == len(plain.history)
