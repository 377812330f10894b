"""Batches between which nets change: never values of other weights, and no error where none is."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.batching import changes
from graphopt.batching.library import MAX_CHANGES
from graphopt.compat import import_mxnet
from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import Versions, fit
from tests.batching.comparing import initialized
from tests.batching.test_native import UNITS, Words, made, samples, sentences

mx = import_mxnet()
nd, gluon = mx.nd, mx.gluon

REFUSED = r"read it before \(.asnumpy\(\)\), or return"


def one_by_one(net: Any, given: list[Any]) -> Any:
    return nd.concat(*(net(*one) for one in given), dim=0)


def close(mine: Any, theirs: Any) -> None:
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_writes_are_counted() -> None:
    assert fit(mx)
    array, other = nd.zeros((3,)), nd.zeros((3,))
    before = Versions(mx, [array, other, array])
    array += 1
    other.asnumpy()
    after = Versions(mx, [array, other, array])
    array += 1  # is no part of what was noted before
    risen = [now - then for now, then in zip(after.read(), before.read(), strict=True)]
    assert risen == [1, 0, 1]


def test_another_layout_is_found_out_without_a_crash() -> None:
    library = bridge.load(mx)
    fits = library.graphopt_variables_fit
    array, other = nd.zeros((3,)), nd.zeros((3,))
    same = array.detach()
    assert fits(array.handle, same.handle, other.handle) == 1
    assert fits(array.handle, other.handle, other.handle) == 0
    assert fits(array.handle, same.handle, same.handle) == 0
    nothing = ctypes.create_string_buffer(512)  # where a chunk would be, all of it zeros
    odd = ctypes.create_string_buffer(b"\x07" * 512, 512)
    for chunk in (8, ctypes.addressof(nothing), ctypes.addressof(odd)):
        fake = (ctypes.c_void_p * 2)(chunk, None)
        assert fits(ctypes.addressof(fake), ctypes.addressof(fake), other.handle) == 0
        assert fits(array.handle, same.handle, ctypes.addressof(fake)) == 0


def test_where_changes_cannot_be_noticed_explain_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    net = initialized(Words())
    batched = graphopt.batch(net)
    batched(sentences())
    assert "not noticed" not in batched.explain()
    monkeypatch.setattr(changes, "fit", lambda _mx: False)
    net.seen = []
    batched(sentences())
    assert "not noticed: this build of MXNet does not lay out arrays" in batched.explain()
    kept, net.seen = net.seen, []
    one_by_one(net, sentences())
    close(kept[0].asnumpy(), net.seen[0].asnumpy())


@pytest.mark.parametrize("how", ["reinit", "result"])
def test_what_would_be_computed_of_other_arrays_is_refused(how: str) -> None:
    net = initialized(Words())
    given = [(nd.array([[1, 2]], dtype="int32"),)]
    found = graphopt.batch(net)(given)
    if how == "reinit":  # the parameters get new arrays, and nothing writes the old ones
        net.initialize(force_reinit=True)
        with pytest.raises(graphopt.GraphoptError, match=REFUSED):
            net.seen[0].asnumpy()
        return
    expected = net(*given[0]).asnumpy()
    found[:] = 7  # nothing else is computed of it
    kept, net.seen = net.seen, []
    net(*given[0])
    close(kept[0].asnumpy(), net.seen[0].asnumpy())
    close(net(*given[0]).asnumpy(), expected)


def test_a_result_that_others_are_computed_of_may_be_written_if_they_are_read_before() -> None:
    net = initialized(Inner())
    x = nd.ones((1, UNITS))
    for reads_before in (True, False):
        net.seen = []
        found = graphopt.batch(net)([(x,)])
        if reads_before:
            before = net.seen[0].asnumpy()
        found[:] = 7
        if reads_before:
            np.testing.assert_array_equal(net.seen[0].asnumpy(), before)
        else:
            with pytest.raises(graphopt.GraphoptError, match=REFUSED):
                net.seen[0].asnumpy()


class Inner(gluon.Block):  # type: ignore[misc, name-defined]
    """Returns something, and keeps what is computed from it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        with self.name_scope():
            self.a = gluon.nn.Dense(UNITS, in_units=UNITS)
            self.b = gluon.nn.Dense(UNITS, in_units=UNITS)

    def forward(self, x: Any) -> Any:
        found = self.a(x).tanh()
        self.seen.append(self.b(found).tanh())
        return found


