"""Compiles specs for NVIDIA GPUs with numba.cuda, and runs them on arrays on the device.

With ``NUMBA_ENABLE_CUDASIM=1`` set before numba is imported, numba interprets the kernels on the
CPU, on numpy arrays: slow, and enough to test what they compute.

Sums and products may be fused, as in kernels for CPUs; ``precise`` specs are not.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, cuda, types

from graphopt.errors import GraphoptError, InputError
from graphopt.kernels.emit.cpu import ITEM_SIZE, storage
from graphopt.kernels.emit.cuda import (
    emit_cuda,
    emit_finish,
    in_registers,
    is_flat,
    parts,
)
from graphopt.kernels.expand import collapse, expand
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.spec import KernelSpec, Operand

#: Whether numba interprets kernels on the CPU.
SIMULATED = bool(config.ENABLE_CUDASIM)

_WARP = 32
#: Threads of a block of the flat form.
_FLAT_THREADS = 256
#: Threads of a block whose warps are teams, and of blocks that are teams at most.
_TEAMS_THREADS = 64 if SIMULATED else 128
_MOST_THREADS = 64 if SIMULATED else 1024
#: Chunks that a thread may hold: more would not fit in its registers.
_MOST_CHUNKS_OF_WARP = 8
_MOST_CHUNKS = 4
#: Blocks in flight on one multiprocessor, for grids that are filled once.
_BLOCKS_PER_PROCESSOR = 8
#: Bytes that one access reads or writes at most.
_ACCESS = 16

_NUMBA = {"float32": types.float32, "float64": types.float64}
_IR = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "float16": ir.HalfType()}
_INTEGERS = {"int8": 8, "uint8": 8, "bool": 8, "int32": 32, "int64": 64}
_UNSIGNED = ("uint8", "bool")

#: Functions of libdevice by their names there, without the ending of those in float32.
_LIBDEVICE = {
    "abs": "fabs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "cbrt": "cbrt",
    "ceil": "ceil",
    "cos": "cos",
    "cosh": "cosh",
    "erf": "erf",
    "exp": "exp",
    "expm1": "expm1",
    "floor": "floor",
    "gamma": "tgamma",
    "gammaln": "lgamma",
    "hypot": "hypot",
    "log": "log",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
    "pow": "pow",
    "rcbrt": "rcbrt",
    "rint": "rint",
    "round": "round",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
    "trunc": "trunc",
}

#: Instructions made of others, and what the emitted source calls besides; for both targets.
_SOURCE = """\
def recip_(x):
    return ONE / x

def sigmoid_(x):
    # exp of what is not positive: it cannot overflow, and small results keep their bits.
    small = exp_(-abs_(x))
    return (ONE if x >= ZERO else small) / (ONE + small)

def softplus_(x):
    return (x if x > ZERO else ZERO) + log1p_(exp_(-abs_(x)))

def sign_(x):
    return ONE if x > ZERO else (-ONE if x < ZERO else x * ZERO)

def relu_(x):
    return ZERO if x <= ZERO else x

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
    if rest == 0.0:
        return ZERO
    return number(rest + b if (rest < 0.0) != (b < 0.0) else rest)

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

_ON_DEVICE_SOURCE = """\
def shuffle(v, mask):
    return cuda.shfl_xor_sync(0xffffffff, v, mask)

def shared_by_warps():
    return cuda.shared.array(32, number)

def shared_by_threads():
    return cuda.shared.array(1024, number)
"""


# --- what the source calls, on the device ---------------------------------------------------------


def _device_scope(dtype: str) -> dict[str, Any]:
    from numba.cuda import libdevice

    ending = "f" if dtype == "float32" else ""
    scope: dict[str, Any] = {
        f"{op}_": getattr(libdevice, name + ending) for op, name in _LIBDEVICE.items()
    }
    # Never fused, unlike the operators.
    scope["add_"] = libdevice.fadd_rn if ending else libdevice.dadd_rn
    scope["mul_"] = libdevice.fmul_rn if ending else libdevice.dmul_rn
    return scope | {
        "number": _NUMBA[dtype],
        "wide": types.int64,
        "double": types.float64,
        "fmod": libdevice.fmod,
        "half_": _half(dtype),
        "quotient": _quotient(),
    }


