"""The MXNet operator ``graphopt_fused``: loads the bridge and answers what it asks."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from pathlib import Path
from typing import Any

from graphopt.errors import GraphoptError, MissingDependencyError

_DESCRIBE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64
)
_COMPILE = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64)
)

_lock = threading.Lock()
_loaded: ctypes.CDLL | None = None
_failure: str | None = None
_keep: list[Any] = []  # ctypes callbacks must outlive the library that calls them

_PROBE = (
    '{"nodes": [{"op": "null", "name": "x", "inputs": []}, {"op": "elemwise_add", "name": "y",'
    ' "inputs": [[0, 0, 0], [0, 0, 0]]}], "arg_nodes": [0], "heads": [[1, 0, 0]],'
    ' "attrs": {"mxnet_version": ["int", 10901]}}'
)


def load(mxnet: Any) -> ctypes.CDLL:
    """Make the fused operators known to the module ``mxnet``; again does nothing.

    Raises:
        MissingDependencyError: the bridge cannot be built for this MXNet; the message says why.
    """
    global _loaded, _failure
    with _lock:
        if _loaded is None:
            if _failure is not None:
                raise MissingDependencyError(_failure)
            try:
                _loaded = _load(mxnet)
            except MissingDependencyError as error:
                _failure = str(error)
                raise
        return _loaded


def load_if_built(mxnet: Any) -> None:
    """As :func:`load` where the bridge is built already; else, or if that fails, nothing."""
    from graphopt.kernels.bridge.build import find

    folder = Path(mxnet.__file__).parent
    with contextlib.suppress(OSError, MissingDependencyError):
        if find(folder) is not None:
            load(mxnet)


def why_not(mxnet: Any) -> str | None:
    """Why fused kernels cannot run here, or ``None`` if they can."""
    try:
        load(mxnet)
    except MissingDependencyError as error:
        return str(error)
    return None


def _load(mxnet: Any) -> ctypes.CDLL:
    from graphopt.kernels.bridge.build import library

    path = library(Path(mxnet.__file__).parent)
    try:
        bridge = ctypes.CDLL(str(path))
    except OSError as error:
        raise MissingDependencyError(
            f"graphopt's fused kernels cannot be loaded into this MXNet: {error}"
        ) from error
    bridge.graphopt_register.restype = ctypes.c_char_p
    bridge.graphopt_error.restype = ctypes.c_char_p
    if not _layout_fits(mxnet, bridge):
        raise MissingDependencyError(
            "graphopt's fused kernels fit MXNet 1.9.1 as it is on PyPI, and this build of MXNet"
            " lays out its graphs in another way"
        )
    describe, compile_ = _describer(bridge), _compiler(bridge)
    _keep.extend((describe, compile_))
    message = bridge.graphopt_register(describe, compile_)
    if message:
        raise MissingDependencyError(
            f"MXNet does not take graphopt's operators: {message.decode()}"
        )
    return bridge


def _layout_fits(mxnet: Any, bridge: ctypes.CDLL) -> bool:
    symbol = mxnet.sym.load_json(_PROBE)
    return bool(bridge.graphopt_layout_fits(symbol.handle))


def _describer(bridge: ctypes.CDLL) -> Any:
    @_DESCRIBE
    def describe(text: bytes, backward: int, out: Any, capacity: int) -> int:
        from graphopt.kernels.plan import backward_plan, forward_plan
        from graphopt.kernels.spec import parse

        try:
            spec = parse(text.decode())
            numbers = backward_plan(spec) if backward else forward_plan(spec)
            if len(numbers) > capacity:
                raise GraphoptError(f"a kernel with {len(spec.inputs)} inputs is too large")
        except Exception as error:  # noqa: BLE001 - C++ raises it in MXNet
            bridge.graphopt_set_error(str(error).encode())
            return 0
        for place, number in enumerate(numbers):
            out[place] = number
        return len(numbers)

    return describe


def _compiler(bridge: ctypes.CDLL) -> Any:
    @_COMPILE
    def compile_(text: bytes, backward: int, scratch_rows: Any) -> int:
        from graphopt.kernels.library import kernel

        try:
            found = kernel(text.decode(), backward=bool(backward))
        except Exception as error:  # noqa: BLE001 - C++ raises it in MXNet
            bridge.graphopt_set_error(str(error).encode())
            return 0
        scratch_rows[0] = found.scratch_rows
        return found.address

    return compile_
