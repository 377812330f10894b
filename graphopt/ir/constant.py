"""Constant nodes: small tensors that are part of the graph, stored in its attributes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from graphopt.ir.node import CONSTANT, Node
from graphopt.ir.types import TensorType

if TYPE_CHECKING:
    import numpy as np

    from graphopt.ir.graph import Graph


def add_constant(graph: Graph, array: np.ndarray[Any, Any], name: str = "") -> Node:
    """Add a constant node that holds ``array`` (any shape, a dtype the IR knows)."""
    data = base64.b64encode(array.tobytes()).decode()  # C order, whatever the array's own
    dtype, shape = str(array.dtype), tuple(int(extent) for extent in array.shape)
    attrs = {"dtype": dtype, "shape": shape, "data": data}
    return graph.add(CONSTANT, (), attrs, (TensorType(dtype, shape),), name)


def constant_array(node: Node) -> np.ndarray[Any, Any]:
    """The read-only tensor of a constant node."""
    import numpy as np

    raw = base64.b64decode(node.attrs["data"])
    return np.frombuffer(raw, dtype=node.attrs["dtype"]).reshape(node.attrs["shape"])
