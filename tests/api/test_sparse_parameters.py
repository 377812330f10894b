"""Models and lowered graphs whose parameters are stored as sparse arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError

mx = import_mxnet()
SYMBOL = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")


@pytest.fixture
def weight() -> Any:
    """Of which some rows are zeros."""
    numbers = np.random.rand(4, 3)
    numbers[1] = 0
    return mx.nd.array(numbers).tostype("row_sparse")


def in_mxnet(x: Any, weight: Any) -> Any:
    return mx.nd.FullyConnected(x, weight.tostype("default"), mx.nd.ones(4), num_hidden=4)


def assert_near(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)


def test_files_with_them_are_loaded(weight: Any, tmp_path: Path) -> None:
    files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m.params")
    SYMBOL.save(files[0])
    mx.nd.save(files[1], {"arg:fc_weight": weight, "arg:fc_bias": mx.nd.ones(4)})
    x = mx.nd.array(np.random.rand(2, 3))
    model = graphopt.load(*files)
    for given in (x, x.tostype("csr")):
        assert_near(model(given), in_mxnet(x, weight))


def test_graphs_are_lowered_with_them(weight: Any) -> None:
    x, params = mx.nd.array(np.random.rand(2, 3)), {"fc_weight": weight, "fc_bias": mx.nd.ones(4)}
    fast = graphopt.lower(graphopt.lift(SYMBOL, {"data": (2, 3)}), params)
    assert_near(fast(x)[0], in_mxnet(x, weight))


def test_those_with_a_gradient_are_refused(weight: Any) -> None:
    weight.attach_grad()
    params = {"fc_weight": weight, "fc_bias": mx.nd.ones(4)}
    with pytest.raises(InputError, match="'fc_weight' is row_sparse and has a gradient"):
        graphopt.lower(graphopt.lift(SYMBOL, {"data": (2, 3)}), params, training=True)
