"""Small Symbol JSON documents of every age of MXNet."""

import copy
import json
from typing import Any


def variable(name, **fields):
    return {"op": "null", "name": name, "inputs": [], **fields}


def current() -> dict[str, Any]:
    """As MXNet 1.9 saves: convolution, batch norm, a split with two outputs."""
    return {
        "nodes": [
            variable("data"),
            variable("w", attrs={"__lr_mult__": "2.0"}),
            {
                "op": "Convolution",
                "name": "conv",
                "attrs": {"kernel": "(3, 3)", "num_filter": "4", "no_bias": "True"},
                "inputs": [[0, 0, 0], [1, 0, 0]],
            },
            {
                "op": "Activation",
                "name": "act",
                "attrs": {"act_type": "relu"},
                "inputs": [[2, 0, 0]],
            },
            {
                "op": "SliceChannel",
                "name": "split",
                "attrs": {"num_outputs": "2"},
                "inputs": [[3, 0, 0]],
            },
            {"op": "elemwise_add", "name": "sum", "inputs": [[4, 0, 0], [4, 1, 0]]},
        ],
        "arg_nodes": [0, 1],
        "node_row_ptr": [0, 1, 2, 3, 4, 6, 7],
        "heads": [[5, 0, 0]],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def oldest() -> dict[str, Any]:
    """As MXNet before 0.9 saved: `param`, two-part references, no auxiliary inputs, no version."""
    return {
        "nodes": [
            {"op": "null", "param": {}, "name": "data", "inputs": [], "backward_source_id": -1},
            {
                "op": "null",
                "param": {},
                "name": "fc_weight",
                "inputs": [],
                "backward_source_id": -1,
                "attr": {"lr_mult": "0.5"},
            },
            {"op": "null", "param": {}, "name": "fc_bias", "inputs": [], "backward_source_id": -1},
            {
                "op": "FullyConnected",
                "param": {"no_bias": "False", "num_hidden": "4"},
                "name": "fc",
                "inputs": [[0, 0], [1, 0], [2, 0]],
                "backward_source_id": -1,
                "attr": {"ctx_group": "dev1"},
            },
            {"op": "null", "param": {}, "name": "bn_gamma", "inputs": [], "backward_source_id": -1},
            {"op": "null", "param": {}, "name": "bn_beta", "inputs": [], "backward_source_id": -1},
            {
                "op": "BatchNorm",
                "param": {"eps": "0.001", "momentum": "0.9"},
                "name": "bn",
                "inputs": [[3, 0], [4, 0], [5, 0]],
                "backward_source_id": -1,
            },
            {"op": "null", "param": {}, "name": "label", "inputs": [], "backward_source_id": -1},
            {
                "op": "SoftmaxOutput",
                "param": {"grad_scale": "1"},
                "name": "softmax",
                "inputs": [[6, 0], [7, 0]],
                "backward_source_id": -1,
            },
        ],
        "arg_nodes": [0, 1, 2, 4, 5, 7],
        "heads": [[8, 0]],
    }


def middle() -> dict[str, Any]:
    """As MXNet 0.9 to 0.11 saved: everything under `attr`."""
    document = copy.deepcopy(current())
    for node in document["nodes"]:
        if "attrs" in node:
            node["attr"] = node.pop("attrs")
    document["attrs"] = {"mxnet_version": ["int", 1000]}
    return document


def chain(length: int) -> str:
    """A file of that many operators in a row."""
    nodes = [variable("data")]
    nodes += [
        {"op": "relu", "name": f"n{number}", "inputs": [[number, 0, 0]]} for number in range(length)
    ]
    return json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": [[length, 0, 0]]})
