"""graphopt.nn's recurrent layers: Gluon's values, gradients and parameters, and lengths besides."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import nn as ours
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError

mx = import_mxnet()
gluon = mx.gluon
autograd = mx.autograd

KINDS = ("LSTM", "GRU", "RNN")
LENGTHS = (5, 2, 0, 3)
STEPS, BATCH, INPUTS, UNITS = 5, 4, 3, 6


def noise(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return mx.nd.array(np.random.default_rng(seed).uniform(-1, 1, shape), dtype=dtype)


def pair(kind: str, units: int = UNITS, **more: Any) -> tuple[Any, Any]:
    """Gluon's layer and ours, with the same parameters."""
    more.setdefault("input_size", INPUTS)
    theirs = getattr(gluon.rnn, kind)(units, **more)
    mine = getattr(ours, kind)(units, **more)
    for layer in (theirs, mine):
        layer.initialize(mx.init.Uniform(0.5))
    if more["input_size"]:
        share(theirs, mine)
    return theirs, mine


def share(theirs: Any, mine: Any) -> None:
    """Biases too are no zeros, so that adding them up wrong would show."""
    sources, targets = (list(layer.collect_params().values()) for layer in (theirs, mine))
    for n, (source, target) in enumerate(zip(sources, targets, strict=True)):
        source.set_data(noise(*source.shape, seed=n, dtype=source.dtype) * 0.7)
        target.set_data(source.data())


def data(layer: Any, steps: int = STEPS, batch: int = BATCH, dtype: str = "float32") -> Any:
    shape = (batch, steps) if layer._layout == "NTC" else (steps, batch)
    return noise(*shape, INPUTS, seed=40, dtype=dtype)


def states_of(layer: Any, batch: int = BATCH, dtype: str = "float32") -> list[Any]:
    shapes = [info["shape"] for info in layer.state_info(batch)]
    return [noise(*shape, seed=50 + n, dtype=dtype) for n, shape in enumerate(shapes)]


def flat(found: Any) -> list[Any]:
    if not isinstance(found, (list, tuple)):
        return [found]
    return [array for part in found for array in flat(part)]


def learn(net: Any, reads: list[Any], *args: Any) -> tuple[list[Any], list[Any]]:
    """Outputs, and gradients of what is read and of all parameters."""
    for array in reads:
        array.attach_grad()
    with autograd.record():
        outputs = flat(net(*args))
        loss = sum((noise(*o.shape, seed=9, dtype=o.dtype) * o).sum() for o in outputs)
    loss.backward()
    gradients = [array.grad for array in reads]
    gradients += [parameter.grad() for parameter in net.collect_params().values()]
    return [o.asnumpy() for o in outputs], [g.asnumpy() for g in gradients]


def near(got: Any, want: Any, tolerance: float = 1e-5, what: str = "") -> None:
    got, want = (a.asnumpy() if isinstance(a, mx.nd.NDArray) else a for a in (got, want))
    assert got.shape == want.shape, what
    scale = tolerance * (1 + np.abs(want).max(initial=0))
    np.testing.assert_allclose(got, want, rtol=0, atol=scale, err_msg=what)


def compare(theirs: Any, mine: Any, *args: Any, tolerance: float = 1e-5) -> None:
    """The same outputs and gradients, in training and without recording."""
    reads = flat(list(args))
    want, found = learn(theirs, reads, *args), learn(mine, reads, *args)
    for got, right in zip(found, want, strict=True):
        assert len(got) == len(right)
        for n, (g, w) in enumerate(zip(got, right, strict=True)):
            near(g, w, tolerance, f"array {n} of {len(got)}")
    for got, right in zip(flat(mine(*args)), want[0], strict=True):
        near(got, right, tolerance)


# -- as Gluon's ------------------------------------------------------------------------------------


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


def test_cast() -> None:
    theirs, mine = pair("LSTM")
    for layer in (theirs, mine):
        layer.cast("float64")
    compare(theirs, mine, data(mine, dtype="float64"), tolerance=1e-12)


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


# -- lengths ---------------------------------------------------------------------------------------


