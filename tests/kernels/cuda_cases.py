"""CUDA kernels in numba's simulator, and on a GPU where there is one.

The simulator has to be chosen before numba is imported, so these tests need a process of their own:
tests/kernels/test_cuda.py runs this file. On a machine with a GPU, which needs no MXNet:
``python -m pytest --noconftest tests/kernels/cuda_cases.py``, and so
cuda_row_cases.py.
"""

from __future__ import annotations

import ctypes
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba.cuda", reason="there is no numba.cuda")

from numba import config
from numba import cuda as numba_cuda

if not config.ENABLE_CUDASIM and not numba_cuda.is_available():
    pytest.skip("for numba's simulator of CUDA, or a GPU", allow_module_level=True)

from graphopt.errors import InputError
from graphopt.kernels import cuda
from graphopt.kernels.cuda import native
from graphopt.kernels.cuda.plan import ADD, SKIP, WRITE
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from tests.kernels.cuda_support import assert_near, noise, on_device, quick_switches
from tests.kernels.test_cuda import SPECS, TRAINED
from tests.tiers import one_of

__all__ = ["quick_switches"]  # a fixture


def outputs(spec: KernelSpec, arrays: Any, **options: Any) -> list[Any]:
    made = cuda.run(spec, on_device(*arrays), **options)
    return [np.asarray(array.copy_to_host()) for array in made]


def check(spec: KernelSpec, inputs: Any, extents: Any = None, tolerance: str | None = None) -> None:
    """Forward and backward kernels compute what the spec means."""
    want = evaluate(spec, inputs, extents, dtype="float64")
    got = outputs(spec, inputs, extents=extents)
    for g, w in zip(got, want, strict=True):
        assert_near(g, w, tolerance or str(g.dtype), f"value of {spec}")
    found = differentiate(spec)
    if found.spec is None:
        return
    heads = [noise(*w.shape, dtype=str(g.dtype), seed=7) for w, g in zip(want, got, strict=True)]
    operands = [
        *(heads[i] for i in found.heads),
        *(inputs[i] for i in found.inputs),
        *(got[i] for i in found.outputs),
    ]
    slopes = evaluate(found.spec, operands, extents, dtype="float64")
    gradients = outputs(spec, operands, backward=True, extents=extents)
    for g, w in zip(gradients, slopes, strict=True):
        assert_near(g, w, tolerance or str(g.dtype), f"gradient of {spec}")


def inputs_of(spec: KernelSpec, space: tuple[int, ...]) -> list[Any]:
    shapes = [tuple(1 if a is None else space[a] for a in x.axes) for x in spec.inputs]
    return [
        noise(*shape, seed=i).astype(x.dtype)
        for i, (shape, x) in enumerate(zip(shapes, spec.inputs, strict=True))
    ]


@pytest.mark.parametrize("name", sorted(SPECS.keys() - TRAINED.keys()))
def test_models(name: str) -> None:
    spec = parse(SPECS[name])
    check(spec, inputs_of(spec, (2, 140)))  # a block, and a little more


@pytest.mark.parametrize("name", ["chain", "layer norm", "softmax"])
def test_rows_of_a_warp_and_one(name: str) -> None:
    spec = parse(SPECS[name])
    check(spec, inputs_of(spec, (3, 33)))


@pytest.mark.parametrize("name", TRAINED)
def test_trees_in_training(name: str) -> None:
    shape = (3, 33)
    kernel, forward, gradient = TRAINED[name]
    arrays = inputs_of(forward, shape)
    made = outputs(forward, arrays)
    for g, w in zip(made, evaluate(forward, arrays, dtype="float64"), strict=True):
        assert_near(g, w, "float32", f"value of {forward}")
    plain = differentiate(kernel)
    assert plain.spec is not None
    assert gradient.spec is not None
    assert plain.wrt == gradient.wrt == tuple(range(len(arrays)))
    # What each of them reads of its own choice; the values of the step come first in both.
    heads = [noise(*shape, seed=7 + n) for n in range(len(kernel.outputs))]
    reads = [
        [
            *(heads[n] for n in found.heads),
            *(arrays[n] for n in found.inputs),
            *(made[n] for n in found.outputs),
        ]
        for found in (gradient, plain)
    ]
    want = evaluate(plain.spec, reads[1], dtype="float64")
    for g, w in zip(outputs(gradient.spec, reads[0]), want, strict=True):
        assert_near(g, w, "float32", f"gradient of {forward}")


