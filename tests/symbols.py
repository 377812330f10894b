"""Symbols of operators that MXNet has no Python function for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge


def one_operator(op: str, name: str, inputs: Sequence[str], attrs: dict[str, Any]) -> Any:
    """A Symbol of an operator of the bridge, called ``name``, that reads variables."""
    mx = import_mxnet()
    bridge.load(mx)
    nodes: list[dict[str, Any]] = [{"op": "null", "name": each, "inputs": []} for each in inputs]
    texts = {key: str(value) for key, value in attrs.items()}
    reads = [[at, 0, 0] for at in range(len(inputs))]
    nodes.append({"op": op, "name": name, "attrs": texts, "inputs": reads})
    document = {
        "nodes": nodes,
        "arg_nodes": list(range(len(inputs))),
        "heads": [[len(inputs), 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }
    return mx.sym.load_json(json.dumps(document))
