"""The wheel holds the whole library under one name, and each layer imports only what it may."""

from __future__ import annotations

import ast
import email
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOTS = {"graphopt": "graphopt", "passes": "graphopt/passes", "kernels": "graphopt/kernels"}

# Where each module may be imported; an entry that ends in "/" is a folder.
MAY_IMPORT = {
    "mxnet": (
        "graphopt/backend/",
        "graphopt/compat.py",
        "graphopt/frontend/",
        "graphopt/nn.py",
        "graphopt/nn/",
        "kernels/interop.py",
    ),
    "numba": ("kernels/",),
}


def sources(folder: str) -> list[Path]:
    """Returns the Python files of `folder`, links not followed."""
    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(ROOT / folder)
        for name in names
        if name.endswith(".py")
    )


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy of the tree so that nothing appears in the tree itself."""
    setuptools = pytest.importorskip(
        "setuptools", minversion="77", reason="pyproject.toml needs it"
    )
    assert setuptools
    tree = tmp_path_factory.mktemp("tree")
    for folder in ROOTS:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored)
    for file in ("setup.py", "pyproject.toml", "LICENSE", "README.md", "MANIFEST.in"):
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, tree)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    built = run_python("-m", "pip", "wheel", *options, "--wheel-dir", "wheels", ".", cwd=tree)
    assert built.returncode == 0, built.stderr
    (file,) = (tree / "wheels").glob("*.whl")
    return zipfile.ZipFile(file)


def test_wheel_top_level_is_graphopt_alone(wheel: zipfile.ZipFile) -> None:
    names = {name.split("/")[0] for name in wheel.namelist()}
    (info,) = (name for name in names if name.endswith(".dist-info"))
    assert names == {"graphopt", info}


def test_wheel_holds_every_module_once_and_the_type_marker(wheel: zipfile.ZipFile) -> None:
    expected = sorted(
        f"{place}/{file.relative_to(ROOT / folder).as_posix()}"
        for folder, place in ROOTS.items()
        for file in sources(folder)
    )
    assert sorted(name for name in wheel.namelist() if name.endswith(".py")) == expected
    assert "graphopt/py.typed" in wheel.namelist()
    assert {"graphopt/passes/__init__.py", "graphopt/kernels/__init__.py"} <= set(expected)


def test_wheel_holds_the_bridge(wheel: zipfile.ZipFile) -> None:
    names = [name for name in wheel.namelist() if name.startswith("graphopt/kernels/bridge/")]
    assert "graphopt/kernels/bridge/operators.cc" in names
    libraries = [name for name in names if name.endswith(".so")]
    # Built where MXNet and a compiler are at hand, and only then does the wheel name a platform.
    tag = Path(wheel.filename or "").stem.split("-", 2)[2]
    if importlib.util.find_spec("mxnet") and any(map(shutil.which, ("g++", "c++", "clang++"))):
        assert len(libraries) == 1
        assert tag.startswith("py3-none-linux")
    else:
        assert libraries == []
        assert tag == "py3-none-any"


def test_unpacked_wheel_brings_the_bridge_it_loads(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    if not any(name.endswith(".so") for name in wheel.namelist()):
        pytest.skip("there is no MXNet or no compiler to build the bridge with")
    wheel.extractall(tmp_path)
    code = (
        "from graphopt.kernels.bridge import build; mxnet = build.installed();"
        "print(build.find(mxnet))"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == tmp_path / "graphopt" / "kernels" / "bridge"


def test_wheel_metadata_names_command_extras_and_python(wheel: zipfile.ZipFile) -> None:
    (info,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["Requires-Python"] == "<3.13,>=3.10"
    assert {"cpu", "cu112", "cuda", "peers", "test", "dev"} == set(
        metadata.get_all("Provides-Extra", [])
    )
    unconditional = [
        line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line
    ]
    assert not any("mxnet" in line for line in unconditional)  # the user chooses between two builds
    assert b"graphopt = graphopt.cli.main:main" in wheel.read(f"{info}/entry_points.txt")


def test_unpacked_wheel_is_importable(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import graphopt.passes, graphopt.kernels; print(graphopt.passes.__file__)"
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "graphopt" / "passes" / "__init__.py"


@pytest.mark.parametrize("name", ["passes", "kernels"])
def test_folders_refuse_to_be_packages_of_their_own(name: str) -> None:
    done = run_python("-c", f"import {name}", cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: import graphopt.{name}")


@pytest.mark.parametrize("name", ["passes", "kernels"])
def test_links_in_the_source_tree_are_relative(name: str) -> None:
    link = ROOT / "graphopt" / name
    if not link.is_symlink():
        pytest.skip("this checkout has no links")
    assert link.readlink() == Path("..") / name


@pytest.mark.parametrize("module", MAY_IMPORT)
def test_heavy_modules_are_imported_only_in_their_layers(module: str) -> None:
    found = []
    for file in (file for folder in ROOTS for file in sources(folder)):
        path = file.relative_to(ROOT).as_posix()
        allowed = any(
            path.startswith(place) if place.endswith("/") else path == place
            for place in MAY_IMPORT[module]
        )
        if not allowed:
            found += [f"{path}:{line}" for line in lines_importing(module, file)]
    assert found == []


def lines_importing(module: str, file: Path) -> list[int]:
    lines = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        if any(name.split(".")[0] == module for name in names):
            lines.append(node.lineno)
    return lines
