"""graphopt.nn's layers over trees and graphs: values and gradients as node by node in MXNet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt import nn
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError, ParseError, UnsupportedError
from tests.tiers import one_of

mx = import_mxnet()
gluon = mx.gluon

COLUMNS, UNITS = 5, 7


def noise(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    return mx.nd.array(np.random.default_rng(seed).uniform(-1, 1, shape), dtype=dtype)


def forest(trees: Sequence[int], *, seed: int = 0, children: int = 4) -> list[int]:
    """Parents of random trees of so many nodes each, all nodes in random order."""
    rng = np.random.default_rng(seed)
    parents: list[int] = []
    for size in trees:
        start = len(parents)
        free = {start: children}
        parents.append(-1)
        for node in range(start + 1, start + size):
            parent = int(rng.choice(list(free)))
            parents.append(parent)
            free[parent] -= 1
            if not free[parent]:
                del free[parent]
            free[node] = children
    order = rng.permutation(len(parents))
    place = np.argsort(order)
    return [int(place[parents[n]]) if parents[n] >= 0 else -1 for n in order]


def edges_of(parents: Sequence[int]) -> list[tuple[int, int]]:
    return [(node, parent) for node, parent in enumerate(parents) if parent >= 0]


STRUCTURES: dict[str, list[tuple[int, int]]] = {
    "forest": edges_of(forest([9, 1, 4, 12, 2])),
    "many trees": edges_of(forest([6] * 40)),
    "chain": [(n + 1, n) for n in range(27)],
    "star": [(n, 0) for n in range(1, 28)],
    "no edges": [],
    "diamonds": [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 4), (5, 6), (7, 6)],
    "edge twice": [(0, 1), (0, 1), (1, 2), (0, 2)],
}


def nodes_in(edges: Sequence[tuple[int, int]]) -> int:
    return max(28, 1 + max((max(edge) for edge in edges), default=0))


# -- cells as functions ---------------------------------------------------------------------------


def tree_lstm(F: Any, p: dict[str, Any], gates: int = 3) -> tuple[Callable[..., Any], Any]:
    """Message and update of the child-sum Tree-LSTM."""

    def dense(x: Any, name: str, size: int) -> Any:
        return F.FullyConnected(x, p[f"{name}_weight"], p[f"{name}_bias"], num_hidden=size)

    def own(x: Any) -> Any:
        return F.split(dense(x, "i2h", 4 * UNITS), num_outputs=4)

    def message(x: Any, hidden: Any, cell: Any) -> Any:
        return hidden, F.sigmoid(own(x)[1] + dense(hidden, "hc2h", UNITS)) * cell

    def update(x: Any, hidden: Any, cell: Any) -> Any:
        of = F.split(dense(hidden, "hs2h", 3 * UNITS), num_outputs=3)
        made = F.sigmoid(own(x)[0] + of[0]) * F.tanh(own(x)[2] + of[1]) + cell
        return F.sigmoid(own(x)[3] + of[2]) * F.tanh(made), made

    return message, update


def one_by_one(
    message: Callable[..., Any],
    update: Callable[..., Any],
    reduce: Sequence[str],
    widths: Sequence[int],
    x: Any,
    edges: Sequence[tuple[int, int]],
    states: int,
) -> list[Any]:
    """The same in MXNet's operators, node after node."""
    children: list[list[int]] = [[] for _ in range(x.shape[0])]
    for source, target in edges:
        children[target].append(source)
    made: dict[int, list[Any]] = {}

    def together(kind: str, width: int, rows: list[Any]) -> Any:
        if kind.startswith("concat"):
            places = int(kind[6:])
            rest = mx.nd.zeros((1, width // places), dtype=x.dtype)
            rows = [*rows, *[rest] * (places - len(rows))]
            return mx.nd.concat(*rows, dim=1) if places > 1 else rows[0]
        if not rows:
            return mx.nd.zeros((1, width), dtype=x.dtype)
        stacked = mx.nd.concat(*rows, dim=0)
        return getattr(mx.nd, kind)(stacked, axis=0, keepdims=True)

    def listed(found: Any) -> list[Any]:
        return list(found) if isinstance(found, (list, tuple)) else [found]

    pending = list(range(x.shape[0]))
    while pending:
        for node in [n for n in pending if all(child in made for child in children[n])]:
            row = x[node : node + 1]
            sent = [listed(message(row, *made[child][:states])) for child in children[node]]
            reduced = [
                together(kind, width, [rows[j] for rows in sent])
                for j, (kind, width) in enumerate(zip(reduce, widths, strict=True))
            ]
            made[node] = listed(update(row, *reduced))
        pending = [n for n in pending if n not in made]
    count = len(next(iter(made.values())))
    return [mx.nd.concat(*[made[n][k] for n in sorted(made)], dim=0) for k in range(count)]


def results(run: Callable[[], Sequence[Any]], wanted: Sequence[Any]) -> list[Any]:
    """Values, and gradients of a weighted sum of all of them."""
    for array in wanted:
        array.grad[:] = 0
    with mx.autograd.record():
        made = run()
        heads = [noise(*m.shape, seed=n, dtype=m.dtype) for n, m in enumerate(made)]
        total = mx.nd.add_n(*[(m * head).sum() for m, head in zip(made, heads, strict=True)])
    total.backward()
    return [a.asnumpy() for a in (*made, *(w.grad for w in wanted))]


def assert_close(mine: Sequence[Any], theirs: Sequence[Any], dtype: str) -> None:
    tolerance = 2e-5 if dtype == "float32" else 1e-12
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, abs(b).max()))


