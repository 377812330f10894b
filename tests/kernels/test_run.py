"""Compiled kernels against the numpy meaning of their specs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from graphopt.kernels.expand import collapse
from graphopt.kernels.gradient import differentiate, is_differentiable
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.plan import inplace_pairs
from graphopt.kernels.run import Request, run
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from tests.kernels.test_translate import SPACE, Case, RandomRegion, cases, graph_of, spec_of

CHAIN = parse(
    "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = add %2 1.5; %4 = tanh %3;"
    " %5 = sigmoid %0; %6 = mul %4 %5; return %6:f32[a,b] }"
)
LAYER_NORM = parse(
    "f32[a|b] (f32[a,b], f32[b], f32[b]) { %3 = normalize %0 1e-05; %4 = mul %3 %1;"
    " %5 = add %4 %2; return %5:f32[a,b] }"
)


def noise(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def exact(spec: KernelSpec, inputs: Any, extents: Any = None) -> list[Any]:
    # Beside a jump, rounding decides on which side a value falls.
    jumps = {"mod", "floor", "ceil", "trunc", "round", "rint"}
    dtype = spec.dtype if jumps & {step.op for step in spec.body} else "float64"
    return evaluate(spec, inputs, extents, dtype=dtype)


def assert_near(got: Any, want: Any, dtype: str, what: str = "") -> None:
    """Equal up to the roundings of a sum of terms as large as the largest result."""
    tolerance = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}.get(dtype, 0)
    assert got.shape == want.shape, what
    both = [np.asarray(x, "float64") for x in (got, want)]
    np.testing.assert_array_equal(*map(np.isnan, both), err_msg=what)
    scale = 1 + np.max(np.abs(both[1]), initial=0, where=np.isfinite(both[1]))
    np.testing.assert_allclose(*both, rtol=10 * tolerance, atol=tolerance * scale, err_msg=what)


def backward_operands(spec: KernelSpec, inputs: Any, heads: Any, outputs: Any) -> list[Any]:
    found = differentiate(spec)
    return [
        *(heads[i] for i in found.heads),
        *(inputs[i] for i in found.inputs),
        *(outputs[i] for i in found.outputs),
    ]


def check(spec: KernelSpec, inputs: Any, extents: Any = None) -> None:
    """Forward and backward kernels compute what the spec means."""
    want = exact(spec, inputs, extents)
    got = run(spec, inputs, extents=extents)
    for g, w in zip(got, want, strict=True):
        assert_near(g, w, str(g.dtype), f"value of {spec}")
    check_inplace(spec, inputs, got, extents)
    gradient = differentiate(spec) if is_differentiable(spec) else None
    if gradient is None or gradient.spec is None:
        return
    heads = [noise(*w.shape, dtype=str(g.dtype), seed=7) for w, g in zip(want, got, strict=True)]
    operands = backward_operands(spec, inputs, heads, got)
    slopes = exact(gradient.spec, operands, extents)
    found = run(spec, operands, backward=True, extents=extents)
    for g, w in zip(found, slopes, strict=True):
        assert_near(g, w, str(g.dtype), f"gradient of {spec}")
    check_inplace(spec, operands, found, extents, backward=True)


def check_inplace(
    spec: KernelSpec, inputs: Any, want: Any, extents: Any = None, *, backward: bool = False
) -> int:
    """Written over an input, an output is the same, and so are the others."""
    gradient = differentiate(spec) if backward else None
    walked = gradient.spec if gradient else spec
    assert walked is not None
    pairs = inplace_pairs(str(spec), backward=backward)
    for read, target in pairs:
        given = [
            np.array(x, operand.dtype) for x, operand in zip(inputs, walked.inputs, strict=True)
        ]
        outputs = [np.full_like(w, np.nan if w.dtype.kind == "f" else 1) for w in want]
        outputs[gradient.wrt.index(target) if gradient else target] = given[read]
        run(spec, given, backward=backward, outputs=outputs, extents=extents)
        for g, w in zip(outputs, want, strict=True):
            np.testing.assert_array_equal(g, w, err_msg=f"{read} over {target} in {spec}")
    return len(pairs)


def by_turns(chosen: list[Case]) -> list[Any]:
    """All of them; of those of one instruction and dtype all but one are slow.

    The others have another scalar, shape or axes, by turns: what instructions become of operators
    is compared with MXNet in tests/kernels/test_translate.py, for each of the cases.
    """
    groups: dict[Any, list[Case]] = {}
    for case in chosen:
        op = re.sub(r"^(elemwise|broadcast|_np[ix]?)?_|_scalar$", "", case.op)
        groups.setdefault((op, case.attrs.get("act_type"), case.inputs[0].dtype), []).append(case)
    quick = {id(group[turn % len(group)]) for turn, group in enumerate(groups.values())}
    slow = pytest.mark.slow
    return [case if id(case) in quick else pytest.param(case, marks=slow) for case in chosen]


@pytest.mark.parametrize("case", by_turns([c for c in cases() if "float16" not in str(c)]), ids=str)
def test_every_operator(case: Any) -> None:
    out = evaluate_out(case)
    spec = spec_of(graph_of(case, out))
    check(spec, case.inputs, max((out, *case.inputs), key=np.size).shape)


def evaluate_out(case: Any) -> Any:
    """An array like the operator's output."""
    from graphopt.compat import import_mxnet
    from tests.kernels.test_translate import by_mxnet

    import_mxnet()
    return by_mxnet(case, np.random.default_rng(0))[0]