def one_by_one(
    layer: Any, x: Any, states: list[Any] | None, lengths: Any = LENGTHS
) -> list[tuple[Any, list[Any]]]:
    """Every sequence alone, through Gluon: its outputs, its final states."""
    axis = layer._layout.find("T")
    found = []
    for row, length in enumerate(lengths):
        begin = layer.begin_state(len(lengths), dtype=x.dtype) if states is None else states
        own = [mx.nd.slice_axis(s, axis=1, begin=row, end=row + 1) for s in begin]
        if not length:
            found.append((None, own))
            continue
        alone = mx.nd.slice_axis(x, axis=1 - axis, begin=row, end=row + 1)
        cut = mx.nd.slice_axis(alone, axis=axis, begin=0, end=length)
        found.append(layer(cut, own))
    return found


def put_together(layer: Any, x: Any, found: list[tuple[Any, list[Any]]]) -> list[Any]:
    """Outputs with zeros behind the ends, and final states, as one call has them."""
    axis = layer._layout.find("T")
    outputs = []
    for out, _ in found:
        missing = x.shape[axis] - (0 if out is None else out.shape[axis])
        shape = [1, 1, layer._dir * layer._hidden_size]
        shape[axis] = missing
        parts = ([] if out is None else [out]) + (
            [mx.nd.zeros(shape, dtype=x.dtype)] if missing else []
        )
        outputs.append(mx.nd.concat(*parts, dim=axis))
    states = zip(*(own for _, own in found), strict=True)
    return [mx.nd.concat(*outputs, dim=1 - axis), *(mx.nd.concat(*s, dim=1) for s in states)]


class OneByOne:
    """Gluon's layer as if it knew lengths."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def collect_params(self) -> Any:
        return self.layer.collect_params()

    def __call__(self, x: Any, states: Any, lengths: Any) -> Any:
        ends = [int(n) for n in lengths.asnumpy()]
        found = put_together(self.layer, x, one_by_one(self.layer, x, states, ends))
        return found[0] if states is None else found


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_sequence_is_as_if_alone(kind: str, bidirectional: bool, given: bool) -> None:
    for dtype, layers, layout in [("int32", 1, "TNC"), ("float32", 2, "NTC")]:
        theirs, mine = pair(kind, num_layers=layers, layout=layout, bidirectional=bidirectional)
        x, lengths = data(mine), mx.nd.array(LENGTHS, dtype=dtype)
        states = states_of(mine) if given else None
        reads = [x, *(states or [])]
        want = learn(OneByOne(theirs), reads, x, states, lengths)
        found = learn(mine, reads, x, states, lengths)
        for got, right in zip(found, want, strict=True):
            for n, (g, w) in enumerate(zip(got, right, strict=True)):
                near(g, w, 1e-5, f"array {n}")
        axis = mine._layout.find("T")
        for row, length in enumerate(LENGTHS):
            for array in (found[0][0], found[1][0]):  # outputs, gradients of inputs
                assert not np.take(np.moveaxis(array, axis, 0), row, axis=1)[length:].any()
        for got, right in zip(flat(mine(x, states, lengths)), want[0], strict=True):
            near(got, right)


def test_dtypes_of_lengths() -> None:
    _, mine = pair("LSTM")
    x = data(mine)
    found = []
    for dtype in ("int32", "int64", "float32", "float64"):
        outputs, gradients = learn(mine, [x], x, None, mx.nd.array(LENGTHS, dtype=dtype))
        found.append([*outputs, *gradients])
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_full_lengths_are_none(bidirectional: bool) -> None:
    _, mine = pair("GRU", bidirectional=bidirectional)
    x, states = data(mine), states_of(mine)
    reads = [x, *states]
    plain = learn(mine, reads, x, states)
    full = learn(mine, reads, x, states, mx.nd.full((BATCH,), STEPS))
    for got, want in zip([*full[0], *full[1]], [*plain[0], *plain[1]], strict=True):
        near(got, want, 1e-6)
    for got, want in zip(flat(mine(x, states)), plain[0], strict=True):
        near(got, want, 1e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_of_zero(kind: str, bidirectional: bool) -> None:
    _, mine = pair(kind, bidirectional=bidirectional)
    x, states, lengths = data(mine), states_of(mine), mx.nd.zeros(BATCH, dtype="int32")
    outputs, gradients = learn(mine, [x, *states], x, states, lengths)
    assert not outputs[0].any()
    for n, state in enumerate(states):
        np.testing.assert_array_equal(outputs[1 + n], state.asnumpy())
        head = noise(*state.shape, seed=9).asnumpy()
        np.testing.assert_array_equal(gradients[1 + n], head)
    for gradient in (gradients[0], *gradients[1 + len(states) :]):
        assert not gradient.any()


def test_what_lies_behind_the_end_does_not_matter() -> None:
    _, mine = pair("LSTM", bidirectional=True)
    x, lengths = data(mine), mx.nd.array(LENGTHS)
    want = learn(mine, [x], x, None, lengths)
    spoiled = x.asnumpy()
    for row, length in enumerate(LENGTHS):
        spoiled[length:, row] = np.nan
    y = mx.nd.array(spoiled)
    found = learn(mine, [y], y, None, lengths)
    for got, right in zip([*found[0], *found[1]], [*want[0], *want[1]], strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
def test_lengths_hybridized(given: bool) -> None:
    _, mine = pair("LSTM", num_layers=2, bidirectional=True)
    x, lengths = data(mine), mx.nd.array(LENGTHS)
    states = states_of(mine) if given else None
    reads = [x, *(states or [])]
    want = learn(mine, reads, x, states, lengths)
    mine.hybridize()
    found = learn(mine, reads, x, states, lengths)
    for got, right in zip([*found[0], *found[1]], [*want[0], *want[1]], strict=True):
        near(got, right)


class Encoder(gluon.HybridBlock):
    """A net that hands lengths on."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def hybrid_forward(self, F: Any, x: Any, lengths: Any) -> Any:
        return F.tanh(self.layer(x, None, lengths))


