"""Object files of kernels, loaded without LLVM."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import subprocess
import sys

import llvmlite.binding as llvm
import pytest

from graphopt.kernels import library
from graphopt.kernels.machine import target_machine
from graphopt.kernels.object_file import UnknownFormError, load
from tests.places import REPOSITORY

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not llvm.get_default_triple().startswith("x86_64"),
    reason="object files of other machines are left to LLVM",
)

CODE = """
@numbers = private constant [4 x double] [double 1.0, double 2.0, double 4.0, double 8.0]
@offset = private constant <8 x i32> <i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8>

define double @graphopt_kernel(double %x, i64 %at) nounwind {
  %inner = call double @twice(double %x)
  %gamma = call double @tgamma(double %inner)
  %place = getelementptr [4 x double], [4 x double]* @numbers, i64 0, i64 %at
  %number = load double, double* %place
  %result = fmul double %gamma, %number
  ret double %result
}

define internal double @twice(double %x) noinline nounwind {
  %y = fadd double %x, %x
  ret double %y
}

define void @add(<8 x i32>* %p) nounwind {
  %x = load <8 x i32>, <8 x i32>* %p, align 4
  %c = load <8 x i32>, <8 x i32>* @offset
  %y = add <8 x i32> %x, %c
  store <8 x i32> %y, <8 x i32>* %p, align 4
  ret void
}

declare double @tgamma(double)
"""


def compiled(text: str = CODE) -> bytes:
    target_machine()  # makes LLVM ready
    return bytes(target_machine().emit_object(llvm.parse_assembly(text)))


def test_constants_calls_and_functions_from_elsewhere() -> None:
    code = compiled()
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_int64)
    call = function(load(code, "graphopt_kernel"))
    for at in range(4):
        assert call(2.25, at) == pytest.approx(math.gamma(4.5) * 2**at)
    numbers = (ctypes.c_int32 * 8)(*range(8))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(load(code, "add"))(ctypes.addressof(numbers))
    assert list(numbers) == [2 * n + 1 for n in range(8)]


def test_each_is_a_copy_of_its_own() -> None:
    code = compiled()
    assert load(code, "graphopt_kernel") != load(code, "graphopt_kernel")


@pytest.mark.parametrize("size", [0, 3, 63, 64, 100, 200])
def test_what_is_cut_off(size: int) -> None:
    with pytest.raises(UnknownFormError):
        load(compiled()[:size], "graphopt_kernel")


def test_another_machine() -> None:
    code = bytearray(compiled())
    struct.pack_into("<H", code, 18, 183)  # AArch64
    with pytest.raises(UnknownFormError, match="no object file for x86-64"):
        load(bytes(code), "graphopt_kernel")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CODE, "it has no function 'other'"),
        (
            "declare double @graphopt_nowhere(double)\n"
            "define double @other(double %x) {\n"
            "  %y = call double @graphopt_nowhere(double %x)\n  ret double %y\n}",
            "there is no function 'graphopt_nowhere'",
        ),
        (
            "@environ = external global i64\n"
            "define i64 @other() {\n  %y = load i64, i64* @environ\n  ret i64 %y\n}",
            "reads numbers from elsewhere|relocation of kind",
        ),
    ],
)
def test_what_is_left_to_llvm(text: str, message: str) -> None:
    with pytest.raises(UnknownFormError, match=message):
        load(compiled(text), "other")


def test_llvm_loads_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_code: bytes, _name: str) -> int:
        raise UnknownFormError("anything")

    monkeypatch.setattr(library, "load", unknown)
    monkeypatch.setattr(library, "STATISTICS", library.Statistics())
    text = "define double @graphopt_kernel(double %x) nounwind { ret double %x }"
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
    assert function(library.link(compiled(text)))(4.5) == 4.5
    assert library.STATISTICS.by_llvm == 1


#: A net that has a kernel of its own, in inference and a step.
USE = """
import sys
import graphopt
import mxnet as mx
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.Dense(4, activation="tanh"), mx.gluon.nn.LayerNorm(), mx.gluon.nn.Dense(2))
net.initialize()
fast, x = graphopt.optimize(net), mx.nd.ones((3, 5))
fast(x).wait_to_read()
with mx.autograd.record():
    y = fast(x)
y.backward()
mx.nd.waitall()
from graphopt.kernels.library import STATISTICS
print(STATISTICS.compiled, STATISTICS.by_llvm)
print(*(name for name in ("llvmlite", "numba") if name in sys.modules))
"""


def test_a_process_that_compiles_nothing_loads_no_compiler() -> None:
    """Which takes 40 MB of memory, with a linker's 10."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", USE],
            cwd=REPOSITORY,
            env={**os.environ, "GRAPHOPT_COMPILERS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0"]
