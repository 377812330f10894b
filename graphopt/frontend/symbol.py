"""MXNet Symbol -> Graph."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from graphopt.analysis.effects import draws_from_stream
from graphopt.backend.documents import document_of, symbol_of
from graphopt.backend.infer import with_types
from graphopt.compat import import_mxnet
from graphopt.frontend.stated import Dtypes, Shapes, input_types
from graphopt.ir.attrs import Attrs, from_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA, PARAM, Node, NodeId, Value
from graphopt.ir.types import UNKNOWN, TensorType

#: How learned variables are called; a variable named otherwise is taken for data.
_PARAMETER = re.compile(
    r".*(weight|bias|gamma|beta|alpha|mean|var|running_\w+|moving_\w+|parameters|parameter|scale"
    r"|_const\w*|_anchor_|_init_\w+|begin_state\w*|[ih]2h_\w+)$"
)


def lift_symbol(
    symbol: Any,
    shapes: Shapes | None = None,
    dtypes: Dtypes | None = None,
    *,
    data: Collection[str] | None = None,
    name: str = "",
) -> Graph:
    """Lift a Symbol.

    Args:
        symbol: an ``mx.sym.Symbol``.
        shapes: shape per input name; types of everything else follow by inference.
        dtypes: dtype name per input name.
        data: names of data inputs. Default: those in ``shapes``; without shapes, the variables
            whose names are no usual parameter names.
        name: of the graph; default the first output's.

    Raises:
        InputError: a name in ``shapes`` or ``dtypes`` is no input, or the types contradict.
    """
    known = symbol.list_inputs()
    types = input_types(known, shapes or {}, dtypes or {})
    aux = set(symbol.list_auxiliary_states())
    if data is None:
        data = set(shapes or data_names(symbol)) - aux
    roles = {n: DATA if n in data else AUX if n in aux else PARAM for n in known}
    document = document_of(symbol)
    _open_batches(document)
    title = name or _output_name(document)
    graph = _graph(document, roles, types, title)
    del document  # inference takes as much room again
    return with_types(graph)


def data_names(symbol: Any) -> list[str]:
    """Names of the inputs of a Symbol that no usual parameter is named like, in its order."""
    states = {*symbol.list_auxiliary_states()}
    inputs = symbol.list_inputs()
    return [name for name in inputs if name not in states and not _PARAMETER.fullmatch(name)]


def with_open_batches(symbol: Any) -> Any:
    """The Symbol, with states as :func:`_open_batches` leaves them."""
    document = document_of(symbol)
    if not _open_batches(document):
        return symbol
    mx = import_mxnet()
    opened = symbol_of(document)
    return opened.as_np_ndarray() if isinstance(symbol, mx.sym.np._Symbol) else opened


def _open_batches(document: dict[str, Any]) -> bool:
    """Let inference find the batch of an RNN's default states; whether there was any.

    Gluon's RNN layers make them before the batch is known and write 0 for it. With ``np_shape``
    that is a batch of none, which makes MXNet refuse what it computes when it is not hybridized.
    """
    if not import_mxnet().util.is_np_shape():
        return False
    nodes, found = document["nodes"], False
    for rnn in nodes:
        for at, *_ in rnn["inputs"][2:] if rnn["op"] == "RNN" else ():
            attrs = nodes[at].get("attrs", {})
            extents = re.findall(r"-?[0-9]+", attrs.get("shape", ""))
            if nodes[at]["op"] == "_zeros" and "0" in extents:
                unknown = ["-1" if extent == "0" else extent for extent in extents]
                attrs["shape"], found = f"({', '.join(unknown)})", True
    return found


def _output_name(document: Mapping[str, Any]) -> str:
    return str(document["nodes"][document["heads"][0][0]]["name"]) or "graph"


def _graph(
    document: Mapping[str, Any],
    roles: Mapping[str, str],
    types: Mapping[str, TensorType],
    title: str,
) -> Graph:
    graph = Graph(title)
    nodes: list[Node] = []
    inputs: dict[str, Node] = {}  # a SymbolBlock that is called twice brings its own for each call
    pointers = document.get("node_row_ptr")
    parsed: dict[tuple[Any, ...], Attrs] = {}  # layers of a net have few settings
    drawn: list[NodeId] = []
    for number, entry in enumerate(document["nodes"]):
        texts, raw = entry.get("attrs", {}), entry["op"] == "Custom"
        key = (raw, *texts.items())
        attrs = parsed.get(key)
        if attrs is None:
            attrs = parsed[key] = from_mxnet(texts, raw=raw)
        name = entry["name"]
        if entry["op"] == "null":
            if name not in inputs:
                role, type_ = roles.get(name, DATA), types.get(name, UNKNOWN)
                inputs[name] = graph.add_input(name, role, type_, attrs)
            nodes.append(inputs[name])
            continue
        # Hidden outputs (a BatchNorm's batch statistics) go when types are inferred.
        outputs = pointers[number + 1] - pointers[number] if pointers else 1
        nested = [_graph(sub, {}, {}, f"{name}_body") for sub in entry.get("subgraphs", ())]
        draws = draws_from_stream(entry["op"], attrs, nested)
        after = [nodes[before].id for before in entry.get("control_deps", ())]
        # MXNet runs operators in this order, and passes may change it: a seed gives these numbers.
        after += [last for last in drawn[-1:] if draws and last not in after]
        nodes.append(
            graph.add(
                entry["op"],
                [Value(nodes[source].id, index) for source, index, *_ in entry["inputs"]],
                attrs,
                [UNKNOWN] * outputs,
                name,
                graphs=nested,
                after=after,
                origin=(name,),
            )
        )
        drawn += [nodes[-1].id] if draws else []
    graph.set_outputs(Value(nodes[source].id, index) for source, index, *_ in document["heads"])
    return graph
