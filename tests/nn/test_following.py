"""Parameters that are computed into inference graphs: never stale, and not where it is in vain."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import kept
from graphopt.backend.arrays import array_of
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.kernels import bridge
from graphopt.nn import building, built, following

mx = import_mxnet()
nn, autograd = mx.gluon.nn, mx.autograd
PATIENCE = following.PATIENCE


def small_cnn() -> Any:
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(4, 3, padding=1, use_bias=False),
        nn.BatchNorm(),
        nn.Activation("relu"),
        nn.GlobalAvgPool2D(),
        nn.Dense(5),
    )
    net.initialize(mx.init.Xavier())
    net(image())
    return net


def image(size: int = 8) -> Any:
    return mx.nd.random.uniform(shape=(2, 3, size, size))


def followed(fast: Any, entry: int = -1) -> following.Following:
    found = fast._graphopt_entries()[entry].built
    assert isinstance(found, following.Following)
    return found


def assert_follows(fast: Any, net: Any, x: Any, calls: int = 1) -> None:
    found = [fast(x).asnumpy() for _ in range(calls)]
    # Last, since MXNet's BatchNorm counts as a writer.
    expected = net(x).asnumpy()
    assert all(np.allclose(one, expected, rtol=1e-4, atol=1e-5) for one in found)


def learn(net: Any, x: Any, rate: float = 0.5) -> None:
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": rate})
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    trainer.step(1)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether parameters were computed in, for each graph that was built."""
    made: list[bool] = []

    def counted(result: Any, lowered: Any, frozen: bool, *others: Any) -> built.Built:
        made.append(frozen)
        return built.Built(result, lowered, frozen, *others)

    monkeypatch.setattr("graphopt.nn.building.Built", counted)
    return made


def test_the_default_folds_batch_norm(builds: list[bool]) -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for _ in range(3 * PATIENCE):
        assert_follows(fast, net, x)
    assert builds == [True]
    assert not any(node.op == "BatchNorm" for node in fast.graph())
    assert "parameters: computed in, and anew when they are written to" in fast.explain()
    assert fast.receipts().keys() == {"inference (data: f32[2,3,8,8])"}


def set_data(net: Any, x: Any) -> None:
    net[0].weight.set_data(net[0].weight.data() * 2)


def write_a_part(net: Any, x: Any) -> None:
    net[0].weight.data()[1] = 0.25


def write_a_view(net: Any, x: Any) -> None:
    view = net[4].bias.data().reshape((1, 5))
    view += 1


def write_in_bulk(net: Any, x: Any) -> None:
    with mx.engine.bulk(100):
        net[4].bias.data()[:] = 3


def learn_a_step(net: Any, x: Any) -> None:
    learn(net, x)


def run_statistics(net: Any, x: Any) -> None:
    with autograd.record():
        loss = net(x).sum()
    loss.backward()  # where MXNet updates them


def new_arrays(net: Any, x: Any) -> None:
    net.initialize(mx.init.Xavier(), force_reinit=True)


def load_others(net: Any, x: Any, path: Path) -> None:
    other = small_cnn()
    other[4].bias.set_data(mx.nd.arange(5))
    other.save_parameters(str(path))
    net.load_parameters(str(path))


@pytest.mark.parametrize(
    "write",
    [set_data, write_a_part, write_a_view, write_in_bulk, learn_a_step, run_statistics, new_arrays],
)
@pytest.mark.parametrize("calls", [1, PATIENCE + 1])
def test_a_write_shows_in_the_next_call(
    write: Callable[[Any, Any], None], calls: int, builds: list[bool]
) -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for _ in range(calls):
        fast(x)
    before = fast(x).asnumpy()
    write(net, x)
    after = fast(x).asnumpy()
    assert not np.allclose(before, after)
    assert np.allclose(after, net(x).asnumpy(), rtol=1e-4, atol=1e-5)
    at_once = calls > PATIENCE or write is new_arrays
    assert builds == ([True, True] if at_once else [True, False])


def test_loaded_parameters_show(tmp_path: Path) -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for loading in (net, fast, net):
        fast(x)
        load_others(loading, x, tmp_path / "other.params")
        assert_follows(fast, net, x)


