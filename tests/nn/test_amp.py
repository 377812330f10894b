"""Nets of ``mx.contrib.amp``: what it casts has the same dtypes and values as in plain MXNet."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.types import dtype_name

mx = import_mxnet()
nn = mx.gluon.nn
amp = importlib.import_module("mxnet.contrib.amp")

# MXNet's own, of what it converts.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot decide type")

#: Of these a float16 is infinite, and 0.
NUMBERS = [1e-9, 1000.0, 1 / 3]


def computes_in_bfloat16() -> bool:
    """Whether oneDNN does on this processor, which takes AVX-512."""
    low = mx.nd.amp_cast(mx.nd.ones((2, 8)), dtype=np.dtype([("bfloat16", np.uint16)]))
    try:
        mx.nd.FullyConnected(low, low, num_hidden=2, no_bias=True).wait_to_read()
    except mx.MXNetError:
        return False
    return True


in_bfloat16 = pytest.mark.skipif(
    not computes_in_bfloat16(), reason="plain MXNet computes nothing in bfloat16 on this processor"
)

BFLOAT16 = "MXNet is left to compute in bfloat16"


class Half(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Overflows in float16."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.amp_cast(x, dtype="float16") * 100


class Turned(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Products around a transpose, which MXNet cannot make of bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first = nn.Conv1D(16, 1, in_channels=8)
            self.last = nn.Dense(7, in_units=16, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.last(F.transpose(self.first(x), axes=(0, 2, 1)))


def noise(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.default_rng(seed).normal(size=shape))


def read(array: Any) -> tuple[str, Any]:
    """Dtype and numbers."""
    return dtype_name(array.dtype), mx.nd.amp_cast(array, dtype="float32").asnumpy()


def assert_same(found: Any, expected: Any) -> None:
    dtype, numbers = read(expected)
    assert read(found)[0] == dtype
    np.testing.assert_allclose(read(found)[1], numbers, rtol=1e-5, atol=1e-6)


def layers() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=8), nn.Dense(3, in_units=4))
    return net


def converted(net: Any, x: Any, **options: Any) -> Any:
    """A net in bfloat16."""
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(x)
    return amp.convert_hybrid_block(net, target_dtype="bfloat16", ctx=mx.cpu(), **options)


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_blocks(mode: Any) -> None:
    net, x = Half(), mx.nd.array(NUMBERS)
    assert_same(graphopt.optimize(net, mode=mode)(x), net(x))
    assert np.isinf(net(x).asnumpy()).any()


def test_symbols_executors_and_modules() -> None:
    symbol, x = mx.sym.amp_cast(mx.sym.var("data"), dtype="float16") * 100, mx.nd.array(NUMBERS)
    assert "amp_cast" in str(graphopt.lift(symbol, shapes={"data": (3,)}))
    expected = symbol.bind(mx.cpu(), {"data": x}).forward()[0]
    assert_same(graphopt.optimize(symbol)(data=x), expected)
    assert_same(graphopt.optimize(symbol.bind(mx.cpu(), {"data": x})).forward()[0], expected)
    module = graphopt.optimize(mx.mod.Module(symbol, label_names=None))
    module.bind([("data", (3,))], for_training=False)
    module.init_params()
    module.forward(mx.io.DataBatch([x]), is_train=False)
    assert_same(module.get_outputs()[0], expected)


def test_casts_to_the_widest() -> None:
    given = {"x": mx.nd.array([[1.5, 2049]], dtype="int32"), "y": mx.nd.array([[1 / 3, 70000]])}
    given["z"] = given["y"] * 3
    symbol = mx.sym.Group(list(mx.sym.amp_multicast(*map(mx.sym.var, given), num_outputs=3)))
    expected = symbol.bind(mx.cpu(), given).forward()
    for one, other in zip(graphopt.optimize(symbol)(**given), expected, strict=True):
        assert_same(one, other)


def test_gradients() -> None:
    class Around(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.amp_cast(F.amp_cast(F.sin(x) * 1000, dtype="float16"), dtype="float32") * 3

    net, gradients = Around(), []
    for each in (net, graphopt.optimize(net)):
        x = noise(4, 5)
        x.attach_grad()
        with mx.autograd.record():
            y = each(x)
        y.backward()
        gradients.append(x.grad)
        assert_same(y, net(x))
    assert_same(*gradients)


@in_bfloat16
@pytest.mark.parametrize("mode", ["auto", "inference"])
@pytest.mark.parametrize("casts_parameters", [False, True])
@pytest.mark.parametrize(("make", "shape"), [(layers, (2, 8)), (Turned, (2, 8, 5))])
def test_nets_in_bfloat16(
    make: Callable[[], Any], shape: tuple[int, ...], casts_parameters: bool, mode: Any
) -> None:
    x = noise(*shape)
    net = converted(make(), x, cast_optional_params=casts_parameters)
    fast = graphopt.optimize(net, mode=mode)
    for _ in range(2):
        assert_same(fast(x), net(x))
    assert fast.explain().count(f"no pass runs: {BFLOAT16}") == 1


def test_a_plain_block_with_arrays_in_bfloat16_is_recorded_around_them() -> None:
    bfloat16 = np.dtype([("bfloat16", np.uint16)])

    class Halves(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.HybridLambda(lambda F, x: F.amp_cast(x, dtype="float32") * 2 + 1)
            self.layer.hybridize()

        def forward(self, x: Any) -> Any:
            low = mx.nd.amp_cast(mx.nd.tanh(x), dtype=bfloat16)
            return self.layer(mx.nd.concat(low, low, dim=1)), low

    net, x = Halves(), noise(4, 5)
    fast = graphopt.optimize(net, record=True)
    for _ in range(3):
        (found, low), (want, _) = fast(x), net(x)
        np.testing.assert_array_equal(found.asnumpy(), want.asnumpy())
        assert low.dtype == bfloat16


@in_bfloat16
def test_arrays_in_bfloat16() -> None:
    bfloat16 = np.dtype([("bfloat16", np.uint16)])
    x = mx.nd.amp_cast(noise(4, 5), dtype=bfloat16)
    net = nn.Activation("relu")
    assert_same(graphopt.optimize(net)(x), net(x))
    symbol = mx.sym.relu(mx.sym.var("data"))
    assert_same(graphopt.optimize(symbol)(data=x), net(x))


@in_bfloat16
@pytest.mark.parametrize("casts_parameters", [False, True])
def test_loaded_models(casts_parameters: bool, tmp_path: Path) -> None:
    x = noise(2, 8)
    net = layers()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(x)
    path = str(tmp_path / "net")
    net.export(path)
    model = amp.convert_model(
        *mx.model.load_checkpoint(path, 0),
        target_dtype="bfloat16",
        cast_optional_params=casts_parameters,
    )
    files = f"{path}-symbol.json", f"{path}-0000.params"
    mx.model.save_checkpoint(path, 0, *model, remove_amp_cast=False)
    expected = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])(x)
    assert_same(graphopt.load(*files)(x), expected)


@pytest.mark.parametrize("removes", [False, True])
def test_export(removes: bool, tmp_path: Path) -> None:
    net, x = Half(), mx.nd.array(NUMBERS)
    net.hybridize()
    net(x)
    texts = []
    for each, name in ((net, "plain"), (graphopt.optimize(net), "fast")):
        each(x)
        each.export(str(tmp_path / name), remove_amp_cast=removes)
        texts.append((tmp_path / f"{name}-symbol.json").read_text())
    plain, fast = ([node["op"] for node in json.loads(text)["nodes"]] for text in texts)
    assert fast == plain
    assert ("amp_cast" in fast) is not removes
    frozen = graphopt.optimize(net, mode="inference")
    expected = frozen(x)
    frozen.export(str(tmp_path / "frozen"), remove_amp_cast=removes)
    files = (str(tmp_path / f"frozen-{name}") for name in ("symbol.json", "0000.params"))
    model, params = files
    assert_same(mx.gluon.SymbolBlock.imports(model, ["data"], params)(x), expected)


INITIALIZED = """
import numpy as np
import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
from mxnet.contrib import amp

