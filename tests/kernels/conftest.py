"""Cache folders: an empty one, and one with the bridge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from graphopt.kernels import library
from graphopt.kernels.bridge import build


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a process that has compiled nothing yet."""
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "_kernels", {})
    monkeypatch.setattr(library, "STATISTICS", library.Statistics())
    return tmp_path / "cache"


@pytest.fixture
def with_bridge(tmp_path: Path) -> Path:
    """A cache folder without kernels, but with the bridge, which takes seconds to build."""
    mxnet = build.installed()
    assert mxnet is not None
    made = build.library(mxnet)
    place = tmp_path / "cache"
    (place / "bridge").mkdir(parents=True)
    shutil.copy(made, place / "bridge" / made.name)
    return place
