"""Run a kernel on numpy arrays, through the same code that runs it inside MXNet."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from graphopt.kernels import bridge
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.spec import KernelSpec, Operand

Array = npt.NDArray[Any]


class Request(enum.IntEnum):
    """What to do with an output, in MXNet's codes."""

    NULL = 0
    WRITE = 1
    ADD = 3


def run(
    spec: KernelSpec,
    inputs: Sequence[Array],
    *,
    backward: bool = False,
    extents: Sequence[int] | None = None,
    outputs: Sequence[Array] | None = None,
    requests: Sequence[Request] | None = None,
) -> list[Array]:
    """The outputs of a kernel, or with ``backward`` those of the kernel of its gradients.

    Args:
        spec: the forward kernel.
        inputs: one array per input of the kernel that runs, cast to its dtype where need be.
        backward: run ``differentiate(spec).spec`` instead.
        extents: of the iteration space, where no input says an extent.
        outputs: C-contiguous arrays to write to; else new ones.
        requests: per output, whether to write, to add, or to leave it alone.

    Raises:
        InputError: an array does not fit the kernel.
        GraphoptError: the kernel cannot be compiled or run.
        MissingDependencyError: kernels cannot run here.
    """
    library = bridge.load(import_mxnet())
    walked = differentiate(spec).spec if backward else spec
    if walked is None:
        raise InputError("the kernel has no gradient")
    if len(inputs) != len(walked.inputs):
        raise InputError(f"the kernel reads {len(walked.inputs)} inputs, not {len(inputs)}")
    given = [
        np.ascontiguousarray(array, dtype=operand.dtype).reshape(np.shape(array))
        for array, operand in zip(inputs, walked.inputs, strict=True)
    ]
    if outputs is None:
        space = _extents(walked, given, extents)
        outputs = [_empty(result.operand, space) for result in walked.outputs]
    for array, result in zip(outputs, walked.outputs, strict=True):
        if not array.flags.c_contiguous or array.dtype != result.operand.dtype:
            raise InputError(f"an output has to be C-contiguous and {result.operand.dtype}")
    operands = [*(x for x in walked.inputs), *(result.operand for result in walked.outputs)]
    arrays = [*given, *outputs]
    for array, operand in zip(arrays, operands, strict=True):
        if array.ndim != len(operand.axes):
            raise InputError(f"an array of shape {array.shape} is not {operand}")
    wanted = requests or [Request.WRITE] * len(outputs)
    failed = library.graphopt_run(
        str(spec).encode(),
        int(backward),
        (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays)),
        (ctypes.c_int64 * 256)(*(extent for array in arrays for extent in array.shape)),
        len(arrays),
        (ctypes.c_int * len(wanted))(*wanted),
        -1,
    )
    if failed:
        raise GraphoptError(library.graphopt_error().decode())
    return list(outputs)


def _extents(
    spec: KernelSpec, arrays: Sequence[Array], given: Sequence[int] | None
) -> dict[int, int]:
    found = {} if given is None else dict(enumerate(given))
    for array, operand in zip(arrays, spec.inputs, strict=True):
        axes = zip(array.shape, operand.axes, strict=False)
        found |= {axis: extent for extent, axis in axes if axis is not None}
    missing = [axis for axis in range(spec.rank) if axis not in found]
    if missing:
        raise InputError(f"no input tells the extent of axis {missing[0]}: give extents")
    return found


def _empty(operand: Operand, space: dict[int, int]) -> Array:
    shape = tuple(1 if axis is None else space[axis] for axis in operand.axes)
    return np.empty(shape, operand.dtype)
