"""Groups that the bridge runs as one operator: the same as MXNet's operators, and no crash."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.invoke import invoke
from graphopt.batching import plan
from graphopt.batching.kinds import kind
from graphopt.batching.native.programs import Cut, cut_of
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, check, initialized, rand
from tests.tiers import one_of

mx = import_mxnet()
nd, gluon = mx.nd, mx.gluon

UNITS = 6


class Cell(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """State and memory of a node."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.x = gluon.nn.Dense(2 * UNITS, in_units=4)
            self.h = gluon.nn.Dense(2 * UNITS, in_units=UNITS)

    def hybrid_forward(self, F: Any, x: Any, h: Any, c: Any) -> Any:
        i, u = F.split(self.x(x) + self.h(h), num_outputs=2, axis=1)
        c = F.sigmoid(i) * F.tanh(u) + c
        return F.tanh(c), c


class Trees(gluon.Block):  # type: ignore[misc, name-defined]
    """A tree is nested tuples of positions in a sentence (1, length, 4)."""

    def __init__(self, how: str = "sum") -> None:
        super().__init__()
        self.how = how
        with self.name_scope():
            self.cell = Cell()
            self.out = gluon.nn.Dense(3, in_units=UNITS)
        self.seen: list[Any] = []

    def forward(self, tree: Any, words: Any) -> Any:
        h, _ = self.visit(tree, words)
        return self.out(h)

    def visit(self, tree: Any, words: Any) -> Any:
        position, *below = tree
        states = [self.visit(child, words) for child in below]
        none = nd.zeros((1, UNITS), dtype=words.dtype)
        if not states:
            return self.cell(words[:, position], none, none)
        hs, cs = ([state[n] for state in states] for n in (0, 1))
        found = self.cell(words[:, position], self.joined(hs), self.joined(cs))
        self.seen.append(found[1])
        return found

    def joined(self, rows: list[Any]) -> Any:
        if self.how == "sum":
            return nd.add_n(*rows)
        return getattr(nd, self.how)(nd.concat(*rows, dim=0), axis=0, keepdims=True)


def random_tree(rng: np.random.Generator, size: int) -> Any:
    nodes: list[list[Any]] = [[0]]
    for position in range(1, size):
        node = [position]
        nodes[int(rng.integers(0, len(nodes)))].append(node)
        nodes.append(node)
    return nodes[0]


def samples(count: int, dtype: str = "float32", seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(rng.integers(1, 9))
        words = nd.array(rng.uniform(-1, 1, (1, size, 4)), dtype=dtype)
        found.append((random_tree(rng, size), words))
    return found


def made(dtype: str = "float32", how: str = "sum") -> Any:
    net = Trees(how)
    net.initialize(mx.init.Xavier())
    net.cast(dtype)
    for n, parameter in enumerate(net.collect_params().values()):
        rng = np.random.default_rng(n)
        parameter.set_data(nd.array(rng.uniform(-1, 1, parameter.shape), dtype=dtype))
    return net


def results(net: Any, call: Any, given: list[Any]) -> list[Any]:
    for _, words in given:
        words.attach_grad()
    with mx.autograd.record():
        found = call()
        total = (found * nd.arange(found.size).reshape(found.shape).astype(found.dtype)).sum()
    total.backward()
    gradients = [p.grad() for p in net.collect_params().values()]
    return [a.asnumpy().copy() for a in (found, *gradients, *(words.grad for _, words in given))]


@pytest.mark.parametrize(
    ("count", "dtype", "how"),
    one_of(5, product([1, 3, 90], ["float64", "float32"], ["sum", "mean", "max"])),
)
def test_blocks_compute_what_samples_do(how: str, dtype: str, count: int) -> None:
    net, given = made(dtype, how), samples(count, dtype)
    batched = graphopt.batch(net)
    mine = results(net, lambda: batched(given), given)
    assert batched.statistics.operators == 1
    theirs = results(net, lambda: nd.concat(*[net(*s) for s in given], dim=0), given)
    tolerance = 1e-4 if dtype == "float32" else 1e-10
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, abs(b).max()))


def test_without_the_bridge_groups_run_in_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    net, given = made(), samples(20)
    wanted = graphopt.batch(net)(given).asnumpy()
    monkeypatch.setattr(plan.bridge, "why_not", lambda _mx: "there is no compiler")
    batched = graphopt.batch(net)
    np.testing.assert_allclose(batched(given).asnumpy(), wanted, rtol=1e-5, atol=1e-6)
    assert batched.statistics.operators > 10
    assert "there is no compiler" in batched.explain()