def _intrinsic(function: Callable[..., Any]) -> Any:
    from numba.cuda.extending import intrinsic

    return intrinsic(function)


@cache
def _quotient() -> Any:
    """Of numbers that are not negative; NVVM divides in 32 bits where both fit."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.udiv(*args)

    def quotient(_context, a, b):  # type: ignore[no-untyped-def]
        return types.int64(types.int64, types.int64), generate

    return _intrinsic(quotient)


@cache
def _half(dtype: str) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.fpext(builder.fptrunc(args[0], _IR["float16"]), _IR[dtype])

    def half(_context, x):  # type: ignore[no-untyped-def]
        return _NUMBA[dtype](_NUMBA[dtype]), generate

    return _intrinsic(half)


def _stored(dtype: str) -> Any:
    return ir.IntType(_INTEGERS[dtype]) if dtype in _INTEGERS else _IR[dtype]


def _access(builder: Any, address: Any, index: Any, dtype: str, width: int) -> tuple[Any, Any, int]:
    """A pointer to ``width`` elements, the vector to access there, and its alignment.

    Elements of less than four bytes travel in words, which NVVM does not do by itself.
    """
    one, size = _stored(dtype), ITEM_SIZE[dtype]
    # In the global address space, where accesses need no look which space it is.
    place = builder.gep(builder.inttoptr(address, one.as_pointer(1)), [index])
    count = width * size
    if width == 1:
        kind = one
    elif size < 4 and count % 4 == 0:
        kind = ir.IntType(32) if count == 4 else ir.VectorType(ir.IntType(32), count // 4)
    else:
        kind = ir.VectorType(one, width)
    return builder.bitcast(place, kind.as_pointer(1)), kind, min(count, _ACCESS)


def _widened(builder: Any, value: Any, stored: str, dtype: str) -> Any:
    if stored in _INTEGERS:
        convert = builder.uitofp if stored in _UNSIGNED else builder.sitofp
        return convert(value, _IR[dtype])
    return _converted(builder, value, stored, dtype)


def _narrowed(builder: Any, value: Any, dtype: str, stored: str) -> Any:
    if stored in _INTEGERS:
        convert = builder.fptoui if stored in _UNSIGNED else builder.fptosi
        return convert(value, _stored(stored))
    return _converted(builder, value, dtype, stored)


def _converted(builder: Any, value: Any, source: str, target: str) -> Any:
    sizes = ITEM_SIZE[source], ITEM_SIZE[target]
    if sizes[0] == sizes[1]:
        return value
    convert = builder.fpext if sizes[0] < sizes[1] else builder.fptrunc
    return convert(value, _IR[target])


@cache
def _loader(stored: str, dtype: str, width: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, _, alignment = _access(builder, args[0], args[1], stored, width)
        found = builder.load(pointer)
        found.align = alignment
        if width == 1:
            return _widened(builder, found, stored, dtype)
        vector = builder.bitcast(found, ir.VectorType(_stored(stored), width))
        values = [
            builder.extract_element(vector, ir.Constant(ir.IntType(32), k)) for k in range(width)
        ]
        values = [_widened(builder, value, stored, dtype) for value in values]
        return context.make_tuple(builder, signature.return_type, values)

    def load(_context, address, index):  # type: ignore[no-untyped-def]
        number = _NUMBA[dtype]
        returned = number if width == 1 else types.UniTuple(number, width)
        return returned(types.int64, types.int64), generate

    return _intrinsic(load)


@cache
def _storer(stored: str, dtype: str, width: int) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer, kind, alignment = _access(builder, args[0], args[1], stored, width)
        values = [_narrowed(builder, value, dtype, stored) for value in args[2:]]
        whole = values[0]
        if width > 1:
            whole = ir.Constant(ir.VectorType(_stored(stored), width), ir.Undefined)
            for k, value in enumerate(values):
                whole = builder.insert_element(whole, value, ir.Constant(ir.IntType(32), k))
            whole = builder.bitcast(whole, kind)
        builder.store(whole, pointer).align = alignment
        return context.get_dummy_value()

    signature = types.void(types.int64, types.int64, *[_NUMBA[dtype]] * width)
    names = ", ".join(f"v{k}" for k in range(width))
    scope: dict[str, Any] = {"made": (signature, generate)}
    # numba wants to see a parameter for each value.
    exec(f"def store(context, address, index, {names}):\n    return made", scope)
    return _intrinsic(scope["store"])


# --- what the source calls, in the simulator ------------------------------------------------------


class _Swaps:
    """Shuffles between the simulator's threads, which it has not: a meeting point per warp."""

    def __init__(self) -> None:
        self._meetings: dict[int, threading.Barrier] = {}
        self._values: dict[tuple[int, int], list[Any]] = {}
        self._lock = threading.Lock()

    def shuffle(self, value: Any, mask: int) -> Any:
        thread: Any = threading.current_thread()
        # The simulator keeps the number of a thread in its block on its thread object.
        warp, lane = divmod(thread.thread_id, _WARP)
        # Two lists in turn: who has not read yet is waited for before the list is used again.
        turn = thread.graphopt_turn = 1 - getattr(thread, "graphopt_turn", 0)
        with self._lock:
            meeting = self._meetings.setdefault(warp, threading.Barrier(_WARP))
            values = self._values.setdefault((warp, turn), [None] * _WARP)
        values[lane] = value
        meeting.wait(60)
        return values[lane ^ mask]


