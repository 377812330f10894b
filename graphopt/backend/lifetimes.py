"""What the bridge holds for objects of Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def release_with(owner: object, release: Callable[..., None], *arguments: Any) -> None:
    """Have ``release(*arguments)`` called when nobody has ``owner`` any more.

    Not as the interpreter exits: daemon threads and the user's own exit handlers still call nets
    then, and the process takes all memory with it.
    """
    weakref.finalize(owner, release, *arguments).atexit = False
