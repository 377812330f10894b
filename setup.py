"""Maps passes/ and kernels/ to graphopt.passes and graphopt.kernels; builds the bridge to MXNet."""

import contextlib
import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOTS = {"graphopt": "graphopt", "graphopt.passes": "passes", "graphopt.kernels": "kernels"}
# graphopt/passes and graphopt/kernels are links to the two folders, for tools that read sources.
LINKS = ("passes", "passes.*", "kernels", "kernels.*")


def packages():
    """Returns the dotted name of every package, each once."""
    return [
        name
        for root, folder in ROOTS.items()
        for name in [root, *(f"{root}.{sub}" for sub in find_packages(folder, exclude=LINKS))]
    ]


class BuildWithBridge(build_py):
    """Adds the bridge for the MXNet of this Python, so that no user waits for the C++ compiler.

    Without MXNet (as in every isolated build) or a compiler there is none; it is then built when a
    net is first optimized. Installed in place it is not needed either: `make setup` builds it.
    """

    def run(self):
        """Build Python's part, and what can be had of the bridge."""
        super().run()
        for old in Path(self.build_lib).rglob("bridge-*.so"):  # of a build before this one
            old.unlink()
        if self.editable_mode or importlib.util.find_spec("mxnet") is None:
            return
        # What was built is a whole package, unlike the folders here; `-c` looks there first.
        code = "from graphopt.kernels.bridge.build import build_beside; build_beside()"
        with contextlib.suppress(OSError):
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=self.build_lib,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )


class WheelWithBridge(bdist_wheel):
    """Names the platform if the bridge is there: it serves every Python, but no other machine."""

    def get_tag(self):
        """Python, ABI and platform."""
        tag = super().get_tag()
        if any(Path(self.bdist_dir).rglob("bridge-*.so")):
            return ("py3", "none", sysconfig.get_platform().replace("-", "_").replace(".", "_"))
        return tag


setup(
    packages=packages(),
    package_dir=dict(ROOTS),
    cmdclass={"build_py": BuildWithBridge, "bdist_wheel": WheelWithBridge},
)
