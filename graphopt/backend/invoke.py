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
    mx = import_mxnet()
    bridge.load(mx)
    keep_freed_memory()
    handle = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.NNGetOpHandle(mx.base.c_str(op), ctypes.byref(handle)))
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
    mx = import_mxnet()
    base = mx.base
    handle = base.SymbolHandle()
    values = [to_mxnet(value) for value in attrs.values()]
    base.check_call(
        base._LIB.MXSymbolCreateAtomicSymbol(
            ctypes.c_void_p(_handle(op)),
            base.mx_uint(len(attrs)),
            base.c_str_array(list(attrs)),
            base.c_str_array(values),
            ctypes.byref(handle),
        )
    )
    made = mx.sym.Symbol(handle)
    name = mx.name.NameManager._current.value.get(None, op)
    made._compose(*symbols, name=name)
    return made
