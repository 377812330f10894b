"""Packed weights: one copy for all, frozen with their biases, gone with the last who reads them."""

from __future__ import annotations

import gc
import math
import threading

import mxnet as mx
import numpy as np
import pytest

import graphopt
from graphopt.backend import choosing, kept
from graphopt.backend.choice import PRODUCT_KERNELS
from graphopt.backend.infer import with_types
from graphopt.backend.lower import lower
from graphopt.ir.parser import parse
from graphopt.testing import run_pass
from tests.tiers import one_of

pytestmark = pytest.mark.usefixtures("small_heap")

W = np.arange(20, dtype=np.float32).reshape(5, 4) / 10
B = np.ones(5, np.float32)


@pytest.fixture(autouse=True)
def nothing_else_kept():
    gc.collect()
    assert len(kept._KEPT) == 0
    yield
    gc.collect()
    assert len(kept._KEPT) == 0


def packed(rows: int, body: str = "return %c"):
    graph = with_types(
        parse(
            f"graph g(%x: f32[{rows},4], param %w: f32[5,4], param %b: f32[5]) {{"
            f"%c = FullyConnected(%x, %w, %b) {{num_hidden=5}} {body} }}"
        )
    )
    return run_pass(graph, "pack-products", frozen=True).graph


def made(graph, w=W, b=B, ctx=None):
    feeds = {"w": mx.nd.array(w, ctx=ctx), "b": mx.nd.array(b, ctx=ctx)}
    return lower(graph, feeds, ctx, tune=False, engine=PRODUCT_KERNELS)


def check(function, x, w=W, b=B) -> None:
    np.testing.assert_allclose(function(x=x)[0].asnumpy(), x @ w.T + b, rtol=1e-5, atol=1e-5)


def test_equal_weights_are_packed_once_whatever_the_shapes_and_arrays() -> None:
    functions = [made(packed(rows)) for rows in (1, 2, 70)]
    for rows, function in zip((1, 2, 70), functions, strict=True):
        check(function, np.ones((rows, 4), np.float32))
    assert len(kept._KEPT) == 1
    other = made(packed(2), W + 1)
    check(other, np.ones((2, 4), np.float32), W + 1)
    assert len(kept._KEPT) == 2
    del other
    gc.collect()
    assert len(kept._KEPT) == 1


def test_contexts_have_copies_of_their_own() -> None:
    functions = [made(packed(2), ctx=mx.cpu(at)) for at in (0, 1)]
    for function in functions:
        check(function, np.ones((2, 4), np.float32))
    assert len(kept._KEPT) == 2


