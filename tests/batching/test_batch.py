"""graphopt.batch: what users write, against running it sample by sample."""

from __future__ import annotations

import copy
import gc
import itertools
import random
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.batching import constants
from graphopt.batching.recorder import Recorder
from graphopt.batching.unit import Unit
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, SampleError
from tests.batching.comparing import Fn, check, gradients, initialized, rand, same

mx = import_mxnet()
nn = mx.gluon.nn


class Update(mx.gluon.HybridBlock):
    """Child-sum Tree-LSTM, a node."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        with self.name_scope():
            self.x = nn.Dense(3 * hidden, in_units=width)
            self.h = nn.Dense(3 * hidden, in_units=hidden, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        enter, leave, update = F.split(self.x(x) + self.h(h), num_outputs=3, axis=1)
        c = F.sigmoid(enter) * F.tanh(update) + c
        return F.sigmoid(leave) * F.tanh(c), c


class Forget(mx.gluon.HybridBlock):
    """Child-sum Tree-LSTM, an edge."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        with self.name_scope():
            self.x = nn.Dense(hidden, in_units=width)
            self.h = nn.Dense(hidden, in_units=hidden, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        return F.sigmoid(self.x(x) + self.h(h)) * c


class Node:
    def __init__(self, x: Any) -> None:
        self.x = x
        self.children: list[Node] = []


class TreeLSTM(mx.gluon.Block):
    def __init__(self, width: int = 6, hidden: int = 4) -> None:
        super().__init__()
        self.hidden = hidden
        with self.name_scope():
            self.update, self.forget = Update(width, hidden), Forget(width, hidden)
            self.score = nn.Dense(3, in_units=2 * hidden)

    def visit(self, node: Node) -> tuple[Any, Any]:
        below = [self.visit(child) for child in node.children]
        if below:
            h = mx.nd.add_n(*[h for h, _ in below])
            c = mx.nd.add_n(*[self.forget(node.x, h, c) for h, c in below])
        else:
            h = c = mx.nd.zeros((1, self.hidden))
        return self.update(node.x, h, c)

    def forward(self, left: Node, right: Node) -> Any:
        a, b = self.visit(left)[0], self.visit(right)[0]
        return self.score(mx.nd.concat(mx.nd.abs(a - b), a * b, dim=1))


def tree(rng: random.Random, size: int, width: int = 6) -> Node:
    nodes = [Node(rand(1, width)) for _ in range(size)]
    for at in range(1, size):
        nodes[rng.randrange(at)].children.append(nodes[at])
    return nodes[0]


def trees(count: int, seed: int = 0) -> list[tuple[Node, Node]]:
    rng = random.Random(seed)
    np.random.seed(seed)
    return [(tree(rng, rng.randint(1, 9)), tree(rng, rng.randint(1, 9))) for _ in range(count)]


@pytest.fixture
def lstm() -> Any:
    return initialized(TreeLSTM())


def test_the_case_that_mxnet_fold_breaks() -> None:
    def forward(net: Any, x: Any) -> Any:
        return net.g(mx.nd.square(x)), net.g(mx.nd.negative(x))

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    check(net, [(rand(1, 2),), (rand(1, 2),)], groups=3)


@pytest.mark.parametrize("hybridize", [False, True])
def test_recursive_tree_lstm(hybridize: bool) -> None:
    net = initialized(TreeLSTM())
    if hybridize:
        net.hybridize()
    batched = check(net, trees(7))
    assert batched.statistics.groups < 60
    assert "not batched" not in batched.explain()


def test_every_order_of_samples(lstm: Any) -> None:
    batched = graphopt.batch(lstm)
    samples = trees(4)
    each = [lstm(*sample) for sample in samples]
    for order in itertools.permutations(range(4)):
        found = batched([samples[at] for at in order])
        same(found, mx.nd.concat(*[each[at] for at in order], dim=0), 1e-5)


def test_one_sample_and_the_same_sample_many_times(lstm: Any) -> None:
    samples = trees(1)
    check(lstm, samples)
    batched = check(lstm, samples * 5)
    assert batched.statistics.mean_batch > 5


def test_no_sample(lstm: Any) -> None:
    assert graphopt.batch(lstm)([]) == []
    assert graphopt.batch(lstm, debug=True)([]) == []


def test_a_smaller_and_a_larger_batch_in_turn(lstm: Any) -> None:
    batched = graphopt.batch(lstm)
    for count in (3, 1, 6, 3):
        samples = trees(count, seed=count)
        same(batched(samples), graphopt.batch(lstm, debug=True)(samples), 1e-5)


def test_trainer_and_loss_outside(lstm: Any) -> None:
    batched = graphopt.batch(lstm)
    samples, labels = trees(6), mx.nd.array([0, 1, 2, 0, 1, 2])
    trainer = mx.gluon.Trainer(lstm.collect_params(), "adam", {"learning_rate": 0.05})
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for _ in range(12):
        with mx.autograd.record():
            loss = loss_of(batched(samples), labels)
        loss.backward()
        trainer.step(6)
        losses.append(float(loss.mean().asscalar()))
    assert losses[-1] < 0.5 * losses[0]
    assert batched.statistics.cache_hits == 1


def test_samples_with_no_parameter_in_common() -> None:
    def forward(net: Any, which: str, x: Any) -> Any:
        return getattr(net, which)(x)

    net = initialized(Fn(forward, a=nn.Dense(3, in_units=2), b=nn.Dense(3, in_units=2)))
    check(net, [("a", rand(1, 2)), ("b", rand(1, 2)), ("a", rand(1, 2))], groups=2)


def test_one_block_for_two_inputs_is_one_group() -> None:
    def forward(net: Any, a: Any, b: Any) -> Any:
        return net.g(a) - net.g(b)

    net = initialized(Fn(forward, g=nn.Dense(3, in_units=2)))
    check(net, [(rand(1, 2), rand(1, 2)) for _ in range(3)], groups=2)


def test_one_block_at_two_depths() -> None:
    def forward(net: Any, x: Any, twice: bool) -> Any:
        x = net.g(x)
        return net.g(mx.nd.tanh(x)) if twice else x

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    check(net, [(rand(1, 2), at % 2 == 0) for at in range(4)], groups=3)


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
    (Ellipsis, 0),
    (None, slice(0, 1)),
    (slice(None), None, 1, slice(None, None, -1)),
    (1, Ellipsis, None),
    np.array([1, 0]),
    (slice(None), [0, 1]),
    (None, [0, 1]),
    mx.nd.array([2, 0]),
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


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_an_imported_block(tmp_path: Any) -> None:
    """Its parameters have arrays, and do not know their shapes."""
    net = initialized(nn.Dense(2, in_units=3))
    net.hybridize()
    net(rand(1, 3))
    net.export(str(tmp_path / "m"))
    files = str(tmp_path / "m-symbol.json"), ["data"], str(tmp_path / "m-0000.params")
    imported = mx.gluon.SymbolBlock.imports(*files)
    check(Fn(lambda net, x: net.g(mx.nd.square(x)), g=imported), [(rand(1, 3),), (rand(1, 3),)])


def test_symbol_blocks_of_the_numpy_interface() -> None:
    x, w = mx.sym.var("x", dtype="float32"), mx.sym.var("w", shape=(1, 3))
    product = mx.sym.np.multiply(x.as_np_ndarray(), w.as_np_ndarray())
    block = mx.gluon.SymbolBlock([product, mx.sym.np.abs(product)], [x])
    net = initialized(Fn(lambda net, x: net.g(x)[0].as_nd_ndarray() + 1, g=block))
    check(net, [(rand(1, 3),), (rand(1, 3),)])
    assert block._cached_graph[1].list_inputs() == ["x", "w"]


def test_a_hybrid_block_itself() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu", in_units=3), nn.LayerNorm(in_channels=4), nn.Dense(2))
    check(initialized(net), [(rand(1, 3),) for _ in range(4)], groups=1)


def test_deferred_shapes() -> None:
    net = Fn(lambda net, x: net.b(mx.nd.relu(net.a(x))), a=nn.Dense(4), b=nn.Dense(2))
    net.initialize()
    found = graphopt.batch(net)([(rand(1, 3),) for _ in range(3)])
    assert found.shape == (3, 2)
    assert net.a.weight.shape == (4, 3)


def test_parameters_used_directly() -> None:
    def forward(net: Any, x: Any) -> Any:
        w, b = net.w.data(), net.b.data()
        y = mx.nd.FullyConnected(x, w, b, num_hidden=3) * net.scale.data() + net.row.data()
        return mx.nd.dot(y, w) - net.row.data().sum()

    net = Fn(forward)
    for name, shape in [("w", (3, 2)), ("b", (3,)), ("scale", (3,)), ("row", (1, 3))]:
        setattr(net, name, net.params.get(name, shape=shape))
    check(initialized(net), [(rand(1, 2),) for _ in range(3)])


def test_what_is_computed_of_parameters_alone_is_computed_once() -> None:
    def forward(net: Any, words: Any) -> Any:
        weight = net.embed.weight.data()
        tied = mx.nd.dot(mx.nd.tanh(net.embed(words)), weight.T)
        return (
            tied * (weight * weight).sum() + mx.nd.dot(tied, mx.nd.softmax(weight, axis=0))[:, :1]
        )

    net = initialized(Fn(forward, embed=nn.Embedding(7, 3)))
    samples = [(mx.nd.array([w]),) for w in (1, 5, 2)]
    batched = check(net, samples)
    assert "not batched" not in batched.explain()
    assert batched.statistics.groups == 7
    assert batched.statistics.cache_hits == 1
    net.embed.weight.set_data(net.embed.weight.data() * 2)
    same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-5)


