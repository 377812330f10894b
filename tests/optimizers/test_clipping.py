"""``graphopt.clip_global_norm`` against MXNet's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError

mx = import_mxnet()
SHAPES = ((3, 5), (70, 301), (1,), (4, 16, 9, 9), (33,))


def arrays(dtype: str = "float32", scale: float = 1.0) -> list[Any]:
    rng = np.random.default_rng(0)
    return [mx.nd.array(rng.standard_normal(shape) * scale, dtype=dtype) for shape in SHAPES]


@pytest.mark.parametrize("most", [1e-3, 1.0, 200.0, 1e9])
def test_same(most: float) -> None:
    ours, theirs = arrays(), arrays()
    norm = graphopt.clip_global_norm(ours, most)
    assert norm == pytest.approx(float(mx.gluon.utils.clip_global_norm(theirs, most)), rel=1e-5)
    for got, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("most", [1.0, 1e9])
def test_a_bound_in_an_array(most: float) -> None:
    ours, theirs = arrays(), arrays()
    norm = graphopt.clip_global_norm(ours, mx.nd.array([most]))
    want = mx.gluon.utils.clip_global_norm(theirs, mx.nd.array([most]))
    assert norm == pytest.approx(float(want), rel=1e-5)
    for got, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-6)
    for bound in (np.float32(most), np.array([most]), mx.np.array(most)):
        assert graphopt.clip_global_norm(arrays(), bound) == pytest.approx(norm)


@pytest.mark.parametrize("most", [1.0, 1e9])
def test_float64(most: float) -> None:
    """Which MXNet's own refuses."""
    given = arrays("float64")
    before = [array.asnumpy() for array in given]
    want = np.sqrt(sum((array**2).sum() for array in before))
    assert graphopt.clip_global_norm(given, most) == pytest.approx(want, rel=1e-12)
    for got, old in zip(given, before, strict=True):
        np.testing.assert_allclose(got.asnumpy(), old * min(most / want, 1), rtol=1e-7)


def test_norms_are_exact() -> None:
    """Also of numbers so many that a sum of float32 rounds them away."""
    many = mx.nd.ones((1 << 22,))
    assert graphopt.clip_global_norm([many], 1e9) == 2048.0
    assert graphopt.clip_global_norm([many], 1.0) == 2048.0
    assert (many.asnumpy() == np.float32(1 / (2048.0 + 1e-8))).all()


def test_arrays_in_blocks() -> None:
    """As convolutions leave them."""
    x = mx.nd.Convolution(
        mx.nd.ones((2, 16, 8, 8)),
        mx.nd.ones((32, 16, 3, 3)),
        kernel=(3, 3),
        num_filter=32,
        no_bias=True,
    )
    want = x.asnumpy().copy()
    norm = graphopt.clip_global_norm([x], 2.0)
    assert norm == pytest.approx(np.sqrt((want.astype("f8") ** 2).sum()))
    np.testing.assert_allclose(x.asnumpy(), want * 2 / norm, rtol=1e-5)


def test_arrays_that_share_memory() -> None:
    """Each counts, and is scaled, as often as it is there."""
    many = 1 << 18  # more than one thread's work
    found = []
    for clip in (graphopt.clip_global_norm, mx.gluon.utils.clip_global_norm):
        one = mx.nd.ones((many,))
        norm = clip([one, one, one[: many // 2]], 100.0)
        found.append((float(norm), one.asnumpy()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)


def test_it_waits_for_gradients_and_updates_wait_for_it() -> None:
    found = []
    for clip in (graphopt.clip_global_norm, mx.gluon.utils.clip_global_norm):
        net = mx.gluon.nn.Dense(300, in_units=500)
        net.initialize(mx.init.One())
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        x = mx.nd.ones((64, 500))
        for _ in range(5):
            with mx.autograd.record():
                loss = (net(x) ** 2).sum()
            loss.backward()
            norm = clip([p.grad() for p in net.collect_params().values()], 0.5, False)
            assert norm.shape == (1,)
            trainer.step(1)
        found.append(net.weight.data().asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number(bad: float) -> None:
    given = arrays()
    given[1][3, 4] = bad
    with pytest.warns(UserWarning, match="is of no use"):
        norm = graphopt.clip_global_norm(given, 1.0)
    assert not np.isfinite(norm)


def test_what_is_left_to_mxnet() -> None:
    sparse = mx.nd.ones((4, 3)).tostype("row_sparse")
    assert graphopt.clip_global_norm([sparse, mx.nd.ones((2,))], 9.0) == pytest.approx(14**0.5)
    mixed = [mx.nd.ones((4,)), mx.nd.ones((5,), dtype="float64")]
    with pytest.raises(mx.MXNetError):  # as in MXNet
        graphopt.clip_global_norm(mixed, 9.0)


def test_refusals() -> None:
    with pytest.raises(InputError, match="give NDArrays, one at least"):
        graphopt.clip_global_norm([], 1.0)
    with pytest.raises(InputError, match="give NDArrays, one at least"):
        graphopt.clip_global_norm([np.ones(3)], 1.0)
    for bound in ("x", None, mx.nd.ones((2,))):
        with pytest.raises(InputError, match=r"max_norm: .* is no bound: give a number"):
            graphopt.clip_global_norm(arrays(), bound)
