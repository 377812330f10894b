"""graphopt.fold: programs written for mxnet-fold, against the same calls made by plain MXNet."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError, UnsupportedError
from graphopt.fold import Fold, Node, fold_unroll
from tests.batching.comparing import Fn, gradients, initialized, rand, same

mx = import_mxnet()
nd, nn, rnn = mx.nd, mx.gluon.nn, mx.gluon.rnn


def g(x: Any) -> Any:
    return x + 1


def both(x: Any) -> Any:
    return nd.square(x), nd.negative(x)


def concat(axis: int, *arrays: Any) -> Any:
    return nd.concat(*arrays, dim=axis)


def nested(x: Any) -> Any:
    return x, [x + 1, (x + 2, x + 3)]


class Plain:
    """What a Fold stands for: every call made at once, by itself."""

    def record(self, batch_axis: int, op: Any, *args: Any) -> Any:
        return op(*args)

    def __call__(self, groups: Any, reset: bool = True) -> Any:
        return [nd.concat(*group, dim=0) for group in groups]


def compare(program: Any, net: Any, *, tol: float = 1e-5) -> Fold:
    """Values and gradients of ``program(fold)`` are those of plain MXNet, also the second time."""
    want, grads = gradients(lambda: program(Plain()), net)
    for fold in (Fold(debug=True), Fold()):
        for _ in range(2):
            same(program(fold), want, tol)
            found, got = gradients(lambda fold=fold: program(fold), net)
            same(found, want, tol)
            for name, expected in grads.items():
                np.testing.assert_allclose(got[name], expected, 10 * tol, 10 * tol, err_msg=name)
    return fold


def parts(value: Any, count: int) -> Any:
    """``split`` of a node; what a plain call returns has its parts already."""
    return value.split(count) if isinstance(value, Node) else value


def test_importing_graphopt_loads_no_mxnet() -> None:
    code = (
        "import sys, graphopt; assert not {'mxnet', 'numba'} & set(sys.modules);"
        "graphopt.fold.Fold; import graphopt.fold as fold; assert fold is graphopt.fold"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_the_case_that_mxnet_fold_gets_wrong() -> None:
    fold, x = Fold(), nd.array([[3]])
    a = fold.record(0, g, fold.record(0, nd.square, x))
    b = fold.record(0, g, fold.record(0, nd.negative, x))
    assert a != b
    assert fold([[a, b]])[0].asnumpy().tolist() == [[10], [-2]]


def test_arguments_of_equal_hash_are_two_calls() -> None:
    assert hash(-1) == hash(-2)
    fold, x = Fold(), nd.array([[3]])
    nodes = [fold.record(0, lambda x, n: x * n, x, n) for n in (-1, -2)]
    assert fold([nodes])[0].asnumpy().ravel().tolist() == [-3, -6]


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ((1, 2), (2, 1)), (None, 0)]
)
def test_arguments_that_only_compare_equal_are_two_calls(one: Any, other: Any) -> None:
    fold, x = Fold(), rand(1, 2)
    assert fold.record(0, g, x, one) != fold.record(0, g, x, other)


def test_the_same_call_is_one_node() -> None:
    fold, x, block = Fold(), rand(1, 2), nn.Dense(2)
    seen = []
    count = lambda x: seen.append(1) or x  # noqa: E731
    first = fold.record(0, count, x)
    assert fold.record(0, count, x) is first
    assert fold.record(0, count, x.copy()) != first
    assert fold.record(1, count, x) != first
    assert fold.record(0, block.forward, x, [1, (2,)]) is fold.record(
        0, block.forward, x, [1, (2,)]
    )
    parts = fold.record(0, both, x).split(2)
    assert parts == fold.record(0, both, x)[:2]
    assert len({*parts, *fold.record(0, both, x).split(2)}) == 2
    assert fold.record(0, g, parts[0]) is fold.record(0, g, fold.record(0, both, x)[0])
    assert fold.record(0, g, parts[0]) is not fold.record(0, g, parts[1])
    same(fold([[first, first]])[0], nd.concat(x, x, dim=0), 0)
    assert len(seen) == 1


def test_calls_alike_are_one_group() -> None:
    net = initialized(nn.Dense(3, in_units=2))
    xs = [rand(1, 2) for _ in range(5)]

    def program(fold: Any) -> Any:
        return fold([[fold.record(0, net, fold.record(0, nd.tanh, x)) for x in xs]])

    fold = compare(program, net)
    assert fold.statistics.groups == 2
    assert "2 groups" in fold.explain()
    assert "not batched" not in fold.explain()


def test_a_batch_of_one_and_growing_ones() -> None:
    net = initialized(nn.Dense(3, in_units=2))
    fold = Fold()
    for count in (1, 4, 2, 1):
        xs = [rand(1, 2) for _ in range(count)]
        (found,) = fold([[fold.record(0, net, x) for x in xs]])
        same(found, net(nd.concat(*xs, dim=0)), 1e-5)


def test_several_lists_nested_parts_and_slices() -> None:
    fold, x, y = Fold(), rand(1, 2), rand(1, 2)
    a, (b, rest) = [fold.record(0, nested, x)[0], fold.record(0, nested, x)[1].split(2)]
    c, d = rest.split(2)
    e = fold.record(0, nested, y)[1][-1][1:2][0]
    found = fold([[a, b], [c], (d, e)])
    same(found, [nd.concat(x, x + 1, dim=0), x + 2, nd.concat(x + 3, y + 3, dim=0)], 1e-6)


def test_rows_of_an_array_are_parts_too() -> None:
    fold, x = Fold(), rand(2, 1, 3)
    first, second = fold.record(1, nd.tanh, x).split(2)
    same(fold([[first, second]])[0], nd.concat(*nd.tanh(x), dim=1), 1e-6)


def test_expand_dims() -> None:
    fold, xs = Fold(), [rand(1, 3), rand(1, 3)]
    nodes = [fold.record(0, nd.square, x) for x in xs]
    wide = [node.expand_dims(1) for node in nodes]
    joined = fold.record(0, concat, 1, *wide)
    found = fold([[joined], [both[0] for both in (wide, wide)], nodes])
    squares = [x * x for x in xs]
    same(found[0], nd.stack(*squares, axis=1), 1e-6)
    assert found[1].shape == (2, 1, 3)
    assert found[2].shape == (2, 3)


def test_variadic_lists_of_any_length() -> None:
    xs = [rand(1, 3) for _ in range(4)]
    net = initialized(nn.Dense(3, in_units=3))

    def total(arrays: Any, pair: Any) -> Any:
        return nd.add_n(*arrays) + pair[0] * pair[1][0]

    def program(fold: Any) -> Any:
        nodes = [fold.record(0, net, x) for x in xs]
        sums = [fold.record(0, total, nodes[:n], (nodes[0], [xs[n]])) for n in (1, 2, 3)]
        return fold([sums, [fold.record(0, concat, 0, *nodes)]])

    compare(program, net)


def test_lists_arrive_as_lists_and_plain_ones_as_given() -> None:
    seen = []

    def look(x: Any, *more: Any) -> Any:
        seen.append(more)
        return x

    fold, x = Fold(), rand(1, 1)
    fold([[fold.record(0, look, x, (x, (x,)), (1, (2, [3])), [], ())]])
    pair, plain, *empty = seen[0]
    assert type(pair) is list
    assert type(pair[1]) is list
    assert plain == (1, (2, [3]))
    assert empty == [[], []]


def test_batch_axis_1() -> None:
    net = initialized(nn.Dense(3, in_units=2, flatten=False))
    xs = [rand(4, 1, 2) for _ in range(3)]
    fold = Fold()
    (found,) = fold([[fold.record(1, net, x) for x in xs]])
    same(found, net(nd.concat(*xs, dim=1)), 1e-5)


def test_rows_with_different_lengths_are_not_joined_wrongly() -> None:
    fold, xs = Fold(), [rand(n, 3) for n in (1, 4, 2)]
    (found,) = fold([[fold.record(0, lambda x: nd.softmax(x, axis=0), x) for x in xs]])
    same(found, nd.concat(*[nd.softmax(x, axis=0) for x in xs], dim=0), 1e-6)


class ChildSum(mx.gluon.HybridBlock):
    """Child-sum Tree-LSTM as one writes it for mxnet-fold: lists of the children's states."""

    def __init__(self, width: int = 4, hidden: int = 3, **shared: Any) -> None:
        super().__init__(**shared)
        self.hidden = hidden
        with self.name_scope():
            self.x = nn.Dense(4 * hidden, in_units=width)
            self.h = nn.Dense(3 * hidden, in_units=hidden, use_bias=False)
            self.f = nn.Dense(hidden, in_units=hidden, use_bias=False)

    def begin_state(self, rows: int) -> Any:
        return [nd.zeros((rows, self.hidden))] * 2

    def hybrid_forward(self, F: Any, x: Any, states: Any) -> Any:
        hs, cs = states
        forget, *gates = F.split(self.x(x), num_outputs=4, axis=1)
        total = F.split(self.h(F.add_n(*hs)), num_outputs=3, axis=1)
        enter, leave, update = [a + b for a, b in zip(gates, total, strict=True)]
        kept = [F.sigmoid(forget + self.f(h)) * c for h, c in zip(hs, cs, strict=True)]
        c = F.sigmoid(enter) * F.tanh(update) + F.add_n(*kept)
        h = F.sigmoid(leave) * F.tanh(c)
        return h, (h, c)


