"""Memory of fused kernels as MXNet plans it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.kernels.run import Request, run
from graphopt.kernels.spec_parser import parse
from graphopt.memory import plan
from graphopt.memory.listing import allocated
from graphopt.memory.schedule import training_schedule
from graphopt.memory.training import training_graph
from tests.symbols import one_operator

mx = import_mxnet()
nn = mx.gluon.nn

SCALED = "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a,b] }"
#: Backward reads nothing but the gradient of the output.
ADDED = "f32[a,b] (f32[a,b], f32[b]) { %2 = add %0 %1; return %2:f32[a,b] }"
#: It keeps what is dear to compute in scratch rows.
NORMED = (
    "f32[a|b] (f32[a,b], f32[b]) { %2 = erf %0; %3 = softmax %2; %4 = mul %3 %1;"
    " return %4:f32[a,b] }"
)


def fused(spec: str, **attrs: Any) -> Any:
    return one_operator("graphopt_fused", "fused", ("data", "gamma"), {"spec": spec, **attrs})


def planned(symbol: Any, grad_req: str, **shapes: tuple[int, ...]) -> int:
    """MiB of what is computed; nothing runs."""
    made = symbol.simple_bind(mx.cpu(), grad_req=grad_req, **shapes)
    return allocated(made.debug_str())


def stack() -> Any:
    net = nn.HybridSequential()
    for _ in range(3):
        net.add(nn.Dense(512, flatten=False, in_units=512), nn.LayerNorm(in_channels=512))
        net.add(nn.Swish(), nn.GELU())
    net.initialize()
    return net


def test_inference_takes_no_more_than_mxnet() -> None:
    net, x = stack(), mx.nd.zeros((256, 512))
    fast = graphopt.optimize(net)
    fast(x)
    (entry,) = fast.graphopt_state.compiled.entries
    symbol = entry.lowered.symbol
    assert "graphopt_fused" in symbol.tojson()
    (data,) = {name for name in symbol.list_arguments() if "data" in name}
    want = planned(net(mx.sym.var("data")), "null", data=x.shape)
    assert planned(symbol, "null", **{data: x.shape}) <= want


def test_a_kernel_writes_over_what_dies() -> None:
    x = mx.sym.var("data")
    shape = (1 << 18, 16)  # 16 MiB
    symbol = fused(SCALED)(data=mx.sym.exp(x), gamma=mx.sym.var("gamma"))
    assert planned(symbol, "null", data=shape, gamma=(16,)) == 16
    apart = fused(SCALED, apart="True")(data=mx.sym.exp(x), gamma=mx.sym.var("gamma"))
    assert planned(apart, "null", data=shape, gamma=(16,)) == 32


@pytest.mark.parametrize("apart", [False, True])
def test_our_plan_says_so_too(apart: bool) -> None:
    symbol = fused(SCALED, apart=str(apart))(
        data=mx.sym.exp(mx.sym.var("data")), gamma=mx.sym.var("gamma")
    )
    shapes = {"data": (1 << 18, 16), "gamma": (16,)}
    made = plan(symbol, shapes=shapes, compare=False)
    assert made.arena == (2 if apart else 1) * 16 << 20
    steps = training_schedule(training_graph(symbol, shapes)).operations
    pairs = {step.op: step.pairs for step in steps}
    assert pairs["graphopt_fused"] == (() if apart else ((0, 0),))
    (backward,) = (
        found for op, found in pairs.items() if op.startswith("_backward_graphopt_fused")
    )
    assert set(backward) == {(0, 0), (3, 0)}  # head, output


def test_partial_sums_are_planned() -> None:
    # The gradient of gamma is summed up in two parts of 16 MiB; data wants none.
    rows, columns = 8, 4 << 20
    shapes = {"data": (rows, columns), "gamma": (columns,)}
    symbol = fused(SCALED)
    without = planned(symbol, "null", **shapes)
    wanted = {"data": "null", "gamma": "write"}
    assert without == 4 * rows * 4
    made = symbol.simple_bind(mx.cpu(), grad_req=wanted, **shapes)
    assert allocated(made.debug_str()) >= without + 2 * 16


def test_partial_sums_of_gradients_alone_are_planned_where_extents_are_stated() -> None:
    # Backward reads the gradient of the output, of which MXNet does not tell the shape in time.
    rows, columns = 8, 4 << 20
    shapes = {"data": (rows, columns), "gamma": (columns,)}
    wanted = {"data": "null", "gamma": "write"}

    def planned_step(symbol: Any) -> int:
        whole = mx.sym.sum(symbol(data=mx.sym.exp(mx.sym.var("data")), gamma=mx.sym.var("gamma")))
        made = whole.simple_bind(mx.cpu(), grad_req=wanted, **shapes)
        return allocated(made.debug_str())

    stated = planned_step(fused(ADDED, extents=f"{rows},{columns}"))
    assert stated >= planned_step(fused(ADDED)) + 2 * 16
    values = {name: np.random.default_rng(0).normal(size=s) for name, s in shapes.items()}
    shapes = {"data": (5, 7), "gamma": (7,)}
    values = {name: array[tuple(map(slice, shapes[name]))] for name, array in values.items()}
    head = np.arange(35.0).reshape(5, 7)
    for symbol in (fused(ADDED, extents="5,7"), fused(ADDED)):
        made = symbol.simple_bind(mx.cpu(), grad_req="write", **shapes)
        for name, array in values.items():
            made.arg_dict[name][:] = array
        made.forward(is_train=True)
        made.backward([mx.nd.array(head)])
        np.testing.assert_allclose(made.grad_dict["gamma"].asnumpy(), head.sum(0), rtol=1e-6)
        np.testing.assert_allclose(made.grad_dict["data"].asnumpy(), head, rtol=1e-6)


@pytest.mark.parametrize("extents", ["5", "5,8", "a,b", "-5,7"])
def test_wrong_extents_are_refused_by_name(extents: str) -> None:
    symbol = fused(ADDED, extents=extents)
    with pytest.raises(RuntimeError, match=r"node fused states extents|of node fused has extent"):
        symbol.simple_bind(mx.cpu(), grad_req="write", data=(5, 7), gamma=(7,))


@pytest.mark.parametrize("shape", [(3, 5), (301, 257), (2, 40_000), (5, 70_001), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_gradients_are_added_tile_by_tile(shape: tuple[int, int], dtype: str) -> None:
    short = {"float32": "f32", "float64": "f64", "float16": "f16"}[dtype]
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(dtype)
    gamma = rng.normal(size=shape[1]).astype(dtype)
    types = {"data": dtype, "gamma": dtype}
    spec = SCALED.replace("f32", short)
    spec = spec.replace("f16[a,b] (", "f32[a,b] (", 1)  # what it computes in
    made = fused(spec).simple_bind(
        mx.cpu(), grad_req="add", type_dict=types, data=shape, gamma=gamma.shape
    )
    made.arg_dict["data"][:], made.arg_dict["gamma"][:] = x, gamma
    start = rng.normal(size=shape).astype(dtype)
    made.grad_dict["data"][:], made.grad_dict["gamma"][:] = start, 0
    for _ in range(2):
        made.forward(is_train=True)
        made.backward([mx.nd.ones(shape, dtype=dtype)])
    wide = x.astype("f8"), gamma.astype("f8")
    slope = 1 - np.tanh(wide[0] * wide[1]) ** 2
    loose = {"float32": 1e-5, "float64": 1e-10, "float16": 2e-2}[dtype]
    np.testing.assert_allclose(
        made.grad_dict["data"].asnumpy(), start + 2 * slope * wide[1], rtol=loose, atol=loose
    )


@pytest.mark.parametrize("rows", [1, 7, 40_001])
def test_a_result_for_each_row_is_added_too(rows: int) -> None:
    """It has an element where others have a row."""
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype("f")
    already = np.arange(rows, dtype="f")
    spec = parse("f32[a|b] (f32[a,b]) { %1 = exp %0; %2 = reduce_sum %1; return %2:f32[a] }")
    (found,) = run(spec, [x], outputs=[already.copy()], requests=[Request.ADD])
    np.testing.assert_allclose(found, already + np.exp(x).sum(1), rtol=1e-5)


@pytest.mark.parametrize("spec", [SCALED, NORMED], ids=["sums", "rows"])
@pytest.mark.parametrize("grad_req", ["write", "add"])
def test_threads_at_planning_change_no_bit(spec: str, grad_req: str, threads: Any) -> None:
    """MXNet's workers run with as many as they were made with, more or fewer than planned for."""
    rng = np.random.default_rng(0)
    x, gamma = rng.normal(size=(301, 257)).astype("f"), rng.normal(size=257).astype("f")
    found = []
    for count in (1, 2, 8):
        threads(count)
        made = fused(spec).simple_bind(mx.cpu(), grad_req=grad_req, data=x.shape, gamma=(257,))
        for name, value in (("data", x), ("gamma", gamma)):
            made.arg_dict[name][:] = value
            made.grad_dict[name][:] = 0
        made.forward(is_train=True)
        made.backward([mx.nd.ones(x.shape)])
        made.forward(is_train=True)
        made.backward([mx.nd.ones(x.shape)])
        arrays = [*made.outputs, made.grad_dict["data"], made.grad_dict["gamma"]]
        found.append([array.asnumpy() for array in arrays])
    times = 2 if grad_req == "add" else 1
    if spec == SCALED:
        slope = 1 - np.tanh(x * gamma) ** 2
        np.testing.assert_allclose(found[0][0], np.tanh(x * gamma), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[0][1], times * slope * gamma, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[0][2], times * (slope * x).sum(0), rtol=1e-4, atol=1e-3)
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(got, want)


def test_what_a_kernel_computes_in_is_no_output() -> None:
    symbol = fused(NORMED)
    assert symbol.list_outputs() == ["fused_output"]
    _, outputs, _ = symbol.infer_shape(data=(3, 4), gamma=(4,))
    assert outputs == [(3, 4)]
    x = mx.nd.array(np.linspace(-1, 1, 12).reshape(3, 4))
    (out,) = symbol.eval(ctx=mx.cpu(), data=x, gamma=mx.nd.ones(4))
    assert out.shape == (3, 4)
