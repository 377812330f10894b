"""Builds the bridge with the C++ compiler at hand, against the headers of the installed MXNet."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path

from graphopt.errors import MissingDependencyError
from graphopt.kernels.cache import folder, wanted, write_atomically, written
from graphopt.kernels.shared_library import is_whole

HERE = Path(__file__).parent
_LOG = logging.getLogger("graphopt")
#: What is compiled, each file by a process of its own: those that take longest first, so that no
#: processor is left with one of them at the end.
SOURCES = (
    "operators.cc",
    "batch_norm.cc",
    "recurrence.cc",
    "schedule.cc",
    "tree.cc",
    "paired.cc",
    "paired_dense.cc",
    "matrix.cc",
    "paired_winograd.cc",
    "paired_convolution.cc",
    "product.cc",
    "convolution.cc",
    "blocked.cc",
    "paired_gradient.cc",
    "levels.cc",
    "cuda.cc",
    "program.cc",
    "schedule_plan.cc",
    "lookup.cc",
    "winograd_large.cc",
    "grouped.cc",
    "winograd.cc",
    "align.cc",
    "winograd_gradient.cc",
    "slim.cc",
    "tile_dense.cc",
    "equal.cc",
    "dense.cc",
    "tiles.cc",
    "dropout.cc",
    "cut.cc",
)
#: Options of those whose loops are worth, and stand, the processor's own instructions.
_VECTORS = {
    "matrix.cc": ["-O3"],
    "paired.cc": ["-O3"],
    "paired_dense.cc": ["-O3"],
    "paired_convolution.cc": ["-O3"],
    "paired_winograd.cc": ["-O3"],
    "paired_gradient.cc": ["-O3"],
    "tiles.cc": ["-O2"],
    "tile_dense.cc": ["-O2"],
    "dense.cc": ["-O2"],
    "dropout.cc": ["-O3"],
    "recurrence.cc": ["-O2", "-ftree-vectorize"],
    "lookup.cc": ["-O2"],
    "tree.cc": ["-O2", "-ftree-vectorize"],
    "schedule.cc": ["-O2", "-ftree-vectorize"],
    "convolution.cc": ["-O2"],
    "winograd.cc": ["-O2"],
    "winograd_gradient.cc": ["-O2"],
    "winograd_large.cc": ["-O2"],
    "grouped.cc": ["-O2"],
    "blocked.cc": ["-O2"],
    "align.cc": ["-O2"],
    # A block of 16 channels is two vectors of AVX2; no function that takes one is left.
    "batch_norm.cc": ["-O2", "-Wno-psabi"],
    "product.cc": ["-O2"],
    "cut.cc": ["-O2"],
    "slim.cc": ["-O3"],
}
_INSTRUCTIONS = {
    "avx512": ["-mavx512f", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
    "avx2": ["-mavx2", "-mfma"],
    "base": [],
}
#: What files of the matrix unit are told besides. A pragma in their source would not do: functions
#: of headers that are read before it may not be inlined into those after it.
_UNIT = ["-mavx512bw", "-mamx-tile", "-mamx-bf16"]
_UNIT_FILES = ("tiles.cc", "tile_dense.cc")
_COMPILERS = ("g++", "c++", "clang++")
#: Seconds that a compiler may take, and between two looks whether to end it.
_SECONDS, _LOOK_SECONDS = 900, 0.1
#: A std::function that passes an argument by value, as GCC 4.8's do; newer ones pass a reference.
_BY_VALUE = re.compile(
    rb"_ZNSt17_Function_handlerIFvPN4dmlc3anyEE[^\0]*9_M_invokeERKSt9_Any_dataS[0-9A-Z]*_\0"
)
_NEW_STRINGS = b"_ZN4nnvm2Op3GetERKNSt7__cxx1112basic_string"


def library(mxnet: Path) -> Path:
    """The bridge for the MXNet in folder ``mxnet``, built first if need be.

    It is kept in the cache folder, or for this process alone where that is full or another user's;
    a wheel built where MXNet was installed brings its own.

    Raises:
        MissingDependencyError: there is no C++ compiler, or it fails; the message says what to do.
    """
    found = find(mxnet)
    if found is None:
        found = written(_kept(mxnet), build(mxnet))
    return found


def find(mxnet: Path) -> Path | None:
    """The bridge for the MXNet in folder ``mxnet`` if it is built already."""
    return next((path for path in (_shipped(mxnet), _kept(mxnet)) if is_whole(path)), None)


def _shipped(mxnet: Path) -> Path:
    return HERE / f"bridge-{_key(mxnet)}.so"


def _kept(mxnet: Path) -> Path:
    return folder() / "bridge" / f"bridge-{_key(mxnet)}.so"


def build(mxnet: Path) -> bytes:
    """Compile and link; returns the shared library.

    Who waits for that is told so through the logger ``graphopt``.

    Raises:
        MissingDependencyError: there is no C++ compiler, or it fails.
    """
    command = compiler()
    include, binary = mxnet / "include", mxnet / "libmxnet.so"
    if not (include / "nnvm" / "op.h").exists():
        raise MissingDependencyError(
            f"graphopt's fused kernels need MXNet's C++ headers, which {mxnet} does not have;"
            " reinstall MXNet 1.9.1 from PyPI"
        )
    _LOG.warning(
        "graphopt compiles its fused kernels for this MXNet with %s, once: about a minute", command
    )
    # fmt: off
    common = [
        command, "-std=c++17", "-fPIC", "-fopenmp", "-fno-access-control", "-fvisibility=hidden",
        "-w", *_abi(binary), "-DMSHADOW_USE_CUDA=0", "-DMSHADOW_USE_CBLAS=0",
        "-DMSHADOW_USE_MKL=0", "-DMSHADOW_USE_F16C=0", "-DMSHADOW_USE_SSE=0",
        "-DMXNET_USE_MKLDNN=1", f"-I{include}", f"-I{include / 'mkldnn'}",
    ]
    link = ["-shared", f"-L{mxnet}", "-l:libmxnet.so", "-ldl", f"-Wl,-rpath,{mxnet}"]
    # fmt: on
    try:
        with tempfile.TemporaryDirectory(prefix="graphopt-bridge-") as work:
            target = Path(work) / "bridge.so"
            objects = [Path(work) / f"{source}.o" for source in SOURCES]
            run_compilers(
                [
                    [*common, *options(command, source), "-c", str(HERE / source), "-o", str(made)]
                    for source, made in zip(SOURCES, objects, strict=True)
                ]
            )
            run_compilers([[*common, *map(str, objects), *link, "-o", str(target)]])
            return target.read_bytes()
    except OSError as error:
        raise MissingDependencyError(
            f"{command} cannot build graphopt's fused kernels: {error}"
        ) from error


def options(command: str, source: str, name: str | None = None) -> list[str]:
    """How a compiler compiles a file for a set of instructions, by default this processor's."""
    vectors = _VECTORS.get(source)
    if vectors is None:
        return ["-O2"]
    name = name or instructions()
    found = [*vectors, *_INSTRUCTIONS[name]]
    if source in _UNIT_FILES and name == "avx512" and _takes(command, *_UNIT):
        found += _UNIT
    return found


