"""Compiles specs for CPUs: numba makes LLVM IR of the emitted source, LLVM an object file.

The object file needs nothing of numba: it is kept on disk and loaded by LLVM alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from llvmlite import ir
from numba import types
from numba.core import cgutils, compiler, cpu
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from graphopt.errors import GraphoptError
from graphopt.kernels.emit.columns import emit_columns
from graphopt.kernels.emit.cpu import ITEM_SIZE, TOGETHER, emit_cpu, emit_piece, storage
from graphopt.kernels.emit.schedule import schedule
from graphopt.kernels.interleave import Interleaving, interleaved
from graphopt.kernels.library import SYMBOL
from graphopt.kernels.machine import processor, target_machine
from graphopt.kernels.prefetch import with_prefetches
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.vecmath import float32, float64
from graphopt.kernels.vecmath import function as vecmath
from graphopt.kernels.vecmath.elementary import Format
from graphopt.kernels.vecmath.intrinsics import (
    Value,
    copysign,
    fabs,
    kernel_function,
    select,
    trunc,
)

_NUMBA = {"float32": types.float32, "float64": types.float64}
_IR = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_HALF = ir.HalfType()
_INTEGERS = {"int8": 8, "uint8": 8, "bool": 8, "int32": 32, "int64": 64}
_UNSIGNED = ("uint8", "bool")
#: Of 4 vectors with more operands some would have to be kept in memory; an LSTM's cell has 11.
_FEW_OPERANDS = 12

_VECMATH = {
    "abs": "abs",
    "ceil": "ceil",
    "cbrt": "cbrt",
    "cos": "cos",
    "erf": "erf",
    "exp": "exp",
    "expm1": "expm1",
    "floor": "floor",
    "log": "log",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
    "max": "maximum",
    "min": "minimum",
    "pow": "pow",
    "rcbrt": "rcbrt",
    "rint": "rint",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sin": "sin",
    "softplus": "softplus",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "trunc": "trunc",
}
#: Functions that the C library computes, one element at a time, by its name for them.
_LIBM = {
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "cosh": "cosh",
    "gamma": "tgamma",
    "gammaln": "lgamma",
    "hypot": "hypot",
    "sinh": "sinh",
    "tan": "tan",
}


def compile_object(
    spec: KernelSpec, *, index: bool = False, piece: bool = False
) -> tuple[bytes, int]:
    """The object file of an expanded, collapsed spec for this CPU, and its scratch rows.

    Args:
        spec: what is compiled.
        index: whether operands may have numbers of rows (:mod:`graphopt.kernels.emit.cpu`).
        piece: whether it is called for a vector at a time.
    """
    if spec.columns:
        source, waiting = emit_columns(spec)
        text = _to_ir(source, spec, waiting=waiting, groups=(), at_once=1)
        return _compiled(text), len(schedule(spec).scratch)
    # Rows with numbers are those of recurrences, a few vectors long: their ends matter.
    groups = _groups(spec) if index and _vector_bytes() else ()
    if piece:
        source, scratch = emit_piece(spec), 0
    else:
        source, scratch = emit_cpu(spec, index=index, groups=groups)
    text = _to_ir(source, spec, groups=groups, at_once=1 if piece else _vectors_at_once(spec))
    if not (index or piece):  # else rows lie in the cache, or anywhere
        text = with_prefetches(text, _streams(spec))
    return _compiled(text), scratch


def _compiled(text: str) -> bytes:
    """The object file of LLVM IR."""
    return bytes(target_machine().emit_object(llvm.parse_assembly(text)))


def _streams(spec: KernelSpec) -> set[int]:
    """Numbers of the operands with an element for each of the space, inputs first."""
    every = set(range(spec.rank))
    operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
    return {number for number, operand in enumerate(operands) if set(operand.covers) == every}


def _to_ir(
    source: str,
    spec: KernelSpec,
    *,
    groups: tuple[int, ...],
    at_once: int,
    waiting: Sequence[str] = (),
) -> str:
    """Optimised LLVM IR of the emitted function, under the name `SYMBOL`."""
    scope: dict[str, Any] = _functions(spec, waiting)
    scope["interleaved"] = interleaved(at_once)
    for count in groups:
        scope[f"interleaved{count}"] = interleaved(count // _lanes(spec))
    scope["by_masks"] = interleaved(1, masks=True)
    exec(compile(source, "<kernel>", "exec"), scope)  # the source is ours: emit_cpu wrote it
    flags = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    flags.nrt = False
    flags.no_compile = True  # what runs is made of the IR, below
    # Products may be fused into sums; nothing may be assumed about NaN, infinities and zeros.
    flags.fastmath = cpu.FastMathOptions(False if spec.precise else {"contract"})
    addresses = types.CPointer(types.int64)
    arguments = (addresses, addresses, types.int64, types.int64, types.int64)
    try:
        compiled = compiler.compile_extra(
            cpu_target.typing_context,
            cpu_target.target_context,
            scope["kernel"],
            arguments,
            types.void,
            flags,
            {},
            pipeline_class=Interleaving,
        )
    except NumbaError as error:
        raise GraphoptError(f"numba does not compile the kernel {spec}: {error}") from error
    with global_compiler_lock:
        compiled.library.finalize()
    text: str = compiled.library.get_llvm_str()
    return text.replace(compiled.fndesc.llvm_func_name, SYMBOL)


def _functions(spec: KernelSpec, waiting: Sequence[str]) -> dict[str, Any]:
    """What the source calls; values that wait in memory overlap with nothing."""
    dtype, precise = spec.dtype, spec.precise
    scope: dict[str, Any] = {
        "inf": math.inf,
        "nan": math.nan,
        "number": _NUMBA[dtype],
    }
    last = len(spec.inputs) + len(spec.outputs)
    count = last + 2 + len(waiting)
    for number, stored in enumerate(storage(spec)):
        scope[f"load{number}"] = _loader(stored, dtype, number, count)
        scope[f"store{number}"] = _storer(stored, dtype, number, count)
        scope[f"load_rest{number}"] = _loader(dtype, dtype, last + 1, count)
        scope[f"store_rest{number}"] = _storer(dtype, dtype, last + 1, count)
    for place, name in enumerate(waiting, last + 2):
        scope[f"load_{name}"] = _loader(dtype, dtype, place, count)
        scope[f"store_{name}"] = _storer(dtype, dtype, place, count)
    scope["room"] = _room(dtype, TOGETHER * last)
    scope["prefetch"] = _prefetch()
    scope["row_of"] = _row_of()
    scope["load_kept"] = _loader(dtype, dtype, last, count)
    scope["store_kept"] = _storer(dtype, dtype, last, count)
    for step in spec.body:
        scope.setdefault(f"{step.op}_", _instruction(step.op, dtype, precise))
        if step.op.startswith("reduce_"):
            scope[step.op] = _reducer(step.op, dtype)
    scope.setdefault("pow_", _instruction("pow", dtype, precise))
    scope["reduce_sum"] = _reducer("reduce_sum", dtype)
    return scope


def _vectors_at_once(spec: KernelSpec) -> int:
    """How many vectors of a plain loop are computed together, which have to share the registers."""
    _, features = processor()
    has_many = "+avx512f" in features or "+neon" in features  # 32 registers and not 16
    return 4 if has_many and len(spec.inputs) + len(spec.outputs) <= _FEW_OPERANDS else 2


def _groups(spec: KernelSpec) -> tuple[int, ...]:
    """How many elements of a row are computed together: several vectors, then fewer."""
    counts = (count for count in (4, 2) if count <= _vectors_at_once(spec))
    return tuple(count * _lanes(spec) for count in counts)


def _lanes(spec: KernelSpec) -> int:
    """Elements of a vector."""
    return _vector_bytes() // ITEM_SIZE[spec.dtype]


def _vector_bytes() -> int:
    """Of a vector that can leave elements out; 0 where there are none."""
    _, features = processor()
    return 64 if "+avx512f" in features else 32 if "+avx2" in features else 0


@cache
def _instruction(op: str, dtype: str, precise: bool) -> Any:
    if op in _VECMATH:
        return vecmath(_VECMATH[op], dtype, precise)
    if op in _LIBM:
        return kernel_function(op, dtype, _library_call(_LIBM[op], _ARITY.get(op, 1)))
    emit = _DIRECT.get(op)
    return None if emit is None else kernel_function(op, dtype, emit)


_ARITY = {"hypot": 2}


def _library_call(name: str, arity: int) -> Callable[..., Value]:
    def apply(*args: Value) -> Value:
        kind = args[0].ir.type
        symbol = name + ("f" if kind == ir.FloatType() else "")
        module = args[0].builder.module
        known = module.globals.get(symbol)
        function = known or ir.Function(module, ir.FunctionType(kind, [kind] * arity), symbol)
        function.attributes.add("nounwind")
        return Value(args[0].builder, args[0].builder.call(function, [a.ir for a in args]))

    def one(x: Value) -> Value:
        return apply(x)

    def two(x: Value, y: Value) -> Value:
        return apply(x, y)

    return one if arity == 1 else two


def _truth(condition: Value, like: Value) -> Value:
    return select(condition, like.like(1.0), like.like(0.0))


def _is_true(x: Value) -> Value:
    # Unordered: NaN counts as true, as in C.
    zero = x.like(0.0).ir
    return Value(x.builder, x.builder.fcmp_unordered("!=", x.ir, zero, flags=("contract",)))


def _compare(sign: str) -> Callable[[Value, Value], Value]:
    def compare(x: Value, y: Value) -> Value:
        check = x.builder.fcmp_unordered if sign == "!=" else x.builder.fcmp_ordered
        return _truth(Value(x.builder, check(sign, x.ir, y.ir, flags=("contract",))), x)

    return compare


def _round(x: Value) -> Value:
    """The nearest integer, halves away from zero."""
    whole = trunc(x)
    return select(fabs(x - whole) >= 0.5, whole + copysign(x.like(1.0), x), whole)


def _sign(x: Value) -> Value:
    return select(x > 0.0, x.like(1.0), select(x < 0.0, x.like(-1.0), x * 0.0))


def _half(x: Value) -> Value:
    dtype = "float32" if x.ir.type == ir.FloatType() else "float64"
    rounded = _converted(x.builder, x.ir, dtype, "float16")
    return Value(x.builder, _converted(x.builder, rounded, "float16", dtype))


def _relu(x: Value) -> Value:
    return select(x <= 0.0, x.like(0.0), x)


def _one_plus_erf(x: Value) -> Value:
    if x.ir.type == ir.FloatType():
        return float32.one_plus_erf(x)
    return float64.FORMAT.erf(x) + 1.0


def _format_of(x: Value) -> Format:
    return float32.FORMAT if x.ir.type == ir.FloatType() else float64.FORMAT


def _exp_nonpositive(x: Value) -> Value:
    return _format_of(x).exp_nonpositive(x)


def _sigmoid_times_tanh(x: Value, y: Value) -> Value:
    return _format_of(x).sigmoid_times_tanh(x, y)


def _where(condition: Value, x: Value, y: Value) -> Value:
    return select(_is_true(condition), x, y)


def _recip(x: Value) -> Value:
    return Value(x.builder, x.builder.fdiv(x.like(1.0).ir, x.ir))


def _mod(x: Value, y: Value) -> Value:
    """The remainder with the divisor's sign, as Python's, and 0 for the divisor 0; in float64."""
    a, b = (v if v.ir.type == ir.DoubleType() else v.widened() for v in (x, y))
    rest = Value(a.builder, a.builder.frem(a.ir, b.ir))
    zero = a.like(0.0)
    opposed = (rest < zero) ^ (b < zero)
    rest = select(rest.equals(zero), zero, select(opposed, rest + b, rest))
    rest = select(b.equals(zero), zero, rest)
    return rest if x.ir.type == ir.DoubleType() else rest.narrowed()


def _not(x: Value) -> Value:
    return select(_is_true(x), x.like(0.0), x.like(1.0))


def _and(x: Value, y: Value) -> Value:
    return select(_is_true(x), _truth(_is_true(y), x), x.like(0.0))


def _or(x: Value, y: Value) -> Value:
    return select(_is_true(x), x.like(1.0), _truth(_is_true(y), x))


def _xor(x: Value, y: Value) -> Value:
    return _truth(_is_true(x) ^ _is_true(y), x)


_DIRECT: dict[str, Callable[..., Value]] = {
    "and": _and,
    "eq": _compare("=="),
    "exp_nonpositive": _exp_nonpositive,
    "ge": _compare(">="),
    "gt": _compare(">"),
    "half": _half,
    "le": _compare("<="),
    "lt": _compare("<"),
    "mod": _mod,
    "ne": _compare("!="),
    "not": _not,
    "one_plus_erf": _one_plus_erf,
    "one_plus_erf_by": float32.one_plus_erf_by,
    "or": _or,
    "recip": _recip,
    "relu": _relu,
    "round": _round,
    "sigmoid_times_tanh": _sigmoid_times_tanh,
    "sign": _sign,
    "where": _where,
    "xor": _xor,
}


@cache
def _reducer(op: str, dtype: str) -> Any:
    return kernel_function(op, dtype, _REDUCERS[op])


def _any_order(operation: str) -> Callable[[Value, Value], Value]:
    """Addition or multiplication that the vectoriser may reorder, which the rest may not be."""

    def combine(x: Value, y: Value) -> Value:
        made = getattr(x.builder, operation)(x.ir, y.ir, flags=("reassoc", "contract"))
        return Value(x.builder, made)

    return combine


def _extreme(name: str, *allowed: str) -> Callable[[Value, Value], Value]:
    """llvm.maximum or llvm.minimum: NaN goes through, either of two zeros may come out.

    ``nnan`` leaves it to the processor what becomes of NaN, and makes one instruction of three.
    """

    def combine(x: Value, y: Value) -> Value:
        kind = x.ir.type
        signature = ir.FunctionType(kind, [kind, kind])
        function = x.builder.module.declare_intrinsic(name, (kind,), signature)
        return Value(x.builder, x.builder.call(function, [x.ir, y.ir], fastmath=("nsz", *allowed)))

    return combine


_REDUCERS = {
    "reduce_sum": _any_order("fadd"),
    "reduce_prod": _any_order("fmul"),
    "reduce_max": _extreme("llvm.maximum"),
    "reduce_max_number": _extreme("llvm.maxnum", "nnan"),
    "reduce_min": _extreme("llvm.minimum"),
}


def _scopes(module: Any, place: int, count: int) -> tuple[Any, Any]:
    """Alias metadata: scope ``place`` of ``count``, and all others.

    Tells LLVM that an output overlaps with nothing else, so that it vectorises without checking.
    """
    domain = module.add_metadata(["graphopt"])
    scopes = [module.add_metadata([f"graphopt.{i}", domain]) for i in range(count)]
    others = [scope for i, scope in enumerate(scopes) if i != place]
    return module.add_metadata([scopes[place]]), module.add_metadata(others)


def _stored_type(dtype: str) -> Any:
    if dtype == "float16":
        return _HALF
    return ir.IntType(_INTEGERS[dtype]) if dtype in _INTEGERS else _IR[dtype]


def _converted(builder: Any, value: Any, source: str, target: str) -> Any:
    """A float of another size, one step at a time: processors know no other way."""
    sizes = ("float16", "float32", "float64")
    kinds = (_HALF, _IR["float32"], _IR["float64"])
    at, to = sizes.index(source), sizes.index(target)
    while at < to:
        at += 1
        value = builder.fpext(value, kinds[at])
    while at > to:
        at -= 1
        value = builder.fptrunc(value, kinds[at])
    return value


def _access(builder: Any, address: Any, index: Any, dtype: str) -> Any:
    kind = _stored_type(dtype)
    return builder.gep(builder.inttoptr(address, kind.as_pointer()), [index])


def _mark(instruction: Any, builder: Any, place: int, count: int) -> None:
    scope, others = _scopes(builder.module, place, count)
    instruction.set_metadata("alias.scope", scope)
    instruction.set_metadata("noalias", others)


@cache
def _prefetch() -> Any:
    """A hint that memory will be read; of any address, as it never faults."""

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), signature)
        address = builder.inttoptr(builder.add(args[0], args[1]), pointer)
        builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    @intrinsic
    def prefetch(_context, address, offset):  # type: ignore[no-untyped-def]
        return types.void(types.int64, types.int64), generate

    return prefetch


@cache
def _row_of() -> Any:
    """The number of row ``i``, which an index of address 0 leaves as it is."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        address, row = args
        found = cgutils.alloca_once_value(builder, row)
        with builder.if_then(builder.icmp_unsigned("!=", address, address.type(0))):
            number = builder.load(_access(builder, address, row, "int32"))
            builder.store(builder.sext(number, row.type), found)
        return builder.load(found)

    @intrinsic
    def row_of(_context, address, row):  # type: ignore[no-untyped-def]
        return types.int64(types.int64, types.int64), generate

    return row_of