def test_a_block_that_was_cast_is_traced_anew() -> None:
    net = initialized(Fn(lambda net, w: net.embed(w) * 2, embed=nn.Embedding(5, 3)))
    batched = graphopt.batch(net)
    samples = [(mx.nd.array([1]),), (mx.nd.array([2]),)]
    batched(samples)
    net.cast("float64")
    same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-10)
    assert batched(samples).dtype == np.float64
    assert "has changed and is traced anew" in batched.explain()
    check(net, samples)


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


def test_nothing_is_left_behind(lstm: Any) -> None:
    register, autograd = mx.ndarray.register, mx.autograd
    before = (
        register._imperative_invoke,
        autograd.set_recording,
        mx.nd.NDArray.__setitem__,
        mx.gluon.HybridBlock.__call__,
    )
    graphopt.batch(lstm)(trees(2))
    after = (
        register._imperative_invoke,
        autograd.set_recording,
        mx.nd.NDArray.__setitem__,
        mx.gluon.HybridBlock.__call__,
    )
    assert before == after


def test_numbers_of_every_sample_are_one_group() -> None:
    def forward(net: Any, x: Any, k: float) -> Any:
        return (k - net.g(x)) * k, (net.g(x) + 9) ** k

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    batched = check(net, [(rand(1, 2), 0.5 + at / 50) for at in range(12)])
    known = len(batched._library._signatures)
    batched([(rand(1, 2), 2 + at / 50) for at in range(50)])
    assert len(batched._library._signatures) == known
    assert batched.statistics.groups < 10