def call(block: Any, *args: Any) -> Any:
    return block(*args)


def encode(fold: Any, cells: Any, tree: Any) -> Any:
    """A node with outputs ``h, (h, c)``; a tree is its array and its subtrees.

    There is a cell for every number of children, as MXNet hybridizes for one.
    """
    x, children = tree
    if children:
        below = [parts(encode(fold, cells, child)[1], 2) for child in children]
    else:
        leaf = fold.record(0, cells[0].begin_state, 1)
        below = [parts(leaf.no_batch() if isinstance(leaf, Node) else leaf, 2)]
    hs, cs = zip(*below, strict=True)
    return fold.record(0, call, cells[len(children)], x, (hs, cs))


def random_tree(rng: random.Random, depth: int = 4) -> Any:
    count = rng.choice([0, 1, 2, 3]) if depth else 0
    return rand(1, 4), [random_tree(rng, depth - 1) for _ in range(count)]


@pytest.mark.parametrize("hybridize", [False, True])
def test_tree_lstm_in_the_style_of_mxnet_fold(hybridize: bool) -> None:
    first = ChildSum()
    shared = {"prefix": first.prefix, "params": first.collect_params()}
    cells = [first, *[ChildSum(**shared) for _ in range(3)]]
    net = Fn(None, cell=first, similar=nn.Dense(2, in_units=6))
    initialized(net)
    if hybridize:
        for cell in cells:
            cell.hybridize()
    rng = random.Random(1)
    pairs = [(random_tree(rng), random_tree(rng)) for _ in range(6)]

    def head(a: Any, b: Any) -> Any:
        return net.similar(nd.concat(nd.abs(a - b), a * b, dim=1))

    def program(fold: Any) -> Any:
        states = [[encode(fold, cells, tree)[1][1] for tree in pair] for pair in pairs]
        return fold([[fold.record(0, head, a, b) for a, b in states]])

    fold = compare(program, net)
    assert fold.statistics.groups < 60
    assert fold.statistics.cache_hits == 1


