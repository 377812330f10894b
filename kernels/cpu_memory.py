"""How kernels for CPUs read and write memory: functions that their source calls, in LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]

from graphopt.kernels.lowering import Emit
from graphopt.kernels.machine import processor

_IR = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_HALF = ir.HalfType()
_INTEGERS = {"int8": 8, "uint8": 8, "bool": 8, "int32": 32, "int64": 64}
_UNSIGNED = ("uint8", "bool")


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


def converted(builder: Any, value: Any, source: str, target: str) -> Any:
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


def prefetch(builder: Any, args: Sequence[Any]) -> None:
    """A hint that memory will be read; of any address, as it never faults."""
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    signature = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), signature)
    address = builder.inttoptr(builder.add(args[0], args[1]), pointer)
    builder.call(function, [address, number(0), number(3), number(1)])


def row_of(builder: Any, args: Sequence[Any]) -> Any:
    """The number of row ``i``, which an index of address 0 leaves as it is."""
    address, row = args
    found = _variable(builder, row.type)
    builder.store(row, found)
    with builder.if_then(builder.icmp_unsigned("!=", address, address.type(0))):
        number = builder.load(_access(builder, address, row, "int32"))
        builder.store(builder.sext(number, row.type), found)
    return builder.load(found)


def forget(builder: Any, _args: Sequence[Any]) -> None:
    """Has LLVM take it that nothing is in a vector register any more; no instruction.

    Constants of two loops of a row are else kept for both, and moved about in the first one, which
    is the one that takes time. Where they fill less than three quarters of the registers they are
    better kept: to load them anew takes short rows a sixth of their time.
    """
    features = processor()[1]
    count = 32 if "+avx512f" in features else 16
    if "+avx2" in features and len(_constants(builder.function)) >= count * 3 // 4:
        registers = ",".join(f"~{{xmm{number}}}" for number in range(count))
        builder.asm(ir.FunctionType(ir.VoidType(), []), "", registers, [], side_effect=True)


def _constants(function: Any) -> set[str]:
    """The numbers in what there is of a function."""
    made = (one for block in function.blocks for one in block.instructions)
    found = (operand for one in made for operand in one.operands)
    numbers = tuple(_IR.values())
    return {str(x) for x in found if isinstance(x, ir.Constant) and x.type in numbers}


def room(dtype: str, count: int) -> Emit:
    """Memory of a call, zeros at first."""
    kind = ir.ArrayType(_IR[dtype], count)

    def generate(builder: Any, _args: Sequence[Any]) -> Any:
        found = _variable(builder, kind)
        builder.store(kind(None), found)
        return builder.ptrtoint(found, ir.IntType(64))

    return generate


def _variable(builder: Any, kind: Any) -> Any:
    """Memory that is there once, however often what is appended runs."""
    with builder.goto_entry_block():
        return builder.alloca(kind)


def _describe(function: Any) -> None:
    """Have LLVM use 512-bit vectors where there are any, and no function of the C library.

    It else uses such vectors on some processors only. Kernels run next to products that do, and
    half of their time are divisions and polynomials. And it makes a call of a loop that copies a
    few elements, which takes longer and leaves no register as it was.
    """
    # llvmlite knows attributes of LLVM's own alone, without a value.
    for told in ('"prefer-vector-width"="512"', '"no-builtins"'):
        set.add(function.attributes, told)


def loader(stored: str, dtype: str, place: int, count: int) -> Emit:
    """Loads an element of operand ``place`` of ``count`` that is stored as ``stored``."""

    def generate(builder: Any, args: Sequence[Any]) -> Any:
        value = builder.load(_access(builder, args[0], args[1], stored))
        _mark(value, builder, place, count)
        target = _IR[dtype]
        if stored in _INTEGERS:
            convert = builder.uitofp if stored in _UNSIGNED else builder.sitofp
            return convert(value, target)
        return converted(builder, value, stored, dtype)

    return generate


def storer(stored: str, dtype: str, place: int, count: int) -> Emit:
    """Stores one; operands overlap with nothing."""

    def generate(builder: Any, args: Sequence[Any]) -> Any:
        _describe(builder.function)
        value = args[2]
        if stored in _INTEGERS:
            convert = builder.fptoui if stored in _UNSIGNED else builder.fptosi
            value = convert(value, _stored_type(stored))
        else:
            value = converted(builder, value, dtype, stored)
        made = builder.store(value, _access(builder, args[0], args[1], stored))
        _mark(made, builder, place, count)

    return generate