def test_samples_that_write_their_own_arrays_keep_what_they_read() -> None:
    class Writes(Inner):
        def forward(self, x: Any) -> Any:
            mine = nd.array([[1.0] * UNITS])  # a real one
            self.seen.append(self.b(self.a(x + mine).tanh()).tanh())
            mine[:] = 5
            return self.a(x)

    net = initialized(Writes())
    given = [(nd.ones((1, UNITS)) * n,) for n in range(3)]
    graphopt.batch(net)(given)
    kept, net.seen = net.seen, []
    one_by_one(net, given)
    for mine, theirs in zip(kept, net.seen, strict=True):
        close(mine.asnumpy(), theirs.asnumpy())


def trained(net: Any, call: Any, given: list[Any], steps: int = 4) -> list[Any]:
    """Results and losses, read after all steps; then the weights."""
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
    kept: list[Any] = []
    for _ in range(steps):
        with mx.autograd.record():
            found = call(given)
            loss = (found * found).sum()
        loss.backward()
        trainer.step(len(given))
        kept += [found, loss]
    kept += [p.data() for p in net.collect_params().values()]
    return [array.asnumpy() for array in kept]


@pytest.mark.parametrize("what", ["trees", "words"])
def test_results_and_losses_are_read_after_the_epoch(what: str) -> None:
    ours, theirs = (made() if what == "trees" else initialized(Words()) for _ in range(2))
    given = samples(12) if what == "trees" else sentences()
    batched = graphopt.batch(ours)
    found = trained(ours, batched, given)
    expected = trained(theirs, lambda s: one_by_one(theirs, s), given)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert "has changed" not in batched.explain()


def test_kept_values_are_read_before_the_step_or_not_at_all() -> None:
    net = initialized(Words())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = graphopt.batch(net)(sentences()).sum()
    loss.backward()
    read = net.seen[0].asnumpy()
    trainer.step(1)
    np.testing.assert_array_equal(net.seen[0].asnumpy(), read)


def test_a_step_between_refuses_what_was_not_computed() -> None:
    net = initialized(Words())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        loss = graphopt.batch(net)(sentences()).sum()
    loss.backward()
    trainer.step(1)
    with pytest.raises(graphopt.GraphoptError, match=REFUSED):
        net.seen[0].asnumpy()


