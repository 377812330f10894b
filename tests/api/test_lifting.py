"""``graphopt.lift``: what it is told of inputs, whatever the source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, ParseError
from graphopt.memory.binding import as_graph

mx = import_mxnet()


def symbol(_folder: Path) -> Any:
    return mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")


def symbol_file(folder: Path) -> Any:
    symbol(folder).save(str(folder / "fc-symbol.json"))
    return folder / "fc-symbol.json"


def graph(folder: Path) -> Any:
    return graphopt.lift(symbol(folder), {"data": (2, 3)})


def text_file(folder: Path) -> Any:
    (folder / "fc.gir").write_text(str(graph(folder)), encoding="utf-8")
    return folder / "fc.gir"


def block(_folder: Path) -> Any:
    return mx.gluon.nn.Dense(4)


SOURCES = (symbol, symbol_file, graph, text_file, block)
Source = Callable[[Path], Any]


@pytest.mark.parametrize("source", SOURCES)
def test_shapes_and_dtypes_are_taken(source: Source, tmp_path: Path) -> None:
    given = source(tmp_path)
    if source is block:
        given.cast("float64")
    dtypes = dict.fromkeys(("data", "fc_weight", "fc_bias"), "float64")
    dtypes = {"data": "float64"} if source is block else dtypes
    lifted = graphopt.lift(given, {"data": (7, 3)}, dtypes)
    assert [str(n.type) for n in lifted.inputs] == ["f64[7,3]", "f64[4,3]", "f64[4]"]
    assert [n.op for n in lifted.inputs] == ["data", "param", "param"]
    assert str(lifted.type_of(lifted.outputs[0])) == "f64[7,4]"


@pytest.mark.parametrize("source", [graph, text_file])
def test_a_graph_of_another_batch_computes_as_mxnet(source: Source, tmp_path: Path) -> None:
    lifted = graphopt.lift(source(tmp_path), {"data": (7, 3)})
    rng = np.random.default_rng(0)
    shapes = {"data": (7, 3), "fc_weight": (4, 3), "fc_bias": (4,)}
    arrays = {name: mx.nd.array(rng.standard_normal(shape)) for name, shape in shapes.items()}
    plain = symbol(tmp_path).bind(mx.cpu(), arrays).forward()[0]
    data = arrays.pop("data")
    found = graphopt.lower(lifted, arrays)(data=data)[0]
    np.testing.assert_allclose(found.asnumpy(), plain.asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", SOURCES)
def test_shapes_of_numpys_integers_are_taken(source: Source, tmp_path: Path) -> None:
    given, types = source(tmp_path), ["f32[7,3]", "f32[4,3]", "f32[4]"]
    for shape in (tuple(np.array([7, 3])), np.array([7, 3]), [np.int32(7), 3]):
        lifted = graphopt.lift(given, {"data": shape})
        assert [str(n.type) for n in lifted.inputs] == types
        assert [*map(type, lifted.inputs[0].type.shape or ())] == [int, int]


def test_a_graph_stays_as_it_is(tmp_path: Path) -> None:
    given = graph(tmp_path)
    before = str(given)
    assert graphopt.lift(given) is given
    graphopt.lift(given, {"data": (7, 3)})
    assert str(given) == before


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("shapes", "dtypes", "message"),
    [
        ({"data": (2, 3)}, {"dta": "float16"}, "has no input 'dta'; did you mean 'data'"),
        ({"data": (2, 3)}, {"data": "float31"}, "'float31', given for 'data', is no dtype"),
        ({"data": (2, 3)}, 3, "dtypes are given by the names of inputs, in a dict, not as a int"),
        (3, None, "shapes are given by the names of inputs, in a dict, not as a int"),
        ((2, 3), None, "shapes are given by the names of inputs, in a dict, not as a tuple"),
        ({"data": (2, "a")}, None, r"shape \(2, 'a'\), given for 'data', is no shape"),
    ],
)
def test_what_is_stated_wrongly_is_refused(
    source: Source, shapes: Any, dtypes: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        graphopt.lift(source(tmp_path), shapes, dtypes)


@pytest.mark.parametrize("source", [symbol, symbol_file, graph, text_file])
def test_a_shape_of_what_is_no_input_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the graph has no input 'dta'; did you mean 'data'"):
        graphopt.lift(source(tmp_path), {"dta": (2, 3)})


@pytest.mark.parametrize("source", [graph, text_file])
def test_types_that_contradict_a_graph_are_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"inputs of node 'fc' \(FullyConnected\) do not fit"):
        graphopt.lift(source(tmp_path), {"data": (2, 5)})


def test_the_dtype_of_a_parameter_may_be_stated() -> None:
    net = mx.gluon.nn.Dense(4, use_bias=False)  # whose weight has no array yet
    stated = dict.fromkeys(("data", net.weight.name), "float16")
    assert str(graphopt.lift(net, {"data": (2, 3)}, stated).inputs[1].type) == "f16[4,3]"


def test_an_input_that_is_not_read_may_have_a_dtype() -> None:
    class First(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any, _y: Any) -> Any:
            return F.relu(x)

    shapes = {"data0": (2,), "data1": (3,)}
    lifted = graphopt.lift(First(), shapes, dict.fromkeys(shapes, "float64"))
    assert [str(n.type) for n in lifted.inputs] == ["f64[2]"]


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.gir").write_text("graph", encoding="utf-8")
    with pytest.raises(ParseError, match=r"t\.gir: line 1: expected a graph name, found the end"):
        graphopt.lift(tmp_path / "t.gir")
    for missing in ("t2.gir", "t2-symbol.json"):
        with pytest.raises(ParseError, match=r"cannot read '.*t2.*': No such file"):
            graphopt.lift(tmp_path / missing)


def test_memory_takes_the_same_types(tmp_path: Path) -> None:
    typed = as_graph(graph(tmp_path), {"data": (7, 3)}, {})
    assert str(typed) == str(graphopt.lift(graph(tmp_path), {"data": (7, 3)}))