@pytest.mark.parametrize("how", ["hybridize", "optimize", "inference"])
def test_lengths_inside_of_a_net(how: str) -> None:
    _, mine = pair("GRU", num_layers=2, bidirectional=True)
    net = Encoder(mine)
    x, lengths = data(mine), mx.nd.array(LENGTHS)
    want = learn(net, [x], x, lengths)
    if how == "inference":
        near(graphopt.optimize(net, mode="inference")(x, lengths), want[0][0])
        return
    if how == "optimize":
        net = graphopt.optimize(net)
    else:
        net.hybridize()
    found = learn(net, [x], x, lengths)
    for got, right in zip([*found[0], *found[1]], [*want[0], *want[1]], strict=True):
        near(got, right)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        (mx.nd.array([1, 2]), r"sequence_length has shape \(2,\).*needs \(4,\)"),
        (mx.nd.ones((4, 1)), r"sequence_length has shape \(4, 1\).*needs \(4,\)"),
        (mx.nd.ones(STEPS), r"sequence_length has shape \(5,\)"),
        (mx.nd.ones(4, dtype="uint8"), "sequence_length is uint8"),
        (mx.nd.ones(4, dtype="float16"), "sequence_length is float16"),
        (np.ones(4), "sequence_length is a ndarray, not an NDArray"),
        ([1, 2, 3, 4], "sequence_length is a list, not an NDArray"),
    ],
)
@pytest.mark.parametrize("hybridize", [False, True])
def test_lengths_that_do_not_fit(lengths: Any, told: str, hybridize: bool) -> None:
    _, mine = pair("LSTM")
    if hybridize:
        mine.hybridize()
    with pytest.raises(InputError, match=told):
        mine(data(mine), None, lengths)


@pytest.mark.parametrize(("length", "told"), [(-1, "-1"), (np.nan, "nan"), (6, "6"), (1.5, "1.5")])
@pytest.mark.parametrize("training", [False, True])
def test_lengths_that_are_none(length: float, told: str, training: bool) -> None:
    _, mine = pair("LSTM")
    lengths = mx.nd.array([5, 0, length, 1])
    x = data(mine)
    with autograd.record() if training else autograd.pause():
        found = mine(x, None, lengths)
    with pytest.raises(mx.MXNetError, match=f"sequence 2 has length {told}"):
        found.asnumpy()
    near(mine(x), pair("LSTM")[0](x))  # what comes after is not harmed


