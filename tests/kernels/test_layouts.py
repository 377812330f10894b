"""Fused kernels, and BatchNorm, on arrays that convolutions leave in blocks of channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED
from graphopt.kernels import bridge

mx = import_mxnet()
sym = mx.sym

Net = Callable[[Any], Any]


def convolution(x: Any, filters: int, kernel: int = 3, groups: int = 1, name: str = "c") -> Any:
    pad = (kernel // 2,) * 2
    return sym.Convolution(
        x, kernel=(kernel,) * 2, pad=pad, num_filter=filters, num_group=groups, name=name
    )


def norm(x: Any, name: str = "n") -> Any:
    return sym.BatchNorm(x, fix_gamma=False, name=name)


def clip(x: Any) -> Any:
    return sym.clip(x, a_min=-0.5, a_max=0.75)


def data() -> Any:
    return sym.var("data", dtype="float32")


def made(symbol: Any, params: dict[str, Any], *, optimized: bool) -> tuple[Any, Any]:
    """What is called, and the Block that has the parameters."""
    plain = mx.gluon.SymbolBlock(symbol, [data()])
    for name, parameter in plain.collect_params().items():
        parameter.shape = params[name].shape
        parameter.initialize()
        parameter.set_data(mx.nd.array(params[name]))
    return (graphopt.optimize(plain) if optimized else plain), plain


def step(net: Any, plain: Any, x: Any) -> list[Any]:
    """Output and gradients after two steps, those of the data first."""
    array = mx.nd.array(x)
    array.attach_grad()
    for _ in range(2):  # the second one uses memory again
        with mx.autograd.record():
            y = net(array)
        y.backward(mx.nd.array(np.cos(np.arange(y.size)).reshape(y.shape)))
    trained = [p for p in plain.collect_params().values() if p.grad_req != "null"]
    trained.sort(key=lambda parameter: str(parameter.name))
    return [y.asnumpy(), array.grad.asnumpy(), *(p.grad().asnumpy() for p in trained)]


def parameters(symbol: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shapes, _, states = symbol.infer_shape(data=shape)
    names = [*symbol.list_arguments(), *symbol.list_auxiliary_states()]
    found = {}
    for name, extents in zip(names, [*shapes, *states], strict=True):
        drawn = rng.normal(scale=0.3, size=extents)
        found[name] = abs(drawn) + 0.5 if "gamma" in name or "var" in name else drawn
    return {name: drawn.astype("float32") for name, drawn in found.items()}


def check(symbol: Any, shape: tuple[int, ...], kernels: int | None = None) -> None:
    """Steps of an optimized net are MXNet's own, imperative."""
    x = np.random.default_rng(1).normal(size=shape).astype("float32")
    params = parameters(symbol, shape)
    want = step(*made(symbol, params, optimized=False), x)
    net, plain = made(symbol, params, optimized=True)
    got = step(net, plain, x)
    if kernels is not None:
        assert sum(node.op == FUSED for node in net.graph()) == kernels
    for expected, found in zip(want, got, strict=True):
        scale = 1 + np.abs(expected).max()
        # Where Winograd's algorithm is faster, it is taken, and rounds so much.
        np.testing.assert_allclose(found / scale, expected / scale, atol=2e-4)


def calls_in_blocks() -> int:
    return int(bridge.load(mx).graphopt_calls_in_blocks())


def mended() -> int:
    return int(bridge.load(mx).graphopt_mended_layouts())


def test_between_convolutions_a_kernel_leaves_arrays_in_blocks() -> None:
    x = sym.tanh(norm(convolution(data(), 32)))
    before = calls_in_blocks()
    check(convolution(x, 16, name="d"), (2, 16, 9, 7), kernels=1)
    assert calls_in_blocks() == before + 4  # two steps, forward and backward


@pytest.mark.parametrize("channels", [3, 20, 24, 40, 48])
def test_any_number_of_channels(channels: int) -> None:
    x = clip(norm(convolution(data(), channels, kernel=1)))
    x = clip(norm(convolution(x, channels, groups=channels, name="d"), name="m"))
    check(convolution(x, 16, kernel=1, name="e"), (2, 24, 6, 5))


