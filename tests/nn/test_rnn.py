"""graphopt.nn's recurrent layers: Gluon's values, gradients and parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import nn as ours
from graphopt.compat import import_mxnet
from tests.nn.rnn_support import (
    BATCH,
    INPUTS,
    KINDS,
    LENGTHS,
    STEPS,
    UNITS,
    compare,
    data,
    flat,
    learn,
    near,
    noise,
    pair,
    share,
    states_of,
)

mx = import_mxnet()
gluon = mx.gluon
autograd = mx.autograd

#: A dtype as Gluon takes it.
DTYPES = {"name": "float64", "class": np.float64, "dtype": np.dtype("float64")}


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_gluon(kind: str, layout: str, given: bool) -> None:
    for layers, bidirectional in [(1, False), (2, True)]:
        theirs, mine = pair(kind, layout=layout, num_layers=layers, bidirectional=bidirectional)
        x = data(mine)
        compare(theirs, mine, *([x, states_of(mine)] if given else [x]))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_activations(activation: str) -> None:
    theirs, mine = pair("RNN", activation=activation)
    compare(theirs, mine, data(mine), states_of(mine))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_projection(bidirectional: bool) -> None:
    theirs, mine = pair("LSTM", projection_size=4, num_layers=2, bidirectional=bidirectional)
    x, states = data(mine), states_of(mine)
    # MXNet projects in inference only.
    for got, want in zip(flat(mine(x, states)), flat(theirs(x, states)), strict=True):
        near(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_float64(kind: str) -> None:
    # With relu, MXNet's operator rounds to float32 in between.
    more = {"activation": "tanh"} if kind == "RNN" else {}
    theirs, mine = pair(kind, dtype="float64", num_layers=2, **more)
    x, states = data(mine, dtype="float64"), states_of(mine, dtype="float64")
    compare(theirs, mine, x, states, tolerance=1e-12)


@pytest.mark.parametrize("form", DTYPES)
def test_cast(form: str) -> None:
    theirs, mine = pair("LSTM")
    for layer in (theirs, mine):
        layer.cast(DTYPES[form])
    x = data(mine, dtype="float64")
    compare(theirs, mine, x, tolerance=1e-12)
    near(mine(x, sequence_length=mx.nd.full(BATCH, STEPS)), theirs(x))


@pytest.mark.parametrize("form", DTYPES)
def test_dtype_is_given_in_any_form(form: str) -> None:
    theirs, mine = pair("GRU", dtype=DTYPES[form])
    x = data(mine, dtype="float64")
    compare(theirs, mine, x, tolerance=1e-12)
    near(mine(x, sequence_length=mx.nd.full(BATCH, STEPS)), theirs(x))


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_input_size_is_learned(layout: str, bidirectional: bool) -> None:
    theirs, mine = pair("GRU", input_size=0, layout=layout, bidirectional=bidirectional)
    x = data(mine)
    for layer in (theirs, mine):
        layer(x)
    assert mine.l0_i2h_weight.shape == theirs.l0_i2h_weight.shape
    share(theirs, mine)
    compare(theirs, mine, x)


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("kind", KINDS)
def test_hybridized(kind: str, given: bool) -> None:
    theirs, mine = pair(kind, num_layers=2, bidirectional=True)
    mine.hybridize()
    x = data(mine)
    compare(theirs, mine, *([x, states_of(mine)] if given else [x]))
    again = data(mine, STEPS + 2, BATCH - 1)
    states = [states_of(mine, BATCH - 1)] if given else []
    found, want = (flat(layer(again, *states)) for layer in (mine, theirs))
    for got, right in zip(found, want, strict=True):
        near(got, right)


@pytest.mark.parametrize("first", [False, True])
def test_hybridized_with_and_without_lengths(first: bool) -> None:
    """A hybridized Block is for one kind of call; the other one must not be taken for it."""
    _, mine = pair("LSTM")
    x, lengths = data(mine), mx.nd.array(LENGTHS)
    calls = [(x,), (x, None, lengths)]
    want = [mine(*call) for call in calls]
    mine.hybridize()
    near(mine(*calls[first]), want[first])
    with pytest.raises(ValueError, match="argument structure"):
        mine(*calls[not first])
    mine.hybridize()
    near(mine(*calls[not first]), want[not first])


def in_a_net(layer: Any) -> Any:
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(INPUTS, flatten=False, in_units=INPUTS, activation="tanh"))
    net.add(layer)
    net.add(gluon.nn.Dense(2, flatten=False, in_units=UNITS * layer._dir))
    for dense in (net[0], net[2]):
        dense.initialize(mx.init.Uniform(0.5))
    return net


@pytest.mark.parametrize("hybridize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_inside_of_a_net(kind: str, hybridize: bool) -> None:
    theirs, mine = map(in_a_net, pair(kind, layout="NTC", bidirectional=True))
    share(theirs, mine)
    if hybridize:
        mine.hybridize()
    compare(theirs, mine, data(mine[1]))


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("LSTM", "auto"), ("GRU", "auto"), ("GRU", "training"), ("GRU", "inference"), ("RNN", "auto")],
)
def test_optimized(kind: str, mode: str) -> None:
    theirs, mine = map(in_a_net, pair(kind, num_layers=2))
    share(theirs, mine)
    x = data(mine[1])
    fast = graphopt.optimize(mine, mode=mode)
    near(fast(x), theirs(x))
    if mode != "inference":
        compare(theirs, fast, x)


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
def test_optimized_alone(given: bool) -> None:
    theirs, mine = pair("LSTM", bidirectional=True)
    x = data(mine)
    compare(theirs, graphopt.optimize(mine), *([x, states_of(mine)] if given else [x]))


def test_dropout_between_layers() -> None:
    theirs, mine = pair("LSTM", num_layers=2, dropout=0.5)
    x = data(mine)
    near(mine(x), theirs(x))
    with autograd.train_mode():
        assert not np.allclose(mine(x).asnumpy(), theirs(x).asnumpy(), atol=1e-4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_exchanged(kind: str, bidirectional: bool, tmp_path: Path) -> None:
    theirs, mine = pair(kind, num_layers=2, bidirectional=bidirectional)
    x = data(mine)
    file = str(tmp_path / "layer.params")
    for source, name in ((theirs, "ours"), (mine, "theirs")):
        source.save_parameters(file)
        module = ours if name == "ours" else gluon.rnn
        loaded = getattr(module, kind)(
            UNITS, num_layers=2, bidirectional=bidirectional, input_size=INPUTS
        )
        loaded.load_parameters(file)
        near(loaded(x), source(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["plain", "hybridize", "optimize"])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_gradients_are_added(kind: str, how: str, with_lengths: bool) -> None:
    _, mine = pair(kind, bidirectional=True)
    net = graphopt.optimize(mine) if how == "optimize" else mine
    if how == "hybridize":
        mine.hybridize()
    x, states = data(mine), states_of(mine)
    lengths = mx.nd.array(LENGTHS) if with_lengths else None
    reads = [x, *states]
    _, once = learn(net, reads, x, states, lengths)
    for parameter in mine.collect_params().values():
        parameter.grad_req = "add"
    for array in reads:
        array.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            outputs = flat(net(x, states, lengths))
            loss = sum((noise(*o.shape, seed=9) * o).sum() for o in outputs)
        loss.backward()
    names = [*(f"input {n}" for n in range(len(reads))), *mine.collect_params()]
    twice = [array.grad for array in reads]
    twice += [parameter.grad() for parameter in mine.collect_params().values()]
    for name, got, want in zip(names, twice, once, strict=True):
        near(got, 2 * want, 1e-6, name)
