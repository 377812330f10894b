"""Emitted source of a CPU kernel -> LLVM IR.

The source is Python, of which this knows no more than is emitted: loops over ranges, conditions,
arithmetic on int64 and on numbers of one float type, calls of functions that append instructions.
Numba, which knows most of Python, took twice as long to find out the types and the control flow of
a kernel as LLVM takes for the rest.
"""

from __future__ import annotations

import ast
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types of its own

from graphopt.errors import GraphoptError

#: What a call becomes: instructions, and the value they give, if any.
Emit = Callable[[Any, Sequence[Any]], Any]

_INTEGER: Final = ir.IntType(64)
_ADDRESSES: Final = _INTEGER.as_pointer()
_SIGNATURE: Final = (_ADDRESSES, _ADDRESSES, _INTEGER, _INTEGER, _INTEGER)
_NUMBERS: Final = {"float32": ir.FloatType(), "float64": ir.DoubleType()}
_OF_NUMBERS: Final = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
#: The remainder is that of numbers that are not negative.
_OF_INTEGERS: Final = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.Mod: "srem",
}
_SIGNS: Final = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.Gt: ">"}
_FLOAT_OPERATIONS: Final = frozenset({"fadd", "fsub", "fmul", "fdiv", "frem", "fcmp"})


@dataclass(frozen=True)
class LoopHint:
    """How LLVM vectorises a loop that begins with a call of this.

    A function of :mod:`graphopt.kernels.vecmath` is a chain of twenty instructions that wait for
    each other, and a processor looks ahead by a few such chains only. LLVM interleaves iterations
    of short loops by itself; a kernel says which of its longer ones gain as well. What is left at
    the end of a row, less than a vector, LLVM computes one by one if nothing is said.

    Attributes:
        count: vectors at once.
        masks: whether the end of the loop is computed by vectors that leave elements out.
        vectors: whether there are vectors at all; of a few elements they cost more than they gain.
    """

    count: int
    masks: bool = False
    vectors: bool = True


def lower(
    source: str,
    name: str,
    dtype: str,
    functions: Mapping[str, Emit | LoopHint],
    *,
    contract: bool,
) -> Any:
    """The module of the function ``kernel`` of a source, under another name.

    Args:
        source: as :mod:`graphopt.kernels.emit` writes it.
        name: what the function is called in the module.
        dtype: of its numbers, "float32" or "float64".
        functions: what it calls, besides ``number``, which makes numbers of constants and int64.
        contract: whether products may be fused into the sums they are part of.

    Raises:
        GraphoptError: it is not such a source.
    """
    (function,) = ast.parse(source).body
    module = ir.Module(name)
    made = ir.Function(module, ir.FunctionType(ir.VoidType(), _SIGNATURE), name)
    assert isinstance(function, ast.FunctionDef)
    _Lowering(made, _NUMBERS[dtype], functions).run(function)
    if contract:
        _allow_contraction(made)
    return module


