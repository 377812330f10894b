"""MXNet's operators by the handles that its generated functions call them with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from graphopt.batching.kinds import Kind
from graphopt.compat import import_mxnet
from graphopt.ir.ops import canonical


@cache
def _names() -> dict[int, str]:
    base = import_mxnet().base
    size = ctypes.c_uint()
    listed = ctypes.POINTER(ctypes.c_char_p)()
    base.check_call(base._LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(listed)))
    names = [base.py_str(listed[i]) for i in range(size.value)]
    # An alias has the handle of what it stands for; which name is kept does not matter.
    return {handle(name): name for name in names}


@cache
def handle(name: str) -> int:
    """The handle of an operator, as MXNet's generated functions hold it."""
    base = import_mxnet().base
    found = ctypes.c_void_p()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(name), ctypes.byref(found)))
    assert found.value is not None
    return found.value


def name_of(operator: int) -> str:
    """The canonical name of the operator with that handle."""
    return canonical(_names()[operator])


def text(value: Any) -> str:
    """An attribute as MXNet's generated functions pass it."""
    return str(value)


def infer(
    operator: int,
    attrs: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]],
    kinds: Sequence[Kind],
) -> tuple[list[tuple[int, ...]], list[Any]]:
    """Shapes and dtypes of the outputs for inputs of these shapes, without running anything.

    Raises:
        MXNetError: the inputs do not fit the operator.
    """
    symbol = applied(operator, attrs, variables(len(shapes)))
    names = [f"input{at}" for at in range(len(shapes))]
    dtypes = [kind.dtype for kind in kinds]
    _, out_shapes, _ = symbol._infer_shape_impl(False, **dict(zip(names, shapes, strict=True)))
    _, out_dtypes, _ = symbol._infer_type_impl(False, **dict(zip(names, dtypes, strict=True)))
    return [tuple(shape) for shape in out_shapes or ()], list(out_dtypes or ())


def applied(
    operator: int, attrs: Mapping[str, Any], inputs: Sequence[Any], name: str = "call"
) -> Any:
    """The Symbol of an operator applied to Symbols.

    Raises:
        MXNetError: MXNet refuses the attributes.
    """
    mx = import_mxnet()
    base = mx.base
    counter = _counter(operator)
    if counter and counter not in attrs:  # MXNet's calls of operators count by themselves
        attrs = {**attrs, counter: len(inputs)}
    made = base.SymbolHandle()
    values = [text(value) for value in attrs.values()]
    base.check_call(
        base._LIB.MXSymbolCreateAtomicSymbol(
            ctypes.c_void_p(operator),
            base.mx_uint(len(attrs)),
            base.c_str_array(list(attrs)),
            base.c_str_array(values),
            ctypes.byref(made),
        )
    )
    symbol = mx.sym.Symbol(made)
    symbol._compose(*inputs, name=name)
    return symbol


@cache
def _counter(operator: int) -> str:
    """The attribute that says how many inputs there are, for operators of any number."""
    base = import_mxnet().base
    texts = [ctypes.c_char_p() for _ in range(4)]
    lists = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    count = base.mx_uint()
    name, described, counter, kind = texts
    base.check_call(
        base._LIB.MXSymbolGetAtomicSymbolInfo(
            ctypes.c_void_p(operator),
            ctypes.byref(name),
            ctypes.byref(described),
            ctypes.byref(count),
            *(ctypes.byref(listed) for listed in lists),
            ctypes.byref(counter),
            ctypes.byref(kind),
        )
    )
    return str(base.py_str(counter.value)) if counter.value else ""


def variables(count: int) -> list[Any]:
    """Symbols of that many variables: ``input0``, ``input1`` ..."""
    while len(_VARIABLES) < count:
        _VARIABLES.append(import_mxnet().sym.var(f"input{len(_VARIABLES)}"))
    return _VARIABLES[:count]


_VARIABLES: list[Any] = []
