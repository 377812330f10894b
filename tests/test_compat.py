"""MXNet imports whichever of the two comes first, or one sentence says what to install."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from graphopt import compat
from graphopt.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[1]
needs_mxnet = pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="needs mxnet")


def run(code: str, *folders: Path) -> str:
    """Runs `code` in a new interpreter: `folders` come first, every warning is an error."""
    path = os.pathsep.join(map(str, (*folders, ROOT)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def fake_mxnet(tmp_path: Path):
    """Writes a package `mxnet` with the given code and returns the folder it is in."""

    def write(code: str, **submodules: str) -> Path:
        package = tmp_path / "mxnet"
        package.mkdir()
        (package / "__init__.py").write_text(code)
        for name, text in submodules.items():
            (package / f"{name}.py").write_text(text)
        return tmp_path

    return write


# Import order, with the real MXNet.


@needs_mxnet
def test_plain_import_of_mxnet_works_once_graphopt_is_imported():
    code = """
import graphopt, sys
assert not {"mxnet", "numba"} & set(sys.modules)
import mxnet as mx
assert mx.np.ones((2, 2))[mx.np.ones((2, 2)) > 0].shape == (4,)
assert mx.nd.array([1, 2]).sum().asscalar() == 3
from graphopt.compat import import_mxnet
print(mx is import_mxnet())
"""
    assert run(code) == "True"


@needs_mxnet
def test_graphopt_repairs_an_import_of_mxnet_that_came_first_and_failed():
    code = """
import sys, warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        import mxnet
    except (AttributeError, ModuleNotFoundError):  # numpy.bool or distutils
        assert "mxnet" not in sys.modules
from graphopt.compat import install_import_hook
install_import_hook()
import mxnet as mx
net = mx.gluon.nn.Dense(3, in_units=2)
net.initialize()
net.hybridize()
print(net(mx.nd.ones((4, 2))).shape)
"""
    assert run(code) == "(4, 3)"


# The hook, with packages of our own in the place of MXNet.


def test_hook_prepares_numpy_only_when_mxnet_is_imported(fake_mxnet):
    folder = fake_mxnet(
        "import numpy\nassert vars(numpy)['bool'] is bool and vars(numpy)['int'] is int"
    )
    code = """
import sys
from graphopt.compat import install_import_hook
before = "numpy" in sys.modules
install_import_hook()
assert ("numpy" in sys.modules) == before
import mxnet
print(mxnet.__loader__.get_source("mxnet") is not None)
"""
    assert run(code, folder) == "True"


def test_hook_silences_the_warnings_of_mxnet_and_no_others(fake_mxnet):
    folder = fake_mxnet("import warnings\nwarnings.warn('old', DeprecationWarning)\nx = '\\d'\n")
    code = """
import warnings
from graphopt.compat import install_import_hook
install_import_hook()
import mxnet
try:
    warnings.warn("ours", DeprecationWarning)
except DeprecationWarning:
    print("raised")
"""
    assert run(code, folder) == "raised"


def test_hook_throws_away_what_a_failed_import_left(fake_mxnet):
    folder = fake_mxnet(
        "import sys\nfrom mxnet import part\nif not part.hooked(): raise OSError('first')",
        part="""
import sys
def hooked(): return 'graphopt.compat' in sys.modules
""",
    )
    code = """
import sys
try:
    import mxnet
except OSError:
    left = sys.modules["mxnet.part"]
from graphopt.compat import import_mxnet
print(import_mxnet.__name__)
try:
    import_mxnet()
except ImportError as error:  # the fake has no version
    print("1.9.1" in str(error), sys.modules["mxnet"].part is not left)
"""
    assert run(code, folder) == "import_mxnet\nTrue True"


def test_hook_brings_distutils_back(fake_mxnet):
    folder = fake_mxnet("from distutils.version import StrictVersion\n__version__ = '1.9.1'")
    assert (
        run("from graphopt.compat import import_mxnet\nprint(import_mxnet().__version__)", folder)
        == "1.9.1"
    )


def test_hook_survives_a_reload(fake_mxnet):
    folder = fake_mxnet("__version__ = '1.9.1'\nfrom mxnet import part", part="")
    code = """
import importlib, sys
from graphopt.compat import import_mxnet
mxnet = import_mxnet()
part = mxnet.part
importlib.reload(mxnet)
print(sys.modules["mxnet.part"] is part)
"""
    assert run(code, folder) == "True"


def test_hook_leaves_the_exception_of_a_plain_import_alone(fake_mxnet):
    folder = fake_mxnet("raise OSError('libcudart.so.11.0: cannot open shared object file')")
    code = """
from graphopt.compat import install_import_hook
install_import_hook()
try:
    import mxnet
except OSError as error:
    print(type(error).__name__, error)