def test_layers_with_one_weight_and_other_readers_of_it() -> None:
    body = (
        "%r = relu(%c) %d = FullyConnected(%x, %w, %b) {num_hidden=5}"
        "%m = dot(%d, %w) return %r, %d, %m"
    )
    function = made(packed(3, body))
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    found = [array.asnumpy() for array in function(x=x)]
    d = x @ W.T + B
    for got, want in zip(found, (np.maximum(d, 0), d, d @ W), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert len(kept._KEPT) == 1


def test_layers_are_frozen_with_their_biases() -> None:
    w, b = mx.nd.array(W), mx.nd.array(B)
    function = lower(packed(2), {"w": w, "b": b}, tune=False, engine=PRODUCT_KERNELS)
    x = np.ones((2, 4), np.float32)
    check(function, x)
    w[:] = 0
    b[:] = 7
    check(function, x)
    again = lower(packed(2), {"w": w, "b": b}, tune=False, engine=PRODUCT_KERNELS)
    check(again, x, 0 * W, 0 * B + 7)


def test_slower_packed_products_are_not_kept(monkeypatch) -> None:
    times = {PRODUCT_KERNELS: 9.0}
    monkeypatch.setattr(
        choosing, "race", lambda engines, *_: {name: times.get(name, 1.0) for name in engines}
    )
    # Rows that no other test has, or an engine chosen earlier may be remembered.
    function = lower(packed(23), {"w": W, "b": B}, tune=False)
    check(function, np.ones((23, 4), np.float32))
    assert function.choice.engine != PRODUCT_KERNELS
    gc.collect()
    assert len(kept._KEPT) == 0


def test_threads_that_call_one_function() -> None:
    function = made(packed(6))
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((6, 4)).astype(np.float32) for _ in range(8)]
    errors: list[BaseException] = []

    def work(x: np.ndarray) -> None:
        try:
            for _ in range(20):
                check(function, x)
        except BaseException as error:  # noqa: BLE001 - told below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in feeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_reset_reads_new_weights() -> None:
    net = mx.gluon.nn.Dense(5, in_units=4)
    net.initialize()
    fast = graphopt.optimize(net, mode="inference", strict=True)
    x = mx.nd.ones((3, 4))
    fast(x)
    net.weight.set_data(net.weight.data() + 1)
    fast.reset()
    np.testing.assert_allclose(fast(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-6)


SIZES = [
    (rows, *layer)
    for rows in (1, 2, 3, 4, 5, 70)
    for layer in ((1, 1), (3, 2), (37, 5), (200, 131))
]
ENDS = [("none", True), ("relu", False), ("relu", True), ("gelu", True)]


# Every size with two of the ends, every pair of a number of rows and an end.
@pytest.mark.parametrize(
    ("rows", "depth", "units", "activation", "has_bias"),
    one_of(
        5,
        [
            (*size, *end)
            for i, size in enumerate(SIZES)
            for j, end in enumerate(ENDS)
            if (i + i // 4 + j) % 2
        ],
    ),
)
def test_weights_where_they_lie(
    rows: int, depth: int, units: int, activation: str, has_bias: bool
) -> None:
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal((n, depth)).astype(np.float32) for n in (rows, units))
    b = rng.standard_normal(units).astype(np.float32)
    bias, read = (", param %b: ?", ", %b") if has_bias else ("", "")
    attrs = f'activation="{activation}", flatten=True, in_place=True, no_bias={not has_bias}'
    graph = with_types(
        parse(
            f"graph g(%x: f32[{rows},{depth}], param %w: f32[{units},{depth}]{bias}) {{"
            f"%c = graphopt_product(%x, %w{read}) {{{attrs}, units={units}}} ["
            f"graph region(%i: f32[{rows},{depth}], param %j: f32[{units},{depth}]{bias}) {{"
            f"%f = FullyConnected(%i, %j{read}) {{num_hidden={units}, no_bias={not has_bias}}}"
            "return %f } ] return %c }"
        )
    )
    params = {"w": w, "b": b} if has_bias else {"w": w}
    weights = mx.nd.array(w)
    function = lower(graph, {**params, "w": weights}, tune=False, engine=PRODUCT_KERNELS)
    expected = x.astype(np.float64) @ w.T + (b if has_bias else 0)
    if activation == "relu":
        expected = np.maximum(expected, 0)
    if activation == "gelu":
        erf = np.vectorize(math.erf)
        expected = expected * 0.5 * (1 + erf(expected / math.sqrt(2)))
    found = function(x=x)[0].asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert len(kept._KEPT) == 0
    _, bound = function.bound
    assert any(array is weights for array in bound)


def test_not_a_number_stays_where_weights_lie() -> None:
    rows = np.ones((2, 8), np.float32)
    rows[1, 3] = np.nan
    graph = with_types(
        parse(
            "graph g(%x: f32[2,8], param %w: f32[6,8]) { %c = graphopt_product(%x, %w)"
            ' {activation="relu", flatten=True, in_place=True, no_bias=True, units=6} ['
            "graph region(%i: f32[2,8], param %j: f32[6,8]) {"
            "%f = FullyConnected(%i, %j) {num_hidden=6, no_bias=True} %r = relu(%f) return %r } ]"
            "return %c }"
        )
    )
    function = lower(graph, {"w": -np.ones((6, 8))}, tune=False, engine=PRODUCT_KERNELS)
    found = function(x=rows)[0].asnumpy()
    assert (found[0] == 0).all()
    assert np.isnan(found[1]).all()


def test_arrays_are_shared_if_all_of_their_bits_are_equal() -> None:
    values = np.linspace(-1, 1, 1000, dtype=np.float32)
    values[5] = np.nan
    other = values.copy()
    other[1] += 1  # which is none of the numbers that they are looked up by
    first = kept.kept(mx.nd.array(values))
    assert kept.kept(mx.nd.array(values)) is first
    second = kept.kept(mx.nd.array(other))
    assert second is not first
    assert kept.kept(mx.nd.array(other)) is second
    assert kept.kept(mx.nd.array(other), "tiles") is not second
