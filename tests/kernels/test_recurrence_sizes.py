"""Recurrences of many rows and steps, and of wide cells: chunks, threads and the matrix unit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphopt.backend.invoke import invoke
from graphopt.compat import import_mxnet
from graphopt.ir.node import RECURRENCE
from graphopt.kernels import bridge, stages
from graphopt.kernels.products import has_matrix_unit
from graphopt.kernels.recurrence.forward import forward
from graphopt.kernels.recurrence.spec import parse
from tests.kernels.recurrence_support import (
    Call,
    cell,
    check,
    check_forward,
    expect,
    heads_of,
    in_single,
    inputs_of,
    near,
    operator,
)

mx = import_mxnet()


@pytest.mark.parametrize("mode", ["lstm", "rnn_tanh"])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_weights_larger_than_the_cache(mode: str, lengths: bool, indexed: bool) -> None:
    """Chunks are as long as they can be, and there are several."""
    spec = cell(300, 300, "float64", mode)
    call = Call(3, 70, lengths=lengths, indexed=indexed)
    check_forward(spec, call)
    check_forward(in_single(spec), call, stash=True)
    inputs = inputs_of(spec, call)
    wrt = range(len(inputs) - lengths - indexed)
    outputs, gradients = operator(spec, inputs, call, stash=True, wrt=wrt)
    rng = np.random.default_rng(0)
    moves = [1e-5 * rng.choice([-1.0, 1.0], gradient.shape) for gradient in gradients]
    slope = sum((grad * move).sum() for grad, move in zip(gradients, moves, strict=True))
    heads = heads_of(outputs)

    def loss(sign: int) -> float:
        moved = [array + sign * move for array, move in zip(inputs, moves, strict=False)]
        found = expect(spec, moved + inputs[len(moves) :], call)
        return float(sum((head * out).sum() for head, out in zip(heads, found, strict=True)))

    assert abs((loss(1) - loss(-1)) / 2 - slope) < 1e-7 * (1 + abs(slope))


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
@pytest.mark.parametrize(
    "flags",
    [{}, {"lengths": True}, {"indexed": True}, {"reverse": True}, {"by_vectors": True}],
)
def test_many_rows_whose_kernels_run_beside_products(mode: str, flags: dict[str, bool]) -> None:
    """With a matrix unit a thread has two chunks of rows; kernels of one fill the other's time."""
    units = {"lstm": 101, "gru": 113, "rnn_tanh": 210}[mode]
    spec = in_single(cell(57, units, "float64", mode))
    library = bridge.load(mx)
    library.graphopt_rows_beside_products.restype = ctypes.c_int64
    for batch in (150, 260):
        call = Call(6, batch, **flags)
        for stash in (False, True):
            before = library.graphopt_rows_beside_products()
            check_forward(spec, call, stash=stash)
            beside = library.graphopt_rows_beside_products() - before
            if library.graphopt_threads() <= 2:  # among more, each has too few rows
                assert (beside > 0) == (has_matrix_unit(mx) and not call.by_vectors)


