"""Graph -> Graphviz dot: one box a node, its type on the edges."""

from __future__ import annotations

import json

from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, DATA, Node

_FILL = {DATA: "#cfe8ff", "param": "#eeeeee", "aux": "#eeeeee", CONSTANT: "#eeeeee"}


def to_dot(graph: Graph) -> str:
    """The text of a directed graph; nested graphs are named in their node, not drawn."""
    lines = [
        f"digraph {json.dumps(graph.name)} {{",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"]',
        '  edge [fontname="sans-serif", fontsize=9]',
    ]
    lines += [_node(node) for node in graph]
    for node in graph:
        for value in node.inputs:
            lines.append(_edge(value.node, node.id, str(graph.type_of(value))))
        lines += [f"  n{before} -> n{node.id} [style=dashed]" for before in node.after]
    for number, value in enumerate(graph.outputs):
        lines.append(f"  out{number} [label={json.dumps(f'output {number}')}, shape=ellipse]")
        lines.append(_edge(value.node, f"out{number}", str(graph.type_of(value))))
    return "\n".join([*lines, "}"])


def _node(node: Node) -> str:
    parts = [node.op, node.name, *(f"[{nested.name}]" for nested in node.graphs)]
    # Dot has its own escapes; a name is written as JSON writes it, which dot reads alike.
    label = json.dumps("\n".join(part for part in parts if part), ensure_ascii=False)
    fill = f", fillcolor={json.dumps(_FILL[node.op])}" if node.op in _FILL else ""
    attrs = {key: value for key, value in node.attrs.items() if key != "data"}
    tip = json.dumps(", ".join(f"{key}={value}" for key, value in attrs.items()))
    return f"  n{node.id} [label={label}, tooltip={tip}{fill}]"


def _edge(source: int, target: int | str, label: str) -> str:
    name = target if isinstance(target, str) else f"n{target}"
    return f"  n{source} -> {name} [label={json.dumps(label)}]"