def test_of_arrays_in_several_layouts() -> None:
    # oneDNN has the 24 channels of the first in blocks of 8, and the last sum has one in rows.
    narrow = convolution(convolution(data(), 24, kernel=1, name="a"), 96, kernel=1, name="b")
    deep = convolution(narrow, 96, groups=96, name="c")
    rows = sym.reshape(sym.transpose(sym.transpose(narrow)), shape=(0, 0, 0, 0))
    x = sym.tanh(narrow * deep + 0.5 * rows)
    check(convolution(x, 16, name="d"), (2, 16, 6, 6))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: sym.broadcast_sub(sym.tanh(x), sym.mean(x, axis=3, keepdims=True)),
        lambda x: sym.broadcast_mul(clip(x), sym.var("scale", shape=(1,))),
        lambda x: sym.broadcast_add(sym.tanh(x), sym.var("shift", shape=(1, 32, 8, 1))),
        lambda x: sym.transpose(clip(x), axes=(0, 2, 3, 1)),
        lambda x: sym.concat(clip(x), sym.tanh(x), dim=1),
        lambda x: sym.stop_gradient(clip(x)) * x,
    ],
    ids=["rows", "number", "lines", "transposed", "joined", "stopped"],
)
def test_what_needs_rows_and_what_does_not(body: Net) -> None:
    x = body(norm(convolution(data(), 32)))
    check(convolution(x, 16, kernel=1, name="d"), (2, 16, 8, 8))


@pytest.mark.parametrize(
    "body",
    [
        lambda x: sym.broadcast_mul(x, sym.Pooling(x, global_pool=True, kernel=(1, 1))),
        lambda x: sym.LeakyReLU(x, sym.var("slope", shape=(32,)), act_type="prelu"),
        lambda x: sym.LeakyReLU(x, sym.var("slope", shape=(1,)), act_type="prelu"),
        lambda x: sym.broadcast_add(sym.tanh(x), sym.var("shift", shape=(1, 32, 1, 1))),
        lambda x: sym.broadcast_mul(sym.tanh(x), sym.var("map", shape=(2, 1, 8, 8))),
    ],
    ids=["gate", "prelu", "prelu of one slope", "shift", "map"],
)
def test_operands_along_channels_stay_in_blocks(body: Net) -> None:
    x = body(norm(convolution(data(), 32)))
    before = calls_in_blocks()
    check(convolution(x, 16, kernel=1, name="d"), (2, 16, 8, 8), kernels=1)
    assert calls_in_blocks() == before + 4


@pytest.mark.parametrize("image", [(1, 1), (5, 5), (7, 7), (37, 1), (14, 16), (64, 3)], ids=str)
@pytest.mark.parametrize("channels", [24, 32])
def test_gates_of_images_of_any_size(channels: int, image: tuple[int, int]) -> None:
    """Rows of the kernel are of as many pixels as go into their number, up to 32."""
    x = norm(convolution(data(), channels, kernel=1))
    gate = sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1))
    gate = sym.sigmoid(convolution(gate, channels, kernel=1, name="gate"))
    x = sym.broadcast_mul(sym.broadcast_mul(sym.tanh(x), gate), sym.var("scale", shape=(1,)))
    check(convolution(x, 16, kernel=1, name="d"), (3, 16, *image))


def test_what_is_of_channels_is_returned_too() -> None:
    x = norm(convolution(data(), 32))
    gate = sym.sigmoid(sym.var("logit", shape=(2, 32, 1, 1)))
    product = convolution(sym.broadcast_mul(sym.tanh(x), gate), 16, kernel=1, name="d")
    pooled = sym.broadcast_add(sym.mean(product, axis=(2, 3), keepdims=True), sym.mean(gate))
    check(sym.broadcast_add(product, pooled), (2, 16, 8, 8))


def slopes(x: Any) -> Any:
    return sym.LeakyReLU(x, sym.var("slope", shape=(32,)), act_type="prelu")


