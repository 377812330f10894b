"""The MXNet operator ``graphopt_fused``: loads the bridge and answers what it asks."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.errors import GraphoptError, MissingDependencyError
from graphopt.forking import lock

if TYPE_CHECKING:
    from graphopt.kernels.spec import KernelSpec

# All write their answer to where the last argument says; see answers.h.
_NUMBERS = ctypes.POINTER(ctypes.c_int64)
_DESCRIBE = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_int, _NUMBERS, ctypes.c_int64, _NUMBERS
)
_COMPILE = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, _NUMBERS)
_LAUNCHES = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int,
    _NUMBERS,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
    _NUMBERS,
    _NUMBERS,
)

_LOG = logging.getLogger("graphopt")
_lock = lock()
_loaded: ctypes.CDLL | None = None
_failure: str | None = None
_pending: set[tuple[bytes, int]] = set()  # kernels that MXNet knows and has not asked for yet
_keep: list[Any] = []  # ctypes callbacks must outlive the library that calls them

_PROBE = (
    '{"nodes": [{"op": "null", "name": "x", "inputs": []}, {"op": "elemwise_add", "name": "y",'
    ' "inputs": [[0, 0, 0], [0, 0, 0]]}], "arg_nodes": [0], "heads": [[1, 0, 0]],'
    ' "attrs": {"mxnet_version": ["int", 10901]}}'
)


def load(mxnet: Any) -> ctypes.CDLL:
    """Make the fused operators known to the module ``mxnet``; again does nothing.

    That it fails is told once through the logger ``graphopt``, as most callers do without.

    Raises:
        MissingDependencyError: the bridge cannot be built for this MXNet; the message says why.
    """
    global _loaded, _failure
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            if _failure is not None:
                raise MissingDependencyError(_failure)
            try:
                _loaded = _load(mxnet)
            except MissingDependencyError as error:
                if _loaded is not None:  # by a signal's handler meanwhile
                    return _loaded
                _failure = str(error)
                _LOG.warning("%s; without them graphopt leaves operators unfused", error)
                raise
        return _loaded


def is_loaded() -> bool:
    """Whether the operators are known to MXNet by now."""
    return _loaded is not None


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


def why_not_on_gpu(mxnet: Any) -> str | None:
    """Why fused kernels cannot run on NVIDIA GPUs here, or ``None`` if they can."""
    why = why_not(mxnet)
    if why is None and not mxnet.runtime.Features().is_enabled("CUDA"):
        why = "this MXNet was built without CUDA"
    if why is not None:
        return why
    try:
        from graphopt.kernels.cuda.compiled import why_no_ptx
    except ImportError as error:
        return f"the extra [cuda] is needed to compile for GPUs: {error}"
    return why_no_ptx()


def _load(mxnet: Any) -> ctypes.CDLL:
    bridge = _open(Path(mxnet.__file__).parent)
    bridge.graphopt_register.restype = ctypes.c_char_p
    bridge.graphopt_error.restype = ctypes.c_char_p
    bridge.graphopt_own_launches.restype = ctypes.c_int64
    bridge.graphopt_lanes.restype = ctypes.c_int64
    bridge.graphopt_packed_size.restype = ctypes.c_int64
    bridge.graphopt_packed_product.restype = ctypes.c_int64
    bridge.graphopt_kept_bytes.restype = ctypes.c_int64
    bridge.graphopt_count_packs.restype = ctypes.c_int64
    bridge.graphopt_calls_in_blocks.restype = ctypes.c_int64
    bridge.graphopt_mended_layouts.restype = ctypes.c_int64
    bridge.graphopt_mended_calls.restype = ctypes.c_int64
    if not _layout_fits(mxnet, bridge):
        raise MissingDependencyError(
            "graphopt's fused kernels fit MXNet 1.9.1 as it is on PyPI, and this build of MXNet"
            " lays out its graphs in another way"
        )
    callbacks = (_describer(bridge), _compiler(bridge), _planner(bridge))
    _keep.extend(callbacks)
    message = bridge.graphopt_register(*callbacks)
    if message:
        raise MissingDependencyError(
            f"MXNet does not take graphopt's operators: {message.decode()}"
        )
    if not bridge.graphopt_push_in_turns():
        raise MissingDependencyError(
            "graphopt's fused kernels need the engine of MXNet 1.9.1 as it is on PyPI, and this one"
            " is unknown"
        )
    os.register_at_fork(before=partial(_finish, mxnet))
    return bridge


def _finish(mxnet: Any) -> None:
    """Let nothing be under way that may compile a kernel.

    A fork stops MXNet's threads and waits for them, all the while holding Python's lock, and one
    that compiles a kernel waits for that lock. An error that an array was to bring is told here, as
    MXNet tells each one once.
    """
    if _pending:
        mxnet.nd.waitall()


def _open(mxnet: Path) -> ctypes.CDLL:
    """The bridge, built if need be; one that is damaged is built again."""
    from graphopt.kernels.bridge.build import library
    from graphopt.kernels.shared_library import loaded

    try:
        return loaded(partial(library, mxnet), lambda path: ctypes.CDLL(str(path)))
    except OSError as error:  # of the disk, too
        raise MissingDependencyError(
            f"graphopt's fused kernels cannot be loaded into this MXNet: {error}"
        ) from error


def _layout_fits(mxnet: Any, bridge: ctypes.CDLL) -> bool:
    symbol = mxnet.sym.load_json(_PROBE)
    return bool(bridge.graphopt_layout_fits(symbol.handle))


def _describer(bridge: ctypes.CDLL) -> Any:
    @_DESCRIBE
    def describe(text: bytes, backward: int, out: Any, capacity: int, count: Any) -> None:
        try:
            if text.startswith(b"recurrence "):
                numbers = _recurrence_numbers(text, backward)
            elif text.startswith(b"convolutions "):
                numbers = _convolutions_numbers(text)
            elif text.startswith(b"tree "):
                numbers = _tree_numbers(text, backward)
            else:
                numbers = _kernel_numbers(text, backward)
                _pending.add((text, backward))
            if len(numbers) > capacity:
                raise GraphoptError(f"too large for a kernel: {text[:200].decode()}")
        except Exception as error:  # noqa: BLE001 - C++ raises it in MXNet
            bridge.graphopt_set_error(_told(error))
            return
        for place, number in enumerate(numbers):
            out[place] = number
        count[0] = len(numbers)

    return describe


def _kernel_numbers(text: bytes, backward: int) -> list[int]:
    from graphopt.kernels.plan import backward_plan, forward_plan

    spec = _spec(text)
    return backward_plan(spec) if backward else forward_plan(spec)


def _spec(text: bytes) -> KernelSpec:
    from graphopt.kernels.blocks import PREFIX, in_blocks
    from graphopt.kernels.spec_parser import parse

    plain = text.decode().removeprefix(PREFIX)
    return in_blocks(parse(plain)) if text.startswith(PREFIX.encode()) else parse(plain)


def _convolutions_numbers(text: bytes) -> list[int]:
    from graphopt.kernels.convolutions.plan import plan
    from graphopt.kernels.convolutions.spec import parse

    spec = parse(text.decode())
    return plan(spec).numbers(spec.lanes)


def _recurrence_numbers(text: bytes, mode: int) -> list[int]:
    from graphopt.kernels.recurrence import encode
    from graphopt.kernels.recurrence.spec import parse

    spec, kind, flags = parse(text.decode()), mode % 4, mode - mode % 4
    indexed, by_vectors = bool(flags & 8), bool(flags & 16)
    programs = {(text, m + flags) for m in (encode.INFERENCE, encode.TRAINING)}
    if kind == encode.SIGNATURE:
        _pending.update(programs)  # what will be asked for when it first runs
        return encode.signature(spec, indexed=indexed)
    numbers = encode.program(spec, kind, indexed=indexed, by_vectors=by_vectors)
    if kind == encode.BACKWARD:
        _pending.discard((text, mode))
    else:
        _pending.difference_update(programs)
        if kind == encode.TRAINING:
            _pending.add((text, encode.BACKWARD + flags))
    return numbers


def _tree_numbers(text: bytes, mode: int) -> list[int]:
    from graphopt.kernels.recurrence.encode import BACKWARD, INFERENCE, SIGNATURE, TRAINING
    from graphopt.kernels.tree import encode
    from graphopt.kernels.tree.spec import parse

    spec = parse(text.decode())
    if mode == SIGNATURE:
        _pending.update({(text, INFERENCE), (text, TRAINING)})
        return encode.signature(spec)
    numbers = encode.program(spec, mode)
    if mode == BACKWARD:
        _pending.discard((text, mode))
    else:
        _pending.difference_update({(text, INFERENCE), (text, TRAINING)})
        if mode == TRAINING:
            _pending.add((text, BACKWARD))
    return numbers


def _told(error: Exception) -> bytes:
    kind = "" if isinstance(error, GraphoptError) else f"{type(error).__name__}: "
    return f"{kind}{error}".encode(errors="replace")


def _compiler(bridge: ctypes.CDLL) -> Any:
    @_COMPILE
    def compile_(text: bytes, backward: int, address: Any) -> None:
        try:
            from graphopt.kernels.library import kernel

            found = kernel(str(_spec(text)), backward=bool(backward))
        except Exception as error:  # noqa: BLE001 - C++ raises it in MXNet
            bridge.graphopt_set_error(_told(error))
            return
        _pending.discard((text, backward))
        address[0] = found.address

    return compile_


def _planner(bridge: ctypes.CDLL) -> Any:
    @_LAUNCHES
    def launches(  # type: ignore[no-untyped-def]
        text, backward, axes, extents, aligned, outputs, requests, device, address
    ) -> None:
        try:
            from graphopt.kernels.cuda.native import launches_of

            made = launches_of(
                text.decode(),
                backward=bool(backward),
                space=tuple(extents[:axes]),
                aligned=bool(aligned),
                requests=tuple(requests[:outputs]),
                device=(device[0], device[1], device[2]),
            )
            found = bridge.graphopt_own_launches(ctypes.byref(made))
        except Exception as error:  # noqa: BLE001 - C++ raises it in MXNet
            bridge.graphopt_set_error(_told(error))
            return
        address[0] = found

    return launches
