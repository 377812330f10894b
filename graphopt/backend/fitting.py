"""Whether the arrays that a graph is given are those it was made for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, Node
from graphopt.ir.types import TensorType, dtype_name


def check_parameters(graph: Graph, params: Mapping[str, Any]) -> None:
    """Raises InputError, naming the parameter, where one has another shape or dtype."""
    for node in graph.inputs:
        array = params.get(node.name)
        if array is None or node.op == DATA or not graph.node_users(node.id):
            continue
        _check(array, node.type, f"parameter {node.name!r}", "the graph needs")


def as_parameter(name: str, value: Any, ctx: Any = None, dtype: str | None = None) -> Any:
    """A parameter as a dense NDArray; one that is stays the same array.

    Args:
        name: for the error.
        value: an NDArray, or what numpy makes one.
        ctx: where the array is to be if it is made.
        dtype: of that; default: the value's.

    Raises:
        InputError: it is a sparse array with a gradient, which only that array could have.
    """
    mx = import_mxnet()
    if not isinstance(value, mx.nd.NDArray):
        return mx.nd.array(value, ctx=ctx, dtype=dtype or np.asarray(value).dtype)
    if value.stype == "default":
        return value
    if value.grad is not None:
        raise InputError(
            f"parameter {name!r} is {value.stype} and has a gradient, which graphs compute of dense"
            " arrays only: give it as .tostype('default'), and attach_grad() to that"
        )
    return value.tostype("default")


def require(needed: set[str], known: set[str]) -> None:
    """Raises InputError, naming some, where parameters have no value."""
    missing = sorted(needed - known)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(f"no value for parameter {', '.join(missing[:3])}{more}")


def require_mapping(given: object, what: str) -> None:
    """Raises InputError where what is given for inputs is not by their names."""
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise InputError(f"{what} are given by the names of inputs, in a dict, not as a {kind}")


def require_sizes(graph: Graph) -> None:
    """Raises UnsupportedError, naming the operator, where memory cannot be planned beforehand."""
    for node in graph:
        if not node.is_input and any(found.shape is None for found in node.types):
            raise without_size(node)


def without_size(node: Node) -> UnsupportedError:
    """The error that names an operator whose outputs have shapes that it computes."""
    return UnsupportedError(f"the shape of {node.name!r} ({node.op}) is known only once it has run")


def require_known(given: Iterable[str], inputs: Sequence[str], what: str) -> None:
    """Raises InputError, with the closest that is, where a name is that of no input."""
    for name in given:
        if name not in inputs:
            near = difflib.get_close_matches(str(name), inputs, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{what} has no input {name!r}{hint}")


def as_input(name: str, value: Any, want: TensorType, ctx: Any) -> Any:
    """A data input as a dense NDArray; raises InputError where it does not fit."""
    mx = import_mxnet()
    if not isinstance(value, mx.nd.NDArray):
        value = mx.nd.array(value, ctx=ctx, dtype=want.dtype or np.asarray(value).dtype)
    if value.stype != "default":
        value = value.tostype("default")  # engines and kernels read dense arrays
    _check(value, want, f"input {name!r}", "the graph was lowered for")
    return value


def check_names(
    data: Sequence[str], read: set[str], given: Mapping[str, Any], positional: int
) -> None:
    """Raises InputError where data inputs that are read are missing, or others given."""
    if positional > len(data):
        raise InputError(f"{positional} inputs given, the graph has {len(data)}: {list(data)}")
    for name in given:
        if name not in data:
            raise InputError(f"the graph has no data input {name!r}; it has {list(data)}")
    for name in data:
        if name not in given and name in read:
            raise InputError(f"data input {name!r} is missing")


def _check(array: Any, want: TensorType, what: str, needs: str) -> None:
    shape, dtype = tuple(array.shape), dtype_name(array.dtype)
    if want.shape is not None and not _fits(shape, want.shape):
        raise InputError(f"{what} has shape {shape}, {needs} {want.shape}")
    if want.dtype is not None and dtype != want.dtype:
        raise InputError(f"{what} is {dtype}, {needs} {want.dtype}")


def _fits(shape: tuple[int, ...], want: Sequence[int | None]) -> bool:
    return len(shape) == len(want) and all(
        w is None or s == w for s, w in zip(shape, want, strict=True)
    )