def _simulated_scope(dtype: str) -> dict[str, Any]:
    number = np.dtype(dtype).type
    # Allocated here because the simulator may give each thread an array of its own.
    kept = np.empty(1024, dtype)
    functions: dict[str, Callable[..., Any]] = {
        op: getattr(np, op)
        for op in _LIBDEVICE
        if op not in ("erf", "gamma", "gammaln", "pow", "rcbrt", "round", "rsqrt")
    }
    functions |= {
        "erf": math.erf,
        "gamma": _gamma,
        "gammaln": lambda x: math.inf if x <= 0 and x == math.floor(x) else math.lgamma(x),
        "pow": np.power,
        "rcbrt": lambda x: 1 / np.cbrt(x),
        "round": lambda x: np.trunc(x) + np.copysign(abs(x - np.trunc(x)) >= 0.5, x),
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "half": np.float16,
        "add": np.add,
        "mul": np.multiply,
    }
    return {f"{op}_": _rounded(f, number) for op, f in functions.items()} | {
        "number": number,
        "wide": int,
        "double": np.float64,
        "fmod": np.fmod,
        "quotient": lambda a, b: a // b,
        "shuffle": _Swaps().shuffle,
        "shared_by_warps": lambda: kept,
        "shared_by_threads": lambda: kept,
    }


def _rounded(function: Callable[..., Any], number: Any) -> Callable[..., Any]:
    return lambda *args: number(function(*args))


def _gamma(x: float) -> float:
    if x == 0 or x == math.inf:
        return math.copysign(math.inf, x)
    if math.isnan(x) or x == -math.inf or (x < 0 and float(x).is_integer()):
        return math.nan
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf


def _simulated_loader(stored: str, dtype: str, width: int) -> Any:
    number = np.dtype(dtype).type

    def load(array: Any, index: int) -> Any:
        values = tuple(number(array[index + k]) for k in range(width))
        return values[0] if width == 1 else values

    return load


def _simulated_storer(stored: str, _dtype: str, width: int) -> Any:
    kind = np.dtype(stored).type

    def store(array: Any, index: int, *values: Any) -> None:
        for k, value in enumerate(values):
            array[index + k] = kind(value)

    return store


# --- compiling ------------------------------------------------------------------------------------


def _scope(dtype: str, stored: Sequence[str], width: int, *, block: bool) -> dict[str, Any]:
    """What emitted source calls."""
    scope = _simulated_scope(dtype) if SIMULATED else _device_scope(dtype)
    load, store = (_simulated_loader, _simulated_storer) if SIMULATED else (_loader, _storer)
    for number, kind in enumerate(stored):
        scope[f"load{number}"] = load(kind, dtype, 1)
        scope[f"store{number}"] = store(kind, dtype, 1)
        if width > 1:
            scope[f"loads{number}"] = load(kind, dtype, width)
            scope[f"stores{number}"] = store(kind, dtype, width)
    one = np.dtype(dtype).type
    scope |= {"cuda": cuda, "inf": math.inf, "nan": math.nan, "IS_BLOCK": block}
    scope |= {"ONE": one(1), "ZERO": one(0)}
    return scope


