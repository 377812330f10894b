"""Compiles specs for NVIDIA GPUs with numba.cuda: for the GPU at hand, or as PTX without any.

With ``NUMBA_ENABLE_CUDASIM=1`` set before numba is imported, numba interprets the kernels on the
CPU, on numpy arrays: slow, and enough to test what they compute.

Sums and products may be fused where they may in kernels for CPUs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numba
import numpy as np
from numba import config, cuda, types

from graphopt.errors import GraphoptError
from graphopt.kernels import cache as disk
from graphopt.kernels.cuda import device, simulated
from graphopt.kernels.emit.cpu import storage
from graphopt.kernels.emit.cuda import EXCHANGES, Form, emit_cuda, emit_finish, is_flat
from graphopt.kernels.rounding import rounds_alike
from graphopt.kernels.spec import KernelSpec

#: Whether numba interprets kernels on the CPU.
SIMULATED = bool(config.ENABLE_CUDASIM)

_WARP = 32
#: What a thread of the largest blocks that walk rows may take: with more they are not launched.
_REGISTERS = 128

#: Instructions made of others, and what the emitted source calls besides; for both targets.
_BOTH = """\
def recip_(x):
    return ONE / x

def ratio(x, y):
    return x / y

def sigmoid_(x):
    # exp of what is not positive: it cannot overflow, and small results keep their bits.
    small = exp_(-abs_(x))
    return ratio(ONE if x >= ZERO else small, ONE + small)

def softplus_(x):
    return (x if x > ZERO else ZERO) + log1p_(exp_(-abs_(x)))

def sign_(x):
    return ONE if x > ZERO else (-ONE if x < ZERO else ZERO)

def relu_(x):
    return ZERO if x <= ZERO else x

def relu_nan_(x):
    return relu_(x)

def max_(x, y):
    return x if x >= y or x != x else y

def min_(x, y):
    return x if x <= y or x != x else y

def mod_(x, y):
    a = double(x)
    b = double(y)
    if b == 0.0:
        return ZERO
    rest = fmod(a, b)
    if (a < 0.0) != (b < 0.0):
        rest = 0.0 if rest == 0.0 else rest + b
    return number(rest)

def where_(c, x, y):
    return x if c != ZERO else y

def eq_(x, y):
    return ONE if x == y else ZERO

def ne_(x, y):
    return ONE if x != y else ZERO

def lt_(x, y):
    return ONE if x < y else ZERO

def le_(x, y):
    return ONE if x <= y else ZERO

def gt_(x, y):
    return ONE if x > y else ZERO

def ge_(x, y):
    return ONE if x >= y else ZERO

def and_(x, y):
    return ONE if x != ZERO and y != ZERO else ZERO

def or_(x, y):
    return ONE if x != ZERO or y != ZERO else ZERO

def xor_(x, y):
    return ONE if (x != ZERO) != (y != ZERO) else ZERO

def not_(x):
    return ONE if x == ZERO else ZERO

def reduce_sum(x, y):
    return x + y

def reduce_prod(x, y):
    return x * y

def reduce_max(x, y):
    return x if x >= y or x != x else y

def reduce_min(x, y):
    return x if x <= y or x != x else y

def thread_number():
    return wide(cuda.blockIdx.x) * wide(cuda.blockDim.x) + wide(cuda.threadIdx.x)

def thread_count():
    return wide(cuda.gridDim.x) * wide(cuda.blockDim.x)

def team_number():
    # Warps of a block lie along y.
    return wide(cuda.blockIdx.x) * wide(cuda.blockDim.y) + wide(cuda.threadIdx.y)

def lane_number():
    return wide(cuda.threadIdx.x)

def lane_count():
    return wide(cuda.blockDim.x)
"""

_ON_DEVICE = """\
def shuffle(v, mask):
    return cuda.shfl_xor_sync(0xffffffff, v, mask)

def shared_by_warps():
    return cuda.shared.array(KEPT, number)

def shared_by_threads():
    return cuda.shared.array(1024, number)
"""
SOURCE = _BOTH if SIMULATED else _BOTH + "\n" + _ON_DEVICE
_UNFUSED = """
def sub_(x, y):
    return add_(x, -y)
"""
#: Of divisors that are neither tiny nor huge: within 2 units of the last place, in float32.
_FAST = """
def ratio(x, y):
    return fast_ratio(x, y)