def test_parameters_without_gradient() -> None:
    def frozen() -> Any:
        net = initialized(Words())
        net.cell.collect_params().setattr("grad_req", "null")
        return net

    ours, theirs = frozen(), frozen()
    for a, b in zip(
        trained(ours, graphopt.batch(ours), sentences()),
        trained(theirs, lambda s: one_by_one(theirs, s), sentences()),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_loaded_parameters_are_used_and_noticed(tmp_path: Path) -> None:
    net, other = initialized(Words()), initialized(Words(), seed=5)
    path = str(tmp_path / "other.params")
    other.save_parameters(path)
    batched = graphopt.batch(net)
    batched(sentences())
    net.load_parameters(path)
    with pytest.raises(graphopt.GraphoptError, match=REFUSED):
        net.seen[0].asnumpy()
    close(batched(sentences()).asnumpy(), one_by_one(other, sentences()).asnumpy())
    assert "has changed" not in batched.explain()


class Normalized(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A dense layer, normalized."""

    def __init__(self, *, fixed: bool = False) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = gluon.nn.Dense(UNITS, in_units=UNITS)
            self.norm = gluon.nn.BatchNorm(in_channels=UNITS, use_global_stats=fixed)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(self.norm(self.dense(x)))


class Chain(gluon.Block):  # type: ignore[misc, name-defined]
    """A cell over and over; keeps what it has not returned."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.seen: list[Any] = []
        with self.name_scope():
            self.cell = cell
            self.out = gluon.nn.Dense(2, in_units=UNITS)

    def forward(self, x: Any, steps: int) -> Any:
        for _ in range(steps):
            x = self.cell(x)
            self.seen.append(self.out(x).tanh())
        return self.out(x)


def chains() -> list[Any]:
    rng = np.random.default_rng(1)
    return [(nd.array(rng.uniform(-1, 1, (1, UNITS))), steps) for steps in (3, 1, 2, 5)]


@pytest.mark.parametrize("fixed", [False, True])
def test_batch_norm_reads_what_training_wrote(fixed: bool) -> None:
    net = initialized(Chain(Normalized(fixed=fixed)))
    batched = graphopt.batch(net)
    x = nd.array(np.random.default_rng(2).uniform(-3, 3, (32, UNITS)))
    for _ in range(3):
        with mx.autograd.record():  # the samples of one call are its batch
            loss = (net.cell(x) ** 2).sum()
        loss.backward()
        net.seen = []
        found = batched(chains()).asnumpy()
        kept, net.seen = net.seen, []
        close(found, one_by_one(net, chains()).asnumpy())
        # MXNet takes moving statistics as written by inference, too: nothing has changed.
        for mine, theirs in zip(kept, net.seen, strict=True):
            close(mine.asnumpy(), theirs.asnumpy())


def test_batch_norm_with_fixed_statistics_in_training() -> None:
    def step(call: Any, net: Any) -> list[Any]:
        return trained(net, call, chains())

    ours, theirs = (initialized(Chain(Normalized(fixed=True))) for _ in range(2))
    for a, b in zip(
        step(graphopt.batch(ours), ours),
        step(lambda s: one_by_one(theirs, s), theirs),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_dropout_keeps_its_mask_in_what_is_read_later() -> None:
    class Drops(Chain):
        def forward(self, x: Any) -> Any:
            dropped = self.drop(self.cell(x))
            last = self.out(dropped).tanh() * 2
            self.seen.append(last)
            return dropped

    net = Drops(gluon.nn.Dense(UNITS, in_units=UNITS))
    net.drop = gluon.nn.Dropout(0.5)
    initialized(net)
    given = [(x,) for x, _ in chains()]
    with mx.autograd.train_mode():
        dropped = graphopt.batch(net)(given)
    for mine, row in zip(net.seen, dropped, strict=True):
        close(mine.asnumpy(), (net.out(row.expand_dims(0)).tanh() * 2).asnumpy())


class Counting(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Its graph has a setting of its own that somebody changes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0
        with self.name_scope():
            self.dense = gluon.nn.Dense(UNITS, in_units=UNITS)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(self.dense(x) * self.scale)


def test_a_block_that_always_changes_is_not_traced_forever() -> None:
    net = initialized(Chain(Counting()))
    batched = graphopt.batch(net)
    traced = []
    for number in range(3 * MAX_CHANGES):
        net.cell.scale = 1 + number % 3  # another one each time, of few, as each has its kernels
        close(batched(chains()).asnumpy(), one_by_one(net, chains()).asnumpy())
        traced.append(batched.explain())
    assert "it changes all the time" in traced[-1]
    assert "Counting has changed" not in traced[0]
    last = [text.count("has changed and is traced anew") for text in traced[-2:]]
    assert last == [1, 1]  # one line, whose number of times does not rise any more
    assert traced[-2].split("anew")[1].split(")")[0] == traced[-1].split("anew")[1].split(")")[0]


def test_a_block_that_changes_now_and_then_is_traced() -> None:
    net = initialized(Chain(Counting()))
    batched = graphopt.batch(net)
    for number in range(MAX_CHANGES + 4):
        net.cell.scale = 1 + number % 3
        for _ in range(20):
            batched(chains()[:2])
        close(batched(chains()).asnumpy(), one_by_one(net, chains()).asnumpy())
    assert "it changes all the time" not in batched.explain()


class Walked(gluon.Block):  # type: ignore[misc, name-defined]
    """Steps of one of MXNet's cells, which counts them."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, *steps: Any) -> Any:
        states = self.cell.begin_state(batch_size=1)
        for step in steps:
            out, states = self.cell(step, states)
        return out


@pytest.mark.parametrize("cell", ["RNNCell", "GRUCell", "LSTMCell"])
def test_cells_that_count_their_steps_have_not_changed(cell: str) -> None:
    net = initialized(Walked(getattr(gluon.rnn, cell)(UNITS, input_size=UNITS)))
    batched = graphopt.batch(net)
    given = [tuple(nd.random.normal(shape=(1, UNITS)) for _ in range(n)) for n in (2, 3, 1)]
    for _ in range(MAX_CHANGES + 3):
        found = batched(given)
    close(found.asnumpy(), one_by_one(net, given).asnumpy())
    assert "traced anew" not in batched.explain()
    assert "1 of 1 plans known" in batched.explain()
