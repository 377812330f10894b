"""Lowering of emitted source: LLVM's code does what Python does with the same lines."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from graphopt.errors import GraphoptError
from graphopt.kernels import cpu_memory
from graphopt.kernels.library import link
from graphopt.kernels.lowering import LoopHint, lower
from graphopt.kernels.machine import target_machine

HEAD = "def kernel(pointers, strides, m, n, scratch):\n"
ELEMENTS = 64


def lines(*body: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in body)


def emitted(dtype: str) -> dict[str, Any]:
    """Functions of a source, for LLVM."""
    kind = ir.FloatType() if dtype == "float32" else ir.DoubleType()

    def place(builder: Any, index: Any) -> Any:
        base = builder.load(builder.function.args[0])
        return builder.gep(builder.inttoptr(base, kind.as_pointer()), [index])

    def load(builder: Any, args: Any) -> Any:
        return builder.load(place(builder, args[0]))

    def store(builder: Any, args: Any) -> None:
        builder.store(args[1], place(builder, args[0]))

    return {"load": load, "store": store, "hint": LoopHint(2)}


def by_llvm(source: str, dtype: str, m: int, n: int) -> Any:
    data = np.arange(ELEMENTS, dtype=dtype)
    module = lower(source, "f", dtype, emitted(dtype), contract=False)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    address = link(bytes(target_machine().emit_object(parsed)), "f")
    pointers, strides = (ctypes.c_int64 * 1)(data.ctypes.data), (ctypes.c_int64 * 2)(3, 5)
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
    signature(address)(ctypes.addressof(pointers), ctypes.addressof(strides), m, n, 11)
    return data


def by_python(source: str, dtype: str, m: int, n: int) -> Any:
    data = np.arange(ELEMENTS, dtype=dtype)
    scope = {
        "load": lambda index: data[index],
        "store": lambda index, value: data.__setitem__(index, value),
        "hint": lambda: None,
        "number": np.dtype(dtype).type,
        "inf": math.inf,
        "nan": math.nan,
    }
    exec(source, scope)
    scope["kernel"]([data.ctypes.data], [3, 5], m, n, 11)
    return data


SOURCES = {
    "empty ranges": lines("for i in range(m - m):", "    store(i, number(1.0))"),
    "nested loops": lines(
        "for i in range(m):",
        "    total = number(0.0)",
        "    for j in range(n):",
        "        total = total + load(i * n + j) * load(j)",
        "    store(i, total)",
    ),
    "bounds and steps": lines(
        "for j in range(2, n, 3):", "    store(j, load(j) - load(j + 1) / number(4.0))"
    ),
    "a loop's bound is read once": lines(
        "count = n", "for j in range(count):", "    count = count + 1", "store(0, number(count))"
    ),
    "conditions": lines(
        "for j in range(n):",
        "    if n > 4 and (j + 1) % 3 == 0:",
        "        if j != 5:",
        "            store(j, -load(j))",
        "    if j < 2:",
        "        pass",
    ),
    "what came before": lines(
        "v = load(1)", "for j in range(n):", "    v = v * load(2)", "store(0, v)"
    ),
    "integers": lines(
        "whole = n & -4",
        "rest = n - whole",
        "store(0, number(whole))",
        "store(1, number(rest))",
        "store(2, number(strides[1] * 4 + strides[0] + scratch))",
    ),
    "constants": lines(
        "store(0, number(inf))",
        "store(1, number(-inf))",
        "store(2, number(1e-05))",
        "store(3, number(-0.0))",
        "store(4, number(nan))",
    ),
    "hints": lines("for j in range(n):", "    hint()", "    store(j, load(j) + load(j))"),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SOURCES)
def test_it_does_what_python_does(name: str, dtype: str) -> None:
    for m, n in ((3, 7), (1, 0), (2, 16)):
        want = by_python(SOURCES[name], dtype, m, n)
        got = by_llvm(SOURCES[name], dtype, m, n)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_constants_beyond_float32_are_infinite() -> None:
    assert by_llvm(lines("store(0, number(-1e300))"), "float32", 1, 1)[0] == -math.inf


@pytest.mark.parametrize(
    "line",
    [
        "while n: pass",
        "x = [n]",
        "x = n if m else n",
        "a.b = n",
        "del n",
        "if n > 1: pass\n    else: pass",
        "x = hint()",
        "x = y = n",
        "for j in number(n): pass",
        "for j in range(start=n): pass",
        "x = 0 < n < m",
        "x = n <= m",
        "x = n // m",
        "x = n / m",
        "x = n or m",
        "x = n + load(0)",
        "x = load(0) > load(1)",
        "x = n + 0.5",
        "x = unknown(n)",
        "x = unknown",
        "load(index=n)",
    ],
)
def test_what_is_never_emitted_is_refused(line: str) -> None:
    with pytest.raises(GraphoptError, match="this is a bug"):
        lower(lines(line), "f", "float32", emitted("float32"), contract=True)


def test_products_are_fused_into_sums_only_where_allowed() -> None:
    source = lines("store(0, load(1) * load(2) + load(3))")
    allowed, exact = (
        str(lower(source, "f", "float32", emitted("float32"), contract=contract))
        for contract in (True, False)
    )
    assert "fmul contract" in allowed
    assert "fadd contract" in allowed
    assert "contract" not in exact


@pytest.mark.parametrize(
    ("hint", "wanted"),
    [
        (LoopHint(4), ["interleave.count", "i32 4"]),
        (LoopHint(1, masks=True), ["vectorize.predicate.enable", "i1 1"]),
        (LoopHint(1, vectors=False), ["vectorize.width", "i32 1"]),
    ],
    ids=str,
)
def test_hints_are_on_the_loop_they_begin(hint: LoopHint, wanted: list[str]) -> None:
    source = lines("for i in range(m):", "    for j in range(n):", "        hint()", "        pass")
    text = str(lower(source, "f", "float32", {"hint": hint}, contract=True))
    assert text.count("!llvm.loop") == 1
    assert all(part in text for part in wanted)


@pytest.mark.parametrize(
    ("features", "numbers", "emptied"),
    [
        ("+avx2", 11, None),
        ("+avx2", 12, "~{xmm15}"),
        ("+avx2,+avx512f", 23, None),
        ("+avx2,+avx512f", 24, "~{xmm31}"),
        ("+neon", 40, None),
    ],
)
def test_registers_are_emptied_of_many_constants(
    features: str, numbers: int, emptied: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_memory, "processor", lambda: ("", features))
    written = [f"store({i}, load({i}) * number({i}.5))" for i in range(numbers)]
    functions = emitted("float32") | {"forget": cpu_memory.forget}
    source = lines(*written, *written, "forget()")  # each number twice: it counts once
    text = str(lower(source, "f", "float32", functions, contract=True))
    assert ("asm" in text) == (emptied is not None)
    assert (emptied or "") in text