@cache
def _room(dtype: str, count: int) -> Any:
    """Memory of a call, zeros at first."""

    def generate(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        found = cgutils.alloca_once(builder, ir.ArrayType(_IR[dtype], count), zfill=True)
        return builder.ptrtoint(found, ir.IntType(64))

    @intrinsic
    def room(_context):  # type: ignore[no-untyped-def]
        return types.int64(), generate

    return room


def _widen(function: Any) -> None:
    """Have LLVM use 512-bit vectors where there are any, which it else does on some of them only.

    Kernels run next to products that do, and half of their time are divisions and polynomials.
    """
    # llvmlite knows attributes without a value only.
    set.add(function.attributes, '"prefer-vector-width"="512"')


@cache
def _loader(stored: str, dtype: str, place: int, count: int) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = builder.load(_access(builder, args[0], args[1], stored))
        _mark(value, builder, place, count)
        target = _IR[dtype]
        if stored in _INTEGERS:
            convert = builder.uitofp if stored in _UNSIGNED else builder.sitofp
            return convert(value, target)
        return _converted(builder, value, stored, dtype)

    @intrinsic
    def load(_context, address, index):  # type: ignore[no-untyped-def]
        return _NUMBA[dtype](types.int64, types.int64), generate

    return load


@cache
def _storer(stored: str, dtype: str, place: int, count: int) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _widen(builder.function)
        value = args[2]
        if stored in _INTEGERS:
            convert = builder.fptoui if stored in _UNSIGNED else builder.fptosi
            value = convert(value, _stored_type(stored))
        else:
            value = _converted(builder, value, dtype, stored)
        made = builder.store(value, _access(builder, args[0], args[1], stored))
        _mark(made, builder, place, count)
        return context.get_dummy_value()

    @intrinsic
    def store(_context, address, index, value):  # type: ignore[no-untyped-def]
        return types.void(types.int64, types.int64, _NUMBA[dtype]), generate

    return store
