"""CUDA kernels: what they compute, by numba's simulator, and the PTX they become, without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.kernels.gradient import Gradient, differentiate
from graphopt.kernels.recurrence.plan import plan
from graphopt.kernels.recurrence.spec import Map, RecurrenceSpec
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from graphopt.kernels.tree.spec import parse as parse_tree
from graphopt.passes.recurrence.body import translate
from graphopt.passes.recurrence.cells import Cell, body_of
from tests.kernels.column_specs import SPECS as COLUMN_SPECS

SPECS = {
    "chain": "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = add %2 1.5; %4 = tanh %3;"
    " %5 = sigmoid %0; %6 = mul %4 %5; %7 = square %0; %8 = neg %7; %9 = exp %8;"
    " %10 = mul %9 0.5; %11 = add %6 %10; return %11:f32[a,b] }",
    "layer norm": "f32[a|b] (f32[a,b], f32[b], f32[b]) { %3 = normalize %0 1e-05; %4 = mul %3 %1;"
    " %5 = add %4 %2; return %5:f32[a,b] }",
    "softmax": "f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }",
    "log_softmax": "f32[a|b] (f32[a,b]) { %1 = log_softmax %0; return %1:f32[a,b] }",
    "gelu": "f32[a,b] (f32[a,b]) { %1 = mul %0 0.7071067811865476; %2 = erf %1; %3 = add %2 1.0;"
    " %4 = mul %0 0.5; %5 = mul %4 %3; return %5:f32[a,b] }",
    "masked softmax": "f32[a|b] (f32[a,b], b1[a,b]) { %2 = where %1 %0 -10000.0;"
    " %3 = softmax %2; return %3:f32[a,b] }",
}


def _of_step(mode: str) -> str:
    """What the step of a recurrence computes element by element, from the cell's own graph."""
    cell = Cell(mode, 8, 16)
    spec = translate(body_of(cell, 4, "float32"), 1, len(cell.states)).spec
    (kernel,) = (step.kernel for step in spec.steps if isinstance(step, Map))
    return str(kernel)


SPECS |= {"lstm step": _of_step("lstm"), "gru step": _of_step("gru")}

#: What graphopt.nn.ChildSumTreeLSTM translates to, with which MXNet has to help.
TREE = (
    "tree (16, 16) (sum, sum)"
    " ;;; recurrence f32 (16, 16, 16) () (16x16) (16) ;; 16 = x1 @ m0' ;; 16 = x2 v0 t0 x0 ->"
    " f32[a,b] (f32[a,b], f32[b], f32[a,b], f32[a,b]) { %4 = add %2 %1; %5 = add %3 %4;"
    " %6 = sigmoid %5; %7 = mul %6 %0; return %7:f32[a,b] } ;; next ;; emit x1, t1"
    " ;;; recurrence f32 (16, 16, 16, 16, 16) () (48x16) (48) ;; 48 = x3 @ m0' ;; 16, 16 ="
    " x4 v0[16:32] t0[16:32] x2 v0[0:16] t0[0:16] x1 v0[32:48] t0[32:48] x0 ->"
    " f32[a,b] (f32[a,b], f32[b], f32[a,b], f32[a,b], f32[b], f32[a,b], f32[a,b], f32[b],"
    " f32[a,b], f32[a,b]) { %10 = add %2 %1; %11 = add %3 %10; %12 = tanh %11; %13 = add %5 %4;"
    " %14 = add %6 %13; %15 = sigmoid %14; %16 = mul %15 %12; %17 = add %16 %0; %18 = tanh %17;"
    " %19 = add %8 %7; %20 = add %9 %19; %21 = sigmoid %20; %22 = mul %21 %18;"
    " return %17:f32[a,b], %22:f32[a,b] } ;; next ;; emit t2, t1"
)


