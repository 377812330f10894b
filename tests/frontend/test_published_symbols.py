"""Real models from public repositories, where the shared data is there."""

import json

import pytest

from graphopt.api.lifting import lift
from graphopt.backend.symbol import to_symbol
from graphopt.frontend.symbol_json import read_symbol
from graphopt.ir.parser import parse
from graphopt.ir.verify import verify
from tests.places import data_folder

FOLDER = data_folder() / "symbols"
FILES = sorted((FOLDER / "graphs").glob("*.json"))


def test_there_are_published_graphs(shared_data):
    assert len(FILES) > 30


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix("-symbol.json"))
def test_published_graph(mx, file):
    facts = json.loads((FOLDER / "shapes.json").read_text())[file.name]
    symbol = read_symbol(file)
    graph = lift(file, facts["shapes"])
    verify(graph, "captured")
    assert [list(graph.type_of(value).shape) for value in graph.outputs] == facts["outputs"]
    assert parse(str(graph)) == graph

    names = {role: [node.name for node in graph.role(role)] for role in ("data", "param", "aux")}
    assert set(names["data"]) == set(facts["shapes"])
    assert names["aux"] == symbol.list_auxiliary_states()
    assert sorted(names["data"] + names["param"]) == sorted(symbol.list_arguments())

    back = to_symbol(graph)
    assert back.list_arguments() == symbol.list_arguments()
    assert back.list_auxiliary_states() == symbol.list_auxiliary_states()
    assert back.list_outputs() == symbol.list_outputs()
