"""What passes made of graphs, kept for the processes to come.

Passes over the graph of an unrolled decoder take seconds, and every process that runs the same
model would run them again. As in the FX graph cache of PyTorch's Inductor, what they depend on is
the key: the graph as it prints, the pipeline and its settings, graphopt's code, versions of what it
uses, the processor and the environment. What passes measured is kept in the same folder, and what
went by measurements of other sizes is not kept.

Names do not count: Gluon gives a net that is made anew another prefix. Passes get a graph with
placeholders for names, and what they made of it gets the names of the graph at hand.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any, Final, Protocol, TypeVar

import graphopt
from graphopt.backend import measured
from graphopt.backend.findings import Place, active
from graphopt.compat import import_mxnet
from graphopt.ir.fingerprint import INIT
from graphopt.ir.graph import Graph
from graphopt.ir.naming import Placeholders, renamed
from graphopt.ir.node import WITH_SPEC
from graphopt.kernels import bridge
from graphopt.kernels import cache as disk
from graphopt.pipeline.base import Pass
from graphopt.pipeline.manager import Result

#: Of the environment, what may change what passes do or measure.
_SETTINGS: Final = ("GRAPHOPT_", "MXNET_", "OMP_")
#: And what does not, though it is called so.
_OTHERS: Final = ("GRAPHOPT_CACHE_DIR", "GRAPHOPT_REMEMBER")


S = TypeVar("S")


class Made(Protocol):
    """What can be kept."""

    @property
    def graphs(self) -> Sequence[Graph]:
        """Graphs that were made, with some of the inputs of the one given, by their names."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing failed."""

    def named(self: S, names: Placeholders) -> S:
        """The same with names for placeholders."""


M = TypeVar("M", bound=Made)


def kept_result(
    graph: Graph,
    pipeline: str | Iterable[Pass | str],
    settings: Mapping[str, object],
    run: Callable[[Graph], Result],
) -> Result:
    """What an earlier process made of the graph, or ``run`` makes of it now, which is then kept.

    Args:
        graph: as it was captured, for the CPU or another device.
        pipeline: over it. Ready-made passes always run, as they may be the user's own.
        settings: of the pipeline, by name; ``device`` among them.
        run: runs the pipeline over it, or over the same graph with other names.
    """
    # Kernels for GPUs depend on the GPU.
    if settings["device"] != "cpu" or not isinstance(pipeline, str):
        return run(graph)
    result, is_kept = kept(graph, (pipeline, str(settings)), run)
    return replace(result, is_remembered=is_kept)


def kept(graph: Graph, parts: Sequence[str], make: Callable[[Graph], M]) -> tuple[M, bool]:
    """What an earlier process made of a graph for the CPU, or ``make`` does, and whether it was.

    What was measured for it is noted in the active findings as if it had been measured now.

    Args:
        graph: what is changed.
        parts: what else it depends on, besides graphopt, the machine and the environment.
        make: makes it of the graph, or of the same graph with other names.
    """
    if not measured.ENABLED:
        return make(graph), False
    names = Placeholders(graph)
    nameless = renamed(graph, names.placeholder)
    key, findings = _key(nameless, (names.order, *parts)), active()
    known = _load(key)
    if known is not None:
        found, notes = known
        for place, what in notes:
            findings.note(place, what)
        found = found.named(names)
        for each in found.graphs:
            _initialize(each, graph)
        return found, True
    try:
        made = make(nameless)
    except Exception:  # noqa: BLE001 - it fails again, and its message names what the user knows
        return make(graph), False
    if made.is_whole and not findings.told:
        _store(key, made, findings.notes)
    return made.named(names), False


def _store(key: str, made: Made, notes: Sequence[tuple[Place, Any]]) -> None:
    try:
        data = pickle.dumps((made, notes), protocol=5)
    except Exception:  # noqa: BLE001 - such as of classes that were imported anew since
        return
    disk.store(key, data, disk.RESULTS)


def _load(key: str) -> tuple[Any, list[tuple[Place, Any]]] | None:
    data = disk.load(key, disk.RESULTS)
    if data is None:
        return None
    try:
        made, notes = pickle.loads(data)  # trusted as the compiled kernels beside it are
    except Exception:  # noqa: BLE001 - what cannot be read is made again
        return None
    runs_kernels = any(node.op in WITH_SPEC for graph in made.graphs for node in graph)
    return None if runs_kernels and bridge.why_not(import_mxnet()) else (made, notes)


def _initialize(made: Graph, graph: Graph) -> None:
    """Have the initializers of the graph at hand: those read have addresses of another process."""
    given = {node.name: node.attrs for node in graph.inputs if INIT in node.attrs}
    for node in made.inputs:
        if node.name in given:
            made.update(node.but(attrs=node.attrs.set(**{INIT: given[node.name][INIT]})))


def _key(graph: Graph, parts: Sequence[str]) -> str:
    bare = graph
    if any(INIT in node.attrs for node in graph.inputs):
        bare = graph.copy()
        for node in graph.inputs:
            bare.update(node.but(attrs=node.attrs.without(INIT)))
    told = (f"{name}={value}" for name, value in os.environ.items() if _matters(name))
    return disk.key_of(str(bare), *parts, *sorted(told), *_surroundings())


def _matters(name: str) -> bool:
    return name.startswith(_SETTINGS) and name not in _OTHERS


@cache
def _surroundings() -> tuple[str, ...]:
    """What does not change while the process runs."""
    versions = (version(name) for name in ("networkx", "numpy"))
    return (*measured.machine(), sys.version, *versions, *_code())


def _code() -> Iterator[str]:
    """Graphopt's own modules; where they were edited, results are made anew."""
    folders = [os.path.dirname(graphopt.__file__)]  # noqa: PTH120 - a tenth of the time of pathlib
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if entry.is_dir():
                    folders.append(entry.path)
                elif entry.name.endswith(".py"):
                    found = entry.stat()
                    yield f"{entry.path} {found.st_size} {found.st_mtime_ns}"
