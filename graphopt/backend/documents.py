"""Symbols as Symbol JSON, with all that is in them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.ir.sizes import FILLS, Shapes


def text_of(symbol: Any) -> str:
    """The JSON of a Symbol, and not without what ``mx.contrib.amp`` casts, as MXNet's ``tojson()``.

    That makes a copy of the Symbol which it never frees.
    """
    text: str = symbol.tojson(remove_amp_cast=False)
    return text


def document_of(symbol: Any) -> dict[str, Any]:
    """What that JSON says."""
    document: dict[str, Any] = json.loads(text_of(symbol))
    return document


def symbol_of(document: Mapping[str, Any]) -> Any:
    """The Symbol of such a document, which is a classic one."""
    return import_mxnet().sym.load_json(as_text(document))


def as_text(document: Mapping[str, Any]) -> str:
    """The JSON of such a document."""
    return json.dumps(document, ensure_ascii=False)  # MXNet reads no \\u escapes


def every_node(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Nodes of such a document, and those of loops' bodies."""
    for node in document["nodes"]:
        yield node
        for inner in node.get("subgraphs", ()):
            yield from every_node(inner)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The JSON of a Symbol whose nodes, by their names, have others."""
    document = json.loads(text)
    _rename(document, names)
    return as_text(document)


def _rename(document: dict[str, Any], names: Mapping[str, str]) -> None:
    for node in document["nodes"]:
        node["name"] = names.get(node["name"], node["name"])
        for inner in node.get("subgraphs", ()):
            _rename(inner, names)


def of_two_sizes(
    document: dict[str, Any], other: Mapping[str, Any], *, opens: bool
) -> dict[str, Any] | None:
    """What to write for data of any size where two were written for data of two sizes.

    Args:
        document: of one size.
        other: of another one.
        opens: whether an extent of 0 is one that MXNet infers, as it is but under ``npx.set_np()``.

    Returns:
        The first one, with fills for both sizes; ``None`` if the two differ in anything else.
    """
    ours, theirs = document["nodes"], other["nodes"]
    if document["heads"] != other["heads"] or len(ours) != len(theirs):
        return None
    nodes = [_node_of_both(*both, opens=opens) for both in zip(ours, theirs, strict=True)]
    return None if None in nodes else {**document, "nodes": nodes}


def infers(document: Mapping[str, Any], shapes: Shapes, sized: Mapping[str, Any]) -> bool:
    """Whether MXNet finds all shapes, and for fills those that they have in a document for sizes.

    What is written with extents of 0 is only found where something says what they are: operators
    that take arrays of any number tell nothing of one.

    Args:
        document: for data of any size, as :func:`of_two_sizes` makes it.
        shapes: of what it reads, by name.
        sized: for data of these shapes.
    """
    internals = symbol_of(document).get_internals()
    read = {*internals.list_inputs()}
    known = {name: shape for name, shape in shapes.items() if name in read}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says what it cannot infer
            _, found, _ = internals.infer_shape(**known)
    except import_mxnet().MXNetError:
        return False
    if found is None:
        return False
    inferred = dict(zip(internals.list_outputs(), found, strict=True))
    return all(
        inferred[f"{node['name']}_output"] == _extents(twin["attrs"]["shape"])
        for node, twin in zip(document["nodes"], sized["nodes"], strict=True)
        if twin["op"] in FILLS and "shape" in twin.get("attrs", {})
    )


def _node_of_both(
    node: dict[str, Any], twin: Mapping[str, Any], *, opens: bool
) -> dict[str, Any] | None:
    attrs, others = node.get("attrs", {}), twin.get("attrs", {})
    if opens and node["op"] in FILLS and "shape" in attrs and "shape" in others:
        shape = _common(attrs["shape"], others["shape"])
        attrs, others = {**attrs, "shape": shape}, {**others, "shape": shape}
    rest, beside = (
        {k: v for k, v in n.items() if k not in ("name", "attrs")} for n in (node, twin)
    )
    if rest != beside or (node["op"] != "null" and _operands(attrs) != _operands(others)):
        return None
    return {**node, "attrs": attrs} if attrs else node


def _operands(attrs: Mapping[str, str]) -> dict[str, str]:
    """What MXNet reads; the rest may be advice for one size."""
    return {k: v for k, v in attrs.items() if not k.startswith("__")}


def _extents(shape: str) -> tuple[int, ...]:
    return tuple(json.loads(f"[{shape.strip('[](),')}]"))


def _common(shape: str, other: str) -> str:
    """A shape with zeros where two differ."""
    one, two = _extents(shape), _extents(other)
    found = [a if a == b else 0 for a, b in zip(one, two, strict=False)]
    return f"({', '.join(map(str, found))})" if len(one) == len(two) else shape
