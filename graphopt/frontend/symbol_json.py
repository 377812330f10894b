"""Read Symbol JSON of any age without trusting it.

MXNet's own reader upgrades old files but crashes the process on some malformed ones, so structure
is checked here first; only a sound document reaches MXNet.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from graphopt.backend.documents import document_of
from graphopt.backend.invoke import count_inputs
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import ParseError
from graphopt.ir.ops import info

_NODE_FIELDS: Final = (
    "op",
    "name",
    "param",
    "attr",
    "attrs",
    "inputs",
    "control_deps",
    "subgraphs",
)

#: Operators that hold pointers into the process that made them; MXNet follows them from a file too.
_PROCESS_ONLY: Final = frozenset({"_Native", "_NDArray", "_CachedOp", "_NoGradient"})

#: Attributes by which MXNet divides, or of which it makes as many, without a check.
_LIMITS: Final = {
    "num_group": (1, 1 << 31),
    "block_size": (1, 1 << 31),
    "num_outputs": (1, 1 << 20),
    "num_args": (0, 1 << 20),
}
_INT: Final = re.compile(r"\s*[+-]?\d+\s*")


def read_symbol(path: str | Path) -> Any:
    """The MXNet Symbol of a ``*-symbol.json`` file.

    Raises:
        ParseError: the file is missing, unreadable, malformed, or uses an operator that MXNet does
            not know; the message names the file and the node.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ParseError(f"cannot read {str(path)!r}: {reason}") from None
    return parse_symbol(text, str(path))


def parse_symbol(text: str, source: str = "symbol JSON") -> Any:
    """The MXNet Symbol of a JSON text; ``source`` names it in messages.

    Raises:
        ParseError: see :func:`read_symbol`.
    """
    mx = import_mxnet()
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ParseError(f"{source} is not valid JSON: {error}") from None
    except ValueError:  # Python reads no integer of more than some thousand digits
        _fail(source, "a number in it has too many digits")
    check_document(document, source)
    _make_sound(document)
    text = json.dumps(document, ensure_ascii=False)
    del document  # MXNet's own copy of a large graph takes room
    try:
        symbol = mx.sym.load_json(text)
        loaded = document_of(symbol)
        _check_inputs(loaded, source)
        symbol.list_auxiliary_states()
    except UnicodeEncodeError:
        _fail(source, "a text in it has half of a surrogate pair")
    except mx.MXNetError as error:
        raise ParseError(f"MXNet cannot load {source}: {first_line(error)}") from None
    _check_outputs(loaded, source)
    return symbol


def check_document(document: Any, source: str) -> None:
    """Check the structure of Symbol JSON and put its nodes into topological order, in place.

    Raises:
        ParseError: a field is missing or of the wrong type, a node id is out of range, or the graph
            has a cycle.
    """
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        _fail(source, "it has no list 'nodes', so it is no MXNet symbol")
    nodes, heads = document["nodes"], document.get("heads")
    if not isinstance(heads, list) or not heads:
        _fail(source, "it has no list 'heads'")
    _check_version(document.get("attrs", {}), source)
    for number, node in enumerate(nodes):
        _check_node(node, number, len(nodes), source)
    for head in heads:
        if not _is_reference(head, len(nodes)):
            _fail(source, f"head {head!r} refers to a node out of range 0..{len(nodes) - 1}")
    if any(source_id >= number for number, node in enumerate(nodes) for source_id in _reads(node)):
        _sort(document, source)
    for node in nodes:
        for number, nested in enumerate(node["subgraphs"]):
            check_document(nested, f"subgraph {number} of node {node['name']!r} in {source}")


def _make_sound(document: dict[str, Any]) -> None:
    """Leave only the fields MXNet needs, in place; it believes the others without a check."""
    nodes = document["nodes"]
    for number, node in enumerate(nodes):
        for nested in node["subgraphs"]:
            _make_sound(nested)
        kept = {key: node[key] for key in _NODE_FIELDS if node.get(key)}
        nodes[number] = {"name": "", "inputs": [], **kept}
    version = document.get("attrs", {}).get("mxnet_version")
    sound = {
        "nodes": nodes,
        "arg_nodes": [number for number, node in enumerate(nodes) if node["op"] == "null"],
        "heads": document["heads"],
    }
    document.clear()
    document.update(sound | ({"attrs": {"mxnet_version": version}} if version else {}))


def _check_version(attrs: Any, source: str) -> None:
    if not isinstance(attrs, dict):
        _fail(source, "its 'attrs' are no object")
    version = attrs.get("mxnet_version", ["int", 0])
    if (
        not isinstance(version, list)
        or len(version) != 2
        or version[0] != "int"
        or not _is_index(version[1], 1 << 31)
    ):
        _fail(source, f"its MXNet version is {version!r}, not ['int', number]")