def started(layer: Any, dtype: str = "float32") -> Any:
    layer.initialize()
    layer.cast(dtype)
    for n, parameter in enumerate(layer.collect_params().values()):
        if parameter.shape and 0 not in parameter.shape:
            parameter.set_data(noise(*parameter.shape, seed=n + 3, dtype=dtype))
    return layer


def structure(edges: Sequence[tuple[int, int]]) -> Any:
    return mx.nd.array(np.array(edges or np.zeros((0, 2)), np.int32).reshape(-1, 2), dtype="int32")


def parents_in(edges: Sequence[tuple[int, int]], nodes: int) -> Any:
    parents = np.full(nodes, -1, np.int32)
    for source, target in edges:
        parents[source] = target
    return mx.nd.array(parents, dtype="int32")


def arrays_of(layer: Any) -> dict[str, Any]:
    return {name: p.data() for name, p in layer._reg_params.items()}


# -- Tree-LSTMs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [n for n in STRUCTURES if n not in ("no edges", "diamonds")])
def test_child_sum_is_node_by_node(name: str, dtype: str) -> None:
    edges = STRUCTURES[name]
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS), dtype)
    x = noise(nodes_in(edges), COLUMNS, seed=9, dtype=dtype)
    x.attach_grad()
    p = arrays_of(layer)
    message, update = tree_lstm(mx.nd, p)
    wanted = [x, *p.values()]
    given = structure(edges)
    mine = results(lambda: layer(x, given), wanted)
    theirs = results(
        lambda: one_by_one(message, update, ["sum", "sum"], [UNITS] * 2, x, edges, 2), wanted
    )
    assert_close(mine, theirs, dtype)


def test_parents_are_edges_in_short() -> None:
    edges = STRUCTURES["forest"]
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    x = noise(28, COLUMNS)
    by_edges, by_parents = layer(x, structure(edges)), layer(x, parents_in(edges, 28))
    for a, b in zip(by_edges, by_parents, strict=True):
        assert (a.asnumpy() == b.asnumpy()).all()


@pytest.mark.parametrize("arity", [1, 2, 3])
def test_n_ary_is_node_by_node(arity: int) -> None:
    parents = forest([7, 5, 1, 9], children=arity, seed=arity)
    layer = started(nn.NaryTreeLSTM(UNITS, COLUMNS, arity=arity), "float64")
    x = noise(len(parents), COLUMNS, dtype="float64")
    x.attach_grad()
    p = arrays_of(layer)

    def dense(x: Any, name: str, gates: int) -> Any:
        made = mx.nd.FullyConnected(
            x, p[f"{name}_weight"], p[f"{name}_bias"], num_hidden=gates * UNITS
        )
        return mx.nd.split(made, num_outputs=gates)

    def update(x: Any, hidden: Any, cells: Any) -> Any:
        own, of = dense(x, "i2h", 4), dense(hidden, "h2h", 3 + arity)
        cell = mx.nd.sigmoid(own[0] + of[0]) * mx.nd.tanh(own[2] + of[1])
        for n in range(arity):
            kept = mx.nd.sigmoid(own[1] + of[3 + n])
            cell = cell + kept * cells[:, n * UNITS : (n + 1) * UNITS]
        return mx.nd.sigmoid(own[3] + of[2]) * mx.nd.tanh(cell), cell

    wanted = [x, *p.values()]
    given = mx.nd.array(parents, dtype="int32")
    mine = results(lambda: layer(x, given), wanted)
    widths = [arity * UNITS] * 2
    theirs = results(
        lambda: one_by_one(
            lambda _x, *states: states,
            update,
            [f"concat{arity}"] * 2,
            widths,
            x,
            edges_of(parents),
            2,
        ),
        wanted,
    )
    assert_close(mine, theirs, "float64")


