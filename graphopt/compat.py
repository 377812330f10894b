"""Makes MXNet 1.9 import on Python 3.10-3.12 with numpy 1.23-1.26, or says why it cannot.

MXNet 1.9.1 was released for older interpreters. Three things keep it from importing today:

- it uses ``numpy.bool`` and ``numpy.int``, which numpy 1.24 took away;
- it imports ``distutils``, which Python 3.12 took away and setuptools brings back;
- its CUDA build looks for the CUDA 11 libraries where the system linker looks, not where their
  wheels put them.

`install_import_hook` repairs all three at the moment MXNet is imported, by graphopt or by anybody
else, and costs nothing until then. It never raises: a plain ``import mxnet`` that still fails shows
MXNet's own exception. `import_mxnet` adds the explanation; graphopt itself uses it throughout.

Where ``import mxnet`` comes before ``import graphopt`` under numpy 1.24 or newer, MXNet raises
``AttributeError`` before this file is read. Importing graphopt and then MXNet again works: what the
failed import left is thrown away.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING

from graphopt.errors import MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# What MXNet reads and numpy 1.24 removed: a scan of the whole package finds no other name.
# The values are those of numpy before 1.20, the plain Python types.
NUMPY_ALIASES = {"bool": bool, "int": int}

# What libmxnet.so of mxnet-cu112 is linked against, each after those it needs itself.
# The wheels that contain them are the extra `cu112` of pyproject.toml.
CUDA_LIBRARIES = (
    "libcudart.so.11.0",
    "libnvrtc.so.11.2",
    "libnvToolsExt.so.1",
    "libcublasLt.so.11",
    "libcublas.so.11",
    "libcufft.so.10",
    "libcurand.so.10",
    "libcusolver.so.11",
    "libnccl.so.2",
    "libcudnn.so.8",
)
# What lies in MXNet's own folder.
OWN_LIBRARIES = ("libgfortran.so.3", "libmxnet", "libopenblas")
# The libraries of the compiler's runtime, and the Debian packages that contain them.
SYSTEM_PACKAGES = {
    "libgomp": "libgomp1",
    "libquadmath": "libquadmath0",
    "libstdc++": "libstdc++6",
}

HOW_TO_INSTALL = "pip install 'graphopt[cpu]', or 'graphopt[cu112]' for NVIDIA GPUs"


def install_import_hook() -> None:
    """Guarantees that from here on MXNet finds what it needs, whoever imports it.

    Imports nothing itself. Calling it again does nothing.
    """
    if "mxnet" in sys.modules:  # numpy 1.23 lets it in without us; it reads names later too
        _restore_numpy_names()
    if not any(type(finder).__name__ == MXNetFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, MXNetFinder())


def import_mxnet() -> ModuleType:
    """Returns the module ``mxnet``, imported if need be.

    Raises:
        MissingDependencyError: MXNet cannot be imported; the message says what to install.
    """
    known = sys.modules.get("mxnet")
    if known is not None and known is _checked:
        return known
    return _import_and_check()


#: The module that passed the checks of :func:`import_mxnet`, which every call of a net makes.
_checked: ModuleType | None = None


def _import_and_check() -> ModuleType:
    global _checked
    install_import_hook()
    try:
        if "mxnet" not in sys.modules:
            _check_numpy()
        module = importlib.import_module("mxnet")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(_explain_missing_module(error.name or str(error))) from error
    except (OSError, RuntimeError) as error:  # RuntimeError: the package has no libmxnet.so
        raise MissingDependencyError(explain_load_failure(str(error))) from error
    version = str(getattr(module, "__version__", "of unknown version"))
    if not version.startswith("1.9."):
        raise MissingDependencyError(
            f"graphopt works with MXNet 1.9.1, but MXNet {version} is installed: {HOW_TO_INSTALL}"
        )
    _checked = module
    return module


def _check_numpy() -> None:
    numpy = importlib.import_module("numpy")
    if int(numpy.__version__.split(".")[0]) >= 2:
        raise MissingDependencyError(
            f"MXNet 1.9.1 needs numpy 1.x, but numpy {numpy.__version__} is installed: "
            "pip install 'numpy>=1.23,<2'"
        )


class MXNetFinder:
    """Finds ``mxnet`` where the finders behind it do; `prepare` runs just before MXNet's code."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns None for every module but ``mxnet``."""
        if fullname != "mxnet":
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        specs = (finder.find_spec(fullname, path, target) for finder in behind)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                prepare(module)
                with warnings.catch_warnings():  # no user can act on them; fatal under -W error
                    warnings.simplefilter("ignore", DeprecationWarning)
                    warnings.simplefilter("ignore", SyntaxWarning)
                    run(module)
                register_kernels(module)

            # A finder makes a loader per call, so this changes one import; being a method of the
            # loader that was found, it leaves mxnet.__loader__ what everybody expects.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def prepare(module: ModuleType) -> None:
    """Makes the process ready to run MXNet's code as `module`.

    What cannot be repaired is left for MXNet to report.
    """
    if not hasattr(module, "__version__"):  # not a reload
        # Left by an import that failed halfway, tied to a package that is no more.
        for name in [name for name in sys.modules if name.startswith("mxnet.")]:
            del sys.modules[name]
    _restore_numpy_names()
    # Else 8-bit dense layers keep the range of the first input wherever operators are prepared.
    os.environ.setdefault("MXNET_MKLDNN_QFC_DYNAMIC_PARAMS", "1")
    from graphopt.backend.memory import share_one_heap

    share_one_heap()
    if sys.version_info >= (3, 12) and importlib.util.find_spec("distutils") is None:
        _try_import("setuptools")
    preload_cuda()


