"""Training graphs of random graphs, compared with what MXNet's executor runs."""

from __future__ import annotations

from hypothesis import assume, given, note, settings

from graphopt.backend.symbol import constants, to_symbol
from graphopt.errors import InputError
from graphopt.memory.training import training_graph
from tests.memory.nets import check_run
from tests.strategies.graphs import graphs


@settings(max_examples=40)
@given(graphs(max_ops=10, dtype="float32"))
def test_sizes_and_sums_are_those_of_a_run(graph):
    assume(all(type_.is_static for node in graph for type_ in node.types))
    assume(not constants(graph) and not any(node.after for node in graph))
    symbol = to_symbol(graph)
    assume(symbol.list_arguments())
    try:
        made = training_graph(graph)
    except InputError as error:
        note(str(error))  # MXNet differentiates neither jumps nor some views
        assume(False)
    check_run(symbol, made)
