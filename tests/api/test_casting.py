"""Parameters of other dtypes than the Symbol's, which Modules and executors cast."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.cli.main import main
from graphopt.compat import import_mxnet
from graphopt.errors import InputError

mx = import_mxnet()


def dense(data):
    return mx.sym.FullyConnected(data, num_hidden=3, name="fc")


X = mx.sym.var("data")
#: Symbols with dtypes of their own, with the dtypes of data and of parameters.
SYMBOLS = {
    "float16 within": (
        mx.sym.cast(
            mx.sym.broadcast_mul(mx.sym.cast(X, dtype="float16"), mx.sym.var("w", shape=(1, 4))),
            dtype="float32",
        ),
        "float32",
        "float32",
    ),
    "float64 within": (dense(mx.sym.cast(X, dtype="float64")), "float32", "float32"),
    "images of bytes": (dense(mx.sym.cast(X, dtype="float32")), "uint8", "float16"),
    "words": (
        dense(mx.sym.Embedding(X, input_dim=5, output_dim=4, name="embedding")),
        "int32",
        "float64",
    ),
    "declared": (
        mx.sym.broadcast_mul(
            X, mx.sym.cast(mx.sym.var("w", dtype="float16", shape=(1, 4)), dtype="float32")
        ),
        "float32",
        "float32",
    ),
}


@pytest.mark.parametrize("kind", list(SYMBOLS))
def test_dtypes_within_a_symbol(tmp_path, kind):
    symbol, of_data, of_params = SYMBOLS[kind]
    symbol.save(str(tmp_path / "m-symbol.json"))
    x = mx.nd.array([[1, 2, 0, 3], [4, 0, 1, 1]], dtype=of_data)
    shapes, _, _ = symbol.infer_shape(data=x.shape)
    args = {
        name: mx.nd.random.uniform(0.5, 1, shape=shape).astype(of_params)
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
        if name != "data"
    }
    want = computed(symbol, args, {}, x)
    got = graphopt.load(tmp_path / "m-symbol.json", args)(x).asnumpy()
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@pytest.fixture
def symbol(tmp_path):
    hidden = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), name="conv")
    hidden = mx.sym.BatchNorm(hidden, name="bn", fix_gamma=False, eps=1e-5)
    found = mx.sym.FullyConnected(mx.sym.relu(hidden), num_hidden=3, name="fc")
    found.save(str(tmp_path / "m-symbol.json"))
    return found


def drawn(symbol, dtype):
    shapes, _, states = symbol.infer_shape(data=(2, 2, 6, 6))
    args = {
        name: mx.nd.random.uniform(0.5, 1, shape=shape).astype(dtype)
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
        if name != "data"
    }
    names = symbol.list_auxiliary_states()
    aux = {n: mx.nd.ones(s).astype(dtype) for n, s in zip(names, states, strict=True)}
    return args, aux


def computed(symbol, args, aux, x):
    """By an executor, which casts."""
    types = {"data": x.dtype}
    executor = symbol.simple_bind(mx.cpu(), data=x.shape, type_dict=types, grad_req="null")
    executor.copy_params_from(args, aux, allow_extra_params=True)
    return executor.forward(data=x)[0].asnumpy()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_loaded_parameters_are_cast(symbol, tmp_path, dtype):
    args, aux = drawn(symbol, dtype)
    x = mx.nd.random.uniform(shape=(2, 2, 6, 6))
    model = graphopt.load(tmp_path / "m-symbol.json", {**args, **aux})
    got = model(x).asnumpy()
    assert got.dtype == np.float32
    want = computed(symbol, args, aux, x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_arrays_of_numpy_are_cast(symbol, tmp_path):
    args, aux = drawn(symbol, "float64")
    x = mx.nd.random.uniform(shape=(2, 2, 6, 6))
    values = {name: array.asnumpy() for name, array in {**args, **aux}.items()}
    got = graphopt.load(tmp_path / "m-symbol.json", values)(x).asnumpy()
    np.testing.assert_allclose(got, computed(symbol, args, aux, x), rtol=1e-4, atol=1e-4)


def test_graphs_of_half_precision_stay(tmp_path):
    scale, shift = mx.sym.var("scale"), mx.sym.var("shift")
    symbol = mx.sym.broadcast_add(mx.sym.broadcast_mul(mx.sym.var("data"), scale), shift)
    symbol.save(str(tmp_path / "m-symbol.json"))
    args = {
        "scale": mx.nd.random.uniform(shape=(1, 5), dtype="float16"),
        "shift": mx.nd.random.uniform(shape=(1, 5), dtype="float16"),
    }
    x = mx.nd.random.uniform(shape=(2, 5), dtype="float16")
    model = graphopt.load(tmp_path / "m-symbol.json", args)
    got = model(x).asnumpy()
    assert got.dtype == np.float16
    want = symbol.bind(mx.cpu(), {"data": x, **args}).forward()[0].asnumpy()
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-3)
    wide = model(x.astype("float32")).asnumpy()
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide, got, rtol=1e-2, atol=1e-3)


def test_dtypes_that_no_operator_ties_stay(tmp_path):
    table, rows = mx.sym.var("table"), mx.sym.var("data")
    mx.sym.take(table, rows).save(str(tmp_path / "m-symbol.json"))
    values = {"table": mx.nd.random.uniform(shape=(4, 3), dtype="float64")}
    got = graphopt.load(tmp_path / "m-symbol.json", values)(mx.nd.array([1, 2]))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got.asnumpy(), values["table"].asnumpy()[1:3], atol=1e-12)


def test_parameters_with_gradients_are_not_cast(tmp_path):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, no_bias=True, name="fc")
    symbol.save(str(tmp_path / "m-symbol.json"))
    weight = mx.nd.ones((3, 5), dtype="float64")
    weight.attach_grad()
    with pytest.raises(InputError, match="do not fit"):
        graphopt.load(tmp_path / "m-symbol.json", {"fc_weight": weight})(mx.nd.ones((2, 5)))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_parameters_are_computed_in_the_dtype_of_the_graph(symbol, tmp_path, dtype):
    args, aux = drawn(symbol, dtype)
    named = {f"arg:{n}": a for n, a in args.items()} | {f"aux:{n}": a for n, a in aux.items()}
    mx.nd.save(str(tmp_path / "m-0000.params"), named)
    given = ["--params", str(tmp_path / "m-0000.params"), "--shape", "data:2,2,6,6"]
    out = str(tmp_path / "o-symbol.json")
    assert main(["opt", str(tmp_path / "m-symbol.json"), *given, "-o", out]) == 0
    made, folded, states = mx.model.load_checkpoint(str(tmp_path / "o"), 0)
    assert {array.dtype for array in folded.values()} == {np.float32}
    x = mx.nd.random.uniform(shape=(2, 2, 6, 6))
    want = computed(symbol, args, aux, x)
    np.testing.assert_allclose(computed(made, folded, states, x), want, rtol=1e-4, atol=1e-4)