def test_a_write_on_its_way_is_waited_for() -> None:
    net = nn.Dense(64, in_units=64, use_bias=False)
    net.initialize()
    fast, x = graphopt.optimize(net), mx.nd.ones((1, 64))
    for _ in range(3):
        fast(x)
        slow = mx.nd.ones((1024, 1024))
        for _ in range(10):
            slow = mx.nd.dot(slow, slow) / 1024
        mx.nd.elemwise_add(slow[:64, :64], net.weight.data(), out=net.weight.data())
        found = fast(x).asnumpy()
        assert np.allclose(found, net(x).asnumpy(), rtol=1e-5)


def test_it_waits_longer_each_time_it_was_in_vain(builds: list[bool]) -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for _ in range(4):  # a step between all calls
        assert_follows(fast, net, x)
        set_data(net, x)
    assert builds == [True, False]
    assert f"read in every call, until {2 * PATIENCE} follow each other" in fast.explain()
    fast(x)  # written to before
    for _ in range(2 * PATIENCE - 1):
        fast(x)
        assert not followed(fast).frozen
    # MXNet writes weights of few channels itself, so looks may have to be paid back first.
    for _ in range(4 * PATIENCE):
        if not followed(fast).frozen:
            fast(x)
    assert_follows(fast, net, x, 6)
    assert builds == [True, False, True]
    set_data(net, x)
    assert_follows(fast, net, x)
    assert f"until {4 * PATIENCE} follow" in fast.explain()
    assert builds == [True, False, True]


def test_learning_in_epochs_computes_in_once_an_epoch(builds: list[bool]) -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for _ in range(4):
        for _ in range(3):
            learn(fast, x, rate=0.01)
        assert_follows(fast, net, x, PATIENCE)
    assert builds.count(True) == 4
    assert builds.count(False) == 1  # the training graph


def test_other_shapes_are_no_writes(builds: list[bool]) -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    for size in (8, 9, 10, 8, 9, 10, 8, 9, 10):
        assert_follows(fast, net, image(size))
    assert builds == [True] * 3


def test_equal_values_are_no_writes(builds: list[bool]) -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for _ in range(3):
        assert_follows(fast, net, x)
        net[0].weight.set_data(net[0].weight.data().copy())
    assert builds == [True]


def test_the_same_memory_in_other_arrays_is_no_write(builds: list[bool]) -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for kind in ("null", "write") * 3:
        for parameter in net.collect_params(".*weight|.*bias").values():
            parameter.grad_req = kind
        assert_follows(fast, net, x)
    assert builds == [True]
    net[4].weight.set_data(net[4].weight.data() * 2)
    assert_follows(fast, net, x)


def test_values_are_not_compared_for_ever(builds: list[bool]) -> None:
    net, x = nn.Dense(512, in_units=512, use_bias=False), mx.nd.ones((1, 512))
    net.initialize()
    fast = graphopt.optimize(net)
    for _ in range(following.LOOKS + 5):
        assert_follows(fast, net, x)
        net.weight.set_data(net.weight.data().copy())
    assert builds[0]
    assert not builds[-1]


def test_random_writes_and_calls() -> None:
    random = np.random.default_rng(7)
    net = small_cnn()
    fast, sizes = graphopt.optimize(net), (8, 9)
    writes = (set_data, write_a_part, write_a_view, write_in_bulk, run_statistics)
    for _ in range(150):
        x = image(sizes[random.integers(2)])
        if random.random() < 0.2:
            writes[random.integers(len(writes))](net, x)
            net[0].weight.set_data(net[0].weight.data().clip(-1, 1))
            net[4].bias.set_data(net[4].bias.data().clip(-1, 1))
        assert_follows(fast, net, x)


def test_packed_parameters_are_let_go() -> None:
    gc.collect()
    before = set(kept._KEPT)
    fast = graphopt.optimize(small_cnn())
    for size in (8, 9):
        fast(image(size))
    fast.reset()
    gc.collect()
    assert set(kept._KEPT) <= before


def test_equal_parameters_are_kept_once() -> None:
    values = np.random.default_rng(5).normal(size=70).astype(np.float32)
    values[3] = np.nan
    one, two = kept.kept(array_of(values, mx.cpu())), kept.kept(array_of(values, mx.cpu()))
    assert one is two
    assert np.array_equal(one.array.asnumpy(), values, equal_nan=True)
    assert kept.kept(array_of(-values, mx.cpu())) is not one
    assert kept.kept(array_of(values.reshape(7, 10), mx.cpu())) is not one
    assert kept.kept(array_of(values, mx.cpu(1))) is not one