amp.init(target_dtype="bfloat16")
nn, loss = mx.gluon.nn, mx.gluon.loss.L2Loss()
x, y = mx.nd.array(np.linspace(-1, 1, 16).reshape(2, 8)), mx.nd.ones((2, 3))
results = []
for is_fast in (False, True):
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=8, activation="relu"), nn.Dense(3, in_units=4))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    fast = graphopt.optimize(net) if is_fast else net
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    amp.init_trainer(trainer)
    for _ in range(3):
        with mx.autograd.record():
            losses = loss(fast(x), y)
            with amp.scale_loss(losses, trainer) as scaled:
                mx.autograd.backward(scaled)
        trainer.step(2)
    results.append([losses, *(p.data() for p in net.collect_params().values())])
for one, other in zip(*results):
    assert one.dtype == other.dtype
    np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-4, atol=1e-5)
assert "bfloat16" in fast.explain()
"""


@in_bfloat16
def test_where_it_is_initialized() -> None:
    """In a process of its own: it changes MXNet's functions for good."""
    subprocess.run([sys.executable, "-c", INITIALIZED], check=True)


NOT_HYBRIDIZED = """
import numpy as np
import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
from mxnet.contrib import amp

amp.init()


class Classifier(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x, y):
        return F.SoftmaxOutput(F.exp(F.cast(x, dtype="float16")).astype("float32"), y)


class Powers(mx.gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.broadcast_mul(x, F.exp(x))


found = []
for is_fast in (False, True):
    nets = Classifier(), Powers()
    one, other = map(graphopt.optimize, nets) if is_fast else nets
    weight = mx.gluon.Parameter("weight", shape=(1,))
    weight.initialize()
    amp.init_trainer(mx.gluon.Trainer([weight], "sgd"))
    x, y = mx.nd.array(np.linspace(-1, 1, 6).reshape(2, 3)), mx.nd.array([0, 2])
    x.attach_grad()
    for _ in range(12):
        with mx.autograd.record():
            out = one(x, y)
        out.backward()
    powers = [other(x.astype(dtype)) for dtype in ("float16", "float64")]
    found.append([out, x.grad, *powers])
assert abs(found[0][1]).max() > 1000, "the loss is not scaled"
for want, got in zip(*found):
    assert want.dtype == got.dtype
    np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-3, atol=1e-5)
assert "amp.init()" in str(one.explain())
"""


