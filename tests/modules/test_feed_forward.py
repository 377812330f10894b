"""``mx.model.FeedForward``, whose predictions are optimized."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.modules import feed_forward

mx = import_mxnet()
sym = mx.sym

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def detector() -> Any:
    """As the first net of MTCNN: boxes and scores for each place of an image of any size."""
    x = sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=6, name="conv")
    x = sym.LeakyReLU(sym.BatchNorm(x, name="bn"), act_type="prelu", name="prelu")
    boxes = sym.Convolution(x, kernel=(1, 1), num_filter=4, name="boxes")
    scores = sym.Convolution(x, kernel=(1, 1), num_filter=2, name="scores")
    return sym.Group([boxes, sym.SoftmaxActivation(scores, mode="channel")])


def classifier() -> Any:
    x = sym.FullyConnected(sym.var("data"), num_hidden=8, name="first")
    x = sym.FullyConnected(sym.tanh(x), num_hidden=3, name="second")
    return sym.SoftmaxOutput(x, name="softmax")


def parameters(symbol: Any, shape: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    shapes, _, states = symbol.infer_shape(data=shape)
    rng = np.random.default_rng(0)
    named = zip(symbol.list_arguments(), shapes, strict=True)
    arguments = {
        name: mx.nd.array(rng.normal(0, 0.3, each))
        for name, each in named
        if name not in ("data", "softmax_label")
    }
    kept = zip(symbol.list_auxiliary_states(), states, strict=True)
    return arguments, {name: mx.nd.ones(each) * 0.7 for name, each in kept}


def model(symbol: Any, shape: tuple[int, ...]) -> Any:
    arguments, states = parameters(symbol, shape)
    return mx.model.FeedForward(symbol, arg_params=arguments, aux_params=states)


def image(size: int) -> Any:
    return np.random.default_rng(size).random((1, 3, size, size)).astype(np.float32)


def assert_alike(fast: Any, plain: Any, x: Any) -> None:
    found, want = fast.predict(x), plain.predict(x)
    found, want = (each if isinstance(each, list) else [each] for each in (found, want))
    for got, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_images_of_many_sizes_in_turns() -> None:
    plain = model(detector(), (1, 3, 12, 12))
    fast = graphopt.optimize(plain)
    assert isinstance(fast, mx.model.FeedForward)
    for _ in range(3):
        for size in (20, 14, 9, 33):
            assert_alike(fast, plain, image(size))
    assert len(fast.executors()) == 4
    assert len({id(executor.model) for executor in fast.executors()}) == 1
    told = fast.explain()
    assert "computed in, and anew when they are written to" in told
    assert "training is MXNet's" in told


def test_shapes_used_long_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_forward, "_MOST_SHAPES", 2)
    plain = model(detector(), (1, 3, 12, 12))
    fast = graphopt.optimize(plain)
    for size in (20, 14, 20, 9, 20):
        assert_alike(fast, plain, image(size))
    shapes = [executor.arg_dict["data"].shape[2] for executor in fast.executors()]
    assert shapes == [9, 20]


def test_parameters_are_those_of_the_model() -> None:
    plain = model(classifier(), (4, 6))
    fast = graphopt.optimize(plain)
    x = np.random.default_rng(1).random((8, 6)).astype(np.float32)
    assert_alike(fast, plain, x)
    plain.arg_params["second_weight"][:] *= -2
    plain._pred_exec = None  # MXNet copies parameters when it binds, and keeps these
    assert_alike(fast, plain, x)
    fast.arg_params, _ = parameters(classifier(), (4, 6))
    plain.arg_params, plain._pred_exec = fast.arg_params, None
    assert_alike(fast, plain, x)


def test_fit_score_and_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.random((32, 6)).astype(np.float32), rng.integers(0, 3, 32).astype(np.float32)
    found = []
    for optimize in (lambda each: each, graphopt.optimize):
        arguments, _ = parameters(classifier(), (8, 6))
        each = mx.model.FeedForward(
            classifier(), num_epoch=2, learning_rate=0.1, arg_params=arguments, numpy_batch_size=8
        )
        each = optimize(each)
        np.random.seed(3)  # batches are shuffled
        each.fit(x, y)
        each.save(str(tmp_path / "model"), 2)
        read = optimize(mx.model.FeedForward.load(str(tmp_path / "model"), 2))
        found.append((each.predict(x), read.predict(x), each.score(mx.io.NDArrayIter(x, y, 8))))
    assert np.abs(found[1][0] - model(classifier(), (8, 6)).predict(x)).max() > 1e-3
    for got, want in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_copies_are_views() -> None:
    plain = model(classifier(), (4, 6))
    fast = graphopt.optimize(plain, precise=True)
    x = np.random.default_rng(1).random((8, 6)).astype(np.float32)
    fast.predict(x)
    twin = pickle.loads(pickle.dumps(fast))
    assert_alike(twin, plain, x)
    assert type(twin) is type(fast)
    assert twin.executors()[0].model.config.precise
    assert_alike(graphopt.optimize(twin), plain, x)
