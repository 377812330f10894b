"""graphopt.nn's recurrent layers: what they refuse, and threads that share one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from tests.nn.rnn_support import (
    BATCH,
    INPUTS,
    LENGTHS,
    STEPS,
    UNITS,
    data,
    flat,
    near,
    noise,
    pair,
    states_of,
)

mx = import_mxnet()
autograd = mx.autograd


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


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (
            mx.nd.ones((STEPS, BATCH)),
            r"inputs have shape \(5, 4\).*needs three axes, the last of 3",
        ),
        (mx.nd.ones((STEPS, BATCH, INPUTS + 1)), "the layer needs three axes, the last of 3"),
        (mx.nd.ones((STEPS, BATCH, INPUTS), dtype="float64"), "inputs are float64, .* float32"),
        (mx.nd.ones((STEPS, BATCH, INPUTS), dtype="int32"), "inputs are int32, .* float32"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, told: str) -> None:
    _, mine = pair("LSTM")
    with pytest.raises(InputError, match=told):
        mine(inputs)


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


def test_zeros_are_made_only_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
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
