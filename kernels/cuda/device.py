"""What the source of CUDA kernels calls on a GPU: functions of libdevice, and memory accesses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from graphopt.kernels.emit.cpu import ITEM_SIZE

#: Bytes that one access reads or writes at most.
ACCESS = 16

_NUMBA = {"float32": types.float32, "float64": types.float64}
_IR = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "float16": ir.HalfType()}
_INTEGERS = {"int8": 8, "uint8": 8, "bool": 8, "int32": 32, "int64": 64}
_UNSIGNED = ("uint8", "bool")

#: Functions of libdevice by their names there, without the ending of those in float32.
LIBDEVICE = {
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


def scope(dtype: str) -> dict[str, Any]:
    """What is called by name, for kernels that compute in ``dtype``."""
    from numba.cuda import libdevice

    ending = "f" if dtype == "float32" else ""
    found: dict[str, Any] = {
        f"{op}_": getattr(libdevice, name + ending) for op, name in LIBDEVICE.items()
    }
    # Never fused, unlike the operators.
    found["add_"] = libdevice.fadd_rn if ending else libdevice.dadd_rn
    found["mul_"] = libdevice.fmul_rn if ending else libdevice.dmul_rn
    return found | {
        "number": _NUMBA[dtype],
        "wide": types.int64,
        "double": types.float64,
        "fmod": libdevice.fmod,
        "half_": _half(dtype),
        "index": _index_loader(),
        "quotient": _quotient(64),
        "short_quotient": _quotient(32),
        "fast_ratio": libdevice.fast_fdividef,
    }


def _intrinsic(function: Callable[..., Any]) -> Any:
    from numba.cuda.extending import intrinsic

    return intrinsic(function)


@cache
def _quotient(bits: int) -> Any:
    """Of numbers that are not negative and fit; of 64 bits NVVM asks whether 32 would do."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        numbers = [builder.trunc(arg, ir.IntType(bits)) if bits < 64 else arg for arg in args]
        result = builder.udiv(*numbers)
        return builder.zext(result, ir.IntType(64)) if bits < 64 else result

    def quotient(_context, a, b):  # type: ignore[no-untyped-def]
        return types.int64(types.int64, types.int64), generate

    return _intrinsic(quotient)


@cache
def _index_loader() -> Any:
    """Reads one of the int32 at an address."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer, _, _ = _access(builder, args[0], args[1], "int32", 1)
        return builder.sext(builder.load(pointer), ir.IntType(64))

    def index(_context, address, at):  # type: ignore[no-untyped-def]
        return types.int64(types.int64, types.int64), generate

    return _intrinsic(index)


@cache
def _half(dtype: str) -> Any:
    # Opaque to NVVM, which else fuses a product that is rounded with the sum behind it.
    bits, letter = ("f32", "f") if dtype == "float32" else ("f64", "d")
    text = f"{{.reg .b16 h; cvt.rn.f16.{bits} h, $1; cvt.{bits}.f16 $0, h;}}"

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_IR[dtype], [_IR[dtype]])
        return builder.call(ir.InlineAsm(kind, text, f"={letter},{letter}"), args)

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
    return builder.bitcast(place, kind.as_pointer(1)), kind, min(count, ACCESS)


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
def loader(stored: str, dtype: str, width: int) -> Any:
    """Reads ``width`` adjacent elements at an address, stored in one dtype, computed in another."""

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
def storer(stored: str, dtype: str, width: int) -> Any:
    """Writes ``width`` adjacent elements: the other way round."""

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
