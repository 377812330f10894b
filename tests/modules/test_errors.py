"""What executors raise where MXNet's raise an MXNetError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError

mx = import_mxnet()
Fault = Callable[[Any], Any]


def executor() -> Any:
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    made = symbol.simple_bind(mx.cpu(), data=(4, 5))
    for array in made.arg_arrays:
        array[:] = 0.5
    made.forward(is_train=True)
    return made


def give_a_gradient_of_another_shape(bound: Any) -> None:
    bound.backward([mx.nd.ones((2, 3))])


def reshape_to_other_parameters(bound: Any) -> None:
    bound.reshape(data=(4, 7))


def reshape_to_what_contradicts_the_graph(bound: Any) -> None:
    bound.reshape(partial_shaping=True, data=(4, 5), fc_weight=(2, 2))


FAULTS = [
    give_a_gradient_of_another_shape,
    reshape_to_other_parameters,
    reshape_to_what_contradicts_the_graph,
]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_programs_that_catch_mxnets_errors_catch_ours(fault: Fault) -> None:
    plain, fast = executor(), graphopt.optimize(executor())
    fast.forward(is_train=True)
    with pytest.raises(mx.MXNetError):
        fault(plain)
    with pytest.raises(mx.MXNetError) as found:
        fault(fast)
    assert isinstance(found.value, GraphoptError)
    assert isinstance(found.value, ValueError)  # as it was before


def test_a_module_goes_on_behind_a_batch_that_does_not_fit() -> None:
    found = []
    for is_optimized in (False, True):
        symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
        module = mx.mod.Module(symbol, label_names=None)
        module = graphopt.optimize(module) if is_optimized else module
        module.bind([("data", (4, 5))])
        module.init_params(mx.init.One())
        for width in (5, 7, 5):
            batch = mx.io.DataBatch([mx.nd.ones((4, width))])
            try:
                module.forward(batch, is_train=False)
            except mx.MXNetError:
                continue
            found.append(module.get_outputs()[0].asnumpy())
    assert len(found) == 4
    np.testing.assert_allclose(found[2:], found[:2], rtol=1e-6, atol=1e-6)
