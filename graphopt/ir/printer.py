r"""Text form of a graph; :mod:`graphopt.ir.parser` reads it back to an equal graph.

::

    graph mlp(%data: f32[32,784], param %w: f32[10,784], param %b: f32[10]) {
      %fc = FullyConnected(%data, %w, %b) {num_hidden=10} : f32[32,10]
      return %fc
    }

Inputs that do not fit on 100 columns have a line each. A value is ``%name`` or ``%name#index``. A
name that is no plain word is quoted, one that several nodes share gets ``~2``, ``~3`` ... in
topological order. Nested graphs follow in brackets, control dependencies as ``after(%a, %b)``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from graphopt.ir.graph import Graph
from graphopt.ir.node import Node, NodeId, Value
from graphopt.ir.types import UNKNOWN

_PLAIN = re.compile(r"[A-Za-z0-9_.$/:@+-]*[A-Za-z0-9_.$/@+-]|")
_INDENT = "  "
_WIDTH = 100  # columns


def print_graph(graph: Graph) -> str:
    """The text of a graph, nested graphs included."""
    return "\n".join(_lines(graph, ""))


def print_node(graph: Graph, node: NodeId) -> str:
    """The one-line text of a node, as it stands in its graph's text."""
    names, found = labels(graph), graph[node]
    return _input(found, names) if found in graph.inputs else next(_node_lines(found, names, ""))


def labels(graph: Graph) -> dict[NodeId, str]:
    """The printed name, ``%`` included, of every node."""
    seen: dict[str, int] = {}
    result: dict[NodeId, str] = {}
    for node in (*graph.inputs, *graph.topological()):
        if node.id in result:
            continue
        count = seen[node.name] = seen.get(node.name, 0) + 1
        plain = node.name if _PLAIN.fullmatch(node.name) else json.dumps(node.name)
        # A node without a name always carries a number, or "%" would stand alone.
        numbered = count > 1 or not node.name
        result[node.id] = f"%{plain}~{count}" if numbered else f"%{plain}"
    return result


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    names = labels(graph)
    title = graph.name if _is_title(graph.name) else json.dumps(graph.name)
    yield from _head(f"{indent}graph {title}(", [_input(n, names) for n in graph.inputs], indent)
    given = {node.id for node in graph.inputs}
    for node in graph.topological():
        if node.id not in given:
            yield from _node_lines(node, names, indent + _INDENT)
    returned = ", ".join(_value(value, names) for value in graph.outputs)
    yield f"{indent}{_INDENT}return {returned}".rstrip()
    yield indent + "}"


def _head(begin: str, inputs: list[str], indent: str) -> Iterator[str]:
    """A graph's first line, or a line for each input where one line would be too wide to read."""
    line = f"{begin}{', '.join(inputs)}) {{"
    if len(line) <= _WIDTH:
        yield line
        return
    yield begin
    yield ",\n".join(f"{indent}{_INDENT}{text}" for text in inputs)
    yield f"{indent}) {{"


def _is_title(name: str) -> bool:
    """Whether a graph's name reads back without quotes: it may not look like a comment."""
    return bool(name) and not name.startswith("//") and _PLAIN.fullmatch(name) is not None


def _input(node: Node, names: dict[NodeId, str]) -> str:
    role = "" if node.op == "data" else f"{node.op} "
    attrs = f" {node.attrs.text}" if node.attrs else ""
    return f"{role}{names[node.id]}: {node.type}{attrs}"


def _node_lines(node: Node, names: dict[NodeId, str], indent: str) -> Iterator[str]:
    op = node.op if re.fullmatch(r"[A-Za-z_][\w.]*", node.op) else json.dumps(node.op)
    text = f"{indent}{names[node.id]} = {op}({', '.join(_value(v, names) for v in node.inputs)})"
    if node.attrs:
        text += f" {node.attrs.text}"
    if node.after:
        text += f" after({', '.join(names[before] for before in node.after)})"
    if len(node.types) != 1:
        text += f" : ({', '.join(map(str, node.types))})"
    elif node.types[0] != UNKNOWN:
        text += f" : {node.types[0]}"
    if not node.graphs:
        yield text
        return
    yield text + " ["
    for nested in node.graphs:
        yield from _lines(nested, indent + _INDENT)
    yield indent + "]"


def _value(value: Value, names: dict[NodeId, str]) -> str:
    return names[value.node] + (f"#{value.index}" if value.index else "")