def comes_together(spec: KernelSpec) -> bool:
    """Whether kernels can walk it: operands run along all reduced axes or none."""
    try:
        collapse(spec)
    except GraphoptError:
        return False
    return True


@settings(max_examples=8)
@given(st.data())
def test_random_regions(data: st.DataObject) -> None:
    region = RandomRegion(data)
    if not any(node.type.shape == SPACE for node in region.nodes):
        region.whole.append(region.add("tanh", [region.whole[0]], SPACE))
    spec = region.spec()
    assume(comes_together(spec))
    shapes = [tuple(1 if a is None else SPACE[a] for a in x.axes) for x in spec.inputs]
    check(spec, [noise(*shape, dtype="float64", seed=i) for i, shape in enumerate(shapes)], SPACE)


@pytest.mark.parametrize("spec", [CHAIN, LAYER_NORM], ids=["chain", "layer norm"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (1000, 70), (70, 1000), (3, 70_000), (0, 4)])
def test_shapes_need_no_new_kernel(spec: KernelSpec, shape: tuple[int, int]) -> None:
    from graphopt.kernels.library import STATISTICS

    weights = [noise(shape[1], seed=1 + i) for i in range(len(spec.inputs) - 1)]
    check(spec, [noise(2, 2), *(w[:2] if w.size > 1 else noise(2) for w in weights)])
    before = STATISTICS.compiled
    if shape != (1, 1) or spec is CHAIN:  # the variance of one number is 0: nothing but noise
        check(spec, [noise(*shape), *weights])
    assert STATISTICS.compiled == before


@pytest.mark.parametrize(
    "text",
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
)
def test_broadcasting(text: str) -> None:
    spec = parse(text)
    space = (3, 4, 2, 5)[: spec.rank]
    shapes = [tuple(1 if a is None else space[a] for a in x.axes) for x in spec.inputs]
    check(spec, [noise(*shape, seed=i) for i, shape in enumerate(shapes)], space)


@pytest.mark.parametrize("stored", ["float16", "float32", "float64"])
@pytest.mark.parametrize("compute", ["f32", "f64"])
def test_storage(stored: str, compute: str) -> None:
    short = {"float16": "f16", "float32": "f32", "float64": "f64"}[stored]
    spec = parse(
        f"{compute}[a,b] ({short}[a,b], {short}[b], i32[a,b], u8[b]) {{ %4 = mul %0 %1;"
        f" %5 = where %2 %4 %0; %6 = add %5 %3; return %6:{short}[a,b] }}"
    )
    condition = np.arange(77, dtype="int32").reshape(11, 7) % 3 - 1
    small = np.arange(7, dtype="uint8") + 250
    inputs = [noise(11, 7, dtype=stored), noise(7, dtype=stored), condition, small]
    (got,) = run(spec, inputs)
    (want,) = exact(spec, inputs)
    assert_near(got, want, "float16" if stored == "float16" else "float32")
    head = noise(11, 7, dtype=stored, seed=3)
    operands = backward_operands(spec, inputs, [head], [got])
    found = run(spec, operands, backward=True)
    gradient = differentiate(spec)
    assert gradient.spec is not None
    for g, w in zip(found, exact(gradient.spec, operands), strict=True):
        assert_near(g, w, "float16" if stored == "float16" else "float32")