@pytest.mark.parametrize(
    ("name", "shape"),
    one_of(3, product(["layer norm", "masked softmax"], [(1, 2), (5, 7)])),
    ids=str,
)
def test_short_rows(name: str, shape: tuple[int, int]) -> None:
    spec = parse(SPECS[name])
    check(spec, inputs_of(spec, shape))


@pytest.mark.parametrize(("rows", "columns"), one_of(2, [(1, 1), (70, 32), (70, 7)]))
def test_many_elements(rows: int, columns: int) -> None:
    spec = parse(SPECS["chain"])
    check(spec, inputs_of(spec, (rows, columns)))


#: Beyond what a warp, a block and its registers hold; on a GPU blocks have more threads.
LONG = [516, 1024]
if not config.ENABLE_CUDASIM:
    LONG += [512, 1030, 4096, 4100, 8192, 16384, 50_001]


@pytest.mark.parametrize(
    ("columns", "name"), one_of(3, product(LONG, ["layer norm", "log_softmax"]))
)
def test_long_rows(columns: int, name: str) -> None:
    spec = parse(SPECS[name])
    check(spec, inputs_of(spec, (2, columns)))


@pytest.mark.parametrize(("rows", "columns"), one_of(2, [(3, 7), (3, 70)]))
def test_losses(rows: int, columns: int) -> None:
    huber = parse(
        "f32[a|b] (f32[a,b], f32[a,b]) { %2 = sub %0 %1; %3 = abs %2; %4 = gt %3 1.0;"
        " %5 = sub %3 0.5; %6 = square %3; %7 = mul %6 0.5; %8 = where %4 %5 %7;"
        " %9 = reduce_sum %8; %10 = extent; %11 = div %9 %10; return %11:f32[a] }"
    )
    check(huber, inputs_of(huber, (rows, columns)))
    # What expand-pick makes of a cross entropy: positions, labels, scores.
    entropy = parse(
        "f32[a|b] (f32[1,b], f32[a,1], f32[a,b]) { %3 = eq %0 %1;"
        " %4 = log_softmax %2; %5 = where %3 %4 0.0; %6 = reduce_sum %5; %7 = neg %6;"
        " return %7:f32[a,1] }"
    )
    labels = np.random.default_rng(1).integers(0, columns, (rows, 1)).astype("float32")
    positions = np.arange(columns, dtype="float32")[None]
    check(entropy, [positions, labels, noise(rows, columns)])


@pytest.mark.parametrize("rows", [3])
def test_rows_without_elements(rows: int) -> None:
    spec = parse(SPECS["layer norm"])
    for shape in ((0, 8), (rows, 0)):
        arrays = inputs_of(spec, shape)
        (got,) = outputs(spec, arrays)
        assert got.shape == shape
        heads = [np.empty(shape, "float32"), *arrays, got]
        found = differentiate(spec)
        assert found.spec is not None
        operands = [heads[0], *(arrays[i] for i in found.inputs), *(got for _ in found.outputs)]
        _, by_scale, by_shift = outputs(spec, operands, backward=True)
        assert not by_scale.any()
        assert not by_shift.any()


@pytest.mark.parametrize(
    "text",
    one_of(
        2,
        [
            "f32[a,b,c] (f32[a,1,c], f32[b,1], f32[a,b,c]) { %3 = mul %0 %1; %4 = mul %3 %2;"
            " return %4:f32[a,b,c] }",
            "f32[a,b,c,d] (f32[a,1,c,1], f32[1,b,1,d], f32[d]) { %3 = mul %0 %1; %4 = add %3 %2;"
            " %5 = sin %4; return %5:f32[a,b,c,d] }",
            "f32[a,b,c|d] (f32[a,1,c,d], f32[b,1,1], f32[d]) { %3 = mul %0 %1; %4 = mul %3 %2;"
            " %5 = softmax %4; %6 = reduce_sum %4; return %5:f32[a,b,c,d], %6:f32[a,b,c] }",
            "f32[a] (f32[a], f32[1], f32[]) { %3 = mul %0 %1; %4 = add %3 %2; return %4:f32[a] }",
            "f32[|a,b] (f32[a,b]) { %1 = log_softmax %0; %2 = reduce_max %0; return %1:f32[a,b],"
            " %2:f32[] }",
            "f32[] (f32[]) { %1 = tanh %0; return %1:f32[] }",
            "f32[a|b] (f32[a,b], f32[a,1]) { %2 = sub %0 %1; %3 = reduce_sum %2; %4 = extent;"
            " %5 = div %3 %4; %6 = exp %5; %7 = mul %6 %0; return %7:f32[a,b], %5:f32[a,1] }",
        ],
    ),
)
def test_broadcasting(text: str) -> None:
    spec = parse(text)
    space = (3, 4, 2, 5)[: spec.rank] if not spec.inner else (2, 1, 2, 5)[: spec.rank]
    check(spec, inputs_of(spec, space), space)


