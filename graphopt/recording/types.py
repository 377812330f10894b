"""Types of arrays, as keys of programs."""

from __future__ import annotations

#: Shape and the dtype's name.
Type = tuple[tuple[int, ...], str]