def test_children_lie_in_the_order_of_edges_or_of_their_numbers() -> None:
    def whole(_function: Any, _x: Any, state: Any) -> Any:
        return state

    def first(F: Any, x: Any, reduced: Any) -> Any:
        return x + F.slice_axis(reduced, axis=1, begin=0, end=1)

    layer = started(nn.Recurrence(whole, "concat2", first, (1,)))
    x = mx.nd.array([[1], [2], [4]])

    def root(given: Any) -> float:
        return float(layer(x, given)[2].asscalar())

    assert root(structure([(0, 2), (1, 2)])) == 5
    assert root(structure([(1, 2), (0, 2)])) == 6
    assert root(parents_in([(1, 2), (0, 2)], 3)) == 5


def test_trees_do_not_depend_on_each_other() -> None:
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    parents = forest([5, 8])
    x = noise(13, COLUMNS)
    alone = layer(x, mx.nd.array(parents, dtype="int32"))[0].asnumpy()
    more = [*parents, *(p + 13 if p >= 0 else -1 for p in forest([30], seed=4))]
    both = mx.nd.concat(x, noise(30, COLUMNS, seed=5), dim=0)
    among = layer(both, mx.nd.array(more, dtype="int32"))[0].asnumpy()
    assert (alone == among[:13]).all()


def test_no_batch_leaves_a_trace() -> None:
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    calls = [(noise(n, COLUMNS, seed=n), forest([n], seed=n)) for n in (40, 3, 17, 1, 40)]
    found = [layer(x, mx.nd.array(p, dtype="int32"))[0].asnumpy() for x, p in calls]
    assert (found[0] == found[-1]).all()


def test_gradients_can_be_added() -> None:
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    x, parents = noise(9, COLUMNS), mx.nd.array(forest([9]), dtype="int32")

    def step() -> list[Any]:
        with mx.autograd.record():
            hidden, cell = layer(x, parents)
            total = hidden.sum() + cell.sum()
        total.backward()
        return [p.grad().asnumpy() for p in layer._reg_params.values()]

    once = step()
    layer.collect_params().setattr("grad_req", "add")
    layer.collect_params().zero_grad()
    step()
    for two, one in zip(step(), once, strict=True):
        np.testing.assert_allclose(two, 2 * one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("unused", [0, 1])
def test_an_output_nobody_uses_has_no_gradient(unused: int, hybrid: bool) -> None:
    """What MXNet would make zeros for is the same as what gets zeros."""
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    net = Half(layer, unused)
    if hybrid:
        net.hybridize()
    x, parents = noise(40, COLUMNS), mx.nd.array(forest([25, 15]), dtype="int32")
    x.attach_grad()
    wanted = [x, *(p.data() for p in layer.collect_params().values())]
    mine = results(lambda: [net(x, parents)], wanted)

    def zeros_given() -> list[Any]:
        outputs = layer(x, parents)
        return [outputs[1 - unused] + 0 * outputs[unused]]

    theirs = results(zeros_given, wanted)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


class Half(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """One of a layer's two outputs."""

    def __init__(self, layer: Any, unused: int) -> None:
        super().__init__()
        self.layer, self.unused = layer, unused

    def hybrid_forward(self, F: Any, x: Any, parents: Any) -> Any:
        return self.layer(x, parents)[1 - self.unused]


def test_input_size_is_learned_from_the_first_call() -> None:
    layer = nn.ChildSumTreeLSTM(UNITS)
    layer.initialize()
    layer(noise(4, 11), mx.nd.array([1, -1, 1, 2], dtype="int32"))
    assert layer.i2h_weight.shape == (4 * UNITS, 11)


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_words_are_projected_once(dtype: str) -> None:
    parents = forest([9, 14, 1])
    words = mx.nd.array(np.random.default_rng(1).integers(0, 6, 24), dtype="int32")
    embedding = gluon.nn.Embedding(8, COLUMNS)
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS, embedding=embedding), dtype)
    plain = nn.ChildSumTreeLSTM(UNITS, COLUMNS, params=layer.params)
    wanted = [p.data() for p in layer.collect_params().values()]
    assert len(wanted) == 7
    given = mx.nd.array(parents, dtype="int32")
    mine = results(lambda: layer(words, given), wanted)
    theirs = results(lambda: plain(embedding(words), given), wanted)
    assert_close(mine, theirs, dtype)