def test_weights_that_samples_bring_are_not_kept() -> None:
    net = initialized(Fn(lambda net, x, w: net.g(mx.nd.dot(x, w)), g=nn.Dense(2, in_units=3)))
    batched = graphopt.batch(net)
    for _ in range(4):
        batched([(rand(1, 3), rand(3, 3)) for _ in range(30)])
    assert len(batched._library._shared) < 40
    samples = [(rand(1, 3), rand(3, 3)) for _ in range(40)]
    check(net, samples)
    same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-5)


def test_copies_plan_anew() -> None:
    net = initialized(Fn(lambda net, x: net.g(x), g=nn.Dense(2, in_units=3)))
    batched = graphopt.batch(net, batch_axis=1, scheduler="agenda")
    samples = [(rand(1, 3),) for _ in range(3)]
    want = batched(samples)
    twin = copy.deepcopy(batched)
    assert twin.net is not net
    assert repr(twin) == repr(batched)
    assert twin.scheduler == "agenda"
    same(twin(samples), want, 0)


def test_constants_of_ever_new_shapes_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_BYTES", 2000)
    net = Fn(lambda net, x: mx.nd.concat(x, mx.nd.zeros(x.shape), dim=1).sum(axis=1))
    batched = graphopt.batch(net)
    for length in (*range(1, 80), 700, 3, 700):
        x = rand(1, length)
        same(batched([(x,), (x * 2,)]), graphopt.batch(net, debug=True)([(x,), (x * 2,)]), 1e-5)
    assert batched._library.constants.size == 700 * 4


