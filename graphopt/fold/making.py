"""One recorded call: what it returns, the parts of that, and parts of several as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.fold.arguments import is_array, regrouped
from graphopt.fold.nodes import Call, Node
from graphopt.ir.types import dtype_name

mx = import_mxnet()
_NDArray: Any = mx.nd.NDArray


def make(call: Call, leaves: Sequence[Any]) -> Any:
    """What a call returns.

    Raises:
        InputError: it raised, or was split into another number of parts.
        UnsupportedError: it does what cannot be batched.
    """
    try:
        found = call.op(*regrouped(call.layout, iter(leaves)))
    except UnsupportedError as error:
        text = str(error).replace("graphopt.batch(net, debug=True)", "Fold(debug=True)")
        raise UnsupportedError(f"{call}: {text}") from error
    except Exception as error:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves if is_array(leaf))
        raise InputError(
            f"{call} cannot be called with arrays of shapes {shapes or 'none'}, it raised"
            f" {_in_short(error)}: give arguments that it takes outside of a Fold"
        ) from error
    for path, count in call.splits:
        whole = Node(call, path)
        parts = part_of(whole, found)
        if not isinstance(parts, (list, tuple, _NDArray)) or len(parts) != count:
            raise InputError(
                f"{whole} was split into {count}, but it is {_what(parts)}: split it into the parts"
                " that it has"
            )
    return found


def part_of(node: Node, value: Any) -> Any:
    """What a node stands for, of all that its call returned."""
    for at, step in enumerate(node._path):
        try:
            value = value[step] if isinstance(step, int) else value.expand_dims(step[1])
        except (LookupError, TypeError, AttributeError, mx.MXNetError) as error:
            whole = Node(node._call, node._path[:at])
            raise InputError(
                f"{node} does not exist, as {whole} is {_what(value)}: take a part that it has"
            ) from error
    return value


def joined(nodes: Sequence[Node], values: Sequence[Any]) -> Any:
    """The arrays of nodes as one."""
    for node, value in zip(nodes, values, strict=True):
        if not isinstance(value, _NDArray):
            raise InputError(f"{node} is {_what(value)}, no array: ask for its parts, by .split(n)")
    first = nodes[0]
    if not first.batch:
        other = next((node for node in nodes if node != first), None)
        if other is not None:
            raise InputError(f"{first} is no_batch(), and so cannot be joined with {other}")
        return values[0]
    axis = first._call.axis
    for node, value in zip(nodes, values, strict=True):
        if len(value.shape) <= axis:
            raise InputError(
                f"{node} has shape {value.shape}, without the batch axis {axis}: record an operator"
                " that keeps the axis"
            )
        if _off(axis, value) != _off(axis, values[0]):
            raise InputError(
                f"{first} of {_typed(values[0])} and {node} of {_typed(value)} cannot be joined"
                f" along axis {axis}: ask for them in two lists"
            )
    if len(values) == 1:
        return values[0]
    if _is_numpy(values[0]):
        return mx.np.concatenate(values, axis=axis)
    return mx.nd.concat(*values, dim=axis)


def _off(axis: int, value: Any) -> tuple[Any, ...]:
    """What arrays to be joined must have in common."""
    shape = value.shape
    return (*shape[:axis], None, *shape[axis + 1 :], value.dtype, _is_numpy(value))


def _is_numpy(value: Any) -> bool:
    return isinstance(value, mx.np.ndarray)


def _typed(value: Any) -> str:
    """What :func:`_off` looks at, in words."""
    return f"{'mx.np ' if _is_numpy(value) else ''}{dtype_name(value.dtype)}{list(value.shape)}"


def _what(value: Any) -> str:
    if isinstance(value, _NDArray):
        return f"an array of shape {value.shape}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1].removeprefix("MXNetError: ") if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