def _trained(rows: RecurrenceSpec) -> tuple[KernelSpec, KernelSpec, Gradient]:
    """What a part of a tree computes element by element; the same for training; its gradient."""
    ((first, (forward, gradient)),) = plan(rows, training=True).maps.items()
    step = next(step for number, step in rows.numbered() if number == first)
    assert isinstance(step, Map)
    assert gradient is not None
    return step.kernel, forward, gradient


TRAINED = {
    "tree message": _trained(parse_tree(TREE).message),
    "tree update": _trained(parse_tree(TREE).update),
}
SPECS |= {name: str(kernel) for name, (kernel, _, _) in TRAINED.items()}

ROOT = Path(__file__).parents[2]
CAPABILITIES = [(7, 0), (8, 0), (8, 6), (9, 0)]
#: Instructions that kernels/contract.py puts into kernels for CPUs.
OF_CPUS = {"exp_nonpositive", "one_plus_erf", "one_plus_erf_by", "sigmoid_times_tanh"}
ROWS = ["layer norm", "softmax", "log_softmax", "masked softmax"]


def test_the_tree_is_what_the_layer_computes() -> None:
    mx = import_mxnet()
    from graphopt import nn

    found = nn.ChildSumTreeLSTM(16, 8)(mx.sym.var("x"), mx.sym.var("parents"))
    attrs = mx.sym.Group(list(found)).attr_dict().values()
    specs = [given["spec"] for given in attrs if given.get("spec", "").startswith("tree")]
    assert specs == [TREE] == [str(parse_tree(TREE))]


#: Files of tests that need a process of their own.
SIMULATED = [
    "cuda_cases.py",
    "cuda_row_cases.py",
    "cuda_instruction_cases.py",
    "cuda_column_cases.py",
]


@pytest.mark.parametrize(
    ("marked", "names"),
    [
        ("not slow", SIMULATED),
        *(pytest.param("slow", [name], marks=pytest.mark.slow) for name in SIMULATED),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_in_the_simulator(marked: str, names: list[str]) -> None:
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        pytest.skip(f"this process simulates CUDA already: run tests/kernels/{names[0]}")
    cases = [str(Path(__file__).with_name(name)) for name in names]
    # They need nothing of the other tests, nor MXNet, which takes long to load.
    options = ["-q", "-p", "no:cacheprovider", "--noconftest", "-m", marked]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *cases],
        cwd=ROOT,
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if re.search(r"^SKIPPED .*there is no numba.cuda", done.stdout, re.MULTILINE):
        pytest.skip("numba has no numba.cuda here, nor its simulator")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def compile_ptx() -> Any:
    pytest.importorskip("numba.cuda", reason="there is no numba.cuda")
    from graphopt.kernels.cuda import compile_ptx
    from graphopt.kernels.cuda.compiled import why_no_ptx

    if reason := why_no_ptx():
        pytest.skip(reason)
    return compile_ptx


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_ptx(capability: tuple[int, int], compile_ptx: Any) -> None:
    # NVVM takes its time: all kernels for one kind of GPU, two for the others.
    names = SPECS if capability == (8, 0) else ("chain", "softmax")
    for name in names:
        ptx = compile_ptx(parse(SPECS[name]), capability)
        assert f".target sm_{capability[0]}{capability[1]}" in ptx
        assert re.search(r"ld\.global(\.nc)?\.v4\.f32", ptx), name
        assert "st.global.v4.f32" in ptx, name
        assert ("shfl.sync" in ptx) == (name in ROWS), name
        # Nothing is left to call, and nothing lies in memory that should be in registers.
        assert not re.search(r"\bcall\b|\.local\b", ptx), name


def test_ptx_is_kept_on_the_disk(compile_ptx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.kernels.cuda import compiled

    made = compile_ptx(parse(SPECS["chain"]), (8, 6))

    def fail(*_: Any) -> str:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiled, "_compiled_ptx", fail)
    compiled.ptx.cache_clear()
    assert compile_ptx(parse(SPECS["chain"]), (8, 6)) == made
    with pytest.raises(AssertionError, match="compiled again"):
        compile_ptx(parse(SPECS["chain"]), (8, 9))


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_ptx_of_trees(capability: tuple[int, int], compile_ptx: Any) -> None:
    for name, (_, forward, gradient) in TRAINED.items():
        assert gradient.spec is not None
        for spec in (forward, gradient.spec):
            ptx = compile_ptx(spec, capability)
            assert f".target sm_{capability[0]}{capability[1]}" in ptx
            assert re.search(r"ld\.global(\.nc)?\.v4\.f32", ptx), name
            assert "st.global.v4.f32" in ptx, name
            assert not re.search(r"\bcall\b|\.local\b|\batom\.|\bred\.", ptx), name


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["gather_rows", "segment_sum", "ordered_segment_sum"])
@pytest.mark.usefixtures("compile_ptx")
def test_ptx_of_rows(name: str, dtype: str, capability: tuple[int, int]) -> None:
    from graphopt.kernels.cuda.compiled import ptx as ptx_of
    from graphopt.kernels.cuda.rows import RowsKernel

    width = 128 // int(dtype.removeprefix("float"))
    wide = ptx_of(RowsKernel(name, dtype, width), capability)
    assert re.search(rf"ld\.global(\.nc)?\.v{width}\.", wide)
    assert f"st.global.v{width}." in wide
    ptx = ptx_of(RowsKernel(name, dtype, 1), capability)
    short = "f" + dtype.removeprefix("float")
    assert f".target sm_{capability[0]}{capability[1]}" in ptx
    assert re.search(rf"ld\.global(\.nc)?\.{short}", ptx)
    assert f"st.global.{short}" in ptx
    # Sums in the dtype of the rows, and no atomics.
    assert re.findall(r"add(?:\.rn)?\.(f\d+)", ptx)[:1] == ([] if name[0] == "g" else [short])
    assert dtype == "float64" or ".f64" not in ptx
    assert not re.search(r"\bcall\b|\.local\b|\batom\.|\bred\.", ptx)


