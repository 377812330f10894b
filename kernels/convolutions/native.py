"""Regions of convolutions in the bridge: blocks, packed parameters, and calls without a graph."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.kernels import bridge
from graphopt.kernels.convolutions.plan import plan
from graphopt.kernels.convolutions.program import Program
from graphopt.kernels.convolutions.single import Layer, single
from graphopt.kernels.convolutions.steps import Kind

#: Algorithms are timed against each other so often, or until each has been given so many seconds.
_MOST_ROUNDS = 12
_PATIENCE_S = 0.06
#: After so many rounds those that take this many times the best one's time are not timed again.
_FEWEST_ROUNDS, _HOPELESS = 3, 1.5
#: Different numbers that they are timed with; a prime, so that no two rows are alike.
_NUMBERS = 4099
_MEASURED = (Kind.DIRECT, Kind.WINOGRAD, Kind.DEPTHWISE)

if TYPE_CHECKING:
    import numpy.typing as npt

    from graphopt.kernels.convolutions.spec import ConvolutionsSpec

    Array = npt.NDArray[np.float32]


def lanes(mxnet: Any) -> int:
    """How many channels make a block on this processor.

    Raises:
        MissingDependencyError: the bridge cannot be built or loaded.
    """
    return int(bridge.load(mxnet).graphopt_lanes())


def packed_size(mxnet: Any, spec: str, number: int) -> int:
    """How many numbers :func:`pack` makes of an input.

    Args:
        mxnet: the module.
        spec: the text of a :class:`ConvolutionsSpec`.
        number: which of its inputs, of those that are parameters.

    Raises:
        GraphoptError: the text is no region, or it is for another processor.
    """
    library = bridge.load(mxnet)
    size = library.graphopt_packed_size(spec.encode(), ctypes.c_int64(number))
    if size < 0:
        raise GraphoptError(library.graphopt_error().decode())
    return int(size)


def pack(mxnet: Any, spec: str, number: int, given: Array, into: Array) -> None:
    """Write a parameter in the order in which the region reads it.

    Args:
        mxnet: the module.
        spec: the text of a :class:`ConvolutionsSpec`.
        number: which of its inputs.
        given: that input, float32.
        into: float32, of :func:`packed_size`.

    Raises:
        GraphoptError: the text is no region, or it is for another processor.
    """
    library = bridge.load(mxnet)
    numbers = np.ascontiguousarray(given, np.float32)
    addresses = (ctypes.c_void_p(array.ctypes.data) for array in (numbers, into))
    if library.graphopt_pack(spec.encode(), ctypes.c_int64(number), *addresses):
        raise GraphoptError(library.graphopt_error().decode())


def run(
    mxnet: Any, spec: ConvolutionsSpec, inputs: Sequence[Array], *, threads: int = 1, times: int = 1
) -> tuple[list[Array], list[float]]:
    """Compute a region.

    Args:
        mxnet: the module.
        spec: the region.
        inputs: float32 array per input of its body.
        threads: OpenMP threads.
        times: how often.

    Returns:
        The outputs, and for every step of the program the least processor time that it took, in
        seconds, as a share for each thread.

    Raises:
        GraphoptError: the region is for another processor.
    """
    text = str(spec)
    given = []
    for number, (node, x) in enumerate(zip(spec.body.inputs, inputs, strict=True)):
        array = np.ascontiguousarray(x, np.float32)
        if node.op != "data":
            plain, array = array, np.empty(packed_size(mxnet, text, number), np.float32)
            pack(mxnet, text, number, plain, into=array)
        given.append(array)
    library, program = bridge.load(mxnet), plan(spec)
    outputs = [np.empty(shape, np.float32) for shape in program.outputs]
    return outputs, _run(library, text, program, given, outputs, threads, times)


def layer_times_ms(mxnet: Any, layer: Layer, algorithms: Sequence[str]) -> dict[str, float]:
    """Milliseconds of a convolution by each algorithm, in turns, the best of some.

    It is processor time, as a share for each thread: what others do on the machine does not count,
    nor do plain images on their way in and out.
    """
    library = bridge.load(mxnet)
    threads = int(library.graphopt_threads())
    regions = {name: single(layer, lanes(mxnet), name) for name in algorithms}
    programs = {name: plan(spec) for name, spec in regions.items()}
    inputs = {name: _filled(library, str(spec), len(programs[name].inputs))
              for name, spec in regions.items()}  # fmt: skip
    output = np.empty(layer.made, np.float32)
    best, spent = dict.fromkeys(algorithms, float("inf")), dict.fromkeys(algorithms, 0.0)
    running = list(algorithms)
    for rounds in range(1, 1 + _MOST_ROUNDS):
        for name in running:
            text, program = str(regions[name]), programs[name]
            seconds = _run(library, text, program, inputs[name], [output], threads, 1)
            steps = zip(program.steps, seconds, strict=True)
            took = sum(each for step, each in steps if step.kind in _MEASURED)
            best[name] = min(best[name], took * 1e3)
            spent[name] += took
        if rounds >= _FEWEST_ROUNDS:
            most = min(best.values()) * _HOPELESS
            running = [name for name in running if best[name] <= most]
        if len(running) == 1 or sum(map(spent.__getitem__, running)) > _PATIENCE_S * len(running):
            break
    return best


def _filled(library: Any, text: str, count: int) -> list[Array]:
    """Numbers for packed inputs; neither they nor differences are so small that it takes longer."""
    numbers = np.random.default_rng(0).uniform(0.005, 0.015, _NUMBERS).astype(np.float32)
    sizes = [library.graphopt_packed_size(text.encode(), ctypes.c_int64(n)) for n in range(count)]
    return [np.resize(numbers, size) for size in sizes]


def _run(
    library: Any,
    text: str,
    program: Program,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    threads: int,
    times: int,
) -> list[float]:
    seconds = (ctypes.c_double * len(program.steps))()
    if library.graphopt_run_convolutions(
        text.encode(), _addresses(inputs), _addresses(outputs), threads, times, seconds
    ):
        raise GraphoptError(library.graphopt_error().decode())
    return list(seconds)


def _addresses(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
