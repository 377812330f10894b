"""What the demo takes for right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.demo.checking import jumps, train
from graphopt.demo.measuring import Row, _jump
from graphopt.demo.models import Example

mx = import_mxnet()


def at_a_kink(activation: str) -> tuple[Example, dict[str, Any]]:
    """A unit whose sum is nothing but rounding, and what a step of it gives."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(4, in_units=3, use_bias=False, activation=activation))
    net.initialize()
    net[0].weight.set_data(mx.nd.array([[1, 1, -2]] * 4))
    example = Example("kink", net, ((mx.nd.ones((1, 3)) * 0.7,),))
    return example, train(example, net)


def test_gradients_jump_behind_a_relu() -> None:
    example, expected = at_a_kink("relu")
    assert jumps(example, example.net, expected) > 0.1


def test_gradients_without_kinks_do_not() -> None:
    example, expected = at_a_kink("tanh")
    assert jumps(example, example.net, expected) < 1e-3


def test_only_gradients_may_jump() -> None:
    example, expected = at_a_kink("relu")
    gradient = next(name for name in expected if name.startswith("gradient:"))
    wrong = {**expected, gradient: expected[gradient] + 1}
    assert _jump(example, example.net, expected, expected) == 0
    assert _jump(example, example.net, expected, wrong) > 0.1
    outputs = {**wrong, "output0": expected["output0"] + 1}
    assert _jump(example, example.net, expected, outputs) == 0


@pytest.mark.parametrize(
    ("error", "jump", "is_right"),
    [(1e-6, 0.0, True), (0.05, 0.0, False), (0.05, 0.1, True), (0.2, 0.1, False)],
)
def test_rows(error: float, jump: float, is_right: bool) -> None:
    row = Row("net", "training", 1.0, 1.0, error, jump=jump)
    assert row.is_right == is_right
    assert row.as_dict()["jump"] == jump
    assert not Row("net", "training", 1.0, 1.0, np.inf, jump=jump).is_right
