"""Files of the bridge, compiled by themselves for a set of instructions, with a driver to call."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from graphopt.kernels.bridge import build

ORDER = ("base", "avx2", "avx512")
#: What files call besides.
_BESIDE = {"matrix.cc": ("tiles.cc", "paired.cc")}


def compiled(name: str, file: str, folder: Path) -> ctypes.CDLL:
    """``file`` of the bridge and its driver beside the tests; skips what the processor has not.

    What it has chosen is its own: each call loads another copy, kept in ``folder``.
    """
    if ORDER.index(name) > ORDER.index(build.instructions()):
        pytest.skip(f"this processor has no {name}")
    return ctypes.CDLL(shutil.copy(_library(name, file), folder))


@cache
def _library(name: str, file: str) -> str:
    """The library's place; one process compiles it once."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    source = build.HERE / file
    driver = Path(__file__).with_name(f"{source.stem}_driver.cc")
    common = [build.compiler(), "-std=c++17", "-fPIC", "-w", f"-I{build.HERE}"]
    # Else constants in functions are one for all of these libraries in a process: the first one's.
    common += [option for option in ("-fno-gnu-unique",) if build._takes(common[0], option)]
    sources = [source, *(build.HERE / beside for beside in _BESIDE.get(file, ()))]
    objects = [f"{folder}/{path.stem}.o" for path in (*sources, driver)]
    for path, target in zip((*sources, driver), objects, strict=True):
        known = path.name if path != driver else file
        options = build.options(common[0], known, name)
        subprocess.run([*common, *options, "-c", str(path), "-o", target], check=True)
    made = f"{folder}/{source.stem}.so"
    subprocess.run([*common, "-shared", *objects, "-o", made], check=True)
    return made
