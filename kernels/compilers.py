"""Processes that compile kernels for this one, which so never loads a compiler.

LLVM takes 40 to 90 MB of a process for as long as it lives and one core while it works. A
child of its own for each of a few threads compiles several kernels at once, gives the object files
back, and ends when there has been nothing to do for some seconds. When this process ends, so do the
children, whatever they do.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import re
import select
import signal
import struct
import subprocess
import sys
import threading
import warnings
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from graphopt.forking import lock
from graphopt.kernels.daemons import Daemons
from graphopt.kernels.spec import KernelSpec

#: Processes at most; ``GRAPHOPT_COMPILERS`` says otherwise, and 0 that kernels are compiled here.
_MOST: Final = 2
#: Seconds that one waits for work, and that it may take to begin.
_IDLE_S, _BEGIN_S = 10, 60
_READY: Final = b"graphopt compiler 1\n"
_SIZE: Final = struct.Struct("<q")
_BEGIN: Final = (
    "import sys; sys.path[:] = {path!r}; from graphopt.kernels.compilers import serve; serve()"
)


@dataclass(frozen=True)
class Job:
    """A kernel to compile; see :func:`graphopt.kernels.cpu.compile_object`."""

    spec: KernelSpec
    index: bool = False
    piece: bool = False


class Compiled(NamedTuple):
    """An object file, and how many scratch rows its kernel wants."""

    code: bytes
    scratch_rows: int


class CompilerError(Exception):
    """A process did not compile a kernel: this one has to, or to fail at it."""


class _EndedError(CompilerError):
    """A process is no more."""


class _Child:
    """One process that compiles."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            CompilerError: it does not begin.
        """
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python minds no others
        command = [sys.executable, "-c", _BEGIN.format(path=path)]
        with _lock:
            if _is_over:
                raise CompilerError("this process ends")
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
                )
            except OSError as error:
                raise CompilerError(str(error)) from error
            _children.add(self)
        if not self._has_begun():
            self.end()
            raise CompilerError("it does not begin")

    def compile(self, job: Job) -> Compiled:
        """Compile a kernel.

        Raises:
            CompilerError: it cannot, or has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, job)
            answer = _receive(self._process.stdout)
        except (OSError, ValueError) as error:  # ValueError: a pipe is closed
            self.end()
            raise _EndedError("it has ended") from error
        if isinstance(answer, str):
            raise CompilerError(answer)
        return Compiled(*answer)

    def end(self) -> None:
        """Have it end, whatever it does."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _has_begun(self) -> bool:
        assert self._process.stdout is not None
        try:
            ready = _is_readable(self._process.stdout, _BEGIN_S)
            return ready and _read(self._process.stdout, len(_READY)) == _READY
        except (OSError, ValueError):  # ValueError: a pipe is closed
            return False


_children: weakref.WeakSet[_Child] = weakref.WeakSet()
_own = threading.local()
_lock = lock()
_pool: Daemons[Job, Compiled] | None = None
_why_not: str | None = None
_is_over = False  # so is this process, soon


def submit(job: Job) -> Future[Compiled] | None:
    """Have a kernel compiled meanwhile; ``None`` where this process has to do it itself.

    The result raises :class:`CompilerError` where this process has to after all, and
    :class:`concurrent.futures.CancelledError` where this process ends before its turn comes.
    """
    global _pool
    if why_not() is not None:
        return None
    with _lock:
        if _is_over:
            return None
        if _pool is None:
            _pool = Daemons(_compile, most(), "graphopt-compiler")
        try:
            return _pool.submit(job)
        except RuntimeError:  # there are as many threads as there may be
            return None


def why_not() -> str | None:
    """Why no other process compiles, or ``None`` if one does."""
    if not most():
        return "GRAPHOPT_COMPILERS is 0"
    if getattr(sys, "frozen", False) or not _is_python(sys.executable):
        return "Python is a part of another program"
    return _why_not


def most() -> int:
    """How many processes compile at once, if any may."""
    told = os.environ.get("GRAPHOPT_COMPILERS", "")
    return int(told) if told.isdigit() else min(_MOST, len(os.sched_getaffinity(0)))


def _is_python(executable: str | None) -> bool:
    return re.fullmatch(r"python[\d.]*", Path(executable or "").name) is not None


def _compile(job: Job) -> Compiled:
    """In a thread that has a child to itself."""
    child: _Child | None = getattr(_own, "child", None)
    if child is not None:
        with contextlib.suppress(_EndedError):  # there was nothing to do for some seconds
            return child.compile(job)
    _own.child = None
    try:
        child = _own.child = _Child()
    except CompilerError as error:
        if not _is_over:
            _give_up(error)
        raise
    return child.compile(job)


def _give_up(error: CompilerError) -> None:
    global _why_not
    _why_not = f"no other process compiles: {error}"
    # Where warnings are errors, this one still must not keep a kernel from being compiled.
    with contextlib.suppress(RuntimeWarning):
        text = f"{_why_not}; this one compiles its kernels itself, and holds LLVM from then on"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


@atexit.register
def _end() -> None:
    """Let nobody wait for what is not compiled yet, as after an interrupt (Ctrl-C)."""
    global _is_over
    with _lock:
        _is_over, children = True, list(_children)
    if _pool is not None:
        _pool.cancel()
    for child in children:
        child.end()


def _forget() -> None:
    """In a forked child: neither the threads nor what they talk to are its own."""
    global _pool, _own, _lock, _children
    _pool, _own, _lock, _children = None, threading.local(), lock(), weakref.WeakSet()


os.register_at_fork(after_in_child=_forget)


def _is_readable(pipe: IO[bytes], seconds: float) -> bool:
    """Whether something comes, or the other end is closed, by then."""
    poll = select.poll()  # `select` takes no file behind the first 1,024
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _send(pipe: IO[bytes], what: Any) -> None:
    data = pickle.dumps(what)
    view = memoryview(_SIZE.pack(len(data)) + data)
    while view:
        view = view[pipe.write(view) :]


def _receive(pipe: IO[bytes]) -> Any:
    (size,) = _SIZE.unpack(_read(pipe, _SIZE.size))
    return pickle.loads(_read(pipe, size))


def _read(pipe: IO[bytes], size: int) -> bytes:
    parts, left = list[bytes](), size
    while left:
        part = pipe.read(left)
        if not part:
            raise BrokenPipeError("the other end is closed")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def serve() -> None:
    """Be such a process: compile what is asked for, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the one that asks
    asked = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what else is printed is no answer
    from graphopt.kernels.cpu import compile_object

    with contextlib.suppress(OSError):  # nobody is there any more
        answers.write(_READY)
        while _is_readable(asked, _IDLE_S):
            job: Job = _receive(asked)
            try:
                answer: Any = compile_object(job.spec, index=job.index, piece=job.piece)
            except Exception as error:  # noqa: BLE001 - told to the one that asks
                answer = f"{type(error).__name__}: {error}"
            _send(answers, answer)