def test_no_batch_is_one_array_for_all() -> None:
    net = initialized(nn.Embedding(10, 3))

    def dot(x: Any, table: Any) -> Any:
        return nd.dot(x, table.T) + nd.sum(table)

    def program(fold: Any) -> Any:
        words = [fold.record(0, net, nd.array([n])) for n in range(6)]
        table = fold.record(0, concat, 0, *words)
        table = table.no_batch() if isinstance(table, Node) else table
        return fold([[fold.record(0, dot, word, table) for word in words]])

    fold = compare(program, net)
    assert "not batched" not in fold.explain()
    assert fold.statistics.flushes == 2
    net.weight.set_data(net.weight.data() * 2)  # what was one for all is computed anew
    same(program(fold), program(Plain()), 1e-5)


def test_no_batch_of_other_shapes_one_after_the_other() -> None:
    fold = Fold()
    for rows in (2, 5, 2):
        xs, table = [rand(1, 3), rand(1, 3)], rand(rows, 3)
        shared = fold.record(0, nd.transpose, table).no_batch()
        assert shared.batch is False
        found, again = fold([[fold.record(0, nd.dot, x, shared) for x in xs], [shared, shared]])
        same(found, nd.dot(nd.concat(*xs, dim=0), table.T), 1e-5)
        same(again, table.T, 0)