def register_kernels(module: ModuleType) -> None:
    """Make MXNet know graphopt's operators, so that it loads Symbols that hold them.

    Only where the bridge was built before: building it takes seconds, and is left to the first net
    that is optimized.
    """
    if str(getattr(module, "__version__", "")).startswith("1.9."):
        from graphopt.kernels.bridge import load_if_built

        load_if_built(module)


def _restore_numpy_names() -> None:
    numpy = _try_import("numpy")
    if numpy is not None and numpy.__version__.startswith("1."):
        for name, value in NUMPY_ALIASES.items():
            vars(numpy).setdefault(name, value)  # numpy 1.23 answers hasattr, and warns


def _try_import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def preload_cuda() -> list[str]:
    """Loads the CUDA 11 libraries out of their wheels if MXNet is the build for CUDA 11.2.

    The linker takes a library that is already in the process for every later one of the same name,
    so MXNet needs no CUDA on the system. A library that no wheel has is left to the system.

    Returns:
        The files loaded, in order.
    """
    if not is_installed("mxnet-cu112"):
        return []
    import ctypes
    from pathlib import Path

    namespace = importlib.util.find_spec("nvidia")
    folders = (namespace.submodule_search_locations if namespace else None) or ()
    loaded = []
    for library in CUDA_LIBRARIES:
        files = (file for folder in folders for file in Path(folder).glob(f"*/lib/{library}"))
        file = next(files, None)
        if file is not None:
            with contextlib.suppress(OSError):  # MXNet then reports it, or finds the system's
                ctypes.CDLL(str(file))
                loaded.append(str(file))
    return loaded


def is_installed(distribution: str) -> bool:
    """Tells whether this interpreter has the package `distribution`, by the name pip knows it."""
    from importlib import metadata

    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _explain_missing_module(name: str) -> str:
    if name == "mxnet":
        return f"This needs MXNet 1.9.1, which is not installed: {HOW_TO_INSTALL}"
    package = name.split(".")[0].replace("distutils", "setuptools")
    return f"MXNet is installed, but {name!r}, which it imports, is not: pip install {package}"


def explain_load_failure(message: str) -> str:
    """Returns one sentence for the linker's `message`: which library is missing, what brings it."""
    found = re.search(r"lib[\w+-]+\.so[\w.]*", message)
    library = found.group() if found else "libmxnet.so"
    if library.startswith(OWN_LIBRARIES):
        return (
            f"MXNet is installed, but its own library cannot be loaded ({message}); "
            f"reinstall it: {HOW_TO_INSTALL}"
        )
    start = f"MXNet is installed, but the library {library} that it needs cannot be loaded"
    if library.startswith("libcuda.so"):
        return (
            f"{start}; it comes with the NVIDIA driver, so install the driver, or on a machine "
            "without an NVIDIA GPU replace the CUDA build: pip uninstall mxnet-cu112, then "
            "pip install --force-reinstall --no-deps mxnet==1.9.1"
        )
    if library in CUDA_LIBRARIES or library.startswith(("libcu", "libnv", "libnccl")):
        return f"{start}; its wheel comes with pip install 'graphopt[cu112]'"
    package = SYSTEM_PACKAGES.get(library.split(".")[0])
    if package is not None:
        return (
            f"{start}; install it with the system's package manager "
            f"(on Debian and Ubuntu: apt install {package})"
        )
    return f"{start} ({message})"
