"""Models and lowered graphs that are called with sparse arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.arrays import Copier
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError, UnsupportedError

mx = import_mxnet()
sym = mx.sym
DATA = sym.var("data")

#: Symbols and the shapes of their data: those that run on kernels, on executors, by the caller.
NETS = {
    "dense": (sym.FullyConnected(DATA, num_hidden=256, name="fc"), (64, 512)),
    "small": (sym.FullyConnected(DATA, num_hidden=4, name="fc"), (2, 6)),
    "pointwise": (sym.exp(sym.tanh(sym.sin(DATA) * 2 + 1)), (64, 128)),
    "sparse": (sym.relu(DATA), (8, 16)),
    "convolution": (
        sym.Activation(
            sym.Convolution(
                sym.reshape(DATA, shape=(0, 3, 16, 16)), num_filter=16, kernel=(3, 3), name="conv"
            ),
            act_type="relu",
        ),
        (8, 768),
    ),
}


def arrays_of(symbol: Any, shape: tuple[int, ...]) -> tuple[Any, dict[str, Any]]:
    """Data with empty rows and few numbers, and parameters."""
    data = np.random.rand(*shape) * (np.random.rand(*shape) < 0.2)
    data[::3] = 0
    shapes, _, _ = symbol.infer_shape(data=shape)
    names = symbol.list_arguments()
    params = {
        name: mx.nd.array(np.random.randn(*size) * 0.1)
        for name, size in zip(names, shapes, strict=True)
        if name != "data"
    }
    return mx.nd.array(data), params


def in_mxnet(symbol: Any, x: Any, params: dict[str, Any]) -> Any:
    return symbol.bind(mx.cpu(), {**params, "data": x}, grad_req="null").forward()[0]


def assert_near(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-4, atol=1e-5)


def loaded(symbol: Any, params: dict[str, Any], folder: Path, **options: Any) -> Any:
    symbol.save(str(folder / "m-symbol.json"))
    return graphopt.load(folder / "m-symbol.json", params, **options)


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
@pytest.mark.parametrize("name", NETS)
def test_models_give_what_mxnet_does(name: str, stype: str, tmp_path: Path) -> None:
    symbol, shape = NETS[name]
    x, params = arrays_of(symbol, shape)
    model, given = loaded(symbol, params, tmp_path), x.tostype(stype)
    want = in_mxnet(symbol, x, params)
    plain = in_mxnet(symbol, given, params)
    assert_near(model(given), want)
    with pytest.raises(InputError, match="call it once with dense arrays"):
        model.graph()
    for data in (x, given, x):
        assert_near(model(data), want)
    assert model(given).stype == plain.stype
    assert f"run as in MXNet, since input 'data' is {stype}" in model.explain()
    assert_near(graphopt.optimize(symbol)(given, **params), want)


@pytest.mark.parametrize("stype", ["csr", "row_sparse"])
@pytest.mark.parametrize("name", NETS)
def test_lowered_graphs_make_them_dense(name: str, stype: str) -> None:
    symbol, shape = NETS[name]
    x, params = arrays_of(symbol, shape)
    fast = graphopt.lower(graphopt.run(graphopt.lift(symbol, {"data": shape})).graph, params)
    want = in_mxnet(symbol, x, params)
    for data in (x.tostype(stype), x, x.tostype(stype)):
        assert_near(fast(data=data)[0], want)


def test_a_label_need_not_be_given(tmp_path: Path) -> None:
    symbol = sym.SoftmaxOutput(NETS["dense"][0], name="softmax")
    x, params = arrays_of(symbol, (64, 512))
    want = in_mxnet(symbol, x, params)
    del params["softmax_label"]
    assert_near(loaded(symbol, params, tmp_path)(x.tostype("csr")), want)


def test_what_is_missing_is_named() -> None:
    symbol, shape = NETS["dense"]
    x, params = arrays_of(symbol, shape)
    del params["fc_bias"]
    model = graphopt.optimize(symbol)
    with pytest.raises(InputError, match="fc_bias"):
        model(x.tostype("csr"), **params)


def test_gradients_are_those_of_mxnet() -> None:
    fast = graphopt.optimize(sym.sparse.dot(DATA, sym.var("weight")))
    x = mx.nd.array(np.random.rand(6, 20) * (np.random.rand(6, 20) < 0.3)).tostype("csr")
    weights = [mx.nd.array(np.arange(60).reshape(20, 3) / 60) for _ in range(2)]
    for weight in weights:
        weight.attach_grad()
    with mx.autograd.record():
        found, want = fast(x, weight=weights[0]) ** 2, mx.nd.dot(x, weights[1]) ** 2
    mx.autograd.backward([found, want])
    assert_near(found, want)
    assert_near(*(weight.grad for weight in weights))


def test_a_loaded_model_infers_whatever_autograd_does(tmp_path: Path) -> None:
    symbol = sym.Dropout(sym.FullyConnected(DATA, num_hidden=64, name="fc"), p=0.5)
    x, params = arrays_of(symbol, (8, 16))
    model = loaded(symbol, params, tmp_path)
    with mx.autograd.record():
        found = model(x.tostype("csr"))
    assert_near(found, in_mxnet(symbol, x, params))


def test_they_are_refused_where_all_is_to_be_compiled(tmp_path: Path) -> None:
    symbol, shape = NETS["dense"]
    x, params = arrays_of(symbol, shape)
    for model in (
        loaded(symbol, params, tmp_path, strict=True),
        graphopt.optimize(symbol, memory="1GB"),
    ):
        with pytest.raises(UnsupportedError, match=r"'data' is csr: give it as \.tostype"):
            model(x.tostype("csr"), **params)


def test_they_are_not_copied_as_dense_ones() -> None:
    x = mx.nd.ones((4, 5))
    target = mx.nd.zeros((4, 5))
    with pytest.raises(GraphoptError, match="a csr array is not dense"):
        Copier().copy(x.tostype("csr"), target, 80)
    assert not target.asnumpy().any()
