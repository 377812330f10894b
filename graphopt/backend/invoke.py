"""Operators of the bridge by name: MXNet's Python side knows only those it was built with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from graphopt.backend.memory import keep_freed_memory
from graphopt.backend.openmp import release_threads
from graphopt.compat import import_mxnet
from graphopt.ir.attrs import to_mxnet
from graphopt.kernels import bridge


@cache
def _handle(op: str) -> int:
    bridge.load(import_mxnet())
    keep_freed_memory()
    return _found(op)


def _found(op: str) -> int:
    base = import_mxnet().base
    handle = ctypes.c_void_p()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(op), ctypes.byref(handle)))
    assert handle.value is not None
    return handle.value


def invoke(op: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> list[Any]:
    """Run an operator on NDArrays; recorded by ``mx.autograd`` as any other.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
        MXNetError: MXNet or the operator refuses the arrays.
    """
    mx = import_mxnet()
    release_threads()
    found = mx.ndarray._internal._imperative_invoke(
        _handle(op),
        list(arrays),
        list(attrs),
        [to_mxnet(value) for value in attrs.values()],
        None,
        False,
        True,
    )
    return found if isinstance(found, list) else [found]


def compose(op: str, symbols: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """The Symbol of an operator applied to Symbols.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
        MXNetError: MXNet refuses the attributes.
    """
    made = _atomic(_handle(op), {key: to_mxnet(value) for key, value in attrs.items()})
    made._compose(*symbols, name=import_mxnet().name.NameManager._current.value.get(None, op))
    return made


def count_inputs(op: str, attrs: Mapping[str, str]) -> int:
    """How many inputs an operator has with these attributes; 0 as well where any number will do.

    No bridge is built for it.

    Raises:
        MXNetError: MXNet has no such operator, or refuses the attributes.
    """
    made = _atomic(_found(op), attrs)
    made._compose(name="node")  # with a variable for each
    return len(made.list_inputs())


def _atomic(operator: int, attrs: Mapping[str, str]) -> Any:
    """The Symbol of an operator that is applied to nothing yet."""
    mx = import_mxnet()
    base = mx.base
    handle = base.SymbolHandle()
    base.check_call(
        base._LIB.MXSymbolCreateAtomicSymbol(
            ctypes.c_void_p(operator),
            base.mx_uint(len(attrs)),
            base.c_str_array(list(attrs)),
            base.c_str_array(list(attrs.values())),
            ctypes.byref(handle),
        )
    )
    return mx.sym.Symbol(handle)