# -- hybrid nets ----------------------------------------------------------------------------------


class Net(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A layer over trees between two others."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.front = gluon.nn.Dense(COLUMNS, in_units=3, activation="tanh")
            self.tree = nn.ChildSumTreeLSTM(UNITS, COLUMNS)
            self.back = gluon.nn.Dense(2, in_units=UNITS)

    def hybrid_forward(self, F: Any, x: Any, parents: Any) -> Any:
        return self.back(self.tree(self.front(x), parents)[0])


@pytest.mark.parametrize("how", ["hybridize", "optimize", "inference"])
def test_a_net_with_trees_can_be_compiled(how: str) -> None:
    net = started(Net())
    x = noise(11, 3)
    x.attach_grad()
    given = mx.nd.array(forest([4, 7]), dtype="int32")
    wanted = [x, *(p.data() for p in net.collect_params().values())]
    plain = results(lambda: [net(x, given)], wanted)
    if how == "hybridize":
        net.hybridize()
        fast = net
    else:
        fast = graphopt.optimize(net, mode="auto" if how == "optimize" else how)
    if how == "inference":
        assert_close([fast(x, given).asnumpy()], plain[:1], "float32")
        return
    assert_close(results(lambda: [fast(x, given)], wanted), plain, "float32")
    assert_close([fast(x, given).asnumpy()], plain[:1], "float32")


class Words(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Embedded words, trees over them, and a head."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.embed = gluon.nn.Embedding(8, COLUMNS)
            self.tree = nn.ChildSumTreeLSTM(UNITS, COLUMNS, embedding=self.embed)
            self.head = gluon.nn.Dense(2, in_units=UNITS, activation="tanh")

    def hybrid_forward(self, F: Any, words: Any, parents: Any) -> Any:
        h, _ = self.tree(words, parents)
        return self.head(F.sigmoid(h) * h)


class PlainWords(gluon.Block):  # type: ignore[misc, name-defined]
    """The same, and its forward is Python."""

    def __init__(self) -> None:
        super().__init__()
        parts = Words()
        self.embed, self.tree, self.head = parts.embed, parts.tree, parts.head

    def forward(self, words: Any, parents: Any) -> Any:
        return Words.hybrid_forward(self, mx.nd, words, parents)


@pytest.mark.parametrize("hybrid", [False, True], ids=["imperative", "hybridized"])
@pytest.mark.parametrize("kind", [Words, PlainWords])
def test_optimized_nets_ask_for_words_in_use(kind: Any, hybrid: bool) -> None:
    net = started(kind())
    if hybrid:
        net.hybridize(static_alloc=True)
    words, parents = mx.nd.array([1, 5, 1, 1, 5], dtype="int32"), mx.nd.array([1, 2, -1, 4, -1])
    given = (words, parents.astype("int32"))
    wanted = [p.data() for p in net.collect_params().values()]
    theirs = results(lambda: [net(*given)], wanted)
    fast = graphopt.optimize(net)
    assert_close(results(lambda: [fast(*given)], wanted), theirs, "float32")
    told = fast.explain()
    assert "is left as it is: it is one operator, and asks for words in use only" in told
    assert (kind is Words) == ("asks for words in use only, which a graph cannot" in told)
    # Rows that nobody looks up have no part in the layer's products: two words, not five nodes.
    looked_up = []
    net.embed.register_forward_hook(lambda _block, _args, out: looked_up.append(out.shape[0]))
    fast(*given)
    assert looked_up == [2]


def test_a_layer_by_itself_can_be_optimized() -> None:
    embedding = gluon.nn.Embedding(8, COLUMNS)
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS, embedding=embedding))
    given = (mx.nd.array([1, 5, 1], dtype="int32"), mx.nd.array([1, 2, -1], dtype="int32"))
    fast = graphopt.optimize(layer)
    assert_close([fast(*given)[0].asnumpy()], [layer(*given)[0].asnumpy()], "float32")
    assert "asks for words in use only" in fast.explain()
    with pytest.raises(InputError, match="not of an integer dtype"):
        fast(mx.nd.zeros(3), given[1])