@pytest.mark.parametrize(
    "space", [(2, 300), *([] if config.ENABLE_CUDASIM else [(5, 16)])], ids=str
)
@pytest.mark.parametrize(
    "outs",
    one_of(
        2,
        [
            "f32[]",
            "f32[a]",
            "f32[b]",
            "f32[a,b]",
            "f32[a,1]",
            "f32[1,b]",
            "f32[a,b], %2:f32[b]",
            "f32[a], %2:f32[b], %2:f32[]",
        ],
    ),
)
def test_sums(outs: str, space: tuple[int, int]) -> None:
    spec = parse(f"f32[a,b] (f32[a,b], f32[b]) {{ %2 = mul %0 %1; return %2:{outs} }}")
    arrays = inputs_of(spec, space)
    got = outputs(spec, arrays)
    for g, w in zip(got, evaluate(spec, arrays, dtype="float64"), strict=True):
        assert_near(g, w, "float32")
    for again, g in zip(outputs(spec, arrays), got, strict=True):
        np.testing.assert_array_equal(again, g)


def test_sums_of_rows() -> None:
    spec = parse(
        "f32[a,b|c] (f32[a,b,c], f32[c]) { %2 = mul %0 %1; %3 = reduce_max %2; %4 = exp %2;"
        " return %3:f32[a], %4:f32[b,c], %4:f32[c], %3:f32[], %3:f32[b,1], %4:f32[a,b,c] }"
    )
    arrays = inputs_of(spec, (2, 3, 40))
    for g, w in zip(outputs(spec, arrays), evaluate(spec, arrays, dtype="float64"), strict=True):
        assert_near(g, w, "float32")


def test_choosing_and_comparing() -> None:
    spec = parse(
        "f32[a,b] (f32[a,b], f32[b], i32[a,b], b1[a,b]) { %4 = gt %0 %1; %5 = and %4 %3;"
        " %6 = xor %2 %5; %7 = where %6 %0 %1; %8 = max %7 0.25; %9 = not %4; %10 = or %9 %2;"
        " return %8:f32[a,b], %4:b1[a,b], %10:i32[a,b], %6:u8[a,b], %2:i64[a,b], %2:i8[a,b] }"
    )
    whole = np.arange(6 * 20, dtype="int32").reshape(6, 20) % 5 - 2
    inputs = [noise(6, 20), noise(20, seed=1), whole, whole > 0]
    for g, w in zip(outputs(spec, inputs), evaluate(spec, inputs), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize(
    ("columns", "compute", "stored"),
    one_of(5, product([7, 32], ["f32", "f64"], ["f16", "f32", "f64"])),
)
def test_storage(columns: int, compute: str, stored: str) -> None:
    spec = parse(
        f"{compute}[a,b] ({stored}[a,b], {stored}[b], i32[a,b], u8[b]) {{ %4 = mul %0 %1;"
        f" %5 = where %2 %4 %0; %6 = add %5 %3; return %6:{stored}[a,b] }}"
    )
    condition = np.arange(11 * columns, dtype="int32").reshape(11, columns) % 3 - 1
    small = np.arange(columns, dtype="uint8") + 200
    dtype = spec.inputs[0].dtype
    inputs = [noise(11, columns, dtype=dtype), noise(columns, dtype=dtype), condition, small]
    check(spec, inputs, tolerance="float16" if stored == "f16" else "float32")


def test_float64_rows() -> None:
    check(
        parse("f64[a|b] (f64[a,b]) { %1 = softmax %0; return %1:f64[a,b] }"),
        [noise(2, 70, dtype="float64")],
    )


#: Special numbers, of which elements, rows and pairs are made.
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38], "float32")
SPECIAL_ROWS = np.stack([SPECIAL, SPECIAL[::-1], np.roll(SPECIAL, 3)])