@pytest.mark.parametrize(
    "name",
    [
        "chain",
        "layer norm",
        "softmax",
        "lstm step",
        "gru step",
        "tree message",
        "tree update",
    ],
)
def test_ptx_of_gradients(name: str, compile_ptx: Any) -> None:
    ptx = compile_ptx(parse(SPECS[name]), (9, 0), backward=True)
    assert re.search(r"ld\.global(\.nc)?\.v4\.f32", ptx)
    assert "st.global.v4.f32" in ptx
    assert ("shfl.sync" in ptx) == (name in ROWS)
    assert "atom." not in ptx
    assert "red." not in ptx


def test_ptx_of_forms(compile_ptx: Any) -> None:
    from graphopt.kernels.cuda import Form

    spec = parse(SPECS["layer norm"])
    block = Form(4, 2, block=True)
    for form in (block, replace(block, full=True), replace(block, chunks=0), Form(1, 2), Form()):
        ptx = compile_ptx(spec, (8, 0), backward=form.block, form=form)
        assert ("v4.f32" in ptx) == (form.width == 4)
        assert ("bar.sync" in ptx) == form.block


def test_ptx_has_one_entry_that_the_bridge_finds(compile_ptx: Any) -> None:
    from graphopt.kernels.cuda import native
    from graphopt.kernels.cuda.plan import plan_of

    found = differentiate(parse(SPECS["layer norm"]))
    assert found.spec is not None
    plan = plan_of(found.spec, (512, 768), aligned=True, processors=80)
    assert len(plan.launches) == 3  # and parts of two sums
    for launch in plan.launches:
        image, entry = native._image(launch.kernel, (8, 0))
        assert image.count(b".entry") == 1
        assert image.count(entry + b"_param_") >= len(launch.arguments)
        assert native._image(launch.kernel, (8, 0))[0] is image


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }", (1 << 31, 4096)),
        ("f32[a|b|c] (f32[a,b,c]) { %1 = softmax %0; return %1:f32[a,b,c] }", (1 << 31, 2, 8)),
    ],
    ids=["rows", "columns"],
)
def test_more_rows_than_blocks_are_refused(text: str, space: tuple[int, ...]) -> None:
    pytest.importorskip("numba.cuda", reason="there is no numba.cuda")
    from graphopt.kernels.cuda.plan import plan_of

    spec = parse(text)
    with pytest.raises(UnsupportedError, match=r"takes \d+ blocks on a GPU, which launches"):
        plan_of(spec, space, aligned=True, processors=132)
    fewer = (space[0] // 2 - 2, *space[1:])
    plan = plan_of(spec, fewer, aligned=True, processors=132)
    assert max(launch.blocks for launch in plan.launches) < 1 << 31


@pytest.mark.parametrize("backward", [False, True])
def test_ptx_of_columns(backward: bool, compile_ptx: Any) -> None:
    ptx = compile_ptx(parse(COLUMN_SPECS["layer norm"]), (7, 0), backward=backward)
    assert "bar.sync" in ptx
    assert not re.search(r"\bcall\b|\.local\b", ptx)


def test_ptx_of_storage(compile_ptx: Any) -> None:
    text = "f32[a,b] (f16[a,b], f16[b]) { %2 = mul %0 %1; %3 = half %2; return %3:f16[a,b] }"
    ptx = compile_ptx(parse(text))
    assert re.search(r"ld\.global\.v4\.(b|u)32", ptx)  # eight at once
    assert re.search(r"st\.global\.v4\.(b|u)32", ptx)
    text = (
        "f64[a,b] (f64[a,b], i64[b], u8[a,b], b1[a,b], i8[b]) { %5 = mul %0 %1; %6 = add %2 %4;"
        " %7 = where %3 %5 %6; return %7:f64[a,b], %7:i32[a,b], %7:u8[a,b], %3:b1[a,b] }"
    )
    assert "ld.global.v2.f64" in compile_ptx(parse(text))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_ptx_of_every_instruction(dtype: str, compile_ptx: Any) -> None:
    from graphopt.kernels.cuda import Form
    from graphopt.kernels.instructions import INSTRUCTIONS, Kind

    steps, outs = [], []
    for op, info in INSTRUCTIONS.items():
        if info.kind is Kind.MAP and op not in OF_CPUS | {"literal"}:
            args = " ".join(f"%{n}" for n in range(info.arity))
            steps.append(f"%{3 + len(steps)} = {op} {args}")
            outs.append(f"%{2 + len(steps)}:{dtype}[a]")
    inputs = ", ".join([f"{dtype}[a]"] * 3)
    text = f"{dtype}[a] ({inputs}) {{ {'; '.join(steps)}; return {', '.join(outs)} }}"
    assert "st.global" in compile_ptx(parse(text), form=Form())


def test_precise_kernels_fuse_nothing(compile_ptx: Any) -> None:
    text = "f32[a] (f32[a], f32[a], f32[a]) { %3 = mul %0 %1; %4 = sub %3 %2; return %4:f32[a] }"
    # Without .rn, the driver may fuse them.
    assert re.search(r"mul\.f32|fma\.rn\.f32", compile_ptx(parse(text)))
    precise = compile_ptx(parse("precise " + text))
    assert "mul.rn.f32" in precise
    assert not re.search(r"\b(mul|add|sub)\.f32|fma\.rn\.f32", precise)


def test_ptx_that_compares_with_the_largest_fuses_nothing(compile_ptx: Any) -> None:
    # Else the loop that looks for it may round otherwise than the one that compares.
    head = "f32[a|b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = add %2 %0; "
    largest = parse(head + "%4 = reduce_max %3; return %4:f32[a] }")
    gradient = differentiate(largest).spec
    assert gradient is not None
    for spec in (largest, gradient):
        assert "fma.rn.f32" not in compile_ptx(spec)
    assert "fma.rn.f32" in compile_ptx(parse(head + "%4 = reduce_sum %3; return %4:f32[a] }"))