def test_different_no_batch_arguments_of_one_group_are_refused() -> None:
    fold, x = Fold(), rand(1, 3)
    tables = [fold.record(0, g, rand(3, 2)).no_batch() for _ in range(2)]
    a, b = [fold.record(0, nd.dot, x, table) for table in tables]
    with pytest.raises(
        InputError, match=r"^node 2 \(dot, step 1\) and node 3 .* node 0 .* node 1 .*leave out no_b"
    ):
        fold([[a], [b]], False)
    same(fold([[a]], False)[0], fold([[tables[0]], [a]])[1], 0)  # one alone is no conflict


def test_different_no_batch_arguments_of_two_groups() -> None:
    fold, x, tables = Fold(), rand(1, 3), [rand(3, 3), rand(3, 3)]
    one, other = [fold.record(0, nd.identity, table).no_batch() for table in tables]
    a = fold.record(0, nd.dot, x, one)
    b = fold.record(0, nd.dot, a, other)  # at another step
    c = fold.record(0, nd.linalg.gemm2, x, other)  # another operator
    found = fold([[a], [b], [c]])
    want = [nd.dot(x, tables[0]), nd.dot(nd.dot(x, tables[0]), tables[1]), nd.dot(x, tables[1])]
    same(found, want, 1e-5)


def test_without_no_batch_every_call_has_its_own() -> None:
    fold = Fold()
    pairs = [(rand(1, 3), rand(3, 2)) for _ in range(3)]
    nodes = [fold.record(0, nd.dot, x, fold.record(0, nd.identity, y)) for x, y in pairs]
    same(fold([nodes])[0], nd.concat(*[nd.dot(x, y) for x, y in pairs], dim=0), 1e-5)


def test_two_batches_one_after_the_other() -> None:
    net = initialized(nn.Dense(3, in_units=2))
    fold = Fold()
    a = [fold.record(0, net, rand(1, 2, seed=n)) for n in range(3)]
    first = fold([a], reset=False)[0]
    assert fold.record(0, nd.tanh, a[0]) != a[0]
    net.weight.set_data(net.weight.data() * 2)
    net.bias.set_data(net.bias.data() * 2)
    same(fold([a])[0], first * 2, 1e-5)
    with pytest.raises(InputError, match=r"^node 0 .*before this one was reset: record it anew"):
        fold([a])
    x = rand(1, 2)
    same(fold([[fold.record(0, net, x)]])[0], net(x), 1e-5)


def test_only_what_is_needed_is_computed() -> None:
    fold, x = Fold(), rand(1, 2)
    seen: list[int] = []
    node = fold.record(0, nd.tanh, x)
    fold.record(0, lambda x: seen.append(1) or x, node)
    fold([[node]])
    assert seen == []


def test_parameters_may_be_initialized_after_recording() -> None:
    net, fold, x = nn.Dense(3), Fold(), rand(1, 2)
    node = fold.record(0, net, x)
    net.initialize()
    (found,) = fold([[node]])
    same(found, net(x), 1e-6)


def test_gradients_reach_arrays_and_only_where_asked_for() -> None:
    fold, x = Fold(), rand(1, 2)
    x.attach_grad()
    with mx.autograd.record():
        (found,) = fold([[fold.record(0, nd.square, x), fold.record(0, nd.negative, x)]])
    found.backward()
    same(x.grad, 2 * x - 1, 1e-6)
    with mx.autograd.record():
        (found,) = fold([[fold.record(0, lambda x: x * nd.BlockGrad(x), x)]])
    found.backward()
    same(x.grad, x, 1e-6)


