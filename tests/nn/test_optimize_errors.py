"""What cannot be optimized or called says so, and users' own errors stay theirs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, ParseError

mx = import_mxnet()
nn = mx.gluon.nn


def test_uninitialized_net_says_so() -> None:
    with pytest.raises(InputError, match=r"is not initialized: call \.initialize"):
        graphopt.optimize(nn.Dense(2))(mx.nd.ones((1, 2)))


def test_a_forward_that_raises_raises_the_users_error_and_changes_nothing() -> None:
    class Broken(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            raise KeyError("my own")

    net = Broken()
    fast = graphopt.optimize(net)
    with pytest.raises(KeyError, match="my own"):
        fast(mx.nd.ones((1,)))
    assert type(net) is Broken


def test_inputs_that_do_not_fit_name_the_node() -> None:
    net = nn.Dense(2, in_units=3)
    net.initialize()
    with pytest.raises(InputError, match="FullyConnected"):
        graphopt.optimize(net)(mx.nd.ones((1, 4)))


def dense() -> Any:
    return nn.Dense(3, in_units=4)


def convolution() -> Any:
    return nn.Conv2D(3, 3, in_channels=2)


def layers() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(3, in_units=4), nn.Dense(2, in_units=5))
    return net


#: Nets, and inputs that MXNet refuses.
UNFIT = {
    "columns": (dense, (2, 5), "float32"),
    "dtype": (dense, (2, 4), "float64"),
    "channels": (convolution, (1, 3, 8, 8), "float32"),
    "kernel": (convolution, (1, 2, 2, 2), "float32"),
    "layers": (layers, (2, 4), "float32"),
    "steps": (lambda: mx.gluon.rnn.LSTM(3, input_size=4), (2, 1, 5), "float32"),
}


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize(("make", "shape", "dtype"), UNFIT.values(), ids=UNFIT)
def test_programs_that_catch_mxnets_errors_catch_ours(
    make: Callable[[], Any], shape: tuple[int, ...], dtype: str, records: bool
) -> None:
    net, scope = make(), mx.autograd.record if records else mx.autograd.pause
    net.initialize()
    fast = graphopt.optimize(net)
    with pytest.raises(mx.MXNetError), scope():
        net(mx.nd.ones(shape, dtype=dtype)).wait_to_read()
    with pytest.raises(mx.MXNetError) as found, scope():
        fast(mx.nd.ones(shape, dtype=dtype)).wait_to_read()
    assert isinstance(found.value, InputError)  # as it was before
    twin = pickle.loads(pickle.dumps(found.value))
    assert (type(twin), str(twin)) == (type(found.value), str(found.value))


def test_inputs_that_fit_no_parameters_leave_nothing_to_report() -> None:
    """MXNet looks at the shapes of a BatchNorm's parameters no more once they are known."""
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(in_channels=8), nn.Activation("relu"))
    net.initialize()
    fast = graphopt.optimize(net)
    fast(mx.nd.ones((2, 5)))
    fast(mx.nd.ones((2, 8)))
    assert "f32[2,5]" not in fast.explain()
    fast.receipts()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"net": None}, InputError, "cannot optimize None: does what builds the net return it"),
        ({"net": 3}, InputError, "cannot optimize a int: give a Gluon Block, a Symbol"),
        ({"net": "x-symbol.json"}, InputError, "cannot optimize a str: .*; graphopt.load reads"),
        ({"net": Path("x")}, InputError, "cannot optimize a .*Path: .*; graphopt.load reads files"),
        ({"net": dict}, InputError, "cannot optimize class dict: it is no Gluon Block"),
        ({"mode": "fast"}, InputError, "mode 'fast' is none of auto, training, inference"),
        ({"passes": "dec"}, ParseError, "did you mean 'dce'"),
        ({"memory": "much"}, InputError, "is no size"),
        ({"record": "x"}, InputError, "record='x' is none of True, False, None"),
        ({"strict": "no"}, InputError, "strict='no' is none of True, False"),
        ({"check": None}, InputError, "check=None is none of True, False"),
    ],
)
def test_bad_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        graphopt.optimize(**arguments)