def _defined(scope: dict[str, Any], source: str) -> dict[str, Any]:
    """The scope with the functions of ``source``, those that are not kernels for the device."""
    before = set(scope)
    exec(compile(source, "<kernel>", "exec"), scope)  # the source is ours
    if not SIMULATED:
        for name in set(scope) - before - {"kernel", "finish", "fill", "__builtins__"}:
            scope[name] = cuda.jit(device=True, inline="always")(scope[name])
    return scope


def _function(spec: KernelSpec, width: int, chunks: int, *, block: bool) -> Any:
    """The Python function of a kernel, for numba to compile."""
    scope = _scope(spec.dtype, storage(spec), width, block=block)
    shared = _SOURCE if SIMULATED else _SOURCE + "\n" + _ON_DEVICE_SOURCE
    if spec.precise:
        shared += "\ndef sub_(x, y):\n    return add_(x, -y)\n"
    scope = _defined(scope, shared)
    return _defined(scope, emit_cuda(spec, width, chunks))["kernel"]


def _arguments(spec: KernelSpec) -> Any:
    count = len(spec.inputs) + len(spec.outputs) + spec.rank + (0 if is_flat(spec) else 4)
    return types.void(*[types.int64] * count)


@dataclass(frozen=True)
class Form:
    """How a kernel walks its rows (:mod:`graphopt.kernels.emit.cuda`).

    Attributes:
        width: elements read at once.
        chunks: how many times that a thread keeps; 0 for rows of any length.
        block: whether teams are blocks, or else warps.
    """

    width: int = 1
    chunks: int = 0
    block: bool = False


def compile_ptx(
    spec: KernelSpec,
    compute_capability: tuple[int, int] = (8, 0),
    *,
    backward: bool = False,
    form: Form | None = None,
) -> str:
    """The PTX of a kernel, without a GPU.

    Args:
        spec: the kernel.
        compute_capability: what to compile for.
        backward: compile the kernel of its gradients instead.
        form: by default the one for rows of 512 elements.

    Raises:
        GraphoptError: the kernel cannot be compiled.
    """
    prepared = _prepared(spec, backward)
    if form is None:
        extents = (512,) * prepared.rank
        form = _form(prepared, extents, _width(prepared, extents, aligned=True))[0]
    function = _function(prepared, form.width, form.chunks, block=form.block)
    try:
        text, _ = cuda.compile_ptx(function, _arguments(prepared), cc=compute_capability)
    except Exception as error:  # numba, NVVM and the search for it have no common base
        raise GraphoptError(f"numba does not compile the kernel {spec}: {error}") from error
    return str(text)


def _prepared(spec: KernelSpec, backward: bool) -> KernelSpec:
    """What is compiled for a spec."""
    return collapse(expand(_walked(spec, backward))).spec


def _walked(spec: KernelSpec, backward: bool) -> KernelSpec:
    walked = differentiate(spec).spec if backward else spec
    if walked is None:
        raise InputError("the kernel has no gradient")
    return walked


@cache
def _compiled(spec: KernelSpec, form: Form) -> Any:
    function = _function(spec, form.width, form.chunks, block=form.block)
    return cuda.jit(function) if SIMULATED else cuda.jit(_arguments(spec))(function)


@cache
def _helpers(dtype: str, stored: str) -> tuple[Any, Any]:
    """The kernels ``finish`` and ``fill`` for parts in ``dtype``."""
    scope = _scope(dtype, [dtype, stored], 1, block=False)
    scope = _defined(scope, _SOURCE if SIMULATED else _SOURCE + "\n" + _ON_DEVICE_SOURCE)
    scope = _defined(scope, emit_finish())
    if SIMULATED:
        return cuda.jit(scope["finish"]), cuda.jit(scope["fill"])
    finish = cuda.jit(types.void(*[types.int64] * 4))(scope["finish"])
    return finish, cuda.jit(types.void(*[types.int64] * 2))(scope["fill"])


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """How rows are dealt out, in the words of :mod:`graphopt.kernels.emit.cuda`."""

    threads: tuple[int, int]
    blocks: int
    slots: int
    per: int
    segments: int
    reach: int