"""


@dataclass(frozen=True)
class FusedKernel:
    """A kernel of a spec that is expanded and collapsed (:mod:`graphopt.kernels.expand`)."""

    spec: KernelSpec
    form: Form

    @property
    def registers(self) -> int | None:
        """The most that a thread may take, if blocks can be large."""
        return _REGISTERS if self.form.block else None

    def parameters(self) -> int:
        """How many numbers it takes: addresses of operands, extents, how rows are dealt out."""
        spec = self.spec
        dealt = 1 if spec.columns else 0 if is_flat(spec) else 4
        return len(spec.inputs) + len(spec.outputs) + spec.rank + dealt

    def function(self) -> Any:
        """The Python function, for numba to compile."""
        shared = SOURCE
        if rounds_alike(self.spec):
            shared += _UNFUSED
        elif self.spec.dtype == "float32" and not SIMULATED:
            shared += _FAST
        scope = defined(scope_of(self.spec.dtype, storage(self.spec), self.form.width), shared)
        return defined(scope, emit_cuda(self.spec, self.form))["kernel"]


@dataclass(frozen=True)
class PartsKernel:
    """Zeroes or adds up parts of sums: ``fill`` or ``finish`` (:mod:`graphopt.kernels.emit.cuda`).

    Attributes:
        name: which of them.
        dtype: of parts.
        stored: of the sums.
    """

    name: str
    dtype: str
    stored: str

    @property
    def registers(self) -> int | None:
        """As of a :class:`FusedKernel`."""
        return None

    def parameters(self) -> int:
        """As of a :class:`FusedKernel`."""
        return 4 if self.name == "finish" else 2

    def function(self) -> Any:
        """As of a :class:`FusedKernel`."""
        scope = defined(scope_of(self.dtype, [self.dtype, self.stored], 1), SOURCE)
        return defined(scope, emit_finish())[self.name]


class Kernel(Hashable, Protocol):
    """What numba can compile; hashable, equal ones are compiled once. All parameters are int64."""

    @property
    def registers(self) -> int | None:
        """The most that a thread may take, if blocks can be large."""

    def parameters(self) -> int:
        """How many numbers it takes."""

    def function(self) -> Any:
        """The Python function."""


@cache
def compiled(kernel: Kernel) -> Any:
    """What numba launches on the GPU at hand, or simulates."""
    if SIMULATED:
        return cuda.jit(kernel.function())
    options = {} if kernel.registers is None else {"max_registers": kernel.registers}
    return cuda.jit(_signature(kernel), **options)(kernel.function())


def configured(kernel: Any, blocks: int, threads: Any, stream: Any) -> Any:
    """What puts a compiled kernel on a stream."""
    if SIMULATED:  # where it is the kernel itself, which knows how it was asked for last
        return kernel[blocks, threads, stream]
    return _configured(kernel, blocks, threads, stream)


@lru_cache(maxsize=128)  # as many as numba keeps
def _configured(kernel: Any, blocks: int, threads: Any, stream: Any) -> Any:
    with warnings.catch_warnings():
        # Small arrays need few blocks; that they leave the GPU idle is no news.
        warnings.filterwarnings("ignore", message=".*Grid size")
        return kernel[blocks, threads, stream]


@cache
def ptx(kernel: Kernel, compute_capability: tuple[int, int]) -> str:
    """The PTX of a kernel, with one entry; needs no GPU. Kept on the disk.

    Raises:
        GraphoptError: the kernel cannot be compiled.
    """
    name = disk.key_of("ptx", str(kernel), str(compute_capability), *_environment())
    stored = disk.load(name)
    if stored is not None:
        return stored.decode()
    text = _compiled_ptx(kernel, compute_capability)
    disk.store(name, text.encode())
    return text


def _compiled_ptx(kernel: Kernel, compute_capability: tuple[int, int]) -> str:
    try:
        text, _ = cuda.compile_ptx(kernel.function(), _signature(kernel), cc=compute_capability)
    except Exception as error:  # numba, NVVM and the search for it have no common base
        raise GraphoptError(f"numba does not compile {kernel}: {error}") from error
    return str(text)


@cache
def _environment() -> tuple[str, ...]:
    """What PTX depends on besides the kernel: our code, numba's, and NVVM, which a short one tells.

    Raises:
        GraphoptError: nothing can be compiled here.
    """
    kernels = Path(__file__).parents[1]
    ours = [kernels / name for name in ("expand.py", "instructions.py", "rounding.py")]
    ours += [*sorted(kernels.glob("cuda/*.py")), *sorted(kernels.glob("emit/**/*.py"))]
    known_to_all = (8, 0)  # of the NVVMs that numba takes
    short = _compiled_ptx(PartsKernel("fill", "float32", "float32"), known_to_all)
    return (disk.digest_of(ours), numba.__version__, _numba_cuda(), short)


def _numba_cuda() -> str:
    """The version of the package that numba.cuda comes from; empty where it is numba itself."""
    try:
        return version("numba-cuda")
    except PackageNotFoundError:
        return ""


@cache
def why_no_ptx() -> str | None:
    """Why numba cannot compile for GPUs here, or ``None`` if it can."""
    try:
        _environment()
    except (ImportError, GraphoptError) as error:
        return f"the extra [cuda] is needed to compile for GPUs: {error}"
    return None


def _signature(kernel: Kernel) -> Any:
    return types.void(*[types.int64] * kernel.parameters())


def scope_of(dtype: str, stored: Sequence[str], width: int) -> dict[str, Any]:
    """What emitted source calls, but for what :data:`SOURCE` defines."""
    here: Any = simulated if SIMULATED else device
    scope: dict[str, Any] = here.scope(dtype)
    for number, kind in enumerate(stored):
        scope[f"load{number}"] = here.loader(kind, dtype, 1)
        scope[f"store{number}"] = here.storer(kind, dtype, 1)
        if width > 1:
            scope[f"loads{number}"] = here.loader(kind, dtype, width)
            scope[f"stores{number}"] = here.storer(kind, dtype, width)
    one = np.dtype(dtype).type
    scope |= {"cuda": cuda, "inf": math.inf, "nan": math.nan, "KEPT": EXCHANGES * _WARP}
    scope |= {"ONE": one(1), "ZERO": one(0)}
    return scope


def defined(scope: dict[str, Any], source: str) -> dict[str, Any]:
    """The scope with the functions of ``source``, those that are not kernels for the device."""
    before = set(scope)
    exec(compile(source, "<kernel>", "exec"), scope)  # the source is ours
    if not SIMULATED:
        for name in set(scope) - before - {"kernel", "finish", "fill", "__builtins__"}:
            scope[name] = cuda.jit(device=True, inline="always")(scope[name])
    return scope
