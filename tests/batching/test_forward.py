"""graphopt.batch: what users write in forward, against running it sample by sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, SampleError
from tests.batching.comparing import Fn, check, initialized, rand, same

mx = import_mxnet()
nn = mx.gluon.nn


def test_sequences_of_unequal_length() -> None:
    def forward(net: Any, steps: Any) -> Any:
        h = mx.nd.zeros((1, 3))
        for x in steps:
            h = mx.nd.tanh(net.x(x) + net.h(h))
        return h

    net = initialized(Fn(forward, x=nn.Dense(3, in_units=2), h=nn.Dense(3, in_units=3)))
    check(net, [([rand(1, 2) for _ in range(n)],) for n in (1, 4, 2, 4, 7)])


def test_rows_of_an_array_as_steps() -> None:
    def forward(net: Any, x: Any) -> Any:
        h = mx.nd.zeros((1, 3))
        for at in range(x.shape[0]):
            h = mx.nd.tanh(net.x(x[at : at + 1]) + net.h(h))
        return h

    net = initialized(Fn(forward, x=nn.Dense(3, in_units=2), h=nn.Dense(3, in_units=3)))
    batched = check(net, [(rand(n, 2),) for n in (1, 4, 2, 4, 7)])
    # Per length two layers, the sum and tanh; slicing costs nothing.
    assert batched.statistics.groups <= 4 * 7


@pytest.mark.parametrize("how", ["slice_axis", "brackets", "row", "vector"])
def test_words_along_axis_1(how: str) -> None:
    def word(x: Any, at: int) -> Any:
        if how == "slice_axis":
            return mx.nd.slice_axis(x, axis=1, begin=at, end=at + 1).reshape((0, -1))
        if how == "brackets":
            return x[:, at]
        return x[0][at : at + 1] if how == "row" else x[0, at].expand_dims(0)

    def forward(net: Any, words: Any) -> Any:
        x, h = net.embed(words), mx.nd.zeros((1, 3))
        for at in range(words.shape[1]):
            h = mx.nd.tanh(net.x(word(x, at)) + net.h(h))
        return h, x[:, -1:], x[:, 0:2]

    net = Fn(
        forward,
        embed=nn.Embedding(9, 16),
        x=nn.Dense(3, in_units=16),
        h=nn.Dense(3, in_units=3),
    )
    lengths = (2, 4, 2, 7, 3)
    words = [(mx.nd.array(np.random.randint(0, 9, (1, n))),) for n in lengths]
    batched = check(initialized(net), words)
    # By length there is the embedding and its view; a step has four operators.
    assert batched.statistics.groups <= 2 * 4 + 4 * 7 + 4


KEYS: list[Any] = [
    0,
    -1,
    slice(1, None),
    slice(None, None, 2),
    slice(None, None, -1),
    [2, 0],
    (0, 1),
    (0, 1, 2),
    (slice(None), 1),
    (slice(None), slice(0, 2), slice(1, 3)),
    (slice(1, 3), slice(None), slice(0, 4, 2)),
    None,
    Ellipsis,
    (Ellipsis, 0),
    (None, slice(0, 1)),
    (slice(None), None, 1, slice(None, None, -1)),
    (1, Ellipsis, None),
    np.array([1, 0]),
    (slice(None), [0, 1]),
    (None, [0, 1]),
    mx.nd.array([2, 0]),
    (np.array([2, 0]), 1),
    (np.array([2]), -1),
    (mx.nd.array([2, 0]), 1),
    (np.array([2, 0]), slice(None), 1),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing(key: Any) -> None:
    net = initialized(Fn(lambda net, x: net.g(x)[key], g=nn.Dense(4, in_units=3, flatten=False)))
    check(net, [(rand(rows, 2, 3),) for rows in (3, 4, 3)])


@pytest.mark.parametrize("key", [7, -8, (0, 5), (0, 0, 0, 0), [9]], ids=str)
def test_indexing_out_of_range(key: Any) -> None:
    net = initialized(Fn(lambda net, x: net.g(x)[key], g=nn.Dense(4, in_units=3, flatten=False)))
    with pytest.raises(SampleError, match=r"sample 0 .and 1 more. raised IndexError"):
        graphopt.batch(net)([(rand(3, 2, 3),)] * 2)


@pytest.mark.parametrize("cell", ["LSTMCell", "GRUCell", "RNNCell"])
def test_gluon_cells_step_by_step(cell: str) -> None:
    def forward(net: Any, words: Any) -> Any:
        states = net.cell.begin_state(1)
        for at in range(words.shape[0]):
            out, states = net.cell(net.embed(words[at : at + 1]), states)
        return out, states

    made = getattr(mx.gluon.rnn, cell)(4, input_size=3)
    net = initialized(Fn(forward, cell=made, embed=nn.Embedding(9, 3)))
    words = [(mx.nd.array(np.random.randint(0, 9, n)),) for n in (3, 1, 5)]
    batched = check(net, words)
    assert "operator by operator" not in batched.explain()


def test_cells_unrolled() -> None:
    def forward(net: Any, x: Any) -> Any:
        out, _ = net.cell.unroll(x.shape[1], x, merge_outputs=True)
        return out

    net = initialized(Fn(forward, cell=mx.gluon.rnn.LSTMCell(4, input_size=3)))
    check(net, [(rand(1, n, 3),) for n in (2, 4, 2)])


def test_state_in_python_objects() -> None:
    class Stack:
        def __init__(self) -> None:
            self.items: list[Any] = []

    def forward(net: Any, program: str, x: Any) -> Any:
        stack = Stack()
        for letter in program:
            if letter == "p":
                stack.items.append(net.push(x))
            else:
                a, b = stack.items.pop(), stack.items.pop()
                stack.items.append(net.merge(mx.nd.concat(a, b, dim=1)))
        return stack.items[-1]

    net = initialized(Fn(forward, push=nn.Dense(3, in_units=2), merge=nn.Dense(3, in_units=6)))
    check(net, [("ppm", rand(1, 2)), ("p", rand(1, 2)), ("pppmm", rand(1, 2))])


@pytest.mark.parametrize(("dtype", "tol"), [("float64", 1e-10), ("float16", 1e-2)])
def test_dtypes(dtype: str, tol: float) -> None:
    def forward(net: Any, x: Any, n: int) -> Any:
        for _ in range(n):
            x = mx.nd.tanh(net.scale.data() * 0.5 + x * net.scale.data())
        return x

    net = Fn(forward)
    net.scale = net.params.get("scale", shape=(1, 2), dtype=dtype)
    net = initialized(net)
    check(net, [(rand(1, 2, dtype=dtype), n) for n in (1, 3, 2)], tol=tol)


def test_integer_inputs() -> None:
    def forward(net: Any, words: Any) -> Any:
        return net.embed(words).sum(axis=0, keepdims=True), words + 1

    net = initialized(Fn(forward, embed=nn.Embedding(7, 3)))
    words = [(mx.nd.array(w, dtype="int32"),) for w in ([1, 2, 3], [4], [6, 0])]
    check(net, words)


def test_value_dependent_control_flow() -> None:
    def forward(net: Any, x: Any) -> Any:
        steps = 0
        while float(x.abs().sum().asscalar()) > 0.2 and steps < 20:
            x = net.g(x) * 0.3
            if (x[0, 0] > 0).asscalar():
                x = mx.nd.sin(x)
            steps += 1
        return x

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2, use_bias=False)))
    batched = check(net, [(rand(1, 2, seed=s) * (1 + s),) for s in range(5)])
    assert 1 < batched.statistics.flushes < 42


def test_values_read_in_all_ways() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.g(x)
        total = y.sum()
        n = total.asscalar() + int(total.asnumpy()[0]) + bool(total > 0) + len(y)
        if total == total:
            y = y + 1
        mx.nd.waitall()
        y.wait_to_read()
        return y * n + float(y.copy().asnumpy().mean())

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    check(net, [(rand(1, 2),) for _ in range(3)], tol=1e-4)


def _looked_up(net: Any, numbers: Any, how: str) -> Any:
    if how == "child":
        return net.embed(numbers)
    if how == "graph":
        return net.both(numbers)
    weight = net.embed.weight.data()
    if how == "weight of a sample":
        weight = weight * (1 + 0 * numbers.reshape((1, 1)))
    return mx.nd.Embedding(numbers, weight, input_dim=7, output_dim=8)


@pytest.mark.parametrize("how", ["child", "graph", "operator", "weight of a sample"])
def test_embeddings_after_a_value_was_read(how: str) -> None:
    def visit(net, tree):
        if isinstance(tree, tuple):
            h = net.join(mx.nd.concat(visit(net, tree[0])[0], visit(net, tree[1])[0], dim=1))
        else:
            h = net.first(_looked_up(net, tree[:, 0], how) + 0)
        score = net.score(h)
        return h, score if score.argmax(axis=1).asscalar() else score - score * 2

    embed, both = nn.Embedding(7, 8), nn.HybridSequential()
    both.add(embed, nn.Dense(8, in_units=8))
    first, join, score = (nn.Dense(units, in_units=n) for units, n in ((8, 8), (8, 16), (3, 8)))
    net = initialized(Fn(visit, embed=embed, both=both, first=first, join=join, score=score))
    three, five, one = (mx.nd.array([[number]]) for number in (3, 5, 1))
    for samples in ([((three, five),)], [((three, (five, one)),), ((one, three),)]):
        check(net, samples, tol=1e-4)


def test_add_n_of_any_number() -> None:
    def forward(net: Any, xs: Any) -> Any:
        return net.g(mx.nd.add_n(*[mx.nd.tanh(x) for x in xs]))

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [([rand(1, 2) for _ in range(n)],) for n in (3, 1, 2, 5, 3)]
    check(net, samples, groups=4)  # tanh, add_n, Dense after either add_n or (of one) tanh


@pytest.mark.parametrize("how", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_concat_then_reduce(how: str, keepdims: bool) -> None:
    def forward(net: Any, xs: Any) -> Any:
        rows = mx.nd.concat(*[net.g(x) for x in xs], dim=0)
        return getattr(mx.nd, how)(rows, axis=0, keepdims=keepdims)

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [([rand(1, 2) for _ in range(n)],) for n in (3, 1, 2, 5, 3)]
    check(net, samples)


def test_python_sum() -> None:
    def forward(net: Any, xs: Any) -> Any:
        return mx.nd.tanh(sum(net.g(x) for x in xs))

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [([rand(1, 2) for _ in range(n)],) for n in (3, 1, 2, 5, 3)]
    # Dense, one sum for all, and tanh of it; of a sum of one it could be done earlier.
    check(net, samples, groups=4, scheduler="depth")
    check(net, samples, groups=3, scheduler="agenda")


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_many_rows_of_float16(how: str) -> None:
    x = rand(1, 1500, 4, dtype="float16", seed=0) + 1
    net = Fn(lambda _net, x: getattr(x[0], how)(axis=0, keepdims=True))
    exact = getattr(x.asnumpy()[0].astype("float64"), how)(axis=0)
    found = graphopt.batch(net)([(x,)]).asnumpy()[0]
    np.testing.assert_allclose(found, exact, rtol=1e-3)


def test_python_sums_used_in_all_ways() -> None:
    def forward(net: Any, xs: Any) -> Any:
        total = sum(xs)
        half = sum(xs[:1])
        more = sum([total, half]) + 1
        net.kept = sum(xs)
        with mx.autograd.pause():
            more = more + sum(xs)
        rows = sum([mx.nd.concat(x, x, dim=0) for x in xs])
        unequal = sum([rows, xs[0]])
        if (total > 0).sum().asscalar() > 1:
            total = total * 2
        return {"a": total, "b": [half, more], "c": total[0:1], "d": total.sum(), "e": unequal}

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    net.w = net.params.get("w", shape=(1, 2))
    net.w.initialize()
    samples = [([rand(1, 2) for _ in range(n)],) for n in (3, 1, 2)]
    batched = check(net, samples, grads=False)
    batched(samples)
    same(net.kept * 1, sum(samples[-1][0]), 1e-5)


def test_cell_as_mxnets_own_example_writes_it() -> None:
    def forward(net: Any, xs: Any) -> Any:
        hs = [net.g(x) for x in xs]
        together = mx.nd.concat(*[h.expand_dims(axis=1) for h in hs], dim=1)
        weights = net.w(together)
        mixed = mx.nd.sum(weights * together, axis=1)
        return mixed + mx.nd.dot(together.sum(axis=1), net.v.data())

    net = Fn(forward, g=nn.Dense(2, in_units=2), w=nn.Dense(2, in_units=2, flatten=False))
    net.v = net.params.get("v", shape=(2, 2))
    check(initialized(net), [([rand(1, 2) for _ in range(n)],) for n in (3, 1, 2, 5, 3)])


def test_results_of_unequal_shapes_are_lists() -> None:
    net = initialized(Fn(lambda net, x: net.g(x), g=nn.Dense(3, in_units=2)))
    samples = [(rand(n, 2),) for n in (1, 2, 3)]
    found = check(net, samples)(samples)
    assert [array.shape for array in found] == [(1, 3), (2, 3), (3, 3)]


def test_batch_axis() -> None:
    net = initialized(Fn(lambda net, x: net.g(x), g=nn.Dense(3, in_units=2, flatten=False)))
    found = graphopt.batch(net, batch_axis=1)([(rand(4, 1, 2),) for _ in range(5)])
    assert found.shape == (4, 5, 3)


def test_results_that_are_arguments_or_constants() -> None:
    net = initialized(Fn(lambda net, x: (x, mx.nd.ones((1, 2)), net.g(x), 3)))
    net.g = nn.Dense(2, in_units=2)
    net.g.initialize()
    check(net, [(rand(1, 2),) for _ in range(3)])


def test_arguments_are_checked() -> None:
    net = initialized(Fn(lambda net, x: x))
    with pytest.raises(InputError, match=r"^cannot batch a int: give a Gluon Block$"):
        graphopt.batch(3)
    with pytest.raises(InputError, match=r"^sample 1 is a NDArray: give a tuple of the arguments"):
        graphopt.batch(net)([(rand(1, 2),), rand(1, 2)])
    with pytest.raises(InputError, match=r"^scheduler 'x' is none of depth, agenda$"):
        graphopt.batch(net, scheduler="x")
    with pytest.raises(InputError, match=r"^batch_axis 'x' is no axis: give its number$"):
        graphopt.batch(net, "x")


@pytest.mark.parametrize("name", ["gamma", "gammaln"])
def test_operators_that_kernels_have_no_derivative_of(name: str) -> None:
    def forward(net: Any, x: Any) -> Any:
        return getattr(mx.nd, name)(net.g(x) + 3) * 2

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    check(net, [(rand(1, 2),) for _ in range(3)])


def test_results_of_mxnets_numpy_are_joined() -> None:
    net = initialized(Fn(lambda net, x: mx.np.exp(x)))
    samples = [(mx.np.full((1, 2), value),) for value in (1.0, 2.0)]
    with mx.util.np_shape(True), mx.util.np_array(True):
        found = graphopt.batch(net)(samples)
        assert isinstance(found, mx.np.ndarray)
        assert np.allclose(found.asnumpy(), np.exp([[1, 1], [2, 2]]))
