"""Blocks, parameters and constants in batches: grouped, traced once, and kept while they last."""

from __future__ import annotations

import copy
import gc
import random
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.batching import constants
from graphopt.batching.recorder import Recorder
from graphopt.batching.unit import Unit
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, check, gradients, initialized, rand, same

mx = import_mxnet()
nn = mx.gluon.nn


def test_the_case_that_mxnet_fold_breaks() -> None:
    def forward(net: Any, x: Any) -> Any:
        return net.g(mx.nd.square(x)), net.g(mx.nd.negative(x))

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    check(net, [(rand(1, 2),), (rand(1, 2),)], groups=3)


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


class Late(mx.gluon.HybridBlock):
    """Calls its second layer first, and reads it or not."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        with self.name_scope():
            self.a, self.b, self.never = nn.Dense(4), nn.Dense(4), nn.Dense(4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        y = self.b(x)
        z = self.a(x)
        return z - y if self.reads else z


@pytest.mark.parametrize("reads", [False, True])
def test_deferred_parameters_are_drawn_as_without_batches(reads: bool) -> None:
    given = [(rand(1, 3),) for _ in range(4)]
    found = []
    for is_batched in (False, True):
        mx.random.seed(0)
        net = Fn(lambda net, x: net.late(x), late=Late(reads))
        net.initialize()
        batched = graphopt.batch(net, debug=not is_batched)
        batched(given)
        found.append([layer.weight.data().asnumpy() for layer in (net.late.a, net.late.b)])
        assert net.late.never.weight._deferred_init
    for mine, theirs in zip(found[1], found[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    batched(given)
    assert batched.statistics.groups == 1


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
        # A tuple that the engine's thread is just making must not be held by what is looked at.
        mx.nd.waitall()
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