class _Lowering:
    """Builds a function, statement by statement; variables are memory that LLVM does away with."""

    def __init__(
        self, function: Any, number: Any, functions: Mapping[str, Emit | LoopHint]
    ) -> None:
        self.function, self.number, self.functions = function, number, functions
        self.entry = function.append_basic_block("entry")  # of variables alone
        self.builder = ir.IRBuilder(function.append_basic_block("begin"))
        self.variables: dict[str, Any] = {}

    def run(self, function: ast.FunctionDef) -> None:
        for argument, value in zip(function.args.args, self.function.args, strict=True):
            self.assign(ast.Name(argument.arg), value)
        self.statements(function.body)
        self.builder.ret_void()
        ir.IRBuilder(self.entry).branch(self.function.blocks[1])

    # -- statements ----------------------------------------------------------------------------

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self.assign(statement.targets[0], self.value(statement.value))
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self.call(statement.value)
            elif isinstance(statement, ast.For):
                self.loop(statement)
            elif isinstance(statement, ast.If) and not statement.orelse:
                with self.builder.if_then(self.value(statement.test)):
                    self.statements(statement.body)
            elif not isinstance(statement, ast.Pass):
                raise _unknown(statement)

    def assign(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Name):
            raise _unknown(target)
        if target.id not in self.variables:
            with self.builder.goto_entry_block():
                self.variables[target.id] = self.builder.alloca(value.type)
        self.builder.store(value, self.variables[target.id])

    def loop(self, loop: ast.For) -> None:
        """``for name in range(...)``, of steps above 0."""
        if not (isinstance(loop.iter, ast.Call) and _name(loop.iter.func) == "range"):
            raise _unknown(loop)
        if loop.orelse or loop.iter.keywords:
            raise _unknown(loop)
        bounds = [self.value(argument) for argument in loop.iter.args]
        start = bounds[0] if len(bounds) > 1 else _INTEGER(0)
        stop, step = bounds[min(1, len(bounds) - 1)], bounds[2] if bounds[2:] else _INTEGER(1)
        test, body, behind = (self.function.append_basic_block() for _ in range(3))
        before = self.builder.block
        self.builder.branch(test)
        self.builder.position_at_end(test)
        counter = self.builder.phi(_INTEGER)
        counter.add_incoming(start, before)
        self.builder.cbranch(self.builder.icmp_signed("<", counter, stop), body, behind)
        self.builder.position_at_end(body)
        self.assign(loop.target, counter)
        hint = self.hint(loop.body[0])
        self.statements(loop.body[0 if hint is None else 1 :])
        counter.add_incoming(self.builder.add(counter, step, flags=("nsw",)), self.builder.block)
        again = self.builder.branch(test)
        if hint is not None:
            again.set_metadata("llvm.loop", _metadata(self.function.module, hint))
        self.builder.position_at_end(behind)

    def hint(self, first: ast.stmt) -> LoopHint | None:
        """What the first statement of a loop's body says about it, if that is all it says."""
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Call):
            function = self.functions.get(_name(first.value.func))
            return function if isinstance(function, LoopHint) else None
        return None

    # -- expressions ---------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in self.variables:
            return self.builder.load(self.variables[node.id])
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return _INTEGER(node.value)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.BinOp):
            return self.binary(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self.value(node.operand)
            return self.builder.neg(operand) if _is_int(operand) else self.builder.fneg(operand)
        if isinstance(node, ast.Compare):
            return self.comparison(node)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            return reduce(self.builder.and_, map(self.value, node.values))
        if isinstance(node, ast.Subscript):
            place = self.builder.gep(self.value(node.value), [self.value(node.slice)])
            return self.builder.load(place)
        raise _unknown(node)

    def binary(self, node: ast.BinOp) -> Any:
        """Of two numbers or two int64, which division is not of."""
        left, right, kind = self.value(node.left), self.value(node.right), type(node.op)
        of_integers = _is_int(left) and _is_int(right)
        names: Mapping[type[ast.operator], str] = _OF_INTEGERS if of_integers else _OF_NUMBERS
        if kind not in names or left.type != right.type:
            raise _unknown(node)
        return getattr(self.builder, names[kind])(left, right)

    def comparison(self, node: ast.Compare) -> Any:
        """Of two int64; numbers are compared by functions."""
        left, right = self.value(node.left), self.value(node.comparators[0])
        kind = type(node.ops[0])
        if len(node.ops) > 1 or kind not in _SIGNS or not (_is_int(left) and _is_int(right)):
            raise _unknown(node)
        return self.builder.icmp_signed(_SIGNS[kind], left, right)

    def call(self, node: ast.Call) -> Any:
        if _name(node.func) == "number" and len(node.args) == 1:
            return self.as_number(node.args[0])
        function = self.functions.get(_name(node.func))
        if function is None or isinstance(function, LoopHint) or node.keywords:
            raise _unknown(node)
        return function(self.builder, [self.value(argument) for argument in node.args])

    def as_number(self, node: ast.expr) -> Any:
        try:
            constant = float(ast.unparse(node))  # "inf" and "-inf" are names in the source
        except ValueError:
            return self.builder.sitofp(self.value(node), self.number)
        return number(self.number, constant)


def number(kind: Any, constant: float) -> Any:
    """A constant of a float type: beyond its range an infinity, as numpy has it."""
    if kind == ir.FloatType():
        try:
            struct.pack("f", constant)
        except OverflowError:
            constant = math.copysign(math.inf, constant)
    return ir.Constant(kind, constant)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_int(value: Any) -> bool:
    return isinstance(value.type, ir.IntType)


def _unknown(node: ast.AST) -> GraphoptError:
    return GraphoptError(f"no kernel is emitted with {ast.unparse(node)!r}; this is a bug")


def _metadata(module: Any, hint: LoopHint) -> Any:
    """LLVM tells loops apart by nodes that hold themselves first."""
    options = [_option(module, "interleave.count", ir.IntType(32)(hint.count))]
    if not hint.vectors:
        options.append(_option(module, "vectorize.width", ir.IntType(32)(1)))
    if hint.masks:
        options.append(_option(module, "vectorize.predicate.enable", ir.IntType(1)(1)))
    node = ir.values.MDValue(module, (), name=str(len(module.metadata)))
    node.operands = (node, *options)
    return node


def _option(module: Any, name: str, value: Any) -> Any:
    return module.add_metadata([ir.MetaDataString(module, f"llvm.loop.{name}"), value])


def _allow_contraction(function: Any) -> None:
    """Of every operation that says nothing about what may be done to it."""
    for block in function.blocks:
        for made in block.instructions:
            if made.opname in _FLOAT_OPERATIONS and not made.flags:
                made.flags.append("contract")
            elif isinstance(made, ir.CallInstr) and made.type in _NUMBERS.values():
                made.fastmath.add("contract")
