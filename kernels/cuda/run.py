"""Runs specs on arrays on an NVIDIA GPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from graphopt.errors import InputError
from graphopt.forking import lock
from graphopt.kernels.cuda.compiled import SIMULATED, FusedKernel, compiled, configured, ptx
from graphopt.kernels.cuda.device import ACCESS
from graphopt.kernels.cuda.plan import (
    AREA,
    OPERAND,
    Launch,
    LaunchPlan,
    form_of,
    plan_of,
    written_whole,
)
from graphopt.kernels.emit.cuda import Form
from graphopt.kernels.expand import collapse, expand
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.spec import KernelSpec, Operand


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
    prepared = written_whole(collapse(expand(walked_of(spec, backward=backward))).spec)
    form = form or form_of(prepared, (512,) * prepared.rank)
    return ptx(FusedKernel(prepared, form), compute_capability)


def walked_of(spec: KernelSpec, *, backward: bool) -> KernelSpec:
    """The spec itself, or that of its gradients.

    Raises:
        InputError: it has none.
    """
    walked = differentiate(spec).spec if backward else spec
    if walked is None:
        raise InputError("the kernel has no gradient")
    return walked


def run(
    spec: KernelSpec,
    arrays: Sequence[Any],
    *,
    outputs: Sequence[Any] | None = None,
    backward: bool = False,
    requests: Sequence[int] | None = None,
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
        requests: what to do with each of the outputs that are given: 0 nothing, 1 overwrite it, 3
            add to it; by default they are overwritten.
        stream: of numba.
        extents: of the iteration space, where no input says an extent.

    Raises:
        InputError: an array does not fit the kernel.
    """
    walked = walked_of(spec, backward=backward)
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
    extent = tuple(space[axis] for axis in range(walked.rank))
    aligned = SIMULATED or is_aligned(places)
    plan = plan_of(
        walked,
        extent,
        aligned=aligned,
        processors=_processors(),
        requests=None if requests is None else tuple(requests),
    )
    _launch(plan, places, stream)
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


def is_aligned(places: Sequence[int]) -> bool:
    """Whether all addresses are multiples of what one access reads."""
    return all(place % ACCESS == 0 for place in places)


def _is_contiguous(shape: Sequence[int], strides: Sequence[int] | None, size: int) -> bool:
    if strides is None or 0 in shape:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != size:
            return False
        size *= extent
    return True


@cache
def _processors() -> int:
    # In the simulator few, so that teams have several rows.
    return 1 if SIMULATED else int(cuda.get_current_device().MULTIPROCESSOR_COUNT)


def _launch(plan: LaunchPlan, places: list[Any], stream: Any) -> None:
    if SIMULATED:
        with warnings.catch_warnings():
            # numpy warns of infinities; threads do not inherit np.errstate.
            warnings.simplefilter("ignore", RuntimeWarning)
            areas = [np.full(max(1, size), np.nan, dtype) for size, dtype in plan.areas]
            _launch_all(plan.launches, places, areas, stream)
    elif plan.areas:
        with _workspaces_lock:  # the kernels of two launches must not alternate in one place
            offsets, size = plan.offsets()
            base = _workspace(size, stream)
            _launch_all(plan.launches, places, [base + offset for offset in offsets], stream)
    else:
        _launch_all(plan.launches, places, [], stream)


def _launch_all(
    launches: Sequence[Launch], places: Sequence[Any], areas: Sequence[Any], stream: Any
) -> None:
    for launch in launches:
        arguments = [
            places[value] if kind == OPERAND else areas[value] if kind == AREA else value
            for kind, value in launch.arguments
        ]
        configured(compiled(launch.kernel), launch.blocks, launch.threads, stream)(*arguments)


_workspaces: dict[tuple[Any, int], Any] = {}
_workspaces_lock = lock()


def _workspace(size: int, stream: Any) -> int:
    """Memory of ``size`` bytes, kept for the stream's next launch."""
    handle = getattr(stream, "handle", None) or 0
    key = (cuda.get_current_device().id, int(getattr(handle, "value", handle) or 0))
    kept = _workspaces.get(key)
    if kept is None or kept.size < size:
        # What was there is freed when the work on it is done: freeing waits for the device.
        kept = _workspaces[key] = cuda.device_array(max(1, size), np.uint8)
    return int(kept.device_ctypes_pointer.value)
