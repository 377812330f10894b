"""Constant nodes: small tensors that are part of the graph, stored in its attributes."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from graphopt.ir.node import CONSTANT, Node
from graphopt.ir.types import TensorType

if TYPE_CHECKING:
    import numpy as np

    from graphopt.ir.graph import Graph


#: No base64, whose length is a multiple of four.
_RANGE: Final = "range"


def add_constant(graph: Graph, array: np.ndarray[Any, Any], name: str = "") -> Node:
    """Add a constant node that holds ``array`` (any shape, a dtype the IR knows).

    Its data is in base64, in C order whatever the array's own, or ``range`` for 0, 1, 2 ...: with
    positions along an axis the text of a graph would be as long as the axis.
    """
    data = _RANGE if _is_range(array) else base64.b64encode(array.tobytes()).decode()
    dtype, shape = str(array.dtype), tuple(int(extent) for extent in array.shape)
    attrs = {"dtype": dtype, "shape": shape, "data": data}
    return graph.add(CONSTANT, (), attrs, (TensorType(dtype, shape),), name)


def constant_array(node: Node) -> np.ndarray[Any, Any]:
    """The read-only tensor of a constant node."""
    import numpy as np

    data, dtype, shape = (node.attrs[name] for name in ("data", "dtype", "shape"))
    if data == _RANGE:
        return range_of(shape, dtype)
    return np.frombuffer(base64.b64decode(data), dtype=dtype).reshape(shape)


def is_range(node: Node) -> bool:
    """Whether it is a constant that holds 0, 1, 2 ..."""
    return node.op == CONSTANT and node.attrs["data"] == _RANGE


def range_of(shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    """The read-only tensor that holds 0, 1, 2 ... in C order."""
    import numpy as np

    found = np.arange(math.prod(shape), dtype=dtype)
    found.flags.writeable = False
    return found.reshape(shape)


def _is_range(array: np.ndarray[Any, Any]) -> bool:
    import numpy as np

    if array.size < 2 or array.dtype.kind not in "if" or array.dtype.itemsize < 4:
        return False
    return bool(np.array_equal(array.ravel(), np.arange(array.size, dtype=array.dtype)))