def test_values_may_be_read() -> None:
    def halve(x: Any) -> Any:
        while nd.abs(x).max().asscalar() > 1:
            x = x / 2
        return x

    fold = Fold()
    nodes = [fold.record(0, halve, fold.record(0, g, nd.array([[n]]))) for n in (0, 1, 6)]
    assert fold([nodes])[0].asnumpy().ravel().tolist() == [1, 1, 0.875]


def test_context_is_that_of_the_fold() -> None:
    fold = Fold(mx.cpu(1))
    (found,) = fold([[fold.record(0, nd.zeros, (1, 2))]])
    assert found.context == mx.cpu(1)
    with pytest.raises(InputError, match="ctx is a str"):
        Fold("cpu")


def test_inside_a_batched_block() -> None:
    def forward(net: Any, x: Any) -> Any:
        fold = Fold()
        table = fold.record(0, nd.transpose, x).no_batch()
        return fold([[fold.record(0, nd.dot, fold.record(0, net.g, x), table)]])[0]

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [(rand(1, 2),) for _ in range(3)]
    same(graphopt.batch(net)(samples), graphopt.batch(net, debug=True)(samples), 1e-5)


def test_batch_norm_in_training_is_refused_and_debug_runs_it() -> None:
    net, x = initialized(nn.BatchNorm(in_channels=2)), rand(1, 2)
    fold, debug = Fold(), Fold(debug=True)
    with mx.autograd.record():
        with pytest.raises(UnsupportedError, match=r"^node 0 .*Fold\(debug=True\)$"):
            fold([[fold.record(0, net, x)]])
        debug([[debug.record(0, net, x)]])
    same(fold([[fold.record(0, net, x)]])[0], net(x), 1e-6)


def test_no_batch_where_rows_stand() -> None:
    net = initialized(nn.Dense(3, in_units=3))
    xs = [rand(1, 3) for _ in range(4)]

    def program(fold: Any) -> Any:
        shared = fold.record(0, net, xs[0])
        shared = shared.no_batch() if isinstance(shared, Node) else shared
        sums = [fold.record(0, nd.broadcast_add, fold.record(0, net, x), shared) for x in xs]
        joined = [fold.record(0, concat, 1, shared, x) for x in sums]
        return fold([joined, sums])

    fold = compare(program, net)
    assert "not batched" not in fold.explain()


@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    net = Fn(None, a=nn.Dense(3, in_units=3), b=nn.Embedding(3, 3), c=nn.LayerNorm(in_channels=3))
    initialized(net, seed)
    leaves = [rand(1, 3) for _ in range(4)]

    def program(fold: Any) -> Any:
        rng = random.Random(seed)
        nodes: list[Any] = list(leaves)
        made: list[Any] = []
        for _ in range(60):
            few = [rng.choice(nodes) for _ in range(rng.randint(1, 3))]
            found = rng.choice(
                [
                    lambda few=few: fold.record(0, net.a, few[0]),
                    lambda few=few: fold.record(0, net.c, few[-1]),
                    lambda few=few: fold.record(0, nd.tanh, few[0]),
                    lambda few=few: fold.record(0, nd.add_n, *few),
                    lambda few=few: fold.record(0, lambda x, y: x * y, few[0], few[-1]),
                    lambda few=few: parts(fold.record(0, both, few[0]), 2)[rng.randint(0, 1)],
                    lambda few=few: fold.record(0, nd.slice_like, few[0], few[-1]),
                ]
            )()
            nodes.append(fold.record(0, nd.softsign, found))
            made.append(nodes[-1])
        return fold([made])

    compare(program, net, tol=1e-4)


def stacked(hidden_size: int, input_size: int) -> Any:
    cell = rnn.SequentialRNNCell()
    with cell.name_scope():
        cell.add(rnn.LSTMCell(4, input_size=input_size))
        cell.add(rnn.DropoutCell(0.0))
        cell.add(rnn.GRUCell(hidden_size, input_size=4))
    return cell


