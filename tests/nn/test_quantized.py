"""Nets in 8 bits, which run as MXNet's oneDNN subgraphs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.choice import CACHED_OP, CACHED_OP_ONEDNN, EXECUTOR_ONEDNN
from graphopt.backend.lower import lower
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol

mx = import_mxnet()
nn = mx.gluon.nn


def quantized(net: Any, shape: tuple[int, ...]) -> Any:
    """A net without ranges that were measured before: each call's input has its own."""
    from mxnet.contrib.quantization import quantize_net_v2

    net.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    net(mx.nd.ones(shape))
    given = [mx.io.DataDesc("data", shape)]
    return quantize_net_v2(
        net, quantized_dtype="int8", calib_mode="none", data_shapes=given, ctx=mx.cpu()
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["auto", "inference", "loaded"])
def test_ranges_are_those_of_each_input(mode: str, tmp_path: Path) -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(16, activation="relu"), nn.Dense(4))
    plain = quantized(net, (4, 8))
    x = mx.nd.random.uniform(shape=(4, 8))
    plain(x)
    if mode == "loaded":
        plain.export(str(tmp_path / "net"))
        fast = graphopt.load(tmp_path / "net-symbol.json", tmp_path / "net-0000.params")
    else:
        fast = graphopt.optimize(plain, mode=mode)
    for factor in (1, 10, 0.1, 3):
        # Not the net in float32, as oneDNN saturates on processors without instructions for 8 bits.
        want = plain(x * factor).asnumpy()
        largest = np.abs(want).max()
        for _ in range(2):
            found = fast(x * factor).asnumpy()
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * largest)


class Clipped(mx.gluon.HybridBlock):  # type: ignore[misc,name-defined]
    """Clips at 6, as MobileNet does behind each convolution."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.clip(x, 0, 6)


def images(count: int) -> Any:
    return mx.nd.array(np.random.default_rng(count).normal(size=(count, 3, 12, 12)))


def calibrated() -> Any:
    """Convolutions with clipped outputs; their ranges were measured before."""
    from mxnet.contrib.quantization import quantize_net_v2

    mx.random.seed(1)
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3), Clipped(), nn.Conv2D(8, 3, in_channels=8), Clipped())
    net.initialize(mx.init.Xavier(magnitude=3))
    net.hybridize()
    net(images(4))
    samples = mx.io.NDArrayIter(images(16), batch_size=4)
    found = quantize_net_v2(net, calib_mode="naive", calib_data=samples, ctx=mx.cpu())
    found.hybridize(static_alloc=True)
    return found


def checkpoint(net: Any, folder: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The symbol of a net, its parameters and its states."""
    net(images(4))
    net.export(str(folder / "net"))
    found: tuple[Any, dict[str, Any], dict[str, Any]]
    found = mx.model.load_checkpoint(str(folder / "net"), 0)
    return found


def write_again(arrays: Iterable[Any]) -> None:
    """Write to arrays what they hold."""
    for array in arrays:
        array[:] = array * 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["auto", "inference", "loaded"])
def test_clipped_convolutions_stay_right_at_several_sizes(mode: str, tmp_path: Path) -> None:
    plain = calibrated()
    if mode == "loaded":
        checkpoint(plain, tmp_path)
        fast = graphopt.load(tmp_path / "net-symbol.json", tmp_path / "net-0000.params")
    else:
        fast = graphopt.optimize(plain, mode=mode)
    for count in (4, 2, 2, 4, 4, 3, 2):
        x = images(count)
        np.testing.assert_allclose(fast(x).asnumpy(), plain(x).asnumpy(), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_clipped_convolutions_stay_right_in_a_module(tmp_path: Path) -> None:
    plain = calibrated()
    symbol, args, auxs = checkpoint(plain, tmp_path)
    module = graphopt.optimize(mx.mod.Module(symbol, label_names=None))
    module.bind([("data", (4, 3, 12, 12))], for_training=False)
    module.set_params(args, auxs)
    for count in (4, 2, 2, 4, 4):
        x = images(count)
        module.forward(mx.io.DataBatch([x]), is_train=False)
        found = module.get_outputs()[0].asnumpy()
        np.testing.assert_allclose(found, plain(x).asnumpy(), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_clipped_convolutions_stay_right_when_weights_are_written() -> None:
    plain, x = calibrated(), images(4)
    want = plain(x).asnumpy()
    views = [graphopt.optimize(plain, mode=mode) for mode in ("auto", "inference", "auto")]
    for _ in range(3):
        for view in views:
            np.testing.assert_allclose(view(x).asnumpy(), want, atol=1e-4)
        write_again(parameter.data() for parameter in plain.collect_params().values())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", [CACHED_OP, CACHED_OP_ONEDNN, EXECUTOR_ONEDNN])
def test_clipped_convolutions_stay_right_in_each_engine(engine: str, tmp_path: Path) -> None:
    plain, x = calibrated(), images(4)
    want = plain(x).asnumpy()
    symbol, args, auxs = checkpoint(plain, tmp_path)
    graph = lift_symbol(symbol, {"data": x.shape}, data=["data"])
    first, other = (lower(graph, {**args, **auxs}, engine=engine) for _ in range(2))
    for lowered in (first, other, first, first, other):
        np.testing.assert_allclose(lowered(x)[0].asnumpy(), want, atol=1e-4)
        write_again(args.values())


def folded(kind: str) -> Any:
    """A net with parameters that folding BatchNorm computes anew, of layers in front or behind."""
    net = nn.HybridSequential()
    if kind == "in front":
        net.add(nn.Dense(16, in_units=12), nn.BatchNorm(), nn.Activation("relu"), nn.Dense(5))
    else:
        net.add(nn.Dense(16, in_units=12), nn.Activation("relu"), nn.BatchNorm(), nn.Dense(5))
    net.initialize(mx.init.Uniform(0.5))
    net.hybridize()
    return net


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["in front", "behind"])
def test_what_was_optimized_for_inference_is_quantized(kind: str, tmp_path: Path) -> None:
    from mxnet.contrib.quantization import quantize_model, quantize_net_v2

    net, x = folded(kind), mx.nd.random.uniform(shape=(8, 12))
    want = net(x).asnumpy()
    fast = graphopt.optimize(net, mode="inference")
    fast(x)
    samples = mx.io.NDArrayIter(x, batch_size=8)
    measured = {"calib_mode": "naive", "calib_data": samples, "ctx": mx.cpu()}
    found = quantize_net_v2(fast, **measured)(x).asnumpy()
    samples.reset()
    plain = quantize_net_v2(net, **measured)(x).asnumpy()
    atol = 2 * np.abs(plain - want).max() + 0.05 * np.abs(want).max()  # 8 bits are that exact here
    np.testing.assert_allclose(found, want, atol=atol)
    fast.export(str(tmp_path / "net"))
    symbol, args, auxs = mx.model.load_checkpoint(str(tmp_path / "net"), 0)
    samples.reset()
    symbol, args, auxs = quantize_model(symbol, args, auxs, label_names=None, **measured)
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", x.shape)], for_training=False)
    module.set_params(args, auxs)
    module.forward(mx.io.DataBatch([x]), is_train=False)
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), want, atol=atol)