@cache
def _takes(command: str, *options: str) -> bool:
    """Whether a compiler knows options."""
    asked = [command, *options, "-E", "-x", "c++", os.devnull]
    told = subprocess.run(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return told.returncode == 0


def run_compilers(commands: list[list[str]]) -> None:
    """Run compilers, as many at once as there are processors: one takes up to 500 MiB.

    Raises:
        MissingDependencyError: one fails, and the message is its first error, or takes too long.
            Those that run are ended then, and the others do not begin.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            begun = [pool.submit(_run_compiler, command, stopped) for command in commands]
            for done in as_completed(begun):
                done.result()
        finally:
            stopped.set()


def _run_compiler(command: list[str], stopped: threading.Event) -> None:
    if stopped.is_set():
        return
    # A group of its own: a compiler is several processes, and to end one leaves the others.
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            error = _error_of(process, stopped)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if error is not None:
        stopped.set()
        raise MissingDependencyError(f"{command[0]} cannot build graphopt's fused kernels: {error}")


def _error_of(process: subprocess.Popen[str], stopped: threading.Event) -> str | None:
    """Why a compiler failed, if it did and was not stopped."""
    end = time.monotonic() + _SECONDS
    while not stopped.is_set():
        with contextlib.suppress(subprocess.TimeoutExpired):
            told = process.communicate(timeout=_LOOK_SECONDS)[1]
            return _first_error(told) if process.returncode else None
        if time.monotonic() > end:
            return f"it takes more than {_SECONDS} seconds"
    return None


def build_beside() -> bool:
    """Build the bridge for the MXNet at hand beside its source, as wheels bring it.

    Returns whether there is an MXNet to build it for.

    Raises:
        MissingDependencyError: there is no C++ compiler, or it fails.
    """
    mxnet = installed()
    if mxnet is None:
        return False
    kept = _kept(mxnet)
    library = kept.read_bytes() if is_whole(kept) else build(mxnet)
    write_atomically(_shipped(mxnet), library, synced=True)
    return True


def installed() -> Path | None:
    """The folder of the MXNet that this Python would import; nothing is imported."""
    from importlib.util import find_spec

    spec = find_spec("mxnet")
    places = (spec.submodule_search_locations if spec else None) or ()
    found = (Path(place) for place in places)
    return next((place for place in found if (place / "libmxnet.so").exists()), None)


def main() -> int:
    """Have the bridge ready, so that no user waits for it; says what will not work without it."""
    mxnet = installed()
    try:
        if mxnet is None:
            raise MissingDependencyError("MXNet is not installed here")
        path = library(mxnet)
    except (MissingDependencyError, OSError) as error:
        sys.stderr.write(f"{error}; until then graphopt works, but leaves operators unfused\n")
        return 1
    kept = wanted() / "bridge"
    if path.parent not in (HERE, kept):
        sys.stderr.write(f"{kept} cannot be written to; until then every process builds its own\n")
        return 1
    sys.stdout.write(f"graphopt's fused kernels are ready: {path}\n")
    return 0


def compiler() -> str:
    """The C++ compiler at hand.

    Raises:
        MissingDependencyError: there is none; the message says what to do.
    """
    wanted = os.environ.get("CXX", "").split()
    candidates = (*wanted[:1], *_COMPILERS)
    found = next(filter(None, map(shutil.which, candidates)), None)
    if found is None:
        raise MissingDependencyError(
            "graphopt's fused kernels need a C++ compiler, and none is installed (on Debian and"
            " Ubuntu: apt install g++), or name one in the environment variable CXX"
        )
    return found


def _abi(binary: Path) -> list[str]:
    """How the library was compiled, which the bridge has to follow."""
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        legacy = _BY_VALUE.search(data) is not None
        new_strings = data.find(_NEW_STRINGS) >= 0
    return [f"-DGRAPHOPT_LEGACY_ABI={int(legacy)}", f"-D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}"]


@cache
def instructions() -> str:
    """The widest vector instructions of this processor that the compiler is told to use."""
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    flags = set(found[1].split()) if found else set()
    if {"avx512f", "avx512dq", "avx512vl", "fma"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else "base"


def _key(mxnet: Path) -> str:
    """Names what the library depends on: our source, this MXNet and where it lies."""
    binary = (mxnet / "libmxnet.so").stat()
    parts = [str(mxnet), str(binary.st_size), str(int(binary.st_mtime)), sys.platform]
    parts += [instructions(), sources()]
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]


@cache
def sources() -> str:
    """Names what the library is made of."""
    digest = hashlib.sha256()
    for file in (*sorted(HERE.glob("*.h")), *(HERE / name for name in SOURCES), Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    error = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    # Those of other compilers than GNU's come apart from them.
    if "omp.h" in error:
        error += "; install OpenMP's headers (on Debian and Ubuntu: libomp-dev) or g++"
    return error


if __name__ == "__main__":
    sys.exit(main())