CELLS = {"lstm": rnn.LSTMCell, "gru": rnn.GRUCell, "rnn": rnn.RNNCell, "stacked": stacked}


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("layout", ["NTC", "TNC"])
def test_fold_unroll(kind: str, layout: str) -> None:
    cell = initialized(CELLS[kind](3, input_size=2))
    lengths = (1, 4, 2, 4)
    xs = [rand(1, n, 2) if layout == "NTC" else rand(n, 1, 2) for n in lengths]

    def program(fold: Any) -> Any:
        if isinstance(fold, Plain):
            each = [
                cell.unroll(n, x, layout=layout, merge_outputs=False)
                for n, x in zip(lengths, xs, strict=True)
            ]
        else:
            each = [
                fold_unroll(cell, fold, n, x, layout=layout)
                for n, x in zip(lengths, xs, strict=True)
            ]
        steps = [out for outputs, _ in each for out in outputs]
        return fold([steps, *zip(*[states for _, states in each], strict=True)])

    fold = compare(program, cell)
    assert kind == "stacked" or fold.statistics.groups <= 4


def test_fold_unroll_over_nodes_of_stacked_cells() -> None:
    cell = initialized(stacked(3, 2))
    steps = [rand(1, 2) for _ in range(3)]
    fold = Fold()
    outputs, states = fold_unroll(cell, fold, 3, [fold.record(0, nd.tanh, x) for x in steps])
    want, last = cell.unroll(3, [nd.tanh(x) for x in steps], merge_outputs=False)
    found = fold([outputs, *[[state] for state in states]])
    same(found, [nd.concat(*want, dim=0), *last], 1e-5)


def test_fold_unroll_over_nodes_with_states_given() -> None:
    cell = initialized(rnn.GRUCell(3, input_size=2))
    steps = [rand(1, 2) for _ in range(3)]
    for begin in (None, [rand(1, 3)]):
        fold = Fold()
        nodes = [fold.record(0, nd.tanh, x) for x in steps]
        outputs, (state,) = fold_unroll(cell, fold, 3, nodes, begin)
        want, _ = cell.unroll(3, [nd.tanh(x) for x in steps], begin, merge_outputs=False)
        found, last = fold([outputs, [state]])
        same(found, nd.concat(*want, dim=0), 1e-5)
        same(last, want[-1], 1e-5)


def test_fold_unroll_refuses() -> None:
    fold, x = Fold(), rand(1, 3, 2)
    cell = rnn.LSTMCell(3)
    with pytest.raises(InputError, match="has 3 steps, and length is 4"):
        fold_unroll(cell, fold, 4, x)
    with pytest.raises(InputError, match="layout 'NCT' is none of NTC, TNC"):
        fold_unroll(cell, fold, 3, x, layout="NCT")
    with pytest.raises(UnsupportedError, match=r"^ZoneoutCell .*keeps arrays between steps"):
        fold_unroll(rnn.ZoneoutCell(cell, 0.5), fold, 3, x)


def two(x: Any) -> Any:
    return x, x


