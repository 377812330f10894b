"""Symbol JSON without some of its operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def without_nodes(
    document: Mapping[str, Any], names: Collection[str]
) -> tuple[dict[str, Any], dict[str, tuple[str, int]]]:
    """Symbol JSON in which variables stand for outputs of some operators. Linear.

    What these read is computed all the same: it is handed out, and no gradient comes back.

    Args:
        document: Symbol JSON.
        names: of the operators.

    Returns:
        The JSON, and which output of which operator each new variable stands for, by its name.
    """
    nodes: list[dict[str, Any]] = []
    place: dict[int, int] = {}  # of a node that stays
    stands: dict[tuple[int, int], int] = {}  # where the variable for an output is
    made: dict[str, tuple[str, int]] = {}
    read: dict[tuple[int, int], None] = {}  # by what is left out

    def entry(source: int, out: int, *more: int) -> list[int]:
        if source in place:
            return [place[source], out, *more]
        if (source, out) not in stands:
            of = document["nodes"][source]["name"]
            stands[source, out] = _append(nodes, "null", f"{of}_instead{out}")
            made[nodes[-1]["name"]] = of, out
        return [stands[source, out], 0, 0]

    for number, node in enumerate(document["nodes"]):
        inputs = [entry(*source) for source in node["inputs"]]
        if node["op"] != "null" and node["name"] in names:
            read |= {(at, out): None for at, out, *_ in inputs if nodes[at]["op"] != "null"}
            continue
        more: dict[str, Any] = {"inputs": inputs}
        if node.get("control_deps"):
            more["control_deps"] = [place[at] for at in node["control_deps"] if at in place]
        place[number] = len(nodes)
        nodes.append(node | more)
    heads = [entry(*head) for head in document["heads"] if head[0] in place]
    for at, out in read:
        name = f"{nodes[at]['name']}_read{out}"
        heads.append([_append(nodes, "BlockGrad", name, [at, out, 0]), 0, 0])
    changed = {
        "nodes": nodes,
        "arg_nodes": [at for at, node in enumerate(nodes) if node["op"] == "null"],
        "heads": heads,
    }
    rest = {key: value for key, value in document.items() if key != "node_row_ptr"}
    return rest | changed, made


def _append(nodes: list[dict[str, Any]], op: str, name: str, *inputs: list[int]) -> int:
    nodes.append({"op": op, "name": name, "inputs": list(inputs)})
    return len(nodes) - 1
