"""What the tables of operators that kernels know are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.ir.types import TensorType
from graphopt.kernels.spec import Arg
from graphopt.kernels.spec_builder import Builder

Emit = Builder
Build = Callable[[Builder, Sequence[Arg], Attrs], Arg]
Check = Callable[[Node, Graph], str | None]
Axes = tuple[int | None, ...]

FLOATS: Final = ("float16", "float32", "float64")


@dataclass(frozen=True)
class Pointwise:
    """An operator that computes every element from the elements at the same place.

    Attributes:
        build: emits the instructions; its attributes are those of :func:`prepared`.
        check: why a node cannot be translated, or ``None``.
    """

    build: Build
    check: Check


class Span(NamedTuple):
    """Axes that reductions run over: how many, and how many come behind them."""

    inner: int
    columns: int

    def dropped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What is left of a shape, or of its axes, without these."""
        end = len(shape) - self.columns
        return shape[: end - self.inner] + shape[end:]


#: Of regions without reductions.
NO_SPAN: Final = Span(0, 0)


@dataclass(frozen=True)
class Row:
    """An operator that runs over neighbouring axes of its first input.

    Attributes:
        build: emits the instructions; its attributes are those of :func:`prepared`.
        check: why a node cannot be translated, or ``None``.
        axes: the axes it runs over, given their number, ascending.
        reduces: whether it leaves one value per row.
    """

    build: Build
    check: Check
    axes: Callable[[Attrs, int], tuple[int, ...]]
    reduces: bool = False

    def span(self, node: Node, graph: Graph) -> Span:
        """The axes of the first input that it runs over."""
        rank = graph.type_of(node.inputs[0]).rank or 0
        axes = self.axes(node.attrs, rank)
        return Span(len(axes), rank - 1 - axes[-1])


def number(attrs: Attrs, name: str, default: float) -> float:
    """A number that a node has, or what MXNet takes without it.

    Raises:
        GraphoptError: Python does not read it as one, although MXNet may (``1.5f``).
    """
    found = attrs.get(name)
    try:
        return default if found is None else float(found)
    except ValueError as error:
        raise GraphoptError(f"{name}={found} is no number") from error


def single(attrs: Attrs, name: str, default: float) -> float:
    """A parameter that MXNet holds in float32, whatever the dtype of the arrays."""
    with np.errstate(over="ignore"):
        return float(np.float32(number(attrs, name, default)))


def flag(attrs: Attrs, name: str) -> bool:
    """Whether an attribute says yes, as text too."""
    found = attrs.get(name)
    return found not in ("False", "false", "0", "None") if isinstance(found, str) else bool(found)


def scalar(attrs: Attrs) -> float:
    """The scalar of an operator of an array and a scalar."""
    return number(attrs, "scalar", 1.0)


def of_one_dtype(node: Node, graph: Graph) -> str | None:
    """All inputs and the output have one floating dtype."""
    return same_dtype(node, [graph.type_of(value) for value in node.inputs])


def same_dtype(node: Node, types: Iterable[TensorType]) -> str | None:
    """Some types and that of the output have one floating dtype."""
    dtypes = {type_.dtype for type_ in (*types, node.type)}
    if len(dtypes) == 1 and dtypes <= set(FLOATS):
        return None
    return f"its operands are {', '.join(sorted(map(str, dtypes)))}, not of one floating dtype"


def all_of(*checks: Check) -> Check:
    """The first objection of several checks."""

    def check(node: Node, graph: Graph) -> str | None:
        return next(filter(None, (found(node, graph) for found in checks)), None)

    return check


def refuse(condition: Callable[[Attrs], bool], reason: str) -> Check:
    """A check that refuses nodes with some attributes."""
    return lambda node, _graph: reason if condition(node.attrs) else None


def instruction(name: str) -> Build:
    """The instruction of that name on all operands."""
    return lambda emit, args, attrs: emit(name, *args)