def test_what_a_block_keeps_to_itself_can_be_read_later() -> None:
    net, given = made(), samples(8)
    graphopt.batch(net)(given)
    kept, net.seen = net.seen, []
    for sample in given:
        net(*sample)
    assert len(kept) == len(net.seen)
    for mine, theirs in zip(kept, net.seen, strict=True):
        np.testing.assert_allclose(mine.asnumpy(), theirs.asnumpy(), rtol=1e-5, atol=1e-6)


def test_all_samples_may_read_the_same_rows() -> None:
    shared = nd.array(np.random.default_rng(3).uniform(-1, 1, (1, 4)))
    net = made()

    class Around(gluon.Block):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any, same: Any) -> Any:
            none = nd.zeros((1, UNITS))
            h, c = self.net.cell(same, none, none)
            return self.net.out(self.net.cell(x, h, c)[0])

    around = Around()
    given = [(nd.array([[n, 1 - n, 2, n / 7]]), shared) for n in range(60)]
    shared.attach_grad()

    def gradient(call: Any) -> Any:
        with mx.autograd.record():
            total = (call() ** 2).sum()
        total.backward()
        return shared.grad.asnumpy().copy()

    mine = gradient(lambda: graphopt.batch(around)(given))
    theirs = gradient(lambda: nd.concat(*[around(*sample) for sample in given], dim=0))
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)


@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [
        ((None, 1), (None, 3), Cut(4, 8)),
        ((None, 1, 2), (None, 2, 3), Cut(6, 1)),
        ((None, 1, 0), (None, 2, 4), Cut(4, 4)),
        ((None, -1), (None, None), Cut(8, 4)),
        ((None, 0, 1), (None, 3, 2), None),  # a column of each
        ((None, 0, 1), (None, 2, 4), None),
        ((1,), (2,), None),  # not all rows
        ((), (), Cut(0, 12)),
    ],
)
def test_slices_are_cuts_where_elements_are_adjacent(begin: Any, end: Any, wanted: Any) -> None:
    assert cut_of(begin, end, (), kind((3, 4), "float32", mx.cpu())) == wanted
    assert cut_of(begin, end, (None, 2), kind((3, 4), "float32", mx.cpu())) is None


SPEC = "recurrence f32 (2) () () () ;; next ;; emit x0"

#: One array of 2 rows from outside, without an index; one step that copies 2 rows; one export.
GOOD = [1, 2, 2, -1, 1, 0, 0, 2, 1, 1, 2, 2, 2, 0, 1, 0, 1, 0, 0]


def ran(numbers: list[int], exports: str = "2 2") -> Any:
    x = nd.array([[1, 2], [3, 4]])
    attrs = {"specs": SPEC, "externals": 1, "exports": exports, "dtype": 0}
    return invoke("graphopt_schedule", [x, nd.array(numbers, dtype="int32")], attrs)[0].asnumpy()


def test_a_plan_is_run() -> None:
    np.testing.assert_array_equal(ran(GOOD), [[3, 4], [1, 2]])


@pytest.mark.parametrize("end", range(1, len(GOOD)))
def test_a_plan_that_ends_too_early_is_refused(end: int) -> None:
    with pytest.raises(mx.MXNetError, match=r"a plan of graphopt.batch"):
        ran(GOOD[:end])


@pytest.mark.parametrize("value", [-1, 7, 1 << 30])
@pytest.mark.parametrize("at", range(len(GOOD)))
def test_a_plan_that_makes_no_sense_is_refused(at: int, value: int) -> None:
    numbers = GOOD.copy()
    numbers[at] = value if numbers[at] != value else -2
    with pytest.raises(mx.MXNetError, match=r"a plan of graphopt.batch"):
        ran(numbers)


def looked_up(numbers: list[int], index: Any) -> Any:
    x = nd.array([[1, 2], [3, 4], [5, 6]])
    attrs = {"specs": SPEC, "externals": 1, "indices": 1, "exports": "2 2", "dtype": 0}
    given = [x, nd.array(numbers, dtype="int32"), nd.array(index, dtype="int32")]
    return invoke("graphopt_schedule", given, attrs)[0].asnumpy()


def test_rows_are_looked_up() -> None:
    numbers = [*GOOD[:3], 0, *GOOD[4:]]
    np.testing.assert_array_equal(looked_up(numbers, [0, 2]), [[5, 6], [1, 2]])
    with pytest.raises(mx.MXNetError, match="looks up a row that is not there"):
        looked_up(numbers, [0, 3])
    with pytest.raises(mx.MXNetError, match="does not fit its indices"):
        looked_up(numbers, [0, 1, 2])