def test_constants_that_are_weights_stay_the_same_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "MAX_BYTES", 100)
    net = Fn(lambda net, x: mx.nd.dot(x, mx.nd.ones((3, 2))) + mx.nd.ones((1, 2, 40)).sum())
    batched = graphopt.batch(net)
    samples = [(rand(1, 3),), (rand(1, 3),)]
    for _ in range(40):
        same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-5)
    assert len(batched._library._shared) == 1


def test_constants_are_written_by_one_sample_alone() -> None:
    batched = graphopt.batch(Fn(lambda net, x: (mx.nd.zeros((1, 3)), x)))
    for _ in range(3):
        found, _ = batched([(rand(1, 3),)])
        assert found.asnumpy().tolist() == [[0, 0, 0]]
        found[:] = 7


def test_values_of_a_batch_go_with_it() -> None:
    net = initialized(Fn(lambda net, x: net.g(x) * x.asnumpy().sum(), g=nn.Dense(2, in_units=3)))
    batched = graphopt.batch(net)

    def recorders() -> set[int]:
        return {id(found) for found in gc.get_objects() if isinstance(found, Recorder)}

    gc.collect()
    before = recorders()
    gc.disable()
    try:
        batched([(rand(1, 3),), (rand(1, 3),)])
        assert recorders() <= before
    finally:
        gc.enable()


class Reader(nn.HybridBlock):
    """Of words and numbers for each: results in lists."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.words = nn.Embedding(20, 6)
            self.norm = nn.LayerNorm(in_channels=6)
            self.dense = nn.Dense(5, flatten=False, in_units=6)

    def hybrid_forward(self, F: Any, words: Any, x: Any) -> Any:
        y = self.dense(self.norm(self.words(words))) * x
        return [F.softmax(y, axis=1), F.mean(y, axis=1)], F.tanh(y)


@pytest.mark.parametrize("seed", range(2))
def test_children_on_ever_new_lengths(seed: int) -> None:
    def forward(net: Any, words: Any, x: Any) -> Any:
        (soft, mean), y = net.reader(words, net.front(x))
        return soft.sum(axis=1) + net.last(mean), y

    front = nn.HybridSequential()
    front.add(nn.Dense(5, flatten=False, in_units=3, activation="tanh"), nn.LayerNorm())
    net = initialized(Fn(forward, reader=Reader(), front=front, last=nn.Dense(5, in_units=5)))
    chosen = random.Random(seed)
    batched, plain = graphopt.batch(net), graphopt.batch(net, debug=True)
    for _ in range(6):
        lengths = [chosen.choice([4, 7, *range(1, 40)]) for _ in range(8)]
        samples = [(mx.nd.arange(n).reshape((1, n)) % 20, rand(1, n, 3)) for n in lengths]
        found, grads = gradients(lambda samples=samples: batched(samples), net)
        expected, plain_grads = gradients(lambda samples=samples: plain(samples), net)
        same(found, expected, 1e-4)
        for name, grad in grads.items():
            np.testing.assert_allclose(grad, plain_grads[name], rtol=1e-3, atol=1e-3)
    assert "call by call on shapes that are new" in batched.explain()
    assert sum(type(unit) is Unit for unit in batched._library.units.values()) < 30


def test_children_on_a_length_that_is_no_longer_new() -> None:
    net = initialized(Fn(lambda net, x: net.g(x).sum(axis=1), g=nn.HybridSequential()))
    net.g.add(nn.Dense(5, flatten=False, in_units=3), nn.LayerNorm(in_channels=5))
    net.initialize()
    batched = graphopt.batch(net)
    for n in range(1, 20):
        batched([(rand(1, n, 3),)])
    samples = [(rand(1, 19, 3),) for _ in range(40)]
    same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-5)
    assert batched.statistics.groups > 2
    same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-5)
    assert batched.statistics.groups == 2


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


@pytest.mark.parametrize("is_held", [False, True])
def test_blocks_that_are_made_in_every_call(is_held: bool) -> None:
    held: list[Any] = []

    def forward(net: Any, x: Any) -> Any:
        made = nn.HybridSequential()
        made.add(nn.Dropout(0.5), nn.Activation("tanh"))
        if is_held:
            held.append(made)
        return made(net.g(x))

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [(rand(1, 2),) for _ in range(30)]
    batched = graphopt.batch(net)
    for _ in range(6):
        same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-5)
    assert "made in every call" in batched.explain()
    assert len(batched._library.units) == 1
    assert batched.statistics.groups < 4
    gradients(lambda: batched(samples), net)