@pytest.mark.parametrize("lengths", [False, True])
def test_values_wait_for_a_later_stage_of_a_kernel(
    lengths: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "WANTED_COST", 6.0)
    # No other test has such a cell: programs are made once.
    spec = in_single(cell(58, 103 + lengths, "float64", "lstm"))
    ((found, rows),) = (stages.stages(part) for part in forward(spec, training=False).kernels)
    assert len(found) > 2
    assert rows > 1
    check_forward(spec, Call(6, 150, lengths=lengths))


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize(("batch", "by_vectors"), [(3, False), (70, False), (70, True)])
def test_gradients_of_wide_cells_in_single_precision(
    batch: int, by_vectors: bool, lengths: bool
) -> None:
    """They are those of double precision, also where a matrix unit multiplies: of many rows."""
    spec = cell(200, 170, "float64", "lstm")
    call = Call(4, batch, lengths=lengths, by_vectors=by_vectors)
    inputs = inputs_of(spec, call)
    wrt = range(len(inputs) - lengths)
    want, gradients = operator(spec, inputs, call, stash=True, wrt=wrt)
    rounded = [array.astype("float32") for array in inputs[: len(wrt)]] + inputs[len(wrt) :]
    found, others = operator(in_single(spec), rounded, call, stash=True, wrt=wrt)
    for got, right in zip([*found, *others], [*want, *gradients], strict=True):
        assert abs(right).max() > 0.1
        np.testing.assert_allclose(got, right, rtol=0, atol=2e-5 * abs(right).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("shared", [False, True])
def test_one_step_over_many_rows(shared: bool, rows: int, dtype: str) -> None:
    """Gradients of matrices, of one product and of two with one matrix, are MXNet's and numpy's."""
    width, columns = 270, 21  # several slices, the last one with a rest
    second, own = ("m0", "") if shared else ("m1", f", {width}x{columns}")
    text = (
        f"recurrence f{dtype[-2:]} ({columns}, {columns}) () ({width}x{columns}{own}) () ;;"
        f" {width} = x0 @ m0' + x1 @ {second}' ;; next ;; emit t0"
    )
    rng = np.random.default_rng(0)
    x = [rng.uniform(-1, 1, (rows, columns)).astype(dtype) for _ in range(2)]
    w = [rng.uniform(-1, 1, (width, columns)).astype(dtype) for _ in range(2 - shared)]
    head = rng.uniform(-1, 1, (rows, width)).astype(dtype)
    attrs = {"spec": text, "flat": True, "zero_states": True, "stash": True}

    def plain(a: Any, b: Any, *weights: Any) -> Any:
        pairs = ((a, weights[0]), (b, weights[-1]))
        kind = {"num_hidden": width, "no_bias": True}
        return mx.nd.add_n(*(mx.nd.FullyConnected(one, other, **kind) for one, other in pairs))

    def gradients(run: Callable[..., Any]) -> list[Any]:
        arrays = [mx.nd.array(a, dtype=dtype) for a in (*x, *w)]
        for array in arrays:
            array.attach_grad()
        with mx.autograd.record():
            made = run(*arrays)
        made.backward(mx.nd.array(head, dtype=dtype))
        return [made.asnumpy(), *(array.grad.asnumpy() for array in arrays)]

    mine = gradients(lambda *arrays: invoke(RECURRENCE, arrays, attrs)[0])
    by_hand = [head.T @ a for a in x]
    wanted = [head @ w[0], head @ w[-1], *([sum(by_hand)] if shared else by_hand)]
    for n, (got, right) in enumerate(zip(mine[1:], wanted, strict=True)):
        near(got, right, 3e-5 if dtype == "float32" else 1e-12, f"gradient {n} of {text}")
    for n, (got, right) in enumerate(zip(mine, gradients(plain), strict=True)):
        near(got, right, 3e-5 if dtype == "float32" else 1e-12, f"array {n} of {text}, MXNet")


@pytest.mark.parametrize("both", [False, True])
def test_one_step_that_multiplies_products_with_rows_of_a_table(both: bool) -> None:
    """The second matrix is multiplied with the projected table, whose rows are read by number."""
    spec = parse(
        "recurrence f64 (4) (5) (6x4, 5x6, 5x5) () ;; 6 = x0 @ m0' ;; 5 = t0 @ m1' + s0 @ m2' ;;"
        " 5 = t1 -> f64[a,b] (f64[a,b]) { %1 = tanh %0; return %1:f64[a,b] } ;; next t2 ;; emit t2"
    )
    for steps in (1, 2):
        check(spec, Call(steps, 40, indexed=True, bidirectional=both))


@pytest.mark.parametrize("rows", [900, 40_000])
def test_gradients_of_very_many_rows_are_summed_by_parts(rows: int) -> None:
    """They are kept for one product up to some megabytes; with a kernel behind the product."""
    width, columns = 64, 3
    scale = "f64[a,b] (f64[a,b], f64[b]) { %2 = mul %1 %0; return %2:f64[a,b] }"
    text = (
        f"recurrence f64 ({columns}) () ({width}x{columns}) ({width}) ;; {width} = x0 @ m0' ;;"
        f" {width} = t0 v0 -> {scale} ;; next ;; emit t1"
    )
    rng = np.random.default_rng(0)
    shapes = [(rows, columns), (width, columns), (width,)]
    x, w, v = (rng.uniform(-1, 1, shape) for shape in shapes)
    head = rng.uniform(-1, 1, (rows, width))
    attrs = {"spec": text, "flat": True, "zero_states": True, "stash": True}

    def plain(x: Any, w: Any, v: Any) -> Any:
        product = mx.nd.FullyConnected(x, w, num_hidden=width, no_bias=True)
        return mx.nd.broadcast_mul(product, v.reshape((1, -1)))

    wanted = [(head * v) @ w, (head * v).T @ x, (head * (x @ w.T)).sum(0)]
    for run in (plain, lambda *arrays: invoke(RECURRENCE, list(arrays), attrs)[0]):
        arrays = [mx.nd.array(a, dtype="float64") for a in (x, w, v)]
        for array in arrays:
            array.attach_grad()
        with mx.autograd.record():
            made = run(*arrays)
        made.backward(mx.nd.array(head, dtype="float64"))
        for n, (array, right) in enumerate(zip(arrays, wanted, strict=True)):
            near(array.grad.asnumpy(), right, 1e-12, f"gradient {n} of {rows} rows")


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [
        (1, False),
        (5, True),
        (40, True),
        *(
            pytest.param(steps, lengths, marks=pytest.mark.slow)
            for steps, lengths in ((1, True), (5, False), (150, False), (150, True))
        ),
    ],
)
def test_long_chains(steps: int, lengths: bool) -> None:
    """Gradients of matrices are added up now and then; the operator repeats itself bit for bit."""
    spec, call = cell(3, 4), Call(steps, 2, lengths=lengths)
    check(spec, call)
    inputs = inputs_of(spec, call)
    found = [operator(spec, inputs, call, stash=True, wrt=[0, 3])[1] for _ in range(2)]
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


FADING = (
    "recurrence f32 (1) (1) () () ;; 1 = x0 s0 -> f32[a,b] (f32[a,b], f32[a,b])"
    " { %2 = mul %1 0.5; %3 = add %2 %0; return %3:f32[a,b] } ;; next t0 ;; emit t0"
)


def test_gradients_that_fade_become_zero_here_and_nothing_elsewhere() -> None:
    steps, batch = 140, 3000
    x = mx.nd.zeros((steps, batch, 1))
    x[0] = 1
    x.attach_grad()
    with mx.autograd.record():
        made, *_ = invoke(RECURRENCE, [x, mx.nd.zeros((batch, 1))], {"spec": FADING})
        last = made[-1]
    last.backward()
    halves = np.broadcast_to(0.5 ** np.arange(steps)[:, None, None], x.shape)
    np.testing.assert_array_equal(made.asnumpy(), halves.astype("float32"))
    want = np.where(halves < np.finfo("float32").tiny, 0, halves)[::-1]
    np.testing.assert_array_equal(x.grad.asnumpy(), want)
    small = mx.nd.full((1 << 20,), 1e-40)
    assert (small * 0.5).asnumpy().min() > 0  # MXNet's threads count on as they did
