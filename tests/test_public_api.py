"""The public names are those documented, and importing them is cheap."""

import subprocess
import sys

import pytest

import graphopt
from graphopt.errors import (
    GraphError,
    GraphoptError,
    InputError,
    MissingDependencyError,
    ParseError,
    PassError,
    UnsupportedError,
)


def test_all_names_load():
    for name in graphopt.__all__:
        assert getattr(graphopt, name) is not None
    assert sorted(graphopt.__all__) == graphopt.__all__
    assert set(graphopt.__all__) <= set(dir(graphopt))


@pytest.mark.parametrize(
    "name",
    ["fold.Fold", "memory.pack", "memory.plan", "nn.ChildSumTreeLSTM", "nn.LSTM", "nn.Recurrence"],
)
def test_modules_are_attributes_from_the_start(name):
    code = f"import graphopt; print(graphopt.{name}.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == name.partition(".")[2]


def test_contract():
    assert set(graphopt.__all__) >= {"lift", "load", "lower", "optimize", "parse", "run"}


def test_unknown_names():
    with pytest.raises(AttributeError, match=r"^module 'graphopt' has no attribute 'optimise'$"):
        graphopt.optimise  # noqa: B018


def test_import_loads_nothing_heavy():
    code = (
        "import sys, graphopt, graphopt.ir, graphopt.passes, graphopt.pipeline.manager;"
        "print([m for m in ('mxnet', 'numba', 'networkx', 'numpy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (GraphError, ValueError),
        (ParseError, ValueError),
        (InputError, ValueError),
        (UnsupportedError, NotImplementedError),
        (PassError, RuntimeError),
        (MissingDependencyError, ImportError),
    ],
)
def test_errors_are_both_ours_and_pythons(error, base):
    assert issubclass(error, GraphoptError)
    assert issubclass(error, base)


def test_the_whole_way(mx):
    """Text to graph to passes to a function."""
    import numpy as np

    graph = graphopt.parse(
        "graph g(%x: f32[2,3], param %w: f32[2,3]) {"
        " %a = relu(%x) %b = relu(%x) %c = elemwise_add(%a, %b) %y = elemwise_mul(%c, %w)"
        " return %y }"
    )
    result = graphopt.run(graph, "inference", check=True, strict=True)
    assert len(result.graph) < len(graph)
    x, w = np.ones((2, 3), "float32"), np.full((2, 3), 2, "float32")
    found = graphopt.lower(result.graph, {"w": w})(x=x)
    np.testing.assert_array_equal(found[0].asnumpy(), 2 * x * w)


@pytest.mark.parametrize("function", [graphopt.run, graphopt.lower])
def test_what_is_no_graph_is_refused(function):
    with pytest.raises(
        InputError, match=r"\(\) takes a Graph, not a dict: graphopt.lift\(\) makes"
    ):
        function({}, "default")


@pytest.mark.parametrize("passes", [["cse"], 3])
def test_what_is_no_pipeline_is_refused(passes):
    graph = graphopt.parse("graph g(%x: f32[2]) { return %x }")
    with pytest.raises(ParseError, match="a pipeline is a text such as 'cse,dce' or passes, not"):
        graphopt.run(graph, passes)
