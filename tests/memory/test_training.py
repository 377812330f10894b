"""The training graph, compared with what MXNet's executor runs."""

from __future__ import annotations

from typing import Any

import pytest

from graphopt.backend.symbol import to_symbol
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, ParseError, UnsupportedError
from graphopt.frontend.symbol import lift_symbol
from graphopt.memory.listing import parse
from graphopt.memory.training import Entry, TrainingGraph, backward_reads, training_graph
from tests.memory.nets import NETS, check_run, learned, lstm, mlp, recomputed

pytest.importorskip("mxnet")


def make(name: str) -> tuple[Any, TrainingGraph]:
    symbol, shapes = NETS[name]()
    return symbol, training_graph(symbol, shapes, grad_req=learned(symbol))


@pytest.mark.parametrize("name", NETS)
def test_each_entry_that_is_read_was_produced_before(name: str) -> None:
    _, graph = make(name)
    assert graph.guessed == 0
    for number, step in enumerate(graph.steps):
        for entry in step.inputs:
            assert entry.step < number
            assert graph.type_of(entry).nbytes > 0
    for entry in (*graph.outputs, *graph.gradients.values()):
        assert graph.type_of(entry).nbytes > 0


@pytest.mark.parametrize("name", NETS)
def test_sizes_and_sums_are_those_of_a_run(name: str) -> None:
    symbol, graph = make(name)
    assert check_run(symbol, graph) or name in ("mlp", "heads")


@pytest.mark.parametrize("name", NETS)
def test_each_gradient_has_the_type_of_its_argument(name: str) -> None:
    symbol, graph = make(name)
    assert list(graph.gradients) == [n for n in symbol.list_arguments() if n in learned(symbol)]
    for argument, entry in graph.gradients.items():
        assert graph.type_of(entry) == graph.variables[argument]


def test_backward_reads_are_what_gradients_need() -> None:
    symbol, shapes = mlp()
    graph = training_graph(symbol, shapes)
    reads = backward_reads(graph)
    at = graph.forward
    assert reads["fc2"] == (Entry(at["act"]), Entry(-1, 0, "fc2_weight"))
    assert reads["act"][0] == Entry(at["act"])
    assert reads["softmax"] == (Entry(at["softmax"]), Entry(-1, 0, "softmax_label"))


def test_recomputed_steps_stand_for_the_forward_entries_they_repeat() -> None:
    symbol, shapes = recomputed()
    graph = training_graph(symbol, shapes)
    repeated = {step.of for step in graph.steps if step.phase == "recompute"}
    assert {"relu1", "relu2"} <= repeated
    relu = Entry(graph.forward["relu1"])
    assert relu in backward_reads(graph)["c1"]
    assert relu not in {e for step in graph.steps if step.phase == "backward" for e in step.inputs}


def test_nodes_of_one_name_are_told_apart() -> None:
    mx = import_mxnet()
    x = mx.sym.var("data")
    for _ in range(3):
        x = mx.sym.sin(x, name="sin")
    graph = training_graph(x, {"data": (3,)})
    assert [e.step for step in graph.steps[:3] for e in step.inputs] == [-1, 0, 1]
    assert len({step.name for step in graph.steps}) == len(graph.steps)


def test_names_of_the_users_model_stay_with_the_steps() -> None:
    symbol, shapes = mlp()
    graph = training_graph(lift_symbol(symbol, shapes))
    assert {step.block for step in graph.steps} == {"fc1", "act", "fc2", "softmax"}
    assert graph.steps[-1].name == "fc1_backward"


def test_long_chains_of_sums_are_told_apart() -> None:
    symbol, shapes = lstm(40)
    graph = training_graph(symbol, shapes, grad_req=learned(symbol))
    assert graph.guessed == 0
    assert graph.reported_bytes == 0  # in whole MiB
    finals = {e for name, e in graph.gradients.items() if name.startswith("l_")}
    assert len(finals) == 4


def test_what_follows_the_last_operator_is_no_part_of_its_attributes() -> None:
    text = (
        "Symbol Outputs:\n\toutput[0]=a(0)\nVariable:x\n--------------------\n"
        "Op:f, Name=a\nInputs:\n\targ[0]=x(0) version=0\nAttrs:\n\tspec=in x\n"
        "Total 3 MB allocated\nTotal 11 TempSpace resource requested\n"
    )
    assert parse(text).lines[0].attrs == {"spec": "in x"}


def test_values_of_several_lines_do_not_end_the_listing() -> None:
    text = (
        "Symbol Outputs:\n\toutput[0]=a(0)\nVariable:x\n--------------------\n"
        "Op:f, Name=a\nInputs:\n\targ[0]=x(0) version=0\nAttrs:\n\tn=1\n\tspec=in x\n  out x\n"
        "--------------------\nOp:g, Name=\nInputs:\n\targ[0]=a(2)\nControl deps:\n\tcdep[0]=a\n"
        "Total 3 MB allocated\n"
    )
    found = parse(text)
    assert found.lines[0].attrs == {"n": "1", "spec": "in x\n  out x"}
    assert (found.lines[1].inputs, found.lines[1].after) == ([("a", 2)], ["a"])
    assert (found.variables, found.megabytes) == (["x"], 3)


@pytest.mark.parametrize("mode", ["tanh", "lstm"])
def test_graphs_that_passes_made(mode: str) -> None:
    from graphopt.api.lifting import lift
    from graphopt.api.running import run

    gluon = import_mxnet().gluon
    net = gluon.rnn.LSTM(8, 2) if mode == "lstm" else gluon.nn.Dense(8, activation="tanh")
    net.initialize()
    graph = run(lift(net, {"data": (5, 4, 3)}), "default", mode="training").graph
    made = training_graph(graph, grad_req=learned(to_symbol(graph)))
    assert made.guessed == 0
    assert len({entry.step for entry in made.gradients.values()}) >= len(made.gradients) // 2
    assert all(type_.nbytes for step in made.steps for type_ in step.outputs)


def test_what_is_wrong_is_said() -> None:
    symbol, shapes = mlp()
    with pytest.raises(InputError, match="the type of input 'data' of graph 'softmax' is f32"):
        training_graph(symbol)
    with pytest.raises(InputError, match="'dta'; did you mean 'data'"):
        training_graph(symbol, {"dta": (2, 5)})
    with pytest.raises(InputError, match="no argument wants a gradient"):
        training_graph(symbol, shapes, grad_req="null")
    with pytest.raises(InputError, match="'wirte' is no grad_req; use one of write, add, null"):
        training_graph(symbol, shapes, grad_req="wirte")
    with pytest.raises(InputError, match="grad_req names 'fc', which is no argument"):
        training_graph(symbol, shapes, grad_req={"fc": "write"})
    with pytest.raises(InputError, match="a Symbol or a HybridBlock is wanted, not a str"):
        training_graph("net", shapes)
    with pytest.raises(ParseError, match="names no outputs"):
        parse("Variable:data\n")


@pytest.mark.parametrize("is_last", [True, False])
def test_a_shape_that_is_found_as_it_runs_is_refused_by_name(is_last: bool) -> None:
    mx = import_mxnet()
    x = mx.sym.contrib.boolean_mask(mx.sym.var("data"), mx.sym.var("rows"), name="masked")
    with pytest.raises(UnsupportedError, match=r"'masked' \(_contrib_boolean_mask\) is known only"):
        training_graph(x if is_last else mx.sym.sum(x), {"data": (4, 3), "rows": (4,)})
