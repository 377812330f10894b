"""Results that MXNet would take for one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

#: The attribute by which nodes differ that are equal otherwise; no operator reads it.
_TWIN = "__twin__"


def tell_apart(nodes: Sequence[dict[str, Any]], heads: Sequence[Sequence[int]]) -> bool:
    """Mark the nodes of a document that give a result once more; returns whether there are any.

    MXNet's executors compute equal nodes once. Of a result the second runs all the same, without a
    place for what it computes, which ``Embedding`` refuses. Linear.
    """
    at = sorted({head[0] for head in heads if nodes[head[0]]["op"] != "null"})
    repeated = Counter(nodes[i]["op"] for i in at)
    if len(repeated) == len(at):
        return False  # most often
    numbers = _numbers(nodes)
    seen: set[int] = set()
    for i in at:
        if numbers[i] in seen:
            nodes[i]["attrs"] = {**nodes[i].get("attrs", {}), _TWIN: str(i)}
        seen.add(numbers[i])
    return len(seen) < len(at)


def _numbers(nodes: Sequence[dict[str, Any]]) -> list[int]:
    """The same number for equal nodes: that of the first."""
    first: dict[Any, int] = {}
    found: list[int] = []
    for i, node in enumerate(nodes):
        inputs = tuple((found[source], out) for source, out, *_ in node["inputs"])
        attrs = frozenset(node.get("attrs", {}).items())
        is_one = node["op"] == "null" or "subgraphs" in node
        key = i if is_one else (node["op"], inputs, attrs)
        found.append(first.setdefault(key, i))
    return found
