"""Budgets and largest shapes that can be asked for, and that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from tests.nn.budgets import deep, small

mx = import_mxnet()
autograd = mx.autograd


@pytest.mark.parametrize("memory", ["much", "-1MB", -5, 0, "0", True, "", "inf", "1,5GB", "9e9GB"])
def test_what_is_no_budget_is_refused_at_once(memory: Any) -> None:
    with pytest.raises(InputError, match="is no size"):
        graphopt.optimize(deep(), memory=memory)


@pytest.mark.parametrize("shape", [(), (0, 3), "64", (2.5,), 7, (True, 3), None])
def test_shapes_that_cannot_be(shape: Any) -> None:
    with pytest.raises(InputError, match="is no shape"):
        graphopt.optimize(deep(), max_shapes={"data": shape})


@pytest.mark.parametrize("shapes", ["data", [("data", (1, 2))], {}])
def test_largest_shapes_without_names_are_refused(shapes: Any) -> None:
    with pytest.raises(InputError, match=r"names no input; write \{'data': \(64, 500\)\}"):
        graphopt.optimize(deep(), max_shapes=shapes)


def test_largest_shapes_may_be_of_numpy() -> None:
    net = small()
    fast = graphopt.optimize(net, max_shapes={"data": (np.int64(4), 5)})
    with autograd.record():
        fast(mx.nd.ones((2, 5)))
    assert len(fast.graphopt_state.compiled.entries) == 2


def test_a_budget_for_inference_is_refused() -> None:
    with pytest.raises(InputError, match="about training"):
        graphopt.optimize(deep(), mode="inference", memory="1GB")
