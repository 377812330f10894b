"""Nets of ``mx.np`` in files, and their parameters, which MXNet reads with their shapes alone."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type")


@pytest.fixture
def npx(mx):
    """Switches the shapes and arrays of ``mx.np`` on and off."""
    yield mx.npx
    mx.npx.reset_np()


def made(mx, compute):
    """A dense layer and what is computed from it."""

    class Net(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.dense = mx.gluon.nn.Dense(3, in_units=3)

        def hybrid_forward(self, F, x):
            return compute(F, self.dense(x))

    net = Net()
    net.initialize()
    net.hybridize()
    return net


def exported(mx, npx, folder, compute):
    """Such a net of ``mx.np``, written by MXNet, with data and a result."""
    npx.set_np()
    net = made(mx, compute)
    x = mx.np.random.uniform(size=(2, 3))
    want = net(x).asnumpy()
    net.export(str(folder / "m"))
    npx.reset_np()
    return x, want


def plain(mx, npx, prefix, x):
    """What MXNet computes by files."""
    npx.set_np()
    block = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data"], f"{prefix}-0000.params")
    return block(x).asnumpy()


NETS = {
    "dense": lambda F, y: y,
    "constant": lambda F, y: y + F.np.arange(3),
    "number": lambda F, y: y * F.np.mean(F.np.ones((2, 2))),
    "sums": lambda F, y: F.np.sum(y, axis=0) / F.np.sum(F.np.ones_like(y)),
}


@pytest.mark.parametrize("name", list(NETS))
def test_files_of_numpy_nets(graphopt, tmp_path, mx, npx, name):
    x, want = exported(mx, npx, tmp_path, NETS[name])
    given = (tmp_path / "m-symbol.json", "--params", tmp_path / "m-0000.params")
    given = (*given, "--shape", "data:2,3")
    ran = graphopt("opt", *given, "-o", tmp_path / "o-symbol.json")
    assert ran.code == 0, ran.err
    for verb in (("inspect", "--seconds", 0), ("bisect",)):
        ran = graphopt(verb[0], *given, "-p", "cse,fold-constants", *verb[1:])
        assert ran.code == 0, ran.err
    assert not mx.util.is_np_shape()
    np.testing.assert_allclose(plain(mx, npx, tmp_path / "o", x), want, rtol=1e-5, atol=1e-6)


def test_constants_of_numpy_nets(graphopt, tmp_path, mx, npx):
    exported(mx, npx, tmp_path, NETS["constant"])
    given = (tmp_path / "m-symbol.json", "--shape", "data:2,3")
    assert graphopt("opt", *given, "-o", tmp_path / "o-symbol.json").code == 0
    npx.set_np()
    (constant,) = npx.load(str(tmp_path / "o-0000.params")).values()
    np.testing.assert_allclose(constant.asnumpy(), [0, 1, 2], atol=1e-6)


def test_parameters_saved_with_numpy_shapes_for_any_net(graphopt, tmp_path, mx, npx):
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    symbol.save(str(tmp_path / "m-symbol.json"))
    arrays = {"arg:fc_weight": mx.nd.ones((3, 4)), "arg:fc_bias": mx.nd.zeros(3)}
    with mx.util.np_shape(True):
        mx.nd.save(str(tmp_path / "m-0000.params"), arrays)
    given = (tmp_path / "m-symbol.json", "--params", tmp_path / "m-0000.params")
    path = tmp_path / "o-symbol.json"
    assert graphopt("opt", *given, "--shape", "data:2,4", "-o", path).code == 0
    x = mx.nd.ones((2, 4))
    np.testing.assert_allclose(plain(mx, npx, tmp_path / "o", x), np.full((2, 3), 4.0), atol=1e-5)


def test_nets_of_nd_with_operators_of_numpy_keep_their_format(graphopt, tmp_path, mx):
    net = made(mx, lambda F, y: F.np.tanh(y.as_np_ndarray()).as_nd_ndarray())
    x = mx.nd.random.uniform(shape=(2, 3))
    want = net(x).asnumpy()
    net.export(str(tmp_path / "m"))
    for at, name in (("m", "once"), ("once", "twice")):
        given = (tmp_path / f"{at}-symbol.json", "--params", tmp_path / f"{at}-0000.params")
        out = tmp_path / f"{name}-symbol.json"
        graphopt("opt", *given, "--shape", "data:2,3", "-o", out)
        files = (str(out), ["data"], str(tmp_path / f"{name}-0000.params"))
        block = mx.gluon.SymbolBlock.imports(*files)
        np.testing.assert_allclose(block(x).asnumpy(), want, rtol=1e-5, atol=1e-6)
