"""A net called with other sizes goes by what was measured for those that it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend import choosing, measured
from graphopt.compat import import_mxnet
from graphopt.nn import compiled

mx = import_mxnet()
nn = mx.gluon.nn


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many engines were timed, for each race."""
    found: list[int] = []
    race = choosing.race

    def counted(engines: Any, *rest: Any) -> Any:
        found.append(len(engines))
        return race(engines, *rest)

    monkeypatch.setattr(choosing, "race", counted)
    return found


def small_cnn() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, in_channels=16, use_bias=False), nn.BatchNorm(in_channels=16))
    net.add(nn.Activation("relu"), nn.GlobalAvgPool2D(), nn.Dense(4, in_units=16))
    net.initialize(mx.init.Normal(0.3))
    return net


def images(count: int, extent: int = 12) -> Any:
    rng = np.random.default_rng(count)
    return mx.nd.array(rng.normal(size=(count, 16, extent, extent)))


def assert_right(net: Any, plain: Any, x: Any) -> None:
    np.testing.assert_allclose(net(x).asnumpy(), plain(x).asnumpy(), rtol=1e-4, atol=1e-5)


def test_a_last_batch_is_not_measured(races: list[int]) -> None:
    plain = small_cnn()
    net = graphopt.optimize(plain)
    assert_right(net, plain, images(8))
    assert len(races) == 1
    for count in (5, 8, 5):
        assert_right(net, plain, images(count))
    assert len(races) == 1
    assert "measured for other sizes: 8x16x12x12" in net.explain()


def test_quite_other_sizes_are_measured_once_they_come_often(
    races: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_FEWEST_CALLS", 2)
    plain = small_cnn()
    net = graphopt.optimize(plain)
    net(images(8))
    first = net.graphopt_state.compiled.entries[0].built.findings
    assert first.seconds > 0
    first.seconds = 0.0
    for calls in range(2):
        assert_right(net, plain, images(1))
        assert_right(net, plain, images(6))
        assert len(races) == 1, calls
    assert_right(net, plain, images(1))
    assert_right(net, plain, images(1))
    assert len(races) == 2
    assert_right(net, plain, images(6))
    assert net.explain().count("measured for other sizes: 8x16x12x12") == 1
    assert len(net.graphopt_state.compiled.entries) == 3


def test_loaded_models(races: list[int], tmp_path: Any) -> None:
    plain = small_cnn()
    plain.hybridize()
    plain(images(1))
    plain.export(str(tmp_path / "net"))
    net = graphopt.load(tmp_path / "net-symbol.json", tmp_path / "net-0000.params")
    for count in (8, 5):
        assert_right(net, plain, images(count))
    assert len(races) == 1
    assert "measured for other sizes: 8x16x12x12" in net.explain()
    assert_right(net, plain, images(1))  # quite another size: nothing would measure it later
    assert len(races) == 2


def test_gradients_of_a_last_batch() -> None:
    plain = small_cnn()
    net = graphopt.optimize(plain)
    parameters = [p for p in plain.collect_params().values() if p.grad_req != "null"]
    for count in (8, 5, 8):
        found = []
        for each in (plain, net):
            with mx.autograd.record():
                loss = (each(images(count)) ** 2).sum()
            loss.backward()
            found.append([p.grad().asnumpy() for p in parameters])
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())


class Pooled(mx.gluon.Block):  # type: ignore[misc]
    """Asks for a shape, so that it has to be recorded."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layers = nn.HybridSequential()
            self.layers.add(nn.Conv2D(16, 3, in_channels=16), nn.BatchNorm(in_channels=16))

    def forward(self, x: Any) -> Any:
        return self.layers(x).reshape(x.shape[0], -1).mean(axis=1)


def test_recorded_programs(races: list[int]) -> None:
    plain = Pooled()
    plain.initialize(mx.init.Normal(0.3))
    net = graphopt.optimize(plain, record=True)
    for count in (8, 5, 6):
        assert_right(net, plain, images(count))
    assert len(races) == 1
    assert net.explain().count("measured for other sizes: 8x16x12x12") == 2


def test_sizes_of_earlier_processes(
    races: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "ENABLED", True)
    plain = small_cnn()
    graphopt.optimize(plain)(images(8))
    assert len(races) == 1
    net = graphopt.optimize(plain)  # it knows nothing of the other one
    assert_right(net, plain, images(5))
    assert len(races) == 1
    assert "measured for other sizes: 8x16x12x12" in net.explain()
    monkeypatch.setattr(measured, "ENABLED", False)
    graphopt.optimize(plain)(images(5))
    assert len(races) == 2
