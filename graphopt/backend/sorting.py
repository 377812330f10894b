"""Engines compared where rounding or chance decides what is chosen.

Boxes of nearly equal scores change places when the last bit of a score changes, and every number of
the output with them. What an engine computes is the same all the same: so engines are compared on a
graph whose operators that choose are cut out. What they read is an output there, and what they give
is an input, with the values of the first engine. Operators that draw random numbers choose, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from graphopt.analysis.effects import is_pure
from graphopt.backend.candidates import Candidates, Form, Make, is_packed
from graphopt.backend.choice import Choice
from graphopt.backend.engines import CachedOpEngine, Engine
from graphopt.backend.symbol import to_symbol
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node
from graphopt.ir.ops import canonical, info
from graphopt.pipeline.instruments import compare

#: Axes of boxes: samples, boxes, and their corners, scores and classes.
_BOXES = 3
#: What puts values in order, or picks some by comparing them.
CHOOSING = frozenset(
    (
        *("argmax", "argmax_channel", "argmin", "_npi_argmax", "_npi_argmin"),
        *("argsort", "sort", "topk"),
        *("_contrib_box_nms", "_contrib_bipartite_matching"),
        *("_contrib_MultiBoxDetection", "_contrib_MultiBoxTarget"),
        *("_contrib_MultiProposal", "_contrib_Proposal"),
    )
)


def chooses(graph: Graph) -> bool:
    """Whether the graph has operators that choose."""
    return any(_chooses(node) for node in graph)


def draws(graph: Graph) -> bool:
    """Whether the graph has operators that draw random numbers in inference."""
    return any(map(_draws, graph))


def without_choosing(graph: Graph, *, drawing_only: bool = False) -> Graph:
    """The graph with such operators cut out, or only with those that draw random numbers.

    After the outputs of the graph come what these operators read; what they gave are data inputs
    after its inputs, named by :func:`given`. Nothing else changes.
    """
    cut = graph.copy()
    is_cut = _draws if drawing_only else _chooses
    nodes = [node for node in graph if is_cut(node)]
    for node in nodes:
        for index, value in enumerate(node.values):
            new = cut.add_input(given(node, index), DATA, graph.type_of(value))
            cut.replace_uses(value, new.out())
    read = [value for node in nodes for value in cut[node.id].inputs]
    cut.set_outputs(
        value for value in dict.fromkeys([*cut.outputs, *read]) if not cut[value.node].is_input
    )
    for node in reversed(nodes):
        cut.erase(node.id)
    return cut


def given(node: Node, index: int) -> str:
    """The name of the input that an output of a cut operator becomes."""
    return f"{node.name}_given{index}"


class WithoutChoosing:
    """Compares engines on the graph without operators that choose."""

    def __init__(self, form: Form, arrays: Mapping[str, Any]) -> None:
        """``arrays``: all that the form reads, as one call has it."""
        self._values = {**arrays, **_chosen(form, arrays)}
        candidates = Candidates(_cut(form), self._values, Choice())
        self._engines: Mapping[str, Make] = candidates.by_name(self._values)
        self._expected: dict[str, np.ndarray[Any, Any]] = {}

    def compare(self, first: str, name: str) -> None:
        """Compare two engines by their names.

        Raises:
            GraphError: they compute different values; the message tells which, as shares of the
                largest number in their column where that is above one.
        """
        self._expected = self._expected or self._found(first)
        compare_columns(self._expected, self._found(name), name)

    def _found(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        engine = self._engines[name]()
        return run_once(engine, {n: self._values[n] for n in engine.inputs}).values


def without_draws(form: Form, arrays: Mapping[str, Any]) -> tuple[Form, dict[str, Any]] | None:
    """The form with operators that draw cut out, and all that it reads.

    In their place are the same numbers every time, between 0 and 1. ``None`` if nothing is left,
    or some of their types are not known.
    """
    if not without_choosing(form.graph, drawing_only=True).outputs:
        return None
    apart = _cut(form, drawing_only=True)
    mx, rng, values = import_mxnet(), np.random.default_rng(0), dict(arrays)
    for node in apart.graph.role(DATA):
        if node.name not in values:
            if not node.type.is_static:
                return None
            numbers = rng.random(cast("tuple[int, ...]", node.type.shape))
            values[node.name] = mx.nd.array(numbers, form.ctx, node.type.dtype)
    return apart, values


def _cut(form: Form, *, drawing_only: bool = False) -> Form:
    cut = without_choosing(form.graph, drawing_only=drawing_only)
    products = form.with_products
    if products is not None:
        products = without_choosing(products, drawing_only=drawing_only)
    data = tuple(node.name for node in cut.role(DATA))
    return replace(form, graph=cut, symbol=to_symbol(cut), with_products=products, data=data)


def compare_columns(
    expected: Mapping[str, np.ndarray[Any, Any]],
    found: Mapping[str, np.ndarray[Any, Any]],
    where: str,
) -> None:
    """Compare what two engines found, as shares of the largest number; see :func:`_scale`.

    Only where that is above one: what a deep net rounds is as large as what it adds up.

    Raises:
        GraphError: values differ by more than their dtype allows.
    """
    scales = {key: _scale(array) for key, array in expected.items()}
    compare(
        {key: array / scales[key] for key, array in expected.items()},
        {key: array / scales[key] for key, array in found.items()},
        where=where,
    )


def compare_results(
    graph: Graph,
    expected: Mapping[str, np.ndarray[Any, Any]],
    found: Mapping[str, np.ndarray[Any, Any]],
    where: str,
) -> None:
    """Compare what two engines found of a graph; if it does not choose, as shares, too.

    Raises:
        GraphError: it is something else.
    """
    try:
        compare(expected, found, where=where)
    except GraphError as error:
        if chooses(graph):  # the size of an index says nothing
            raise
        try:  # whether it is rounding of large numbers
            compare_columns(expected, found, where)
        except GraphError:
            raise error from None


@dataclass(frozen=True)
class Once:
    """One call of an engine without gradients.

    Attributes:
        outputs: NDArrays, computed.
        values: the same as numpy arrays, by names to tell of them.
        seconds: what it took.
    """

    outputs: list[Any]
    values: dict[str, np.ndarray[Any, Any]]
    seconds: float


def run_once(engine: Engine, known: Mapping[str, Any]) -> Once:
    """Call an engine on arrays by name."""
    start = time.perf_counter()
    with import_mxnet().autograd.pause(train_mode=False):
        outputs = engine([known[name] for name in engine.inputs])
    values = {f"output {i}": output.asnumpy() for i, output in enumerate(outputs)}
    return Once(outputs, values, time.perf_counter() - start)


def _scale(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The largest number, in the array's dtype; 1 where it is less. Of boxes that of each column.

    The corner of a box is a difference of numbers as large as an image, and as exact as these; its
    score is not. Numbers of an embedding, or of images, are as exact as each other.
    """
    if array.dtype.kind != "f" or not array.size:
        return np.ones(1, array.dtype)
    sizes = np.abs(np.where(np.isfinite(array), array, 0))
    largest = sizes.max(axis=(0, 1) if array.ndim == _BOXES else None)
    return np.asarray(np.maximum(largest, 1), array.dtype)


def _chooses(node: Node) -> bool:
    return canonical(node.op) in CHOOSING or _draws(node)


def _draws(node: Node) -> bool:
    """Whether it is a random operator that draws in inference."""
    return info(node.op, node.attrs).random and not is_pure(node, training=False)


def _chosen(form: Form, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """What is chosen in a call, by the names of the inputs that it becomes."""
    plain = unfuse(form.graph, is_packed)
    nodes = [node for node in plain if _chooses(node)]
    plain.set_outputs(value for node in nodes for value in node.values)
    engine = CachedOpEngine(form.typed(to_symbol(plain)), form.data)
    with import_mxnet().autograd.pause(train_mode=False):
        outputs = engine([arrays[name] for name in engine.inputs])
    names = [given(node, value.index) for node in nodes for value in node.values]
    return dict(zip(names, outputs, strict=True))
