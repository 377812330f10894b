"""Libraries on disk: whole ones are loaded, and those that are cut short are built again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphopt.kernels.bridge import build
from graphopt.kernels.shared_library import is_whole
from tests.places import REPOSITORY

#: Opens the bridge, and says whether it would have built it.
_OPEN = """
import sys
from pathlib import Path
from graphopt.kernels import bridge
from graphopt.kernels.bridge import build

def refuse(mxnet):
    raise build.MissingDependencyError("it is built again")

build.build = refuse
try:
    bridge._open(build.installed())
except build.MissingDependencyError as error:
    print(error)
else:
    print("it is loaded")
"""


def cut(path: Path, part: float) -> None:
    """Make a file shorter, as a copy for which there is no room."""
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * part))


@pytest.mark.parametrize("part", [0, 1e-6, 1e-5, 1e-4, 0.25, 0.5, 0.75])
def test_a_library_that_is_cut_short_is_not_whole(with_bridge: Path, part: float) -> None:
    (path,) = (with_bridge / "bridge").iterdir()
    assert is_whole(path)
    cut(path, part)
    assert not is_whole(path)


def test_what_is_no_library_is_left_to_the_loader(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    assert not is_whole(path)
    path.write_bytes(b"text")
    assert is_whole(path)
    path.unlink()
    path.mkdir()
    assert not is_whole(path)


@pytest.mark.parametrize("part", [0.25, 0.5])
def test_a_bridge_that_is_cut_short_is_built_again(with_bridge: Path, part: float) -> None:
    (path,) = (with_bridge / "bridge").iterdir()
    cut(path, part)
    environment = {**os.environ, "GRAPHOPT_CACHE_DIR": str(with_bridge)}
    done = subprocess.run(
        [sys.executable, "-c", _OPEN],
        env=environment,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "it is built again\n"), done.stderr


def test_one_that_came_with_the_wheel_and_is_cut_short_is_passed_over(
    with_bridge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(with_bridge))
    mxnet = build.installed()
    assert mxnet is not None
    kept = build._kept(mxnet)
    shipped = Path(shutil.copy(kept, tmp_path))
    monkeypatch.setattr(build, "_shipped", lambda of: shipped)
    assert build.find(mxnet) == shipped
    cut(shipped, 0.5)
    assert build.find(mxnet) == kept
