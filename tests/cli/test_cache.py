"""``graphopt cache``: what it counts and removes, and what it leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphopt.kernels import cache

ROOT = Path(__file__).resolve().parents[2]
SHORT_KEY = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with two kernels, a bridge and a graph."""
    place = tmp_path / "cache"
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(place))
    cache.store(cache.key_of("one"), bytes(1000))
    cache.store(cache.key_of("two"), bytes(2000))
    cache.store(cache.key_of("graph"), bytes(500), cache.RESULTS)
    cache.write_atomically(place / "bridge" / f"bridge-{SHORT_KEY}.so", bytes(100_000))
    return place


@pytest.mark.parametrize(
    ("told", "makers"),
    [
        ("0", "the processes that run them, as GRAPHOPT_COMPILERS is 0"),
        ("1", "1 other process"),
        ("2", "up to 2 other processes"),
    ],
)
def test_info(graphopt, folder, monkeypatch, told, makers):
    monkeypatch.setenv("GRAPHOPT_COMPILERS", told)
    ran = graphopt("cache", "info")
    assert (ran.code, ran.err) == (0, "")
    kept = f"folder   {folder}\nkernels  2\nbridges  1\ngraphs   1\nsize     0.1 MB\n"
    assert ran.out == f"{kept}made by  {makers}\n"


def test_clear_tells_what_it_removes(graphopt, folder):
    ran = graphopt("cache", "clear")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"removed 2 kernels, 1 bridge and 1 graph, 0.1 MB, from {folder}\n"
    assert list(folder.rglob("*")) == []
    assert graphopt("cache", "clear").out == (
        f"removed 0 kernels, 0 bridges and 0 graphs, 0.0 MB, from {folder}\n"
    )


@pytest.mark.parametrize("action", ["info", "clear"])
def test_json(graphopt, folder, monkeypatch, action):
    monkeypatch.setenv("GRAPHOPT_COMPILERS", "2")
    ran = graphopt("cache", action, "--json")
    assert (ran.code, ran.err) == (0, "")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) or 103_650
    assert json.loads(ran.out) == {
        "action": action,
        "folder": str(folder),
        "kernels": 2,
        "bridges": 1,
        "graphs": 1,
        "bytes": size,
        "compilers": 2,
    }


def test_clear_removes_what_killed_processes_left(graphopt, folder):
    for name in ("kernels", "bridge"):
        (folder / name / f".new-{SHORT_KEY}").write_bytes(b"half")
    assert "bridges  1\n" in graphopt("cache", "info").out
    assert graphopt("cache", "clear").code == 0
    assert list(folder.rglob("*")) == []


def test_clear_removes_the_loops_of_the_memory_packer(graphopt, folder):
    place = folder / "packing" / SHORT_KEY / "packing_0"
    place.mkdir(parents=True)
    (place / "greedy.place-9.py311.nbi").write_bytes(b"index")
    (place / "greedy.place-9.py311.1.nbc").write_bytes(b"code")
    assert graphopt("cache", "clear").code == 0
    assert list(folder.rglob("*")) == []


def test_clear_removes_nothing_of_others(graphopt, folder):
    # Such as in a checkout of this project, which has a folder of that name.
    (folder / "kernels" / "emit").mkdir()
    (folder / "kernels" / "spec.py").write_text("")
    (folder / "notes.txt").write_text("")
    theirs = {"kernels/main.o", "measurements/run1.json", "graphs/citations.pickle"}
    theirs |= {"bridge/bridge-deck.so", "packing/box/lists/all.nbi"}
    for name in theirs:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    assert graphopt("cache", "clear").code == 0
    assert (folder / "kernels" / "emit").is_dir()
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == theirs | {"kernels/spec.py", "notes.txt"}


def test_files_that_cannot_be_removed(graphopt, folder, monkeypatch):
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "unlink", refuse)
    ran = graphopt("cache", "clear")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"graphopt: error: 2 kernels, 1 bridge and 1 graph in {folder} could not be removed;"
        " see who owns the files\n"
    )


@pytest.mark.parametrize("action", ["info", "clear"])
def test_a_folder_that_cannot_be_written_to(graphopt, tmp_path, monkeypatch, action):
    file = tmp_path / "file"
    file.write_text("in the way")
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(file))
    ran = graphopt("cache", action)
    assert ran.code == 0
    assert ran.err == f"{file} cannot be written to: what it lacks every process compiles anew\n"
    assert str(file) in ran.out
    assert file.read_text() == "in the way"


def test_a_folder_whose_name_is_no_text(graphopt, tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", os.fsdecode(bytes(tmp_path / "c") + b"\xff"))
    place = f"{tmp_path}/c\\udcff"
    assert graphopt("cache", "info").out.startswith(f"folder   {place}\n")
    assert graphopt("cache", "clear").out.endswith(f", from {place}\n")


@pytest.mark.parametrize("argv", [["cache"], ["cache", "sweep"]])
def test_wrong_usage(graphopt, argv):
    ran = graphopt(*argv)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("graphopt cache: error: ")


def test_it_imports_neither_mxnet_nor_numba(folder):
    code = (
        "import sys; from graphopt.cli.main import main; code = main(['cache', 'info'])\n"
        "found = {'mxnet', 'numba', 'llvmlite', 'numpy'} & set(sys.modules)\n"
        "assert not found, found; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "kernels  2\n" in done.stdout