"""
    assert run(code, folder) == "OSError libcudart.so.11.0: cannot open shared object file"


def test_hook_is_installed_once_and_finds_nothing_else(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    compat.install_import_hook()
    compat.install_import_hook()
    (finder,) = (finder for finder in sys.meta_path if isinstance(finder, compat.MXNetFinder))
    assert finder.find_spec("numpy") is None
    assert finder.find_spec("mxnet.gluon") is None


def test_importing_graphopt_loads_nothing_heavy():
    assert (
        run("import graphopt, sys\nprint({'mxnet', 'numba', 'torch'} & set(sys.modules))")
        == "set()"
    )


# What is missing, in one sentence.


def test_missing_mxnet_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(MissingDependencyError) as caught:
        compat.import_mxnet()
    assert str(caught.value) == (
        "This needs MXNet 1.9.1, which is not installed: "
        "pip install 'graphopt[cpu]', or 'graphopt[cu112]' for NVIDIA GPUs"
    )
    assert isinstance(caught.value, ImportError)


def test_missing_module_of_mxnet_is_named(fake_mxnet):
    folder = fake_mxnet("import requests_of_old.sessions")
    code = """
from graphopt.compat import import_mxnet
try:
    import_mxnet()
except ImportError as error:
    print(error)
"""
    assert run(code, folder) == (
        "MXNet is installed, but 'requests_of_old', which it imports, is not: "
        "pip install requests_of_old"
    )


def test_numpy_2_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    monkeypatch.setattr(np, "__version__", "2.1.0")
    with pytest.raises(MissingDependencyError) as caught:
        compat.import_mxnet()
    assert str(caught.value) == (
        "MXNet 1.9.1 needs numpy 1.x, but numpy 2.1.0 is installed: pip install 'numpy>=1.23,<2'"
    )


def test_other_versions_of_mxnet_are_refused(monkeypatch: pytest.MonkeyPatch):
    other = ModuleType("mxnet")
    other.__version__ = "2.0.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mxnet", other)
    with pytest.raises(
        MissingDependencyError, match=r"works with MXNet 1\.9\.1, but MXNet 2\.0\.0 is"
    ):
        compat.import_mxnet()


def test_missing_library_becomes_one_sentence(fake_mxnet):
    folder = fake_mxnet(
        "raise OSError('libcudnn.so.8: cannot open shared object file: No such file')"
    )
    code = """
from graphopt.compat import import_mxnet
try:
    import_mxnet()
except ImportError as error:
    print(error)
"""
    assert run(code, folder) == (
        "MXNet is installed, but the library libcudnn.so.8 that it needs cannot be loaded; "
        "its wheel comes with pip install 'graphopt[cu112]'"
    )


@pytest.mark.parametrize(
    ("message", "library", "advice"),
    [
        (
            "libcudart.so.11.0: cannot open shared object file",
            "libcudart.so.11.0",
            "'graphopt[cu112]'",
        ),
        ("libnccl.so.2: cannot open shared object file", "libnccl.so.2", "'graphopt[cu112]'"),
        ("libnvToolsExt.so.1: cannot open", "libnvToolsExt.so.1", "'graphopt[cu112]'"),
        ("libcuda.so.1: cannot open shared object file", "libcuda.so.1", "install the driver"),
        (
            "libquadmath.so.0: cannot open shared object file",
            "libquadmath.so.0",
            "apt install libquadmath0",
        ),
        ("libgomp.so.1: cannot open shared object file", "libgomp.so.1", "apt install libgomp1"),
        (
            "libgfortran.so.3: cannot open",
            "libgfortran.so.3",
            "reinstall it: pip install 'graphopt[cpu]'",
        ),
        ("/site/mxnet/libmxnet.so: file too short", "file too short", "reinstall it"),
        ("Cannot find the MXNet library.", "Cannot find the MXNet library.", "reinstall it"),
    ],
)
def test_load_failure_names_the_library_and_the_remedy(message: str, library: str, advice: str):
    sentence = compat.explain_load_failure(message)
    assert library in sentence
    assert advice in sentence
    assert "\n" not in sentence


# The libraries of CUDA.


def test_cuda_is_not_touched_for_the_cpu_build(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compat, "is_installed", lambda name: False)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: pytest.fail("loaded a library"))
    assert compat.preload_cuda() == []


def test_cuda_is_loaded_from_the_wheels_in_the_order_of_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    for folder, name in (
        ("cublas", "libcublas.so.11"),
        ("cublas", "libcublasLt.so.11"),
        ("cuda_runtime", "libcudart.so.11.0"),
        ("cuda_runtime", "libcudart.so.12"),
        ("cudnn", "libcudnn.so.8"),
    ):
        (tmp_path / folder / "lib").mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "lib" / name).touch()
    loaded = []

    def load(name: str) -> None:
        if "cublasLt" in name:
            raise OSError("not a library")
        loaded.append(name)

    namespace = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(compat, "is_installed", lambda name: name == "mxnet-cu112")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: namespace)
    monkeypatch.setattr(ctypes, "CDLL", load)
    assert compat.preload_cuda() == loaded
    assert [Path(file).name for file in loaded] == [
        "libcudart.so.11.0",
        "libcublas.so.11",
        "libcudnn.so.8",
    ]


def test_is_installed_knows_distributions_by_name():
    assert compat.is_installed("numpy")
    assert not compat.is_installed("no-such-distribution")