def test_a_net_with_trees_is_not_exported_as_plain_mxnet(tmp_path: Any) -> None:
    net = graphopt.optimize(started(Net()), mode="inference")
    net(noise(11, 3), mx.nd.array(forest([4, 7]), dtype="int32"))
    with pytest.raises(GraphoptError, match=r"no operators for trees|no form"):
        net.export(str(tmp_path / "net"))


# -- any message and update -----------------------------------------------------------------------


def weights(*names: str) -> dict[str, Any]:
    return {name: noise(UNITS, UNITS, seed=n) for n, name in enumerate(names)}


class Step(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A function with one weight, as a Block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(UNITS, UNITS))

    def hybrid_forward(self, F: Any, x: Any, *others: Any, weight: Any) -> Any:
        return self.function(F, weight, x, *others)


CELLS: dict[str, tuple[Any, Any]] = {
    "message reads x and the state": (
        lambda F, w, x, s: F.tanh(F.FullyConnected(s * x, w, no_bias=True, num_hidden=UNITS)),
        lambda F, w, x, m: F.relu(F.FullyConnected(x, w, no_bias=True, num_hidden=UNITS) + m),
    ),
    "message is the state": (
        lambda F, w, x, s: s,
        lambda F, w, x, m: F.tanh(F.FullyConnected(m, w, no_bias=True, num_hidden=UNITS) + x),
    ),
    "message does not read the state's row of x": (
        lambda F, w, x, s: F.FullyConnected(s, w, no_bias=True, num_hidden=UNITS),
        lambda F, w, x, m: F.sigmoid(x + m),
    ),
    "message needs no state": (
        lambda F, w, x, s: F.FullyConnected(x, w, no_bias=True, num_hidden=UNITS),
        lambda F, w, x, m: F.sigmoid(x * 0.5 + m),
    ),
    "update normalizes rows": (
        lambda F, w, x, s: s * F.sigmoid(s),
        lambda F, w, x, m: F.softmax(F.dot(m, w) + x),
    ),
    "update returns more than states": (
        lambda F, w, x, s: s + x,
        lambda F, w, x, m: (F.tanh(x + m), F.FullyConnected(m, w, no_bias=True, num_hidden=UNITS)),
    ),
}


@pytest.mark.parametrize(
    ("name", "reduce", "structured"),
    one_of(
        7,
        itertools.product(
            CELLS,
            ["sum", "mean", "max", "concat"],
            ["forest", "star", "diamonds", "edge twice", "no edges"],
        ),
    ),
)
def test_any_cell_is_node_by_node(name: str, reduce: str, structured: str) -> None:
    edges = STRUCTURES[structured]
    nodes = nodes_in(edges)
    message, update = CELLS[name]
    if reduce == "concat":
        most = max([1, *(sum(t == n for _, t in edges) for n in range(nodes))])
        reduce, whole = f"concat{most}", update

        def update(F: Any, w: Any, x: Any, m: Any) -> Any:
            parts = [
                F.slice_axis(m, axis=1, begin=n * UNITS, end=(n + 1) * UNITS) for n in range(most)
            ]
            total = parts[0]
            for n, part in enumerate(parts[1:]):
                total = total + part * (0.3 + n)
            return whole(F, w, x, total)

        widths = [most * UNITS]
    else:
        widths = [UNITS]
    blocks = Step(message), Step(update)
    layer = started(nn.Recurrence(blocks[0], reduce, blocks[1], state_sizes=(UNITS,)))
    x = noise(nodes, UNITS, seed=8)
    x.attach_grad()
    wanted = [x, *(block.weight.data() for block in blocks)]

    def listed(found: Any) -> list[Any]:
        return list(found) if isinstance(found, (list, tuple)) else [found]

    given = structure(edges)
    mine = results(lambda: listed(layer(x, given)), wanted)
    theirs = results(
        lambda: one_by_one(
            lambda row, s: message(mx.nd, blocks[0].weight.data(), row, s),
            lambda row, m: update(mx.nd, blocks[1].weight.data(), row, m),
            [reduce],
            widths,
            x,
            edges,
            1,
        ),
        wanted,
    )
    assert_close(mine, theirs, "float32")


