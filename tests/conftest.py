"""What all tests share: hypothesis profiles, MXNet, and data that may lie beside the repository."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from graphopt.compat import import_mxnet
from graphopt.memory.check import check_packing
from graphopt.memory.packing import Packing
from tests.places import data_folder

# MXNet reads this once, when a process first binds a graph, and announces subgraphs ever after:
# without it, what the command prints would depend on the tests before. The command sets it itself,
# which tests/cli/test_inspect.py sees in a process of its own.
os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")
# The tests compile thousands of kernels, now and then: children would end and begin again all the
# time. tests/kernels/test_compilers.py has them.
os.environ.setdefault("GRAPHOPT_COMPILERS", "0")

_COMMON = {
    "deadline": None,  # the first call of an operator in MXNet takes long
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
# `ci` tries the same examples on every run, so that a failure belongs to the change that made it;
# `dev` looks for new ones. HYPOTHESIS_PROFILE chooses.
settings.register_profile("ci", derandomize=True, database=None, print_blob=False, **_COMMON)
settings.register_profile("dev", **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run measured must not decide what a test sees."""
    monkeypatch.setattr("graphopt.backend.measured.ENABLED", False)


@pytest.fixture(autouse=True)
def numbers_are_drawn_alike() -> None:
    """What earlier tests drew must not decide on which numbers a test runs."""
    import_mxnet().random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def sizes_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast a graph for any size is must not decide what a test sees but where it may."""
    monkeypatch.setattr("graphopt.nn.other_sizes.OtherSizes.find", lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def every_plan_is_right() -> Iterator[None]:
    """Check each packing that a test makes, whatever it makes it for."""
    made = Packing.__init__

    def checked(packing: Packing, *args: Any, **kwargs: Any) -> None:
        made(packing, *args, **kwargs)
        check_packing(packing.buffers, packing.offsets.tolist(), packing.arena)
        assert packing.lower_bound <= packing.arena

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packing, "__init__", checked)
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs an NVIDIA GPU that MXNet can use")


def _has_gpu() -> bool:
    mxnet = import_mxnet()
    try:
        return bool(mxnet.context.num_gpus())
    except mxnet.MXNetError:  # built for GPUs, but there is no driver
        return False


@pytest.fixture
def threads() -> Iterator[Any]:
    """Sets how many threads OpenMP takes in this thread; not in those that MXNet's engine has."""
    library = ctypes.CDLL("libgomp.so.1")
    before = library.omp_get_max_threads()
    yield library.omp_set_num_threads
    library.omp_set_num_threads(before)


@pytest.fixture(scope="module")
def small_heap() -> Iterator[None]:
    """What is alive already is not looked at again by a module that collects garbage often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def mx():
    """The module mxnet."""
    return import_mxnet()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of shared data; without it the test is skipped."""
    folder = data_folder()
    if not folder.is_dir():
        pytest.skip(f"there is no shared data at {folder}; GRAPHOPT_SHARED names its parent folder")
    return folder