def shifted(x: Any) -> Any:
    return sym.broadcast_add(sym.tanh(x), sym.var("shift", shape=(1, 32, 1, 1)))


@pytest.mark.parametrize("body", [clip, slopes, shifted])
def test_gradients_are_added_to(body: Net) -> None:
    symbol = convolution(body(norm(convolution(data(), 32))), 16, name="d")
    shape = (2, 16, 5, 5)
    found = []
    for optimized in (False, True):
        net, plain = made(symbol, parameters(symbol, shape), optimized=optimized)
        plain.collect_params().setattr("grad_req", "add")
        x = mx.nd.ones(shape)
        x.attach_grad("add")
        for _ in range(3):
            with mx.autograd.record():
                y = net(x).sum()
            y.backward()
        trained = [p for p in plain.collect_params().values() if p.grad_req != "null"]
        found.append([x.grad.asnumpy(), *(parameter.grad().asnumpy() for parameter in trained)])
    # Before BatchNorm the gradient of a bias is nothing but what larger ones lose to rounding.
    scale = 1 + max(np.abs(want).max() for want in found[0])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got / scale, want / scale, atol=2e-5)


def test_an_output_that_is_a_kernel_s() -> None:
    check(sym.tanh(norm(convolution(data(), 32))), (2, 16, 5, 5), kernels=1)


def test_one_array_for_input_and_output() -> None:
    # At inference a kernel may write over what it reads, in blocks too.
    symbol = convolution(sym.tanh(convolution(data(), 32)), 16, name="d")
    params = parameters(symbol, (2, 16, 5, 5))
    x = mx.nd.random.normal(shape=(2, 16, 5, 5))
    nets = [made(symbol, params, optimized=optimized)[0] for optimized in (False, True)]
    want, got = ([net(x).asnumpy() for _ in range(2)][-1] for net in nets)
    scale = np.abs(want).max()  # Winograd's algorithm rounds by the largest number
    np.testing.assert_allclose(got / scale, want / scale, atol=2e-5)


@pytest.mark.parametrize(("width", "groups"), [(128, 32), (96, 12), (96, 96), (40, 1)])
def test_batch_norm_between_layouts(width: int, groups: int) -> None:
    # Groups of 4, 8 and 1 channels, whose blocks are as wide, beside convolutions without any.
    x = norm(convolution(data(), width, kernel=1, name="a"), name="m")
    x = norm(convolution(sym.tanh(x), width, groups=groups, name="b"), name="n")
    check(convolution(x, 16, kernel=1, name="c"), (2, 24, 6, 6))


@pytest.mark.parametrize("channels", [5, 24, 32])
@pytest.mark.parametrize("kind", ["avg", "max", "sum"])
def test_pooling_over_whole_images(kind: str, channels: int) -> None:
    # Its gradient is added to that of the product, behind a kernel and behind a convolution.
    kernel = sym.tanh(convolution(data(), channels, name="a"))
    for x in (kernel, convolution(kernel, channels, name="b")):
        pooled = sym.Pooling(x, global_pool=True, pool_type=kind, kernel=(1, 1))
        gate = sym.sigmoid(convolution(pooled, channels, kernel=1, name="c"))
        check(sym.broadcast_mul(x, gate), (2, 16, 7, 6))


def test_pooling_of_rows() -> None:
    pooled = sym.Pooling(sym.tanh(data()), global_pool=True, pool_type="avg", kernel=(1, 1))
    check(sym.square(pooled), (2, 5, 7, 6))


def test_batch_norm_s_arrays_get_one_layout() -> None:
    if "avx512f" not in _flags():
        pytest.skip("oneDNN has all channels in blocks of 8 without AVX-512")
    x = norm(convolution(data(), 128, kernel=1, name="a"), name="m")
    x = norm(convolution(x, 128, groups=32, name="b"), name="n")
    before = mended()
    check(convolution(x, 16, kernel=1, name="c"), (2, 16, 6, 6))
    assert mended() > before


def _flags() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
