"""Binding a model without running it, so that MXNet shows its executor's graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from graphopt.backend.documents import document_of
from graphopt.backend.engines import quiet_binding
from graphopt.backend.environment import environment
from graphopt.backend.fitting import without_size
from graphopt.backend.retiring import bound_executor
from graphopt.backend.symbol import MXNET_VERSION, first_line, to_symbol
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.gluon import lift_block
from graphopt.frontend.stated import retyped
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.node import CONSTANT, Node
from graphopt.ir.types import dtype_name
from graphopt.memory.listing import Listing, parse
from graphopt.memory.training import GradReq, Type

REQUESTS = ("write", "add", "null")


@dataclass(frozen=True)
class Bound:
    """A graph, the types of everything in it, and how its executor lists it.

    In the listing operators are called by ``numbered``; names need not be unique in a graph.
    ``hidden`` has the types of all outputs of a node, of those too that no other node can read.
    ``gradients`` names the arguments that want one, in the order of the listing's outputs.
    """

    graph: Graph
    numbered: Mapping[str, Node]
    outputs: Mapping[str, tuple[Type, ...]]
    variables: Mapping[str, Type]
    gradients: tuple[str, ...]
    aux: frozenset[str]
    listing: Listing


def as_graph(model: Any, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]) -> Graph:
    """The model as a typed graph.

    Raises:
        InputError: it is no Graph, Symbol or Block, or the types contradict.
    """
    if not isinstance(model, Graph):
        if isinstance(model, import_mxnet().gluon.Block):
            return lift_block(model, shapes, dtypes)
        if not hasattr(model, "list_arguments"):
            kind = type(model).__name__
            raise InputError(f"a Graph, a Symbol or a HybridBlock is wanted, not a {kind}")
        return lift_symbol(model, shapes, dtypes)
    return retyped(model, shapes, dtypes)


def bind(
    model: Any,
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, str],
    grad_req: GradReq,
    ctx: Any = None,
) -> Bound:
    """Bind on arrays that nobody writes, so that they cost address space only.

    Raises:
        InputError: types are missing or contradict, or no argument wants a gradient.
        UnsupportedError: a shape is not known before it is computed.
    """
    mx = import_mxnet()
    ctx = ctx or mx.cpu()
    graph = as_graph(model, shapes, dtypes)
    prefix = _free_prefix(graph)
    twin = graph.copy()
    numbered: dict[str, Node] = {}
    for node in graph:
        if not node.is_input and node.op != CONSTANT:
            name = f"{prefix}{len(numbered)}"
            numbered[name] = node
            twin.update(node.but(name=name))
    symbol = to_symbol(twin)
    variables = _variables(graph, symbol.list_inputs())
    arguments = symbol.list_arguments()
    requests = _requests(grad_req, arguments)
    gradients = tuple(name for name in arguments if requests[name] != "null")

    def array(name: str) -> Any:
        return mx.nd.empty(variables[name].shape, ctx, variables[name].dtype)

    try:
        with quiet_binding():
            executor = bound_executor(
                symbol,
                ctx,
                {name: array(name) for name in arguments},
                {name: array(name) for name in gradients},
                requests,
                {name: array(name) for name in symbol.list_auxiliary_states()},
            )
        listing = parse(executor.debug_str())
    except mx.MXNetError as error:
        raise InputError(
            f"MXNet cannot bind graph {graph.name!r} for training: {first_line(error)}"
        ) from None
    outputs = _outputs(twin, numbered, variables)
    aux = frozenset(symbol.list_auxiliary_states())
    return Bound(graph, numbered, outputs, variables, gradients, aux, listing)


def step_bytes(graph: Graph, grad_req: GradReq, ctx: Any = None) -> int:
    """What MXNet says it allocates for a training step, rounded down to whole MiB."""
    return bind(graph, {}, {}, grad_req, ctx).listing.megabytes << 20


def unshared() -> AbstractContextManager[None]:
    """Inside the block MXNet plans memory of its own for each value that is not made in place."""
    return environment(NNVM_EXEC_MATCH_RANGE="0")


def infer(op: str, attrs: Mapping[str, str], inputs: Sequence[Type]) -> tuple[Type, ...] | None:
    """Types of all outputs of one operator that reads these; None where MXNet cannot tell."""
    mx = import_mxnet()
    names = [f"x{number}" for number in range(len(inputs))]
    nodes: list[dict[str, Any]]
    nodes = [{"op": "null", "name": name, "inputs": []} for name in names]
    reads = [[number, 0, 0] for number in range(len(inputs))]
    nodes.append({"op": op, "name": "y", "attrs": dict(attrs), "inputs": reads})
    document = {
        "nodes": nodes,
        "arg_nodes": list(range(len(names))),
        "heads": [[len(names), 0, 0]],
        "attrs": {"mxnet_version": ["int", MXNET_VERSION]},
    }
    try:
        made = document_of(mx.sym.load_json(json.dumps(document, ensure_ascii=False)))
        count = made["node_row_ptr"][-1] - made["node_row_ptr"][-2]
        made["heads"] = [[len(names), output, 0] for output in range(count)]
        symbol = mx.sym.load_json(json.dumps(made, ensure_ascii=False))
        types = dict(zip(names, inputs, strict=True))
        known = {name: type_.shape for name, type_ in types.items()}
        _, shapes, _ = symbol._infer_shape_impl(True, **known)  # infer_shape would warn
        _, dtypes, _ = symbol.infer_type(**{name: t.dtype for name, t in types.items()})
    except mx.MXNetError:
        return None
    if not shapes or not dtypes or not all(map(_is_known, shapes)):
        return None
    return tuple(
        Type(tuple(shape), dtype_name(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)
    )


def _is_known(shape: Sequence[int] | None) -> bool:
    return bool(shape) and all(extent > 0 for extent in shape or ())


def forward_bytes(graph: Graph, ctx: Any = None) -> int:
    """What MXNet says it allocates to run a graph forward only, rounded down to whole MiB."""
    mx = import_mxnet()
    ctx = ctx or mx.cpu()
    symbol = to_symbol(graph)
    types = _variables(graph, symbol.list_inputs())
    arrays = {name: mx.nd.empty(t.shape, ctx, t.dtype) for name, t in types.items()}
    args = {name: arrays[name] for name in symbol.list_arguments()}
    aux = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    try:
        with quiet_binding():
            executor = bound_executor(symbol, ctx, args, None, "null", aux)
    except mx.MXNetError as error:
        raise InputError(f"MXNet cannot bind graph {graph.name!r}: {first_line(error)}") from None
    return parse(executor.debug_str()).megabytes << 20


def _free_prefix(graph: Graph) -> str:
    """What no variable's name begins with."""
    prefix = "op"
    while any(node.name.startswith(prefix) for node in graph if node.is_input):
        prefix += "_"
    return prefix


