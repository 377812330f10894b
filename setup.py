"""Maps passes/ and kernels/ to graphopt.passes and graphopt.kernels."""

from setuptools import find_packages, setup

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


setup(packages=packages(), package_dir=dict(ROOTS))
