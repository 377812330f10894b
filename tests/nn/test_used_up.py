"""What calls of Blocks use up: iterators, and generators of random numbers that Blocks hold."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.settings_support import check, data

mx = import_mxnet()

COUNTS = itertools.count()


def taking(source: Any, take: Callable[[Any], float]) -> Any:
    """A Block that holds something and scales by what it takes of it in each call."""

    class Taking(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.source = source

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * (1 + take(self.source))

    return Taking()


DRAWS = [
    (random.Random, random.Random.random),
    (np.random.RandomState, np.random.RandomState.uniform),
    (np.random.default_rng, np.random.Generator.uniform),
]


@pytest.mark.parametrize(("make", "draw"), DRAWS, ids=["python", "state", "generator"])
@pytest.mark.parametrize("in_list", [False, True])
def test_generators_of_numbers_that_blocks_hold(make: Any, draw: Any, in_list: bool) -> None:
    def net() -> Any:
        held = make(5)
        return taking([held] if in_list else held, lambda h: draw(h[0] if in_list else h))

    plain, fast = net(), graphopt.optimize(net())
    for _ in range(4):
        check(fast, plain)
    assert "sets 'source' of Taking in every call" in fast.explain()


def test_a_generator_that_no_call_of_the_mode_draws_from() -> None:
    def take(held: Any) -> float:
        return held.uniform() if mx.autograd.is_training() else 1.0

    plain, block = (taking(np.random.RandomState(3), take) for _ in range(2))
    fast = graphopt.optimize(block)
    check(fast, plain)
    assert fast._graphopt_entries()
    block.source.uniform()
    plain.source.uniform()
    check(fast, plain)
    for _ in range(3):
        with mx.autograd.record():
            found, want = fast(data()), plain(data())
        np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("in_dict", [False, True])
def test_iterators_that_blocks_hold(in_dict: bool) -> None:
    def net() -> Any:
        held = itertools.cycle([1.0, 2.0, 3.0])
        return taking({0: held} if in_dict else held, lambda h: next(h[0] if in_dict else h))

    plain, fast = net(), graphopt.optimize(net())
    for _ in range(5):
        check(fast, plain)
    assert "Taking reads a cycle, which its calls use up" in fast.explain()


def test_iterators_of_modules() -> None:
    class Counting(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * next(COUNTS)

    fast = graphopt.optimize(Counting())
    first = int(repr(COUNTS)[6:-1])
    for number in range(first, first + 4):
        np.testing.assert_allclose(fast(data()).asnumpy(), np.tanh(data().asnumpy()) * number, 1e-5)


def test_iterators_that_no_call_reads() -> None:
    class Holding(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.names = iter("abc")

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x)

    plain = Holding()
    fast = graphopt.optimize(plain)
    check(fast, plain)
    assert fast._graphopt_entries()


class Schedule:
    def __init__(self) -> None:
        self.steps = iter(range(1, 9))

    def step(self) -> int:
        return next(self.steps)


SCHEDULE = Schedule()


def test_what_objects_defaults_and_methods_use_up() -> None:
    class Counting(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(x) * SCHEDULE.step()

    fast = graphopt.optimize(Counting())
    for number in range(1, 4):
        np.testing.assert_allclose(fast(data()).asnumpy(), np.tanh(data().asnumpy()) * number, 1e-5)

    def by_default() -> Any:
        generator = np.random.default_rng(3)

        class Drawing(mx.gluon.HybridBlock):
            def hybrid_forward(self, F: Any, x: Any, rng: Any = generator) -> Any:
                return F.tanh(x) * rng.uniform()

        return Drawing()

    def by_method() -> Any:
        return taking(np.random.RandomState(3).rand, lambda draw: draw())

    for make in (by_default, by_method):
        plain, fast = make(), graphopt.optimize(make())
        for _ in range(4):
            check(fast, plain)