def test_a_plan_for_other_outputs_is_refused() -> None:
    with pytest.raises(mx.MXNetError, match="does not fit its outputs"):
        ran(GOOD, exports="1 4")


@pytest.mark.parametrize("way", ["concat", "stack"])
def test_columns_are_put_together_in_blocks(way: str) -> None:
    net = made()

    class Around(gluon.Block):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, *rows: Any) -> Any:
            h = [self.net.cell(x, nd.zeros((1, UNITS)), nd.zeros((1, UNITS)))[0] for x in rows]
            if way == "concat":
                return nd.concat(*h, *(x * 2 for x in rows), dim=1).tanh()
            return nd.stack(*h, axis=1)[:, 1].tanh()

    rng = np.random.default_rng(2)
    given = [tuple(nd.array(rng.uniform(-1, 1, (1, 4))) for _ in range(2)) for _ in range(40)]
    around = Around()
    batched = graphopt.batch(around)

    def run(call: Any) -> list[Any]:
        for sample in given:
            for x in sample:
                x.attach_grad()
        with mx.autograd.record():
            found = call()
            total = (found * nd.arange(found.size).reshape(found.shape)).sum()
        total.backward()
        gradients = [x.grad for sample in given for x in sample]
        gradients += [p.grad() for p in net.cell.collect_params().values()]
        return [a.asnumpy().copy() for a in (found, *gradients)]

    mine = run(lambda: batched(given))
    assert batched.statistics.operators == 1
    for a, b in zip(mine, run(lambda: nd.concat(*[around(*s) for s in given], dim=0)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * max(1, abs(b).max()))


def test_dtypes_are_not_mixed_in_a_block() -> None:
    def forward(net: Any, x: Any, y: Any) -> Any:
        return mx.nd.tanh(net.g(x)) * 2, mx.nd.tanh(y * 2) + y

    net = initialized(Fn(forward, g=mx.gluon.nn.Dense(4, in_units=3)))
    check(net, [(rand(1, 3), rand(1, 3, dtype="float64")) for _ in range(3)])


def test_devices_are_not_mixed_in_a_block() -> None:
    net = Fn(lambda net, x, y: (mx.nd.tanh(x * 2) + 1, mx.nd.tanh(y * 2) + y))
    samples = [(rand(1, 3), rand(1, 3).as_in_context(mx.cpu(1))) for _ in range(3)]
    found = check(net, samples, grads=False)(samples)
    assert [array.ctx for array in found] == [mx.cpu(0), mx.cpu(1)]


def test_a_block_without_programs_has_its_dtype() -> None:
    def forward(net: Any, x: Any, y: Any) -> Any:
        return mx.nd.concat(mx.nd.add_n(x, y, x), mx.nd.add_n(x, y), dim=1)

    samples = [(rand(1, 3, dtype="float64"), rand(1, 3, dtype="float64")) for _ in range(3)]
    check(Fn(forward), samples, grads=False)


class Words(gluon.Block):  # type: ignore[misc, name-defined]
    """Chains of words, which come again and again: ``(1, length)`` numbers."""

    def __init__(self, *, sparse: bool = False, returns: bool = False) -> None:
        super().__init__()
        self.returns = returns
        self.seen: list[Any] = []
        with self.name_scope():
            self.embed = gluon.nn.Embedding(20, 4, sparse_grad=sparse)
            self.cell = Cell()
            self.gate = gluon.nn.Dense(UNITS, in_units=4, use_bias=False)

    def forward(self, words: Any) -> Any:
        rows = self.embed(words)
        h = c = mx.nd.zeros((1, UNITS))
        for at in range(words.shape[1]):
            x = rows[:, at]
            h, c = self.cell(x, h, c)
            h = h * self.gate(x) + mx.nd.slice_axis(x, axis=1, begin=1, end=2)
            self.seen.append(c)
        return (h, rows[:, 0]) if self.returns else h


def sentences(dtype: str = "int32") -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    return [(nd.array(rng.integers(0, 20, (1, n)), dtype=dtype),) for n in (3, 1, 5, 5, 2, 9)]


def steps_of(batched: Any) -> list[Any]:
    (plan_,) = batched._library.plans.values()
    return [type(step).__name__ for step in plan_.steps]


@pytest.mark.parametrize("dtype", ["int32", "float32", "int64"])
@pytest.mark.parametrize("sparse", [False, True])
def test_each_word_is_looked_up_once(dtype: str, sparse: bool) -> None:
    net = initialized(Words(sparse=sparse))
    batched = graphopt.batch(net)
    results = []
    for call in (batched, lambda given: nd.concat(*(net(*one) for one in given), dim=0)):
        with mx.autograd.record():
            out = call(sentences(dtype))
            loss = (out * out).sum()
        loss.backward()
        grads = [p.grad().asnumpy().copy() for p in net.collect_params().values()]
        results.append([out.asnumpy(), *grads])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    assert "LookupStep" in steps_of(batched)


def test_rows_that_are_returned_are_not_looked_up_apart() -> None:
    net = initialized(Words(returns=True))
    batched = graphopt.batch(net)
    for mine, *theirs in zip(
        batched(sentences()), *(net(*one) for one in sentences()), strict=True
    ):
        np.testing.assert_allclose(
            mine.asnumpy(), np.concatenate([t.asnumpy() for t in theirs]), rtol=1e-4, atol=1e-6
        )
    assert "LookupStep" not in steps_of(batched)


def test_what_was_computed_of_looked_up_words_can_be_read_later() -> None:
    net = initialized(Words())
    graphopt.batch(net)(sentences())
    kept, net.seen = net.seen, []
    for one in sentences():
        net(*one)
    for mine, theirs in zip(kept, net.seen, strict=True):
        np.testing.assert_allclose(mine.asnumpy(), theirs.asnumpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("what", ["embed", "cell"])
def test_what_would_be_computed_of_other_weights_is_refused(what: str) -> None:
    net = initialized(Words())
    graphopt.batch(net)([(nd.array([[1, 2]], dtype="int32"),)])
    weight = net.embed.weight if what == "embed" else net.cell.x.weight
    weight.set_data(weight.data() + 1)
    with pytest.raises(graphopt.GraphoptError, match=r"read it before \(.asnumpy\(\)\), or return"):
        net.seen[0].asnumpy()


def test_words_written_later_change_nothing_that_is_kept() -> None:
    net = initialized(Words())
    words = nd.array([[1, 2]], dtype="int32")
    net(words)
    expected, net.seen = [one.asnumpy() for one in net.seen], []
    graphopt.batch(net)([(words,)])
    words[:] = 3
    for mine, theirs in zip(net.seen, expected, strict=True):
        np.testing.assert_allclose(mine.asnumpy(), theirs, rtol=1e-4, atol=1e-6)


def test_what_was_read_stays_when_weights_change() -> None:
    net = initialized(Words())
    graphopt.batch(net)(sentences())
    before = net.seen[0].asnumpy()
    net.cell.x.weight.set_data(net.cell.x.weight.data() + 1)
    np.testing.assert_array_equal(net.seen[0].asnumpy(), before)


def test_changed_children_are_traced_anew() -> None:
    net = initialized(Words())
    batched = graphopt.batch(net)
    given = sentences()

    def agrees() -> None:
        expected = np.concatenate([net(*one).asnumpy() for one in given])
        np.testing.assert_allclose(batched(given).asnumpy(), expected, rtol=1e-4, atol=1e-5)

    agrees()
    assert "has changed" not in batched.explain()
    net.cell.x = initialized(gluon.nn.Dense(2 * UNITS, in_units=4))
    agrees()
    net.cell.h.act = gluon.nn.Activation("relu")
    agrees()
    net.embed = initialized(gluon.nn.Embedding(20, 4))
    agrees()
    assert "Cell" in batched.explain()
    assert "has changed and is traced anew" in batched.explain()


def test_what_mxnet_notes_on_a_block_is_no_change() -> None:
    net = initialized(Words())
    batched = graphopt.batch(net)
    batched(sentences())
    net.hybridize()
    for one in sentences():
        net(*one)
    batched(sentences())
    assert "has changed" not in batched.explain()


@pytest.mark.parametrize("slope", [0, 2])
def test_values_of_which_only_the_order_is_used_get_no_gradient(slope: int) -> None:
    """With a slope, another output of the same operator has a gradient."""

    def call(net: Any, x: Any) -> Any:
        ordered, other = nd.tanh(x) * x, nd.sin(x) * x
        ordered.sum().asscalar()
        order = nd.argmax(ordered * 2, axis=1)
        return order + slope * other.sum(axis=1) if slope else order

    given = [rand(1, 4) for _ in range(3)]
    net = Fn(call)
    found = []
    for run in (graphopt.batch(net, debug=True), graphopt.batch(net)):
        for x in given:
            x.attach_grad()
        with mx.autograd.record():
            total = nd.add_n(*run([(x,) for x in given]))
        total.backward()
        found.append(np.concatenate([x.grad.asnumpy() for x in given]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