@pytest.mark.parametrize("hybridize", [False, True])
def test_states_that_do_not_fit(hybridize: bool) -> None:
    _, mine = pair("LSTM")
    if hybridize:
        mine.hybridize()
    x = data(mine)
    h, c = states_of(mine)
    for states in ([h[:, :2], c], [h, noise(1, BATCH, UNITS + 1)], [h, noise(2, BATCH, UNITS)]):
        with pytest.raises((ValueError, mx.MXNetError), match=r"shape|sequences|elements"):
            flat(mine(x, states))[0].asnumpy()


def test_no_states_are_not_zero_states() -> None:
    _, mine = pair("LSTM")
    with pytest.raises(InputError, match="has 2 states, 0 were given"):
        mine(data(mine), [])


def test_zeros_are_made_where_they_are_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = pair("LSTM")
    x = data(mine)
    expected, made = theirs(x), []
    begin = mine.begin_state
    monkeypatch.setattr(mine, "begin_state", lambda *a, **k: made.append(a) or begin(*a, **k))
    near(mine(x), expected)
    assert not made
    mine.hybridize()
    near(mine(x), expected)
    assert made


def test_inputs_that_do_not_fit() -> None:
    _, mine = pair("GRU")
    with pytest.raises(mx.MXNetError, match=r"has shape .*4.*not .*3"):
        mine(noise(STEPS, BATCH, INPUTS + 1)).asnumpy()
    with pytest.raises(mx.MXNetError, match="type code"):
        mine(data(mine, dtype="float64")).asnumpy()


# -- threads ---------------------------------------------------------------------------------------


@pytest.fixture
def hasty() -> Iterator[None]:
    """Python's threads take turns much more often than they do by themselves."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("with_lengths", [False, True])
def test_threads_that_call_one_layer(with_lengths: bool, hasty: None) -> None:
    _, mine = pair("LSTM", bidirectional=True)
    inputs = [data(mine, 2 + n, 3 + n) for n in range(4)]
    ends = [mx.nd.array(np.arange(3 + n)) if with_lengths else None for n in range(4)]
    want = [mine(x, None, e).asnumpy() for x, e in zip(inputs, ends, strict=True)]
    barrier = threading.Barrier(2)

    def work(first: int) -> list[tuple[int, Any]]:
        barrier.wait(60)
        return [
            (n, mine(inputs[n], None, ends[n]).asnumpy())
            for _ in range(5)
            for n in (first, first + 2)
        ]

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(work, range(2), timeout=100):
            for n, got in found:
                np.testing.assert_array_equal(got, want[n])


@pytest.mark.parametrize("what", ["states", "lengths"])
def test_threads_that_want_different_things(what: str, hasty: None) -> None:
    """What is asked of one call does not reach the other."""
    _, mine = pair("RNN")
    x, states, lengths = data(mine), states_of(mine), mx.nd.array(LENGTHS)
    calls = [(x,), (x, states) if what == "states" else (x, None, lengths)]
    want = [[a.asnumpy() for a in flat(mine(*call))] for call in calls]
    barrier = threading.Barrier(2)

    def work(number: int) -> list[list[Any]]:
        barrier.wait(60)
        return [[a.asnumpy() for a in flat(mine(*calls[number]))] for _ in range(30)]

    with ThreadPoolExecutor(2) as pool:
        for number, found in enumerate(pool.map(work, range(2), timeout=100)):
            for got in found:
                assert len(got) == len(want[number])
                for g, w in zip(got, want[number], strict=True):
                    np.testing.assert_array_equal(g, w)


def test_export_of_a_layer_says_what_to_do(tmp_path) -> None:
    _, mine = pair("LSTM")
    fast = graphopt.optimize(mine, mode="inference")
    fast(data(mine))
    with pytest.raises(GraphoptError, match="keep the kernels"):
        fast.export(str(tmp_path / "net"))