def test_states_are_as_wide_as_rows_unless_told() -> None:
    layer = nn.Recurrence(lambda F, x, a, b: a + b, "sum", lambda F, x, m: (x + m, x - m))
    a, b = layer(noise(3, UNITS), mx.nd.array([1, 2, -1], dtype="int32"))
    assert a.shape == b.shape == (3, UNITS)


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "told"),
    [
        ([(0, 1), (1, 2), (2, 0)], "cycle"),
        ([(1, 1)], "cycle"),
        ([(0, 5)], "node 5, but nodes are 0 to 3"),
        ([(-1, 0)], "from node -1"),
        ([(0, -1)], "nodes are 0 to 3"),
    ],
)
def test_bad_edges_are_told(edges: list[tuple[int, int]], told: str) -> None:
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    with pytest.raises(mx.MXNetError, match=told):
        layer(noise(4, COLUMNS), structure(edges))[0].wait_to_read()
    # Nothing is broken by it.
    layer(noise(4, COLUMNS), structure([(0, 1)]))[0].wait_to_read()


@pytest.mark.parametrize(("parents", "told"), [([1, 0], "cycle"), ([-2, 0], "-2"), ([2, 0], "2")])
def test_bad_parents_are_told(parents: list[int], told: str) -> None:
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    with pytest.raises(mx.MXNetError, match=told):
        layer(noise(2, COLUMNS), mx.nd.array(parents, dtype="int32"))[0].wait_to_read()


def test_too_many_children_are_told() -> None:
    layer = started(nn.NaryTreeLSTM(UNITS, COLUMNS, arity=2))
    with pytest.raises(mx.MXNetError, match="node 0 has 3 children; at most 2 fit"):
        layer(noise(4, COLUMNS), mx.nd.array([-1, 0, 0, 0], dtype="int32"))[0].wait_to_read()


@pytest.mark.parametrize(
    ("x", "parents", "told"),
    [
        (noise(4, 5, 1), mx.nd.zeros(4, dtype="int32"), "x has shape"),
        (noise(4, 5).astype("float16"), mx.nd.zeros(4, dtype="int32"), "float16"),
        (noise(4, 5), mx.nd.zeros(4), "float32, not int32"),
        (noise(4, 5), mx.nd.zeros(3, dtype="int32"), r"\(3,\); 4 nodes"),
        (noise(4, 5), mx.nd.zeros((4, 3), dtype="int32"), r"edges \(count, 2\)"),
        (noise(4, 5), [0, 1], "a list, not an NDArray"),
    ],
)
def test_bad_arrays_are_told(x: Any, parents: Any, told: str) -> None:
    layer = started(nn.ChildSumTreeLSTM(UNITS, COLUMNS))
    with pytest.raises(InputError, match=told):
        layer(x, parents)


def test_bad_functions_are_told() -> None:
    given = noise(3, UNITS), mx.nd.array([1, 2, -1], dtype="int32")

    def fails(message: Any, update: Any, reduce: Any = "sum", **more: Any) -> str:
        with pytest.raises((InputError, ParseError, UnsupportedError)) as caught:
            nn.Recurrence(message, reduce, update, **more)(*given)
        return str(caught.value)

    def same(F: Any, x: Any, s: Any) -> Any:
        return s

    def plus(F: Any, x: Any, m: Any) -> Any:
        return x + m

    assert "sort" in fails(same, lambda F, x, m: F.sort(x + m))
    assert "median" in fails(same, plus, "median")
    assert "2 reductions for 1 messages" in fails(same, plus, ["sum", "max"])
    assert "takes no states" in fails(lambda F, x: x, plus)
    assert "state_sizes=" in fails(lambda F, x, *s: s[0], plus)
    assert "returns [14]" in fails(same, lambda F, x, m: F.concat(x, m, dim=1))
    dense = gluon.nn.Dense(UNITS)
    assert "no parameter of the layer" in fails(lambda F, x, s: dense(s), plus)
    assert "not a function" in fails("sum", plus)