def _check_outputs(document: dict[str, Any], source: str) -> None:
    """Check that what is read is an output; MXNet reads behind the last one without a word."""
    nodes, pointers = document["nodes"], document["node_row_ptr"]
    counts = [after - before for before, after in pairwise(pointers)]
    readers = [(f"node {node['name']!r} reads", node["inputs"]) for node in nodes]
    for reader, references in [*readers, ("its heads name", document["heads"])]:
        for number, output, *_ in references:
            if output >= counts[number]:
                _fail(
                    source,
                    f"{reader} output {output} of node {nodes[number]['name']!r},"
                    f" which has {counts[number]}",
                )


def _check_inputs(document: dict[str, Any], source: str) -> None:
    """Check that what operators read and write is there; MXNet reads behind it without looking."""
    for node in document["nodes"]:
        needed = 0 if node["op"] == "null" else _least_inputs(node)
        if len(node["inputs"]) < needed:
            label = f"node {node['name']!r} ({node['op']})"
            _fail(source, f"{label} has {len(node['inputs'])} of {needed} inputs")
        for nested in node.get("subgraphs", ()):
            _check_inputs(nested, source)


def _least_inputs(node: dict[str, Any]) -> int:
    """How many inputs an operator needs, as far as that is known."""
    states = max(info(node["op"]).mutates, default=-1) + 1
    if node.get("subgraphs"):
        return states
    return max(states, _count_inputs(node["op"], tuple(node.get("attrs", {}).items())))


@cache  # layers of a net have few settings
def _count_inputs(op: str, attrs: tuple[tuple[str, str], ...]) -> int:
    try:
        return count_inputs(op, dict(attrs))
    except import_mxnet().MXNetError:  # where an operator is told by what it lies between
        return 0


def _fail(source: str, problem: str) -> NoReturn:
    raise ParseError(f"{source} is malformed: {problem}")


def _check_node(node: Any, number: int, count: int, source: str) -> None:
    if not isinstance(node, dict):
        _fail(source, f"node {number} is no object")
    for key in ("op", "name"):
        if not isinstance(node.get(key), str):
            _fail(source, f"node {number} has no text {key!r}")
    label = f"node {number} ({node['name']!r})"
    if not node["op"]:
        _fail(source, f"{label} has an empty operator name")
    if not isinstance(node.setdefault("inputs", []), list):
        _fail(source, f"{label} has no list 'inputs'")
    if node["op"] in _PROCESS_ONLY or node["op"].startswith("_backward_"):
        _fail(source, f"{label} has operator {node['op']!r}, which no file can hold")
    if node["op"] == "null" and node["inputs"]:
        _fail(source, f"{label} is a variable but has inputs")
    for reference in node["inputs"]:
        if not _is_reference(reference, count):
            _fail(source, f"{label} reads {reference!r}, out of range 0..{count - 1}")
    for key in ("control_deps", "subgraphs"):
        if not isinstance(node.setdefault(key, []), list):
            _fail(source, f"{label} has no list {key!r}")
    for before in node["control_deps"]:
        if not _is_index(before, count):
            _fail(source, f"{label} has control dependency {before!r}, out of range")
    for key in ("param", "attr", "attrs"):
        attrs = node.get(key, {})
        if not isinstance(attrs, dict) or not all(isinstance(v, str) for v in attrs.values()):
            _fail(source, f"{label} has {key!r} that maps no names to texts")
        for name, text in attrs.items():
            if name not in _LIMITS or not _INT.fullmatch(text):
                continue
            least, most = _LIMITS[name]
            if not least <= _clamped(text) <= most:
                _fail(source, f"{label} has {name}={text}, which is not in {least}..{most}")


def _clamped(text: str) -> int:
    return int(text) if len(text) < 20 else 1 << 63


def _is_index(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count


def _is_reference(value: Any, count: int) -> bool:
    """``[node, output]`` or ``[node, output, version]``."""
    return (
        isinstance(value, list)
        and len(value) in (2, 3)
        and _is_index(value[0], count)
        and all(_is_index(part, 1 << 31) for part in value[1:])
    )


def _reads(node: dict[str, Any]) -> list[int]:
    return [*(reference[0] for reference in node["inputs"]), *node["control_deps"]]


def _sort(document: dict[str, Any], source: str) -> None:
    """Renumber nodes so that producers come first (MXNet reads forward references as null)."""
    import networkx as nx

    nodes = document["nodes"]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(nodes)))
    graph.add_edges_from((s, number) for number, node in enumerate(nodes) for s in _reads(node))
    try:
        order = list(nx.topological_sort(graph))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(repr(nodes[edge[0]]["name"]) for edge in nx.find_cycle(graph)[:6])
        _fail(source, f"it has a cycle through {cycle}")
    new = {old: number for number, old in enumerate(order)}
    for node in nodes:
        for reference in node["inputs"]:
            reference[0] = new[reference[0]]
        node["control_deps"] = [new[before] for before in node["control_deps"]]
    for head in document["heads"]:
        head[0] = new[head[0]]
    document["nodes"][:] = [nodes[old] for old in order]
