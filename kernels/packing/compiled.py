"""Compile the packer's loops when first called, and keep them in graphopt's cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from numba import config, njit

from graphopt.kernels.cache import folder

_Function = TypeVar("_Function", bound=Callable[..., Any])


@cache
def _place() -> str:
    """A folder for this very source: numba does not see when a called function changes."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return str(folder() / "packing" / digest.hexdigest()[:16])


def compiled(function: _Function) -> _Function:
    """The function as machine code, kept on disk; it holds no GIL and must not allocate."""
    before = config.CACHE_DIR
    config.CACHE_DIR = _place()
    try:
        # numba reads the folder's name now and writes to it when it has compiled.
        made: _Function = njit(cache=True, nogil=True, _nrt=False)(function)
        return made
    finally:
        config.CACHE_DIR = before


def part(function: _Function) -> _Function:
    """A part of a compiled function: without a way to call it from Python, in half the time."""
    jit = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)
    made: _Function = jit(function)
    return made
