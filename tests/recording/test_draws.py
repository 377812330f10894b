"""Numbers that a Block's Python draws are those of the program's order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd


class _Drawing(mx.gluon.Block):
    """Hands a function a layer, an argument and what draws two by two numbers."""

    def __init__(self, function: Callable[[Any, Any, Any], Any], draw: Any) -> None:
        super().__init__(prefix="net_")
        self.function, self.draw = function, draw
        with self.name_scope():
            self.known, self.deferred = nn.Dense(2, in_units=2), nn.Dense(2)

    def forward(self, x: Any) -> Any:
        return self.function(self, x, self.draw)


def two_in_turns(net: Any, x: Any, draw: Any) -> Any:
    first, second = draw(), draw()
    return net.known(x) * second, first * x


def one_that_nobody_reads(net: Any, x: Any, draw: Any) -> Any:
    draw()
    return net.known(x) + draw()


def nothing_but_one_that_nobody_reads(net: Any, x: Any, draw: Any) -> Any:
    draw()
    return x


def one_whose_reader_nobody_reads(net: Any, x: Any, draw: Any) -> Any:
    draw() * x
    return net.known(x)


def beside_an_initializer(net: Any, x: Any, draw: Any) -> Any:
    return net.deferred(net.known(x) + draw())


@pytest.fixture(params=["nd", "np"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "np":
        mx.npx.set_np()
    yield request.param
    mx.npx.reset_np()


FUNCTIONS = [
    two_in_turns,
    one_that_nobody_reads,
    nothing_but_one_that_nobody_reads,
    one_whose_reader_nobody_reads,
    beside_an_initializer,
]


@pytest.mark.parametrize(
    ("function", "is_recording", "record"),
    one_of(3, product(FUNCTIONS, [False, True], [True, None])),
)
def test_draws_are_made_in_the_programs_order(
    function: Any, is_recording: bool, record: bool | None, kind: str
) -> None:
    if kind == "np":
        ones, draw = mx.np.ones, lambda: mx.np.random.normal(0, 1, (2, 2))
    else:
        ones, draw = mx.nd.ones, lambda: mx.nd.random.normal(0, 1, (2, 2))
    found = []
    for optimize in (lambda net: net, lambda net: graphopt.optimize(net, record=record)):
        mx.random.seed(3)
        net = _Drawing(function, draw)
        net.initialize(mx.init.Normal(1))
        called, x = optimize(net), ones((2, 2))
        numbers = []
        for _ in range(8):
            with autograd.record() if is_recording else autograd.pause():
                made = called(x)
            made = made if isinstance(made, (list, tuple)) else [made]
            if is_recording and made[0] is not x:
                made[0].backward()
                numbers.append(net.known.weight.grad().asnumpy())
            numbers += [array.asnumpy() for array in made] + [draw().asnumpy()]
        found.append(numbers)
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
