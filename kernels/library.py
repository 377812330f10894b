"""Compiled kernels of this process: from the disk if they are there, else compiled and kept."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import cache, lru_cache

from graphopt.forking import lock
from graphopt.kernels import cache as disk
from graphopt.kernels.compilers import Compiled, CompilerError, Job, submit
from graphopt.kernels.contract import prepared
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.object_file import UnknownFormError, load
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse

#: Part of every key: raise it when emitted code changes its meaning or its arguments.
CODE_VERSION = 2
#: The name of the function in every object file.
SYMBOL = "graphopt_kernel"


@dataclass(frozen=True)
class Kernel:
    """A kernel in memory: where it is and how many scratch rows it wants."""

    address: int
    scratch_rows: int


@dataclass
class Statistics:
    """How the kernels of this process came to be."""

    compiled: int = 0
    here: int = 0  # of these, by this process itself
    loaded: int = 0
    by_llvm: int = 0  # those that only LLVM could load


STATISTICS = Statistics()

_kernels: dict[Job, Kernel] = {}
_begun: dict[Job, Future[Compiled]] = {}  # compiled meanwhile
_lock = lock()


def _forget_begun() -> None:
    """In a forked child: nobody goes on with it."""
    _begun.clear()


os.register_at_fork(after_in_child=_forget_begun)


def kernel(text: str, *, backward: bool, index: bool = False, piece: bool = False) -> Kernel:
    """The compiled kernel of a spec, or of its gradients.

    Args:
        text: the spec.
        backward: whether it is the gradients' that is wanted.
        index: whether rows may have numbers.
        piece: whether it is called for a vector at a time.

    Raises:
        GraphoptError: the text is no spec, or what it says cannot be compiled.
    """
    job = _job(text, backward=backward, index=index, piece=piece)
    if job is None:
        raise ValueError("the kernel has no gradient")
    made = _kernels.get(job)
    if made is not None:  # not after whoever makes another one
        return made
    with _lock:
        if job not in _kernels:
            _kernels[job] = _make(job)
        return _kernels[job]


def prepare(texts: Iterable[str], *, gradients: bool) -> None:
    """Have the kernels of specs ready, and with ``gradients`` those of their gradients.

    Else a kernel is made when it first runs.
    """
    wanted = [
        (text, backward)
        for text in dict.fromkeys(texts)
        for backward in ((False, True) if gradients else (False,))
        if _job(text, backward=backward) is not None
    ]
    expect(wanted)
    for text, backward in wanted:
        kernel(text, backward=backward)


def expect(wanted: Iterable[tuple[str, bool]], *, index: bool = False) -> None:
    """Have kernels that will be asked for soon compiled meanwhile, by other processes.

    Args:
        wanted: specs, and whether their gradients' kernels are wanted.
        index: whether rows may have numbers.
    """
    for text, backward in wanted:
        job = _job(text, backward=backward, index=index)
        if job is None:
            continue
        with _lock:
            is_known = job in _kernels or job in _begun or disk.has(_name(job))
            begun = None if is_known else submit(job)
            if begun is not None:
                _begun[job] = begun


@lru_cache(maxsize=1024)
def _job(text: str, *, backward: bool, index: bool = False, piece: bool = False) -> Job | None:
    """What is to be compiled; ``None`` where there is no gradient."""
    spec: KernelSpec | None = parse(text)
    if backward:
        assert spec is not None
        spec = differentiate(spec).spec
    return None if spec is None else Job(prepared(spec), index, piece)


def _name(job: Job) -> str:
    return disk.key_of(str(job.spec), str(job.index), str(job.piece), *_environment())


def _make(job: Job) -> Kernel:
    name = _name(job)
    stored = disk.load(name)
    if stored is None:
        code, scratch = _compiled(job)
        disk.store(name, struct.pack("<q", scratch) + code)
        STATISTICS.compiled += 1
    else:
        (scratch,), code = struct.unpack("<q", stored[:8]), stored[8:]
        STATISTICS.loaded += 1
    return Kernel(link(code), scratch)


def _compiled(job: Job) -> Compiled:
    """By another process; by this one where there is none, or where it fails there."""
    found = _elsewhere(job)
    if found is not None:
        return found
    from graphopt.kernels.cpu import compile_object

    STATISTICS.here += 1
    return Compiled(*compile_object(job.spec, index=job.index, piece=job.piece))


def _elsewhere(job: Job) -> Compiled | None:
    begun = _begun.get(job) or submit(job)
    if begun is None:
        return None
    _begun[job] = begun
    try:
        return begun.result()
    except (CompilerError, CancelledError):
        return None  # what is wrong with the kernel shows here as well
    except BaseException:  # an interrupt (Ctrl-C), which may be to end this process
        _cancel()
        raise
    finally:
        if begun.done():
            _begun.pop(job, None)


def _cancel() -> None:
    """Let nothing begin that is expected; what has begun is there for the next call."""
    for job in [job for job, begun in _begun.items() if begun.cancel()]:
        del _begun[job]


def link(code: bytes, name: str = SYMBOL) -> int:
    """Load an object file; returns the address of the function of that name in it."""
    try:
        return load(code, name)
    except UnknownFormError:
        STATISTICS.by_llvm += 1
        return _link_by_llvm(code, name)


def _link_by_llvm(code: bytes, name: str) -> int:
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

    from graphopt.kernels.machine import target_machine

    machine = target_machine()
    # An engine of its own for each: the kernels all have one name.
    # Its parts lie side by side: LLVM ends the process where code cannot reach its constants, as in
    # processes whose address space is in pieces, such as those that use a GPU.
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # It owns the code, which MXNet's threads may run for as long as there is a process: not even
    # the end of the interpreter may take it away.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return int(engine.get_function_address(name))


@cache
def _environment() -> tuple[str, ...]:
    """What compiled code depends on besides the spec."""
    from importlib.metadata import version

    from graphopt.kernels.machine import identity

    return (
        str(CODE_VERSION),
        version("llvmlite"),
        *identity(),
        _sources(),
    )


def _sources() -> str:
    """A digest of the code that emits kernels, so that an edited graphopt recompiles them."""
    from pathlib import Path

    here = Path(__file__).parent
    names = (
        "contract.py",
        "cpu.py",
        "cpu_instructions.py",
        "cpu_memory.py",
        "expand.py",
        "instructions.py",
        "lowering.py",
        "machine.py",
        "prefetch.py",
        "rounding.py",
    )
    files = [here / name for name in names]
    files += sorted((here / "emit").glob("*.py")) + sorted((here / "vecmath").glob("*.py"))
    return disk.digest_of(files)