@pytest.mark.slow  # cuda_instruction_cases.py has most of them, for every instruction
def test_special_values() -> None:
    for op in ("relu", "abs", "exp", "tanh", "sigmoid", "softplus", "rint", "recip", "sqrt"):
        spec = parse(f"f32[a,b] (f32[a,b]) {{ %1 = {op} %0; return %1:f32[a,b] }}")
        (got,) = outputs(spec, [SPECIAL_ROWS])
        np.testing.assert_allclose(got, evaluate(spec, [SPECIAL_ROWS])[0], rtol=1e-6, err_msg=op)
    (got,) = outputs(parse("f32[a] (f32[a]) { %1 = sign %0; return %1:f32[a] }"), [SPECIAL])
    np.testing.assert_array_equal(got, [0, 0, 1, -1, 0, 1, -1, 1])
    for op in ("max", "min", "mod"):
        spec = parse(f"f32[a,b] (f32[a,b], f32[a,b]) {{ %2 = {op} %0 %1; return %2:f32[a,b] }}")
        pair = [*np.broadcast_arrays(SPECIAL[:, None], SPECIAL)]
        if op == "mod":
            pair = [*np.broadcast_arrays(np.arange(-4.0, 5.0)[:, None] * 1.7, np.arange(-3.0, 4))]
        pair = [np.ascontiguousarray(x, "float32") for x in pair]
        np.testing.assert_allclose(outputs(spec, pair)[0], evaluate(spec, pair)[0], err_msg=op)


@pytest.mark.parametrize(
    ("op", "columns"),
    one_of(
        5,
        product(
            ["reduce_max", "reduce_sum", "softmax"],
            [[*range(8)], [0, 1], [2, 3], [*range(8)] * 5],
        ),
    ),
    ids=str,
)
def test_rows_of_special_values(op: str, columns: list[int]) -> None:
    out = "f32[a,b]" if op == "softmax" else "f32[a]"
    spec = parse(f"f32[a|b] (f32[a,b]) {{ %1 = {op} %0; return %1:{out} }}")
    array = np.ascontiguousarray(SPECIAL_ROWS[: 2 if len(columns) > 8 else 3, columns])
    (got,) = outputs(spec, [array])
    np.testing.assert_allclose(got, evaluate(spec, [array])[0], rtol=1e-6)


def test_unary_instructions() -> None:
    one = "arccos arcsin arctanh erf arctan arcsinh cbrt ceil floor trunc round half log1p expm1"
    positive = "arccosh log log2 log10 rsqrt rcbrt gamma gammaln sinh cosh tan"
    inside = np.linspace(-0.9, 0.9, 24, dtype="float32")
    for ops, x in ((one.split(), inside), (positive.split(), np.abs(inside) + 1.5)):
        steps = "; ".join(f"%{i} = {op} %0" for i, op in enumerate(ops, 1))
        outs = ", ".join(f"%{i}:f32[a]" for i in range(1, 1 + len(ops)))
        spec = parse(f"f32[a] (f32[a]) {{ {steps}; return {outs} }}")
        for op, g, w in zip(ops, outputs(spec, [x]), evaluate(spec, [x]), strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-6, err_msg=op)


def test_precise() -> None:
    spec = parse("precise " + SPECS["chain"])
    arrays = inputs_of(spec, (5, 12))
    np.testing.assert_allclose(outputs(spec, arrays)[0], evaluate(spec, arrays)[0], rtol=2e-6)


def test_outputs_are_written_to() -> None:
    spec = parse(SPECS["layer norm"])
    arrays = on_device(*inputs_of(spec, (2, 24)))
    (out,) = on_device(np.full((2, 24), np.nan, "float32"))
    (got,) = cuda.run(spec, arrays, outputs=[out])
    assert got is out
    assert np.isfinite(out.copy_to_host()).all()


@pytest.mark.parametrize("back", [False, True], ids=["forward", "backward"])
def test_outputs_are_added_to_or_left_alone(back: bool) -> None:
    spec = parse(SPECS["layer norm"])
    arrays = inputs_of(spec, (5, 24))
    if back:
        (made,) = evaluate(spec, arrays)
        found = differentiate(spec)
        assert found.spec is not None
        arrays = [
            noise(5, 24, seed=5),
            *(arrays[i] for i in found.inputs),
            *(made for _ in found.outputs),
        ]
    want = evaluate(found.spec if back else spec, arrays, dtype="float64")
    before = [noise(*w.shape, seed=50 + i) for i, w in enumerate(want)]
    outs = on_device(*before)
    requests = [SKIP, ADD, WRITE] if back else [ADD]
    cuda.run(spec, on_device(*arrays), outputs=outs, backward=back, requests=requests)
    for out, w, b, request in zip(outs, want, before, requests, strict=True):
        w = {SKIP: b, ADD: w + b, WRITE: w}[request]
        assert_near(np.asarray(out.copy_to_host()), w, "float32")


