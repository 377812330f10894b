"""The intermediate representation: frozen nodes in one mutable graph, and its text form."""

from graphopt.ir.attrs import EMPTY, Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, CONSTANT, DATA, PARAM, ROLES, Node, NodeId, Use, Value
from graphopt.ir.types import UNKNOWN, TensorType

__all__ = [
    "AUX",
    "CONSTANT",
    "DATA",
    "EMPTY",
    "PARAM",
    "ROLES",
    "UNKNOWN",
    "Attrs",
    "Graph",
    "Node",
    "NodeId",
    "TensorType",
    "Use",
    "Value",
]
