"""Files of the bridge, compiled by themselves for a set of instructions, with a driver to call."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from graphopt.kernels.bridge import build

ORDER = ("base", "avx2", "avx512")
#: What files call besides.
_BESIDE = {"matrix.cc": ("tiles.cc", "paired.cc")}


def compiled(name: str, file: str, folder: Path) -> ctypes.CDLL:
    """``file`` of the bridge and its driver beside the tests; skips what the processor has not."""
    if ORDER.index(name) > ORDER.index(build.instructions()):
        pytest.skip(f"this processor has no {name}")
    source = build.HERE / file
    driver = Path(__file__).with_name(f"{source.stem}_driver.cc")
    common = [build.compiler(), "-std=c++17", "-fPIC", "-w", f"-I{build.HERE}"]
    # Else constants in functions are one for all of these libraries in a process: the first one's.
    common += [option for option in ("-fno-gnu-unique",) if build._takes(common[0], option)]
    sources = [source, *(build.HERE / beside for beside in _BESIDE.get(file, ()))]
    objects = [str(folder / f"{path.stem}.o") for path in (*sources, driver)]
    for path, target in zip((*sources, driver), objects, strict=True):
        known = path.name if path != driver else file
        options = build.options(common[0], known, name)
        subprocess.run([*common, *options, "-c", str(path), "-o", target], check=True)
    made = folder / f"{source.stem}.so"
    subprocess.run([*common, "-shared", *objects, "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))