@pytest.mark.skipif(config.ENABLE_CUDASIM, reason="there is no driver in the simulator")
def test_through_the_bridge(tmp_path: Path) -> None:
    """As MXNet's operators launch kernels on a GPU, but for MXNet."""
    source = Path(__file__).parents[2] / "kernels" / "bridge" / "cuda.cc"
    made = tmp_path / "cuda.so"
    subprocess.run(
        ["g++", "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(made), "-ldl"], check=True
    )
    library = ctypes.CDLL(str(made))
    library.graphopt_cuda_device.restype = library.graphopt_cuda_run.restype = ctypes.c_char_p
    device = (ctypes.c_int64 * 3)()
    assert library.graphopt_cuda_device(0, device) is None
    about = numba_cuda.get_current_device()
    assert tuple(device) == (about.MULTIPROCESSOR_COUNT, *about.compute_capability)
    stream = numba_cuda.stream()
    for name in sorted(SPECS.keys() - TRAINED.keys()):
        spec = parse(SPECS[name])
        for space in ((3, 33), (40, 256), (6, 4096), (2, 8192)):
            arrays = inputs_of(spec, space)
            made_there = launched(library, spec, spec, arrays, space, stream)
            want = evaluate(spec, arrays, dtype="float64")
            for g, w in zip(made_there, want, strict=True):
                assert_near(g, w, "float32", f"{name} of {space}")
            found = differentiate(spec)
            if found.spec is None:
                continue
            heads = [noise(*w.shape, seed=7) for w in want]
            operands = [
                *(heads[i] for i in found.heads),
                *(arrays[i] for i in found.inputs),
                *(made_there[i] for i in found.outputs),
            ]
            slopes = evaluate(found.spec, operands, dtype="float64")
            got = launched(library, spec, found.spec, operands, space, stream)
            for g, w in zip(got, slopes, strict=True):
                assert_near(g, w, "float32", f"gradient of {name} of {space}")


def launched(
    library: Any, spec: KernelSpec, walked: KernelSpec, arrays: Any, space: Any, stream: Any
) -> list[Any]:
    """Outputs of ``walked``, which ``spec`` or its gradients are, launched by the bridge."""
    shapes = [tuple(1 if a is None else space[a] for a in r.operand.axes) for r in walked.outputs]
    outs = on_device(*(np.full(shape, np.nan, "float32") for shape in shapes))
    held = [*on_device(*arrays), *outs]  # the launch knows addresses alone
    places = [a.__cuda_array_interface__["data"][0] for a in held]
    device = (ctypes.c_int64 * 3)()
    library.graphopt_cuda_device(0, device)
    numba_cuda.synchronize()
    planned = native.launches_of(
        str(spec),
        backward=walked is not spec,
        space=space,
        aligned=all(place % 16 == 0 for place in places),
        requests=(WRITE,) * len(outs),
        device=tuple(device),
    )
    given = (ctypes.c_int64 * len(places))(*places)
    handle = ctypes.c_void_p(int(getattr(stream.handle, "value", stream.handle)))
    assert library.graphopt_cuda_run(ctypes.byref(planned), given, handle) is None
    stream.synchronize()
    return [np.asarray(out.copy_to_host()) for out in outs]


def test_arrays_that_do_not_fit() -> None:
    spec = parse(SPECS["chain"])
    with pytest.raises(InputError, match="reads 2 inputs, not 1"):
        cuda.run(spec, on_device(noise(3, 4)))
    with pytest.raises(InputError, match="5 is not 4"):
        cuda.run(spec, on_device(noise(3, 4), noise(5)))
    with pytest.raises(InputError, match=r"is not f32\[b\]"):
        cuda.run(spec, on_device(noise(3, 4), noise(4, dtype="float64")))
    with pytest.raises(InputError, match="not C-contiguous"):
        cuda.run(spec, on_device(noise(4, 3).T, noise(4)))
    with pytest.raises(InputError, match="no gradient"):
        cuda.run(parse("f32[a] (i32[a]) { return %0:f32[a] }"), on_device(noise(3)), backward=True)
