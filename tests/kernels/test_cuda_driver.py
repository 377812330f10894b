"""What the bridge asks of a GPU's driver: another driver writes it down, on machines without a GPU.

What kernels compute is tested in cuda_cases.py, also on a GPU and through the same launches.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge
from graphopt.kernels.bridge import build
from graphopt.kernels.cuda import native
from graphopt.kernels.cuda.plan import plan_of
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.spec_parser import parse

SOURCE = Path(__file__).with_name("cuda_driver.cc")
CHAIN = "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = tanh %2; return %3:f32[a,b] }"
SKIP, WRITE, INPLACE, ADD = range(4)
DEVICE = (4, 7, 0)


class Driver:
    """The other driver, and the bridge that calls it."""

    def __init__(self, library: ctypes.CDLL, fused: ctypes.CDLL) -> None:
        self.library, self.fused = library, fused
        library.written_down.restype = ctypes.c_char_p

    def lines(self) -> list[list[str]]:
        """What was asked since the last time."""
        return [line.split() for line in self.library.written_down().decode().splitlines()]

    def launches(self) -> list[list[str]]:
        return [line for line in self.lines() if line[0] == "launch"]

    def run(self, text: str, arrays: Any, requests: Any, *, backward: bool = False) -> None:
        shapes = [extent for array in arrays for extent in array.shape]
        failed = self.fused.graphopt_run(
            text.encode(),
            int(backward),
            (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays)),
            (ctypes.c_int64 * len(shapes))(*shapes),
            len(arrays),
            (ctypes.c_int * len(requests))(*requests),
            0,
        )
        if failed:
            raise RuntimeError(self.fused.graphopt_error().decode())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    made = tmp_path_factory.mktemp("driver") / "driver.so"
    compiler = build.compiler()
    subprocess.run(
        [compiler, "-std=c++17", "-shared", "-fPIC", str(SOURCE), "-o", str(made)], check=True
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHOPT_CUDA_DRIVER", str(made))
        driver = Driver(ctypes.CDLL(str(made)), bridge.load(import_mxnet()))
        found = (ctypes.c_int64 * 3)()
        driver.fused.graphopt_cuda_device.restype = ctypes.c_char_p
        assert driver.fused.graphopt_cuda_device(1, found) is None  # from now on it is in use
    assert tuple(found) == DEVICE
    assert driver.lines() == [["retain", "1"]]
    return driver


@pytest.fixture
def driver(loaded: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """With images that name their kernel: numba can compile PTX only where NVVM is."""

    def image(kernel: Any, _capability: Any) -> str:
        name = type(kernel).__name__ if not hasattr(kernel, "name") else kernel.name
        return f".visible .entry {name} takes {kernel.parameters()}"

    monkeypatch.setattr(native, "ptx", image)
    native._image.cache_clear()
    loaded.lines()
    yield loaded
    native._image.cache_clear()


def arrays_of(*shapes: tuple[int, ...]) -> list[Any]:
    return [np.zeros(shape, "float32") for shape in shapes]


def test_a_kernel_is_loaded_once_and_launched_as_planned(driver: Driver) -> None:
    text = CHAIN.replace("tanh", "sin")
    arrays = arrays_of((6, 64), (64,), (6, 64))
    driver.run(text, arrays, [WRITE])
    driver.run(text, arrays, [INPLACE])
    first, *launches = driver.lines()
    assert first == ["load", "any"]
    aligned = all(array.ctypes.data % 16 == 0 for array in arrays)
    (planned,) = plan_of(parse(text), (6, 64), aligned=aligned, processors=4).launches
    places = [array.ctypes.data for array in arrays]
    numbers = [value for _, value in planned.arguments[3:]]
    want = ["launch", "FusedKernel", planned.blocks, *planned.threads, "stream", 0, ":"]
    want = [str(part) for part in (*want, *places, *numbers)]
    assert launches == [want, want]
    arrays = arrays_of((3, 64), (64,), (3, 64))
    driver.run(text, arrays, [WRITE])
    ((*_, rows, columns),) = driver.lines()  # another shape, the same kernel
    assert (rows, columns) == ("3", "64")


def test_launches_of_ever_other_shapes_are_forgotten(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaces = []
    plan = native.launches_of

    def launches_of(text: str, **given: Any) -> native.Launches:
        spaces.append(given["space"])
        return plan(text, **(given | {"space": (1,)}))  # planned once, which saves the test time

    monkeypatch.setattr(native, "launches_of", launches_of)
    text = "f32[a] (f32[a]) { %1 = arctan %0; return %1:f32[a] }"
    array = np.zeros(4200, "float32")
    sizes = [1, 2, 1, *range(3, 4200), 4199, 1]
    for size in sizes:
        driver.run(text, [array[:size], array[:size]], [WRITE])
    # What is asked for again soon is known, and what is not, in the end, is planned again.
    assert spaces == [(size,) for size in (*range(1, 4200), 1)]
    assert len(driver.launches()) == len(sizes)


def test_sums_go_through_a_workspace_that_grows(driver: Driver) -> None:
    text = "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; return %2:f32[a,b] }"
    gradient = differentiate(parse(text))
    assert gradient.spec is not None
    assert gradient.spec.outputs[1].operand.axes == (1,)
    seen = []
    for rows in (512, 2048, 512):
        arrays = arrays_of((rows, 64), (rows, 64), (64,), (rows, 64), (64,))
        driver.run(text, arrays, [WRITE, WRITE], backward=True)
        lines = driver.lines()
        seen.append([line[0] for line in lines if line[0] in ("allocate", "free")])
        main, finish = (line for line in lines if line[0] == "launch")
        assert (main[1], finish[1]) == ("FusedKernel", "finish")
        assert finish[9] == str(arrays[4].ctypes.data)  # the sums end in the output ...
        assert finish[8] in main  # ... from the parts that the kernel wrote
    assert seen == [["allocate"], ["free", "allocate"], []]


def test_gradients_are_added_to_and_left_alone(driver: Driver) -> None:
    arrays = arrays_of((5, 64), (64,), (5, 64))
    places = [str(array.ctypes.data) for array in arrays]
    driver.run(CHAIN, arrays, [ADD])
    main, addition = driver.launches()
    assert places[2] not in main[8:11]
    assert addition[8:11] == [places[2], main[10], places[2]]
    driver.run(CHAIN, arrays, [SKIP])
    assert driver.lines() == []
    text = "f32[a] (f32[a]) { %1 = neg %0; %2 = exp %0; return %1:f32[a], %2:f32[a] }"
    arrays = arrays_of((256,), (256,), (256,))
    driver.run(text, arrays, [SKIP, WRITE])
    (main,) = driver.launches()
    assert str(arrays[1].ctypes.data) not in main[8:]
    assert str(arrays[2].ctypes.data) in main[8:]


@pytest.mark.parametrize("shape", [(0, 64), (5, 0)], ids=str)
def test_nothing_is_launched_for_arrays_without_elements(
    driver: Driver, shape: tuple[int, int]
) -> None:
    driver.run(CHAIN, arrays_of(shape, shape[1:], shape), [WRITE])
    assert driver.launches() == []


def test_registers_of_large_blocks_are_bounded(driver: Driver) -> None:
    text = "f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }"
    driver.run(text, arrays_of((2, 4096), (2, 4096)), [WRITE])
    assert driver.lines()[0] == ["load", "registers", "128"]


def test_shapes_that_do_not_fit(driver: Driver) -> None:
    with pytest.raises(RuntimeError, match=r"operand 1 of kernel .* has extent 7 on axis 0"):
        driver.run(CHAIN, arrays_of((5, 64), (7,), (5, 64)), [WRITE])


def test_the_driver_fails(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "ptx", lambda *_: ".entry broken takes 1")
    text = CHAIN.replace("tanh", "cos")
    with pytest.raises(RuntimeError, match="cannot load kernel broken: a PTX JIT comp"):
        driver.run(text, arrays_of((5, 64), (64,), (5, 64)), [WRITE])


def test_the_kernel_cannot_be_compiled(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> str:
        raise ValueError("no NVVM")

    monkeypatch.setattr(native, "ptx", fail)
    text = CHAIN.replace("tanh", "cosh")
    with pytest.raises(RuntimeError, match="ValueError: no NVVM"):
        driver.run(text, arrays_of((5, 64), (64,), (5, 64)), [WRITE])


def test_this_mxnet_has_no_gpu() -> None:
    mx = import_mxnet()
    if mx.runtime.Features().is_enabled("CUDA"):
        pytest.skip("this MXNet was built for GPUs")
    assert bridge.why_not_on_gpu(mx) == "this MXNet was built without CUDA"
