"""The C++ twin of calls.py: built once for this Python, and loaded."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from graphopt.errors import MissingDependencyError
from graphopt.kernels.bridge.build import compiler, run_compilers
from graphopt.kernels.cache import folder, written
from graphopt.kernels.shared_library import is_whole, loaded

_FOLDER = Path(__file__).with_name("recording")
_NAME = "graphopt_recording"
#: Set to ``python``: record in Python, which is slower and easier to look into.
_VARIABLE = "GRAPHOPT_RECORDER"


@cache
def load() -> tuple[ModuleType | None, str | None]:
    """The module, built again where it is damaged; or None, and why there is none."""
    if os.environ.get(_VARIABLE) == "python":
        return None, f"{_VARIABLE}=python"
    try:
        return loaded(_library, _loaded), None
    except (MissingDependencyError, ImportError, OSError) as error:
        return None, str(error)


def _library() -> Path:
    """Where the module is, built first if need be."""
    path = _kept()
    return path if is_whole(path) else written(path, _build())


def _kept() -> Path:
    digest = hashlib.sha256()
    for source in sorted([*_FOLDER.glob("*.h"), *_FOLDER.glob("*.cc")]):
        digest.update(source.read_bytes())
    for part in (sysconfig.get_platform(), sysconfig.get_config_var("EXT_SUFFIX")):
        digest.update(str(part).encode())
    return folder() / "bridge" / f"{_NAME}-{digest.hexdigest()[:16]}.so"


def _build() -> bytes:
    """Compile; returns the shared library.

    Raises:
        MissingDependencyError: there is no C++ compiler or no Python header, or compiling fails.
    """
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").exists():
        raise MissingDependencyError(
            f"{include} has no Python.h (on Debian and Ubuntu: apt install python3-dev)"
        )
    with tempfile.TemporaryDirectory(prefix="graphopt-recording-") as work:
        target = Path(work) / "recording.so"
        options = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
        source = _FOLDER / "module.cc"
        command = [compiler(), *options, f"-I{include}", str(source), "-o", str(target)]
        run_compilers([command])
        return target.read_bytes()


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def configure() -> None:
    """Tell the module which classes to make and to read; must come before it records."""
    module: Any = load()[0]
    if module is not None:
        from graphopt.batching.lazy import Lazy
        from graphopt.batching.runs import COUNT_BITS, START_BITS
        from graphopt.batching.signature import Signature
        from graphopt.batching.unit import Unit

        module.configure(Lazy, Signature, Unit, COUNT_BITS, START_BITS)
