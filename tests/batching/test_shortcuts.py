"""What recording finds faster when it comes again, and kernels without copies: the same results."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from greenlet import GreenletExit

import graphopt
from graphopt.batching.lazy import Lazy
from graphopt.compat import import_mxnet
from graphopt.errors import SampleError
from tests.batching.comparing import Fn, check, initialized, rand

mx = import_mxnet()
nd, gluon = mx.nd, mx.gluon


def words(*lengths: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(nd.array(rng.integers(0, 9, (1, n)), dtype="int32"),) for n in lengths]


def embedding(**more: Any) -> Any:
    return gluon.nn.Embedding(9, 6, **more)


def total(rows: list[Any]) -> Any:
    return nd.add_n(*rows) if len(rows) > 1 else rows[0]


@pytest.mark.parametrize("times", [1, 2])
def test_words_are_looked_up(times: int) -> None:
    def forward(net: Any, x: Any) -> Any:
        found = [net.embed(x) for _ in range(times)]
        return total([net.dense(v[:, at]) for v in found for at in range(x.shape[1])])

    net = initialized(Fn(forward, embed=embedding(), dense=gluon.nn.Dense(3, in_units=6)))
    check(net, words(3, 1, 3, 2, 3, 3))


def test_words_are_looked_up_within_scopes_of_autograd() -> None:
    def forward(net: Any, x: Any) -> Any:
        with mx.autograd.pause():
            fixed = net.embed(x)[:, 0]
        return net.embed(x)[:, 0] * fixed

    check(initialized(Fn(forward, embed=embedding())), words(3, 3, 3, 2))


@pytest.mark.parametrize(
    "look",
    [
        lambda y: y[0:1],
        lambda y: y[:, 1],
        lambda y: y.reshape((1, 2, 2)).reshape((1, 4)),
        lambda y: nd.concat(y, y, dim=0)[1:2],
        lambda y: nd.stack(y[0], y[0])[1:2],
        lambda y: nd.add_n(y),
    ],
    ids=["slice", "pick", "reshape", "concat", "stack", "add_n"],
)
@pytest.mark.parametrize("ends", [False, True])
def test_recording_that_a_sample_begins_by_itself(look: Any, ends: bool) -> None:
    def forward(net: Any, x: Any) -> Any:
        with mx.autograd.record():
            y = net.dense(x)
            if not ends:
                with mx.autograd.pause():
                    fixed = look(y)
                return y * fixed
        fixed = look(y)
        with mx.autograd.record():
            return y * fixed

    net = initialized(Fn(forward, dense=gluon.nn.Dense(4, in_units=4)))
    given = rand(1, 4)
    found = []
    for run in (net, lambda x: graphopt.batch(net)([(x,)])):
        run(given).backward()
        found.append(net.dense.weight.grad().asnumpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_weights_that_are_replaced_between_samples() -> None:
    def forward(net: Any, x: Any, table: Any) -> Any:
        if table is not None:
            net.embed.weight._data = [table]
        return net.embed(x)[:, 0]

    net = initialized(Fn(forward, embed=embedding(prefix="words_")))
    first, other = net.embed.weight.data(), rand(9, 6)
    tables = [first, None, other, None]
    samples = [(x, table) for (x,), table in zip(words(3, 3, 3, 3), tables, strict=True)]
    found = graphopt.batch(net)(samples).asnumpy()
    expected = [
        t.asnumpy()[x.asnumpy()[0, 0]]
        for (x, _), t in zip(samples, [first, first, other, other], strict=True)
    ]
    np.testing.assert_array_equal(found, expected)


def test_hooks_that_a_sample_adds_are_called() -> None:
    calls: list[str] = []

    def forward(net: Any, x: Any, hook: bool) -> Any:
        if hook:
            net.dense.register_forward_hook(lambda *_: calls.append("after"))
            net.embed.register_forward_pre_hook(lambda *_: calls.append("before"))
        return net.dense(net.embed(x)[:, 0])

    net = initialized(Fn(forward, embed=embedding(), dense=gluon.nn.Dense(3, in_units=6)))
    graphopt.batch(net)([(x, at == 2) for at, (x,) in enumerate(words(2, 2, 2, 2))])
    assert sorted(calls) == ["after", "after", "before", "before"]


def test_parts_of_an_array_that_is_written() -> None:
    def run(batched: bool) -> Any:
        shared = rand(1, 3, 20, seed=1)

        def forward(net: Any, x: Any) -> Any:
            before = x[:, 1] * 2
            shared[:] = shared + 1  # what `x` stands for
            return before + x[:, 1]

        call = graphopt.batch(Fn(forward), debug=not batched)
        return call([(shared,), (shared,)]).asnumpy()

    np.testing.assert_allclose(run(True), run(False), rtol=1e-6)


def test_constants_of_other_shapes_devices_and_flags() -> None:
    def forward(net: Any, x: Any) -> Any:
        with mx.autograd.pause():
            apart = nd.ones((1, 4))
        found = nd.zeros((1, 4)) + nd.ones((1, 4)) + nd.ones(shape=(1, 4)) + apart
        return nd.concat(found + net.dense(x), nd.zeros((1, 2)), dim=1)

    net = initialized(Fn(forward, dense=gluon.nn.Dense(4, in_units=4)))
    check(net, [(rand(1, 4),) for _ in range(3)])
    with pytest.raises(SampleError):
        graphopt.batch(Fn(lambda net, x: nd.zeros(([1], 4)) + x))([(rand(1, 4),)])


def test_sums_of_unlike_rows() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.dense(x)
        return nd.add_n(y, y), nd.add_n(y), nd.add_n(y, rand(1, 3, seed=2)), nd.add_n(x, x)

    check(initialized(Fn(forward, dense=gluon.nn.Dense(3, in_units=4))), [(rand(1, 4),)] * 3)
    with pytest.raises(SampleError):
        graphopt.batch(Fn(lambda net, x: nd.add_n(x, nd.zeros((1, 5)))))([(rand(1, 4),)])


def test_samples_that_wait_and_samples_that_do_not() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.dense(x)
        if float(x.asnumpy()[0, 0]) > 0:
            y = y * (2 if float(y.sum().asscalar()) > 0 else 3)
        return y

    net = initialized(Fn(forward, dense=gluon.nn.Dense(3, in_units=4)))
    check(net, [(rand(1, 4, seed=seed),) for seed in range(12)])


@pytest.mark.parametrize("failing", [0, 2, 3])
def test_samples_after_one_that_raises(failing: int) -> None:
    def forward(net: Any, x: Any, number: int) -> Any:
        if number == failing:
            with mx.autograd.pause():
                raise ValueError(str(x.asnumpy() * 0))
        return x * (number if number % 2 or float(x.asnumpy()[0, 0]) == 0 else -1)

    with pytest.raises(SampleError) as raised:
        graphopt.batch(Fn(forward))([(nd.ones((1, 2)), number) for number in range(4)])
    assert list(raised.value.failures) == [failing]
    found = [None if r is None else r.asnumpy().tolist() for r in raised.value.results]
    expected = [[[-1.0, -1.0]], [[1.0, 1.0]], [[-1.0, -1.0]], [[3.0, 3.0]]]
    assert found == [None if n == failing else rows for n, rows in enumerate(expected)]


@pytest.mark.usefixtures("small_heap")
def test_values_die_with_their_batch() -> None:
    def alive() -> int:
        # A tuple that the engine's thread is just making must not be held by what is looked at.
        mx.nd.waitall()
        gc.collect()
        return sum(type(x) is Lazy for x in gc.get_objects())

    net = initialized(Fn(lambda net, x: net.dense(x) + 1, dense=gluon.nn.Dense(3, in_units=4)))
    batched = graphopt.batch(net)
    samples = [(rand(1, 4),) for _ in range(4)]
    batched(samples)
    before = alive()
    for _ in range(3):
        batched(samples)
    assert alive() == before


@pytest.mark.parametrize("reads", [1, 2])
@pytest.mark.parametrize("cut", [False, True])
def test_gradients_of_rows_from_outside(reads: int, cut: bool) -> None:
    """A row that is read once gets its gradient in place; others get sums."""

    def forward(net: Any, x: Any) -> Any:
        parts = [x[:, :4], x[:, 4:]] if cut else [x, x]
        first = nd.tanh(net.dense(parts[0]))
        return first * net.dense(parts[1]) if reads > 1 else first + 1

    dense = gluon.nn.Dense(3, in_units=4 if cut else 8)
    net = initialized(Fn(forward, dense=dense))
    results = []
    for run in (
        lambda s: graphopt.batch(net)(s),
        lambda s: nd.concat(*(net(*x) for x in s), dim=0),
    ):
        given = [(rand(1, 8, seed=seed),) for seed in range(5)]
        for (x,) in given:
            x.attach_grad()
        with mx.autograd.record():
            loss = (run(given) ** 2).sum()
        loss.backward()
        results.append([x.grad.asnumpy() for (x,) in given])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_results_in_another_order_are_not_mistaken() -> None:
    """How results are brought together is kept with a plan, for their own order only."""
    order = [0, 1, 2, 3]

    def forward(net: Any, x: Any, y: Any, swap: bool) -> Any:
        a, b = net.dense(x), net.dense(y)
        return (b, a) if swap else (a, b)

    net = initialized(Fn(forward, dense=gluon.nn.Dense(3, in_units=4)))
    batched = graphopt.batch(net)
    for swap in (False, True, False):
        samples = [(rand(1, 4, seed=n), rand(1, 4, seed=n + 9), swap) for n in order]
        for found, expected in zip(
            batched(samples), zip(*(net(*s) for s in samples), strict=True), strict=True
        ):
            want = np.concatenate([e.asnumpy() for e in expected])
            np.testing.assert_allclose(found.asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_letters_of_words_are_looked_up() -> None:
    """Parts of what an embedding gives for ``(1, words, letters)`` are no rows of its lookup."""
    rng = np.random.default_rng(0)
    samples = [(nd.array(rng.integers(0, 9, (1, 4, 3)), dtype="int32"),) for _ in range(3)]
    net = initialized(Fn(lambda net, x: net.embed(x)[:, 1].sum(axis=1), embed=embedding()))
    check(net, samples)


@pytest.mark.parametrize("at", [2**70, -(2**70), 4, -4])
def test_parts_that_are_not_there(at: int) -> None:
    def forward(net: Any, x: Any) -> Any:
        with pytest.raises(IndexError):
            (x[:, 0], x[:, at])
        return x[:, 1]

    check(Fn(forward), [(rand(1, 3, 4),)] * 2, grads=False)


def test_constants_on_devices_that_come_to_lie_at_the_place_of_others() -> None:
    def forward(net: Any, x: Any) -> Any:
        found = []
        for number in range(40):
            with mx.Context("cpu", number % 5):
                found.append(nd.zeros((1, 4)).context.device_id)
        return found

    found = graphopt.batch(Fn(forward))([(rand(1, 4),)] * 2)
    assert found == [[number % 5] * 2 for number in range(40)]


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: nd.add_n(x),
        lambda x: 0 + x,
        lambda x: sum([x, x]),
        lambda x: nd.reshape(x, shape=(1, 3)),
        lambda x: nd.flatten(x),
        lambda x: nd.sum(x, axis=0, keepdims=True),
        lambda x: x.expand_dims(0)[0],
        lambda x: nd.stack(x, axis=0)[0],
        lambda x: x.reshape((1, 3)),  # but this is no copy
        lambda x: x[:],
    ],
)
def test_copies_of_an_array_that_is_written(copy: Any) -> None:
    """Nothing is run for them, yet they are what the array was."""

    def run(batched: bool) -> Any:
        shared = nd.ones((1, 3))

        def forward(net: Any, x: Any) -> Any:
            before = copy(x)
            shared[:] = shared + 1
            return before * 1

        return graphopt.batch(Fn(forward), debug=not batched)([(shared,), (shared,)]).asnumpy()

    np.testing.assert_array_equal(run(True), run(False))


def test_samples_after_one_that_ends_its_greenlet() -> None:
    def forward(net: Any, x: Any, number: int) -> Any:
        if number == 1:
            raise GreenletExit
        return x * number

    with pytest.raises(SampleError, match="raise an Exception instead") as raised:
        graphopt.batch(Fn(forward))([(nd.ones((1, 1)), number) for number in range(3)])
    found = raised.value.results
    assert [r if r is None else r.asscalar() for r in found] == [0, None, 2]


def test_samples_that_wait_while_another_ends_them_all() -> None:
    """Their scopes are left before the call ends, not when somebody collects garbage."""
    left: list[int] = []

    def forward(net: Any, x: Any, number: int) -> Any:
        try:
            with mx.autograd.pause():
                (x * 2).asnumpy()
                if number == 0:
                    raise KeyboardInterrupt
        finally:
            left.append(number)
        return x

    batched = graphopt.batch(Fn(forward))
    samples = [(nd.ones((1, 1)), number) for number in range(3)]
    with mx.autograd.record():
        with pytest.raises(KeyboardInterrupt) as raised:
            batched(samples)
        assert sorted(left) == [0, 1, 2]
        assert mx.autograd.is_recording()
    assert raised.value is not None  # it keeps what was on the stack until here