def test_nets_that_are_not_hybridized_run_its_own_functions() -> None:
    subprocess.run([sys.executable, "-c", NOT_HYBRIDIZED], check=True)


@in_bfloat16
def test_views_are_converted() -> None:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(5))
    net.initialize()
    x, fast = noise(2, 3, 8, 8), graphopt.optimize(net)
    with pytest.raises(RuntimeError, match="run forward"):
        amp.convert_hybrid_block(fast, target_dtype="bfloat16", ctx=mx.cpu())
    found = fast(x)
    converted = amp.convert_hybrid_block(fast, target_dtype="bfloat16", ctx=mx.cpu())
    np.testing.assert_allclose(converted(x).asnumpy(), found.asnumpy(), atol=0.02)
    assert not net._cached_graph  # the user's Block is as it was


class ExponentialOverflows(mx.gluon.HybridBlock):
    """Whose gradient is its result, which is infinite in float16."""

    def hybrid_forward(self, F, x):
        return F.cast(F.exp(F.cast(x, dtype="float16")), dtype="float32") * 0.5 + 1


class Overflows(mx.gluon.HybridBlock):
    """What AMP makes of operators in float16 before one in float32."""

    def hybrid_forward(self, F, x):
        h = F.amp_cast(x, dtype="float16") * 100
        return F.amp_cast(F.sqrt(h) * F.sqrt(h) + 1, dtype="float32") * 0.5


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("kind", [Overflows, ExponentialOverflows])
def test_what_overflows_in_float16_is_infinite(kind: type, precise: bool) -> None:
    """A trainer skips such a step, so neither values nor gradients may be finite."""
    net = kind()
    fast = graphopt.optimize(net, precise=precise)
    found = []
    for called in (net, fast):
        x = mx.nd.array([1.0, 1000.0, 11.5, 1 / 3])
        x.attach_grad()
        with mx.autograd.record():
            loss = called(x) * 1e4
        loss.backward()
        found.append((called(x).asnumpy(), x.grad.asnumpy()))
    for got, wanted in zip(found[1], found[0], strict=True):
        is_finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(got), is_finite)
        tolerance = 0 if precise else 2e-3
        np.testing.assert_allclose(got[is_finite], wanted[is_finite], rtol=tolerance)


class Rounds(mx.gluon.HybridBlock):
    """What AMP casts behind an operator in float32, of which the next operator is in float16."""

    def hybrid_forward(self, F, x):
        y = F.exp(x)
        return F.cast(F.cast(y, dtype="float16") * 0.5, dtype="float32") + F.log(y)


class RoundsOnce(mx.gluon.HybridBlock):
    """An operator in float16 and the same one in float32, of the same numbers."""

    def hybrid_forward(self, F, x):
        low = F.cast(x, dtype="float16")
        seen = F.BlockGrad(F.cast(F.exp(low), dtype="float32"))
        return F.where(seen > 0, F.exp(F.cast(low, dtype="float32")) * 0.01, seen)


@pytest.mark.parametrize("kind", [Rounds, RoundsOnce])
def test_gradients_in_float32_read_what_is_not_rounded(kind: type) -> None:
    found = []
    for net in (kind(), graphopt.optimize(kind())):
        x = mx.nd.array([-1.3, 0.7, 5.1, 11.0, 11.5, 12.0])
        x.attach_grad()
        with mx.autograd.record():
            out = net(x)
        out.backward()
        found.append(x.grad.asnumpy())
    assert np.isfinite(found[0]).all()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


class Steep(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """A gradient that overflows float16 between two operators, and is small behind them."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.amp_cast(F.tanh(F.amp_cast(x, dtype="float16")) * 3, dtype="float32")


@pytest.mark.parametrize("head", [100.0, 30000.0])
def test_precise_gradients_overflow_where_mxnets_do(head: float) -> None:
    found = []
    for net in (Steep(), graphopt.optimize(Steep(), precise=True)):
        x = mx.nd.array([0.1, 2.0, 4.0])
        x.attach_grad()
        with mx.autograd.record():
            y = net(x)
        y.backward(mx.nd.full((3,), head))
        found.append(x.grad.asnumpy())
    assert np.isinf(found[0]).all() == (head > 100)
    np.testing.assert_allclose(found[1], found[0], rtol=2e-3, atol=1e-3)