def test_requests() -> None:
    inputs = [noise(40, 30), noise(30)]
    head = noise(40, 30, seed=2)
    want = run(CHAIN, [head, *inputs], backward=True)
    add = [np.full_like(w, 2) for w in want]
    run(CHAIN, [head, *inputs], backward=True, outputs=add, requests=[Request.ADD] * 2)
    for g, w in zip(add, want, strict=True):
        np.testing.assert_allclose(g, w + 2, rtol=1e-5)
    for left_out in (0, 1):
        found = [np.full_like(w, np.nan) for w in want]
        asked = [Request.NULL if n == left_out else Request.WRITE for n in range(2)]
        run(CHAIN, [head, *inputs], backward=True, outputs=found, requests=asked)
        assert np.isnan(found[left_out]).all()
        np.testing.assert_array_equal(found[1 - left_out], want[1 - left_out])


@pytest.mark.parametrize("spec", [CHAIN, LAYER_NORM], ids=["chain", "layer norm"])
def test_every_output_is_written(spec: KernelSpec) -> None:
    inputs = [noise(300, 130), *(noise(130, seed=i) for i in range(1, len(spec.inputs)))]
    (out,) = run(spec, inputs, outputs=[np.full((300, 130), np.nan, "float32")])
    assert np.isfinite(out).all()
    gradient = differentiate(spec)
    assert gradient.spec is not None
    poisoned = [np.full(inputs[i].shape, np.nan, "float32") for i in gradient.wrt]
    operands = backward_operands(spec, inputs, [noise(300, 130, seed=9)], [out])
    assert all(np.isfinite(x).all() for x in run(spec, operands, backward=True, outputs=poisoned))


def test_an_input_that_alone_tells_an_extent_is_kept() -> None:
    spec = parse("f32[a,b] (i32[a,b], f32[1]) { %2 = add %0 %1; return %2:f32[a] }")
    gradient = differentiate(spec)
    assert (gradient.heads, gradient.inputs, gradient.wrt) == ((0,), (0,), (1,))
    check(spec, [np.arange(15, dtype="int32").reshape(3, 5), noise(1)])


def test_extents_that_no_operand_tells_are_refused() -> None:
    spec = parse("f32[a|b] (f32[a]) { %1 = reduce_sum %0; return %1:f32[a] }")
    with pytest.raises(GraphoptError, match="no operand tells the extent of axis 1"):
        run(spec, [noise(3)], extents=(3, 4))


#: A kernel, and which outputs may be written over which inputs, forward and backward.
SOFTMAX_OF_SUM = (
    "f32[a|b] (f32[a,b], f32[b]) { %2 = add %0 %1; %3 = softmax %2; return %3:f32[a,b] }"
)
TWO = "f32[a] (f32[a], f32[a]) { %2 = mul %0 %1; %3 = exp %1; return %2:f32[a], %3:f32[a] }"
READ_AGAIN = (
    "f32[a|b] (f32[a,b]) { %1 = exp %0; %2 = reduce_sum %0; %3 = mul %0 %2;"
    " return %1:f32[a,b], %3:f32[a,b] }"
)
COMPUTED_AGAIN = READ_AGAIN.replace("reduce_sum %0", "reduce_sum %1").replace("mul %0", "div %1")
HALF = "f32[a] (f16[a]) { %1 = exp %0; return %1:f32[a] }"
TURNED = "f32[a,b] (f32[a], f32[b]) { %2 = add %0 %1; return %2:f32[a,b] }"


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        (str(CHAIN), {(0, 0)}),
        (str(LAYER_NORM), {(0, 0)}),
        (SOFTMAX_OF_SUM, {(0, 0)}),
        (TWO, {(0, 0), (1, 0), (1, 1)}),  # what is written last needs both
        (READ_AGAIN, {(0, 1)}),  # the first output is written before the row is read again
        (COMPUTED_AGAIN, {(0, 1)}),  # and so is it on GPUs, which keep no exponentials
        (HALF, set()),
        (TURNED, set()),
    ],
    ids=[
        "chain",
        "layer norm",
        "softmax",
        "two outputs",
        "read again",
        "computed again",
        "dtypes",
        "broadcast",
    ],
)
@pytest.mark.parametrize("shape", [(3, 5), (7, 1031), (40, 16), (2, 70001)], ids=str)
def test_outputs_written_over_inputs(
    text: str, pairs: set[tuple[int, int]], shape: tuple[int, int]
) -> None:
    spec = parse(text)
    assert set(inplace_pairs(text, backward=False)) == pairs
    inputs = [noise(*(shape[a] for a in x.axes), dtype=x.dtype, seed=3) for x in spec.inputs]
    check(spec, inputs)


