"""What tests of compiled kernels on disk share: a kernel, and the entries of a folder."""

from __future__ import annotations

from pathlib import Path

SPEC = "f32[a] (f32[a]) { %1 = tanh %0; %2 = mul %1 %0; return %2:f32[a] }"


def entries(place: Path) -> list[Path]:
    return sorted((place / "kernels").glob("*.o"))
