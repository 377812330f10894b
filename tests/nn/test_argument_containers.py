"""Python of HybridBlocks sees the containers that it is given; MXNet's graphs have lists only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError

mx = import_mxnet()


class State(NamedTuple):
    hidden: Any
    cell: Any


class Sized(tuple):
    """A tuple that may hold more than its items."""


class Asking(mx.gluon.HybridBlock):
    """Computes something else of a tuple, at any level, than of a list."""

    def hybrid_forward(self, F: Any, x: Any, state: Any) -> Any:
        inner = state[0] if isinstance(state[0], (list, tuple)) else state
        factor = 2 if isinstance(state, tuple) else 3
        if isinstance(inner, tuple):
            factor = factor + (10 if hasattr(inner, "hidden") else 20)
        return x * factor + inner[1], state


class AskingOwnForward(mx.gluon.HybridBlock):
    """Likewise, in Python that MXNet runs in every call, hybridized or not."""

    def forward(self, x: Any, state: Any) -> Any:
        return (x * 2 if isinstance(state, tuple) else x * 3) + state[1]


def array(seed: int) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=(2, 3)))


def states() -> dict[str, Any]:
    h, c = array(1), array(2)
    return {
        "list": [h, c],
        "tuple": (h, c),
        "named": State(h, c),
        "list of a tuple": [(h, c)],
        "tuple of a list": ([h, c],),
        "list of a named one": [State(h, c)],
        "subclass": Sized((h, c)),
    }


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybridized", [False, True], ids=["python", "hybridized"])
@pytest.mark.parametrize("block", [Asking, AskingOwnForward], ids=["hybrid", "own forward"])
def test_containers_of_all_kinds_in_turns(block: Any, hybridized: bool) -> None:
    for name, state in states().items():
        if block is AskingOwnForward and " of " in name:
            continue
        net = block()
        if hybridized:
            net.hybridize()
        optimized = graphopt.optimize(net)
        for given in (state, [*state], state):
            same(optimized(array(0), given), net(array(0), given))


def test_one_net_follows_the_containers_of_its_calls() -> None:
    net = Asking()
    optimized = graphopt.optimize(net, strict=True)
    for _ in range(2):
        for name, state in states().items():
            if name != "subclass":
                same(optimized(array(0), state), net(array(0), state))


def test_gradients_with_a_tuple_of_states() -> None:
    x, (h, c), found = array(0), (array(1), array(2)), []
    for net in (Asking(), graphopt.optimize(Asking(), strict=True)):
        for each in (x, h, c):
            each.attach_grad()
        with mx.autograd.record():
            out, state = net(x, (h, c))
            loss = (out * out).sum() + (state[0] * 3).sum()
        loss.backward()
        found.append([each.grad.asnumpy().copy() for each in (x, h, c)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_container_that_cannot_be_made_anew_is_refused_by_strict_nets() -> None:
    optimized = graphopt.optimize(Asking(), strict=True)
    with pytest.raises(UnsupportedError, match="only lists and tuples can be made anew"):
        optimized(array(0), Sized((array(1), array(2))))
