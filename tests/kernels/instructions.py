"""Files of the bridge, compiled by themselves for a set of instructions, with a driver to call."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from graphopt.kernels.bridge import build

ORDER = ("base", "avx2", "avx512")
#: What files call besides.
_BESIDE = {"matrix.cc": ("tiles.cc",)}


def compiled(name: str, file: str, folder: Path) -> ctypes.CDLL:
    """``file`` of the bridge and its driver beside the tests; skips what the processor has not."""
    if ORDER.index(name) > ORDER.index(build.instructions()):
        pytest.skip(f"this processor has no {name}")
    source = build.HERE / file
    driver = Path(__file__).with_name(f"{source.stem}_driver.cc")
    options = ["-std=c++17", "-fPIC", "-shared", "-w", f"-I{build.HERE}"]
    options += [*build._VECTORS[file], *build._INSTRUCTIONS[name]]
    made = folder / f"{source.stem}.so"
    sources = [source, *(build.HERE / beside for beside in _BESIDE.get(file, ())), driver]
    command = [build.compiler(), *options, *map(str, sources), "-o", str(made)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(made))