def _variables(graph: Graph, names: Sequence[str]) -> dict[str, Type]:
    types = {n.name: n.type for n in graph if n.is_input or n.op == CONSTANT}
    found = {}
    for name in names:
        type_ = types[name]
        if not type_.is_static:
            raise InputError(
                f"the type of input {name!r} of graph {graph.name!r} is {type_}; its shape and"
                " dtype have to be known"
            )
        found[name] = Type(type_.shape, type_.dtype)  # type: ignore[arg-type]  # static
    return found


def _requests(grad_req: GradReq, arguments: Sequence[str]) -> dict[str, str]:
    if isinstance(grad_req, str):
        found = dict.fromkeys(arguments, grad_req)
    else:
        for name in grad_req:
            if name not in arguments:
                raise InputError(f"grad_req names {name!r}, which is no argument of the graph")
        found = {name: grad_req.get(name, "null") for name in arguments}
    for request in found.values():
        if request not in REQUESTS:
            raise InputError(f"{request!r} is no grad_req; use one of {', '.join(REQUESTS)}")
    if all(request == "null" for request in found.values()):
        raise InputError("no argument wants a gradient, so there is no training graph")
    return found


def _outputs(
    twin: Graph, numbered: Mapping[str, Node], variables: Mapping[str, Type]
) -> dict[str, tuple[Type, ...]]:
    """Types of all outputs of all operators: every one is made an output of the graph."""
    mx = import_mxnet()
    document = document_of(to_symbol(twin))
    pointers = document["node_row_ptr"]
    heads = [
        (number, output)
        for number, entry in enumerate(document["nodes"])
        if entry["op"] != "null"
        for output in range(pointers[number + 1] - pointers[number])
    ]
    document["heads"] = [[number, output, 0] for number, output in heads]
    symbol = mx.sym.load_json(json.dumps(document, ensure_ascii=False))
    known = {name: variables[name] for name in symbol.list_inputs()}
    _, shapes, _ = symbol._infer_shape_impl(True, **{n: t.shape for n, t in known.items()})
    is_numpy = mx.util.is_np_shape()  # in which an extent may be zero, and a scalar has none
    for (number, _output), shape in zip(heads, shapes, strict=True):
        if shape is None or (-1 in shape if is_numpy else not _is_known(shape)):
            raise without_size(numbered[document["nodes"][number]["name"]])
    _, dtypes, _ = symbol.infer_type(**{n: t.dtype for n, t in known.items()})
    found: dict[str, list[Type]] = {}
    for (number, _output), shape, dtype in zip(heads, shapes, dtypes, strict=True):
        name = document["nodes"][number]["name"]
        found.setdefault(name, []).append(Type(tuple(shape), dtype_name(dtype)))
    return {name: tuple(types) for name, types in found.items()}