@cache
def _processors() -> int:
    # In the simulator few, so that teams have several rows.
    return 1 if SIMULATED else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def _width(spec: KernelSpec, extents: Sequence[int], *, aligned: bool) -> int:
    """How many elements to read at once: 16 bytes of the widest array that fills the space."""
    if not aligned or not spec.rank:
        return 1
    row_axis = spec.rank - 1
    operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
    sizes = [
        ITEM_SIZE[kind]
        for kind, operand in zip(storage(spec), operands, strict=True)
        if row_axis in operand.covers
    ]
    width = min(max(_ACCESS // max(sizes, default=4), 4), 8)
    while width > 1 and (extents[row_axis] % width or extents[row_axis] < 4 * width):
        width //= 2
    return width if width >= 4 else 1


def _form(spec: KernelSpec, extents: Sequence[int], width: int) -> tuple[Form, int]:
    """The form of a kernel and the threads of a team."""
    if is_flat(spec):
        return Form(width), 1
    row = -(-extents[-1] // width)  # in chunks
    if not spec.inner:
        # Nothing needs whole rows; threads hold sums over rows if they stay on their columns.
        holds = all(spec.rank - 1 in r.operand.covers for r in spec.outputs if spec.summed(r))
        team = min(_WARP if SIMULATED else _TEAMS_THREADS, -(-max(row, 1) // _WARP) * _WARP)
        return Form(width, int(holds), block=True), team
    most = _MOST_CHUNKS_OF_WARP
    if any(spec.summed(result) for result in spec.outputs) or width > 4:
        most = _MOST_CHUNKS  # sums take registers as well
    if row <= _WARP * most and extents[-1] <= 1024:
        return Form(width, max(1, -(-row // _WARP))), _WARP
    for chunks in (2, _MOST_CHUNKS):
        threads = -(-row // (_WARP * chunks)) * _WARP
        if threads <= _MOST_THREADS // 2:
            return Form(width, chunks, block=True), threads
    return Form(width, 0, block=True), _MOST_THREADS // 2


def _deal(spec: KernelSpec, extents: Sequence[int], form: Form, team: int) -> _Work:
    rows, n = math.prod(extents[:-1]), extents[-1]
    reach = max(n, 1)
    wanted = _processors() * _BLOCKS_PER_PROCESSOR * max(1, _FLAT_THREADS // team)
    if not spec.inner and form.chunks:
        reach = team * form.chunks * form.width
    elif not spec.inner:
        # Few rows are cut, so that there is work for all.
        pieces = min(max(1, wanted // max(rows, 1)), max(1, n // (team * form.width * 4)))
        step = team * form.width
        reach = max(step, -(-n // (pieces * step)) * step)
    segments = max(1, -(-n // reach))
    slots = max(1, rows)
    shared = [
        math.prod(extents[axis] for axis in r.operand.covers)
        for p, r in enumerate(spec.outputs)
        if spec.summed(r) and parts(spec, p)[0]
    ]
    if shared:
        # Each slot has its parts: writing them should not take longer than reading the rest.
        room = max(1, math.prod(extents) // (4 * max(1, sum(shared))))
        slots = min(slots, max(1, wanted // segments), max(room, 1))
    per = -(-rows // slots)
    slots = max(1, -(-rows // per)) if per else 1
    in_block = 1 if form.block else _TEAMS_THREADS // _WARP
    teams = slots * segments
    return _Work((team, in_block), -(-teams // in_block), slots, per, segments, reach)


def run(
    spec: KernelSpec,
    arrays: Sequence[Any],
    *,
    outputs: Sequence[Any] | None = None,
    backward: bool = False,
    stream: Any = 0,
    extents: Sequence[int] | None = None,
) -> list[Any]:
    """The outputs of a kernel, or with ``backward`` those of the kernel of its gradients.

    Work is put on ``stream``; nothing waits for it.

    Args:
        spec: the forward kernel.
        arrays: C-contiguous arrays on the device, one per input of the kernel that runs: anything
            with ``__cuda_array_interface__``; in the simulator numpy arrays too.
        outputs: arrays to write to, of the same kinds; else new ones.
        backward: run ``differentiate(spec).spec`` instead.
        stream: of numba.
        extents: of the iteration space, where no input says an extent.

    Raises:
        InputError: an array does not fit the kernel.
    """
    walked = _walked(spec, backward)
    if len(arrays) != len(walked.inputs):
        raise InputError(f"the kernel reads {len(walked.inputs)} inputs, not {len(arrays)}")
    space = {} if extents is None else dict(enumerate(extents))
    places = [
        place_of(array, operand, space)
        for array, operand in zip(arrays, walked.inputs, strict=True)
    ]
    missing = [axis for axis in range(walked.rank) if axis not in space]
    if missing:
        raise InputError(f"no input tells the extent of axis {missing[0]}: give extents")
    if outputs is None:
        outputs = [_empty(result.operand, space, stream) for result in walked.outputs]
    if len(outputs) != len(walked.outputs):
        raise InputError(f"the kernel has {len(walked.outputs)} outputs, not {len(outputs)}")
    for array, result in zip(outputs, walked.outputs, strict=True):
        places.append(place_of(array, result.operand, space))
    _launch(walked, places, tuple(space[axis] for axis in range(walked.rank)), stream)
    return list(outputs)


def _empty(operand: Operand, space: dict[int, int], stream: Any) -> Any:
    shape = tuple(1 if axis is None else space[axis] for axis in operand.axes)
    return cuda.device_array(shape, np.dtype(operand.dtype), stream=stream)


def place_of(array: Any, operand: Operand, space: dict[int, int]) -> Any:
    """The address of an array, in the simulator the array, flat; notes its extents.

    Raises:
        InputError: the array is not as the operand says, or not C-contiguous.
    """
    if SIMULATED:
        found = getattr(array, "_ary", array)
        shape, dtype, contiguous = found.shape, found.dtype, found.flags.c_contiguous
        place = found.reshape(-1) if contiguous else None
    else:
        about = array.__cuda_array_interface__
        shape, dtype = tuple(about["shape"]), np.dtype(about["typestr"])
        contiguous = _is_contiguous(shape, about.get("strides"), dtype.itemsize)
        place = about["data"][0] or 0
    if str(dtype) != operand.dtype or len(shape) != len(operand.axes):
        raise InputError(f"an array of shape {shape} and {dtype} is not {operand}")
    if not contiguous:
        raise InputError(f"an array for {operand} is not C-contiguous")
    for extent, axis in zip(shape, operand.axes, strict=True):
        want = 1 if axis is None else space.setdefault(axis, extent)
        if extent != want:
            raise InputError(f"shape {shape} for {operand}: {extent} is not {want}")
    return place


def _is_contiguous(shape: Sequence[int], strides: Sequence[int] | None, size: int) -> bool:
    if strides is None or 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != size:
            return False
        size *= extent
    return True


@dataclass(frozen=True)
class _Sum:
    """An output that is summed over: its place among the operands, and its parts."""

    operand: int
    count: int
    size: int
    dtype: str
    zeroed: bool

    def has_parts(self, computed: str) -> bool:
        """Whether the parts are elsewhere than the output."""
        return self.count > 1 or self.dtype != computed


@dataclass(frozen=True)
class _Plan:
    """All that a launch needs to know but where the arrays are."""

    spec: KernelSpec
    kernel: Any
    blocks: int
    threads: Any
    numbers: tuple[int, ...]
    sums: tuple[_Sum, ...] = ()


@lru_cache(maxsize=4096)
def _plan(walked: KernelSpec, space: tuple[int, ...], aligned: bool) -> _Plan:
    collapsed = collapse(expand(walked))
    spec = collapsed.spec
    extents = [1] * spec.rank
    for axis, extent in enumerate(space):
        extents[collapsed.group[axis]] *= extent
    form, team = _form(spec, extents, _width(spec, extents, aligned=aligned))
    kernel = _compiled(spec, form)
    if is_flat(spec):
        chunks = math.prod(extents) // form.width
        threads = min(_FLAT_THREADS, -(-max(chunks, 1) // _WARP) * _WARP)
        blocks = min(-(-chunks // threads), _processors() * _BLOCKS_PER_PROCESSOR * 4)
        return _Plan(spec, kernel, blocks, threads, tuple(extents))
    work = _deal(spec, extents, form, team)
    sums = []
    for place, result in enumerate(spec.outputs):
        if spec.summed(result):
            size = math.prod(extents[axis] for axis in result.operand.covers)
            by_slot, by_segment = parts(spec, place)
            count = (work.slots if by_slot else 1) * (work.segments if by_segment else 1)
            zeroed = not in_registers(spec, place, form.chunks)
            sums.append(_Sum(len(spec.inputs) + place, count, size, result.operand.dtype, zeroed))
    numbers = (*extents, work.slots, work.per, work.segments, work.reach)
    return _Plan(spec, kernel, work.blocks, work.threads, numbers, tuple(sums))


def _launch(walked: KernelSpec, places: list[Any], space: tuple[int, ...], stream: Any) -> None:
    aligned = SIMULATED or all(place % _ACCESS == 0 for place in places)
    plan = _plan(walked, space, aligned)
    if not plan.blocks:
        return
    if not SIMULATED:
        if not plan.sums:
            plan.kernel[plan.blocks, plan.threads, stream](*places, *plan.numbers)
        else:
            with _workspaces_lock:  # the kernels of two launches must not alternate in one place
                _launch_sums(plan, places, stream)
        return
    with warnings.catch_warnings():
        # numpy warns of infinities; threads do not inherit np.errstate.
        warnings.simplefilter("ignore", RuntimeWarning)
        _launch_sums(plan, places, stream)


def _launch_sums(plan: _Plan, places: list[Any], stream: Any) -> None:
    dtype = plan.spec.dtype
    elsewhere = [total for total in plan.sums if total.has_parts(dtype)]
    arguments = list(places)
    sizes = [total.count * total.size for total in elsewhere]
    for total, at in zip(elsewhere, _workspace(sizes, dtype, stream), strict=True):
        arguments[total.operand] = at
    for total in plan.sums:
        size = total.count * total.size
        if size and total.zeroed:
            threads = _WARP if SIMULATED else _FLAT_THREADS
            blocks = min(-(-size // threads), _processors() * _BLOCKS_PER_PROCESSOR)
            _helpers(dtype, total.dtype)[1][blocks, threads, stream](arguments[total.operand], size)
    plan.kernel[plan.blocks, plan.threads, stream](*arguments, *plan.numbers)
    for total in elsewhere:
        if total.size:
            threads_of_finish = (_WARP, 2 if SIMULATED else 32)
            source, target = arguments[total.operand], places[total.operand]
            _helpers(dtype, total.dtype)[0][-(-total.size // _WARP), threads_of_finish, stream](
                source, target, total.count, total.size
            )


_workspaces: dict[tuple[Any, int], Any] = {}
_workspaces_lock = threading.Lock()


def _workspace(sizes: Sequence[int], dtype: str, stream: Any) -> list[Any]:
    """Memory for parts of the given numbers of elements, kept for the stream's next launch."""
    if SIMULATED:
        return [np.full(max(1, size), np.nan, dtype) for size in sizes]
    item = ITEM_SIZE[dtype]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size * item // 256) * 256)
    handle = getattr(stream, "handle", None) or 0
    key = (cuda.get_current_device().id, int(getattr(handle, "value", handle) or 0))
    kept = _workspaces.get(key)
    if kept is None or kept.size < starts[-1]:
        # What was there is freed when the work on it is done: freeing waits for the device.
        kept = _workspaces[key] = cuda.device_array(max(1, starts[-1]), np.uint8)
    base = kept.device_ctypes_pointer.value
    return [base + start for start in starts[:-1]]
