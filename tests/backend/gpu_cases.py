"""Fused kernels inside MXNet, in GPU contexts: values and gradients beside MXNet's on the CPU.

Needs a GPU, mxnet-cu112 and the extra [cuda]; run by hand, as CI has no GPU:
``python -m pytest --noconftest tests/backend/gpu_cases.py``. MXNet 1.9.1 has no code for GPUs of
compute capability 9.0 and later, where of its own operators only copies work. So arrays are filled
on the CPU, each net here is fused whole, and gradients are written to arrays that are given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED
from tests.symbols import one_operator

try:
    mx = import_mxnet()
    GPUS = mx.context.num_gpus() if mx.runtime.Features().is_enabled("CUDA") else 0
except graphopt.GraphoptError:
    GPUS = 0
if not GPUS:
    pytest.skip("for an MXNet with CUDA, and a GPU", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::Warning")

Arrays = Sequence[Any]

NETS: dict[str, tuple[Callable[..., Any], int]] = {
    "chain": (
        lambda F, x, w: F.broadcast_add(
            F.tanh(F.broadcast_mul(x, w) + 1.5) * F.sigmoid(x), F.exp(-F.square(x)) * 0.5
        ),
        1,
    ),
    "LayerNorm": (lambda F, x, w, b: F.LayerNorm(F.relu(x) + x, w, b), 2),
    "softmax": (lambda F, x: F.softmax(x * 2.0), 0),
    "log_softmax": (lambda F, x: F.log_softmax(x * 2.0), 0),
    "GELU": (lambda F, x: 0.5 * x * (1 + F.erf(x / 2**0.5)), 0),
    "masked softmax": (
        lambda F, x, w: F.softmax(F.where(x > -0.5, F.broadcast_mul(x, w), -1e4 * F.ones_like(x))),
        1,
    ),
}
SHAPES = [(3, 33), (40, 256), (6, 4096), (2, 8192), (2, 20000)]


class Net(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A function of a matrix and rows."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def hybrid_forward(self, F: Any, *arrays: Any) -> Any:
        return self.function(F, *arrays)


def drawn(shape: tuple[int, int], rows: int, dtype: str) -> list[Any]:
    rng = np.random.default_rng(3)
    shapes = [shape, *[shape[1:]] * rows]
    return [rng.normal(size=extents).astype(dtype) for extents in shapes]


def learnt(
    net: Any, arrays: Arrays, head: Any, context: Any, request: str = "write"
) -> tuple[Any, list[Any]]:
    """The output and the gradients of all arrays, which were ones before."""
    given = [mx.nd.array(array, ctx=context, dtype=array.dtype) for array in arrays]
    slopes = [mx.nd.array(np.ones_like(a), ctx=context, dtype=a.dtype) for a in arrays]
    mx.autograd.mark_variables(given, slopes, request)
    with mx.autograd.record():
        made = net(*given)
    made.backward(mx.nd.array(head, ctx=context, dtype=head.dtype))
    return made.asnumpy(), [slope.asnumpy() for slope in slopes]


def near(got: Any, want: Any, what: str, tolerance: float) -> None:
    assert got.shape == want.shape, what
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def compare(name: str, shape: tuple[int, int], fast: Any, **options: Any) -> None:
    """``fast`` on the GPU and the same net of MXNet on the CPU."""
    function, rows = NETS[name]
    dtype = options.pop("dtype", "float32")
    arrays = drawn(shape, rows, dtype)
    head = np.random.default_rng(5).normal(size=shape).astype(dtype)
    tolerance = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-11}[dtype]
    # In float32 at least, or MXNet's roundings are what is measured.
    precise = [a.astype("float32") if dtype == "float16" else a for a in (*arrays, head)]
    want, slopes = learnt(Net(function), precise[:-1], precise[-1], mx.cpu(), **options)
    got, found = learnt(fast, arrays, head, mx.gpu(), **options)
    near(got, want, f"value of {name} of {shape}", tolerance)
    for n, (g, w) in enumerate(zip(found, slopes, strict=True)):
        near(g, w, f"gradient {n} of {name} of {shape}", tolerance * (1 + shape[0] ** 0.5))


@pytest.mark.parametrize("name", NETS)
def test_values_and_gradients(name: str) -> None:
    fast = graphopt.optimize(Net(NETS[name][0]))
    for shape in SHAPES:
        compare(name, shape, fast)
    assert "CachedOp + kernels" in str(fast.explain())


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("name", ["chain", "LayerNorm"])
def test_other_dtypes(name: str, dtype: str) -> None:
    fast = graphopt.optimize(Net(NETS[name][0]))
    compare(name, (40, 256), fast, dtype=dtype)


@pytest.mark.parametrize("name", ["chain", "LayerNorm", "GELU"])
def test_gradients_are_added_to(name: str) -> None:
    fast = graphopt.optimize(Net(NETS[name][0]))
    compare(name, (40, 256), fast, request="add")


def test_inference_keeps_up_with_changing_shapes() -> None:
    fast = graphopt.optimize(Net(NETS["softmax"][0]))
    for rows in range(1, 40):
        (x,) = drawn((rows, 64), 0, "float32")
        got = fast(mx.nd.array(x, ctx=mx.gpu())).asnumpy()
        want = Net(NETS["softmax"][0])(mx.nd.array(x)).asnumpy()
        near(got, want, f"{rows} rows", 1e-5)


def test_threads_share_a_net() -> None:
    fast = graphopt.optimize(Net(NETS["LayerNorm"][0]))
    done = []

    def work() -> None:
        for rows in (8, 16, 24, 32):
            compare("LayerNorm", (rows, 128), fast)
        done.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4


def test_a_fused_operator_is_bound_on_the_gpu() -> None:
    spec = "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a,b] }"
    symbol = one_operator(FUSED, "f", ["x", "w"], {"spec": spec})
    arrays = drawn((40, 256), 1, "float32")
    head = np.random.default_rng(5).normal(size=(40, 256)).astype("float32")
    given, slopes = ([mx.nd.array(a, ctx=mx.gpu()) for a in arrays] for _ in range(2))
    bound = symbol.bind(mx.gpu(), given, args_grad=slopes, grad_req={"x": "add", "w": "null"})
    (made,) = bound.forward(is_train=True)
    bound.backward(mx.nd.array(head, ctx=mx.gpu()))
    want = np.tanh(arrays[0] * arrays[1])
    near(made.asnumpy(), want, "value", 1e-5)
    near(slopes[0].asnumpy(), arrays[0] + head * (1 - want**2) * arrays[1], "x", 1e-5)
    np.testing.assert_array_equal(slopes[1].asnumpy(), arrays[1])
