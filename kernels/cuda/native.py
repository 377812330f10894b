"""Plans for NVIDIA GPUs as the bridge launches them, without numba: kernels are PTX.

The driver compiles PTX for the GPU at hand, and keeps what it made in a cache of its own. PTX that
was handed out stays where it is as long as the process lives.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from functools import cache

from graphopt.errors import GraphoptError
from graphopt.kernels.cuda.compiled import Kernel, ptx
from graphopt.kernels.cuda.plan import AREA, Launch, LaunchPlan, plan_of
from graphopt.kernels.cuda.run import walked_of
from graphopt.kernels.spec_parser import parse

_ENTRY = re.compile(r"\.entry\s+([\w$]+)")


class _Launch(ctypes.Structure):
    _fields_ = (
        ("image", ctypes.c_char_p),
        ("entry", ctypes.c_char_p),
        ("registers", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("threads_x", ctypes.c_int64),
        ("threads_y", ctypes.c_int64),
        ("arguments", ctypes.c_int64),
        ("kinds", ctypes.POINTER(ctypes.c_int64)),
        ("values", ctypes.POINTER(ctypes.c_int64)),
    )


class Launches(ctypes.Structure):
    """``graphopt::cuda::Launches`` of kernels/bridge/cuda.h."""

    _fields_ = (
        ("workspace_bytes", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("launches", ctypes.POINTER(_Launch)),
    )


def launches_of(
    text: str,
    *,
    backward: bool,
    space: tuple[int, ...],
    aligned: bool,
    requests: tuple[int, ...],
    device: tuple[int, int, int],
) -> Launches:
    """The launches of a kernel, of which the bridge makes a copy that it keeps for a while.

    Args:
        text: the forward spec.
        backward: of the kernel of its gradients instead.
        space: extents of the axes of the one that runs.
        aligned: whether all operands lie at multiples of 16 bytes.
        requests: what to do with each output, as in :mod:`graphopt.kernels.cuda.plan`.
        device: multiprocessors, and the compute capability.

    Raises:
        GraphoptError: a kernel cannot be compiled.
    """
    processors, *capability = device
    plan = plan_of(
        walked_of(parse(text), backward=backward),
        space,
        aligned=aligned,
        processors=processors,
        requests=requests,
    )
    return _made(plan, (capability[0], capability[1]))


def _made(plan: LaunchPlan, capability: tuple[int, int]) -> Launches:
    offsets, size = plan.offsets()
    launches = (_Launch * len(plan.launches))(
        *(_launch(launch, offsets, capability) for launch in plan.launches)
    )
    return Launches(size, len(plan.launches), launches)


def _launch(launch: Launch, offsets: Sequence[int], capability: tuple[int, int]) -> _Launch:
    image, entry = _image(launch.kernel, capability)
    count = len(launch.arguments)
    kinds = (ctypes.c_int64 * count)(*(kind for kind, _ in launch.arguments))
    values = (ctypes.c_int64 * count)(
        *(offsets[value] if kind == AREA else value for kind, value in launch.arguments)
    )
    x, y = launch.threads
    registers = launch.kernel.registers or 0
    return _Launch(image, entry, registers, launch.blocks, x, y, count, kinds, values)


@cache
def _image(kernel: Kernel, capability: tuple[int, int]) -> tuple[bytes, bytes]:
    """PTX and its entry. The same objects each time: the bridge knows kernels by the address."""
    text = ptx(kernel, capability)
    found = _ENTRY.search(text)
    if found is None:
        raise GraphoptError(f"the PTX of {kernel} has no entry")
    return text.encode(), found[1].encode()