def test_it_does_without_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    real = building.lower

    def refusing(*args: Any, frozen: bool, **kwargs: Any) -> Any:
        if frozen:
            raise GraphoptError("no room for them")
        return real(*args, frozen=frozen, **kwargs)

    monkeypatch.setattr("graphopt.nn.building.lower", refusing)
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    for _ in range(2):
        assert_follows(fast, net, x)
        set_data(net, x)
    assert "parameters: read in every call: no room for them" in fast.explain()
    monkeypatch.setattr("graphopt.nn.building.lower", real)
    new_arrays(net, x)  # with which it is tried again
    assert_follows(fast, net, x)
    assert followed(fast).frozen
    set_data(net, x)
    assert_follows(fast, net, x)
    monkeypatch.setattr("graphopt.nn.building.lower", refusing)
    with pytest.raises(GraphoptError, match="no room for them"):
        graphopt.optimize(net, strict=True)(x)


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (4, 3, 8, 8)}}])
def test_not_where_memory_is_planned(options: dict[str, Any], builds: list[bool]) -> None:
    net = small_cnn()
    assert_follows(graphopt.optimize(net, **options), net, image())
    assert builds == [False]


def test_not_without_the_bridge(monkeypatch: pytest.MonkeyPatch, builds: list[bool]) -> None:
    monkeypatch.setattr(bridge, "why_not", lambda _mxnet: "no compiler")
    net = small_cnn()
    fast = graphopt.optimize(net, passes="none")
    assert_follows(fast, net, image())
    assert builds == [False]
    told = "parameters: read in every call, as writes to them are not noticed: no compiler"
    assert told in fast.explain()


def test_threads_share_it() -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    expected = net(x).asnumpy()
    wrong: list[Any] = []

    def call() -> None:
        for _ in range(30):
            found = fast(x).asnumpy()
            if not np.allclose(found, expected, rtol=1e-4, atol=1e-5):
                wrong.append(found)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_child_does_not_wait_for_a_thread_it_has_not() -> None:
    net, x = small_cnn(), image()
    fast = graphopt.optimize(net)
    expected = fast(x).asnumpy()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with followed(fast)._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(not np.allclose(fast(x).asnumpy(), expected))
    done.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_recorded_blocks_follow(builds: list[bool]) -> None:
    class Plain(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.inner = small_cnn()

        def forward(self, x: Any) -> Any:
            return self.inner(x) * x.shape[0]

    net, x = Plain(), image()
    fast = graphopt.optimize(net, record=True)
    for _ in range(2):
        assert_follows(fast, net, x, PATIENCE)
        set_data(net.inner, x)
    assert_follows(fast, net, x)
    assert builds == [True] * 3


@pytest.mark.parametrize(
    "last", [lambda: nn.Conv2DTranspose(5, 8, strides=4, padding=2), lambda: nn.Conv2D(5, 1)]
)
def test_weights_of_few_channels_are_not_taken_for_written(last: Callable[[], Any]) -> None:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, 2, 1, use_bias=False, in_channels=3), nn.BatchNorm(in_channels=8))
    net.add(last())
    net.initialize()
    x, fast = image(16), graphopt.optimize(net)
    for _ in range(2):  # the first one initializes, the second one binds
        fast(x)
    writes = followed(fast)._writes
    for _ in range(40):
        fast(x).wait_to_read()
        assert writes.are_none()
    assert "parameters: computed in, and anew" in fast.explain()
    for _ in range(3):
        net[2].weight.set_data(net[2].weight.data() * 2)
        assert_follows(fast, net, x, 3)


def test_operators_that_no_cached_op_takes() -> None:
    """A CachedOp that reads parameters needs a gradient of all that follows them."""

    class Shuffled(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(3, in_units=3)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.random.shuffle(self.dense(x))

    net = Shuffled()
    net.initialize(mx.init.One())
    fast = graphopt.optimize(net)
    x = mx.nd.ones((4, 3))
    for number in range(6):
        assert float(fast(x).sum().asscalar()) == 36.0 + 48.0 * number
        for parameter in net.collect_params().values():
            parameter.set_data(parameter.data() + 1)