@pytest.mark.parametrize("spec", [CHAIN, LAYER_NORM], ids=["chain", "layer norm"])
@pytest.mark.parametrize("shape", [(1000, 300), (3, 90_000), (90_000, 3)])
def test_threads_change_no_bit(spec: KernelSpec, shape: tuple[int, int], threads: Any) -> None:
    inputs = [noise(*shape), *(noise(shape[1], seed=i) for i in range(1, len(spec.inputs)))]
    found = []
    for count in (1, 2, 3):
        threads(count)
        (out,) = run(spec, inputs)
        operands = backward_operands(spec, inputs, [noise(*shape, seed=9)], [out])
        found.append([out, *run(spec, operands, backward=True)])
    for other in found[1:]:
        for got, want in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(got, want)


def test_special_values() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38], "float32")
    rows = np.stack([special, special[::-1], np.roll(special, 3)])
    for op in ("relu", "sign"):
        check(parse(f"f32[a,b] (f32[a,b]) {{ %1 = {op} %0; return %1:f32[a,b] }}"), [rows])
    for op in ("reduce_max", "reduce_min", "reduce_sum", "softmax"):
        out = "f32[a,b]" if op == "softmax" else "f32[a]"
        spec = parse(f"f32[a|b] (f32[a,b]) {{ %1 = {op} %0; return %1:{out} }}")
        for array in (rows, rows[:, :2], rows[:, 2:4], np.tile(rows, (1, 9))):
            (got,) = run(spec, [array])
            (want,) = evaluate(spec, [array])
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("precise", ["", "precise "])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signs_of_remainders(dtype: str, precise: str) -> None:
    mx = import_mxnet()
    numbers = np.array([0.0, -0.0, 2, -2, 4, -4, 1.5, -1.5, 1e-40, -1e-40, np.nan], dtype)
    inputs = [numbers[:, None], numbers]
    want = mx.nd.broadcast_mod(*(mx.nd.array(x, dtype=dtype) for x in np.broadcast_arrays(*inputs)))
    short = "f64" if dtype == "float64" else "f32"
    spec = f"{short}[a,b] ({short}[a,1], {short}[b]) {{ %2 = mod %0 %1; return %2:{short}[a,b] }}"
    spec = parse(precise + spec)
    for (got,) in (run(spec, inputs, extents=want.shape), evaluate(spec, inputs, want.shape)):
        np.testing.assert_array_equal(got, want.asnumpy())
        is_number = ~np.isnan(got)
        np.testing.assert_array_equal(
            np.signbit(got)[is_number], np.signbit(want.asnumpy())[is_number]
        )


def test_precise_kernels_round_as_the_c_library() -> None:
    inputs = [noise(50, 40), noise(40)]
    (got,) = run(parse("precise " + str(CHAIN)), inputs)
    x, w = inputs
    product = (x * w).astype("float32") + np.float32(1.5)
    tanh = np.tanh(product.astype("float64")).astype("float32")
    np.testing.assert_allclose(got, tanh / (1 + np.exp(-x)), rtol=1e-6)


def test_arrays_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="reads 2 inputs, not 1"):
        run(CHAIN, [noise(3, 4)])
    with pytest.raises(InputError, match=r"shape \(3,\) is not f32\[a,b\]"):
        run(CHAIN, [noise(3), noise(3)], outputs=[np.empty((3, 3), "float32")])
    with pytest.raises(GraphoptError, match=r"operand 1 of kernel .* does not fit the other"):
        run(CHAIN, [noise(3, 4), noise(5)], outputs=[np.empty((3, 4), "float32")])
    with pytest.raises(InputError, match="C-contiguous"):
        run(CHAIN, [noise(3, 4), noise(4)], outputs=[np.empty((4, 3), "float32").T])


def test_arrays_of_any_layout_are_read() -> None:
    x, w = noise(6, 8).T[::2], noise(12)[::2]
    (got,) = run(CHAIN, [x, w])
    (want,) = exact(CHAIN, [x, w])
    assert_near(got, want, "float32")