ERRORS: dict[str, tuple[Any, str]] = {
    "split into too many": (
        lambda f, x: [[f.record(0, two, x).split(3)[0]]],
        r"^node 0 \(two, step 0\) was split into 3, but it is a tuple of 2: split it into the",
    ),
    "split into too few": (lambda f, x: [[f.record(0, two, x).split(1)[0]]], "a tuple of 2"),
    "split of an array": (
        lambda f, x: [[f.record(0, nd.tanh, x).split(2)[0]]],
        r"split into 2, but it is an array of shape \(1, 3\)",
    ),
    "split into none": (lambda f, x: f.record(0, two, x).split(0), "into 0 parts: give a positive"),
    "missing part": (
        lambda f, x: [[f.record(0, two, x)[2]]],
        r"^node 0 \(two, step 0\)\[2\] does not exist, as node 0 \(two, step 0\) is a tuple of 2",
    ),
    "open slice": (lambda f, x: f.record(0, two, x)[1:], r"a slice with an end such as \[:2\]"),
    "part by name": (lambda f, x: f.record(0, two, x)["h"], "has no part 'h'"),
    "unpacking": (lambda f, x: list(f.record(0, two, x)), r"unpack \.split\(n\) instead"),
    "expanded tuple": (
        lambda f, x: [[f.record(0, two, x).expand_dims(0)]],
        r"\.expand_dims\(0\) does not exist, as node 0 .*is a tuple of 2",
    ),
    "no array": (
        lambda f, x: [[f.record(0, two, x)]],
        r"is a tuple of 2, no array: ask for its parts, by \.split",
    ),
    "other node's Fold": (
        lambda f, x: f.record(0, g, Fold().record(0, g, x)),
        r"^node 0 \(g, step 0\) is of another Fold",
    ),
    "other result's Fold": (lambda f, x: [[Fold().record(0, g, x)]], "is of another Fold"),
    "shapes": (
        lambda f, x: [[f.record(0, nd.dot, f.record(0, g, x), rand(2, 2))]],
        r"^node 1 \(dot, step 1\) cannot be called with arrays of shapes \(1, 3\), \(2, 2\)",
    ),
    "results that differ": (
        lambda f, x: [[f.record(0, g, x), f.record(0, g, rand(1, 4))]],
        r"^node 0 .* of float32\[1, 3\] and node 1 .* of float32\[1, 4\] cannot be joined",
    ),
    "results of other types": (
        lambda f, x: [[f.record(0, g, x), f.record(0, g, x.astype("int32"))]],
        r"of int32\[1, 3\] cannot be joined along axis 0: ask for them in two lists",
    ),
    "axis missing": (lambda f, x: [[f.record(2, g, x)]], r"without the batch axis 2"),
    "axes that differ": (
        lambda f, x: [[f.record(0, g, x), f.record(1, g, x)]],
        "batch axes 0 and 1: ask for them in two lists",
    ),
    "negative axis": (lambda f, x: f.record(-1, g, x), "batch_axis is -1: give an axis counted"),
    "axis forgotten": (lambda f, x: f.record(g, x), "batch_axis is <function"),
    "no operator": (lambda f, x: f.record(0, "dot", x), "op is a str: give a Block or a function"),
    "node for a list": (lambda f, x: [f.record(0, g, x)], "entry 0 is a Node: give lists"),
    "array for a node": (lambda f, x: [[x]], "entry 0 has a NDArray in it: give nodes"),
    "nothing in a list": (lambda f, x: [[]], "entry 0 is empty: give lists of nodes"),
    "unbatched results": (
        lambda f, x: [[f.record(0, g, x).no_batch(), f.record(0, g, rand(1, 3))]],
        r"is no_batch\(\), and so cannot be joined",
    ),
    "operator that raises": (
        lambda f, x: [[f.record(0, {}.__getitem__, "word")]],
        r"shapes none, it raised KeyError: 'word'",
    ),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_the_node_and_what_to_do(case: str, debug: bool) -> None:
    program, text = ERRORS[case]
    fold = Fold(debug=debug)
    with pytest.raises(InputError, match=text) as caught:
        fold(program(fold, rand(1, 3)))
    assert isinstance(caught.value, GraphoptError)
    assert len(str(caught.value).splitlines()) == 1
    x = rand(1, 3)  # nothing is left of it
    same(fold([[fold.record(0, g, x)]])[0], x + 1, 0)


def test_nothing_asked_for_is_nothing() -> None:
    assert Fold()([]) == []


def test_what_was_recorded_is_shown() -> None:
    fold, x = Fold(), rand(1, 2)
    parts = fold.record(0, two, x)
    node = fold.record(0, g, parts[1].expand_dims(0))
    assert repr(fold) == "Fold(2 calls, 2 steps)\n  step 0: 1 x two\n  step 1: 1 x g"
    assert repr(parts[1].expand_dims(0)) == "node 0 (two, step 0)[1].expand_dims(0)"
    assert repr(node) == "node 1 (g, step 1)"
