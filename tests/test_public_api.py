"""The public names are those documented, and importing them is cheap."""

import subprocess
import sys
from typing import ClassVar

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
from graphopt.pipeline.base import Pass
from tests.tiers import one_of


def test_all_names_load():
    for name in graphopt.__all__:
        assert getattr(graphopt, name) is not None
    assert sorted(graphopt.__all__) == graphopt.__all__
    assert set(graphopt.__all__) <= set(dir(graphopt))


@pytest.mark.parametrize(
    "name",
    one_of(
        3,
        [
            "fold.Fold",
            "memory.pack",
            "memory.plan",
            "nn.LSTM",
            "nn.ChildSumTreeLSTM",
            "nn.Recurrence",
        ],
    ),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "x"}, "mode 'x' is none of inference, training"),
        ({"mode": None}, "mode None is none of inference, training"),
        ({"check": "x"}, "check 'x' is none of False, True, mxnet, reference"),
        ({"feeds": {"xx": 1}}, "the graph has no input 'xx'; did you mean 'x'"),
        ({"feeds": {"x": "y"}}, "the feed of 'x' is a str: give an array of numpy"),
        ({"feeds": {"x": [1, 2]}}, "the feed of 'x' is a list: give an array of numpy"),
        ({"feeds": 3}, "feeds are given by the names of inputs, in a dict, not as a int"),
        ({"frozen": "no"}, "frozen 'no' is none of None, True, False"),
        ({"precise": "no"}, "precise 'no' is none of True, False"),
        ({"strict": 3}, "strict 3 is none of True, False"),
        ({"plans_memory": "x"}, "plans_memory 'x' is none of True, False"),
        ({"integers_learn": "x"}, "integers_learn 'x' is none of True, False"),
        ({"device": "tpu"}, "device 'tpu' is none of cpu, gpu, cpu_pinned, cpu_shared"),
        ({"instruments": [3]}, "instruments: 3 is none: give Instruments, in a list"),
        ({"instruments": 3}, "instruments: 3 is none: give Instruments, in a list"),
    ],
)
def test_options_of_a_run_are_checked(options, message):
    graph = graphopt.parse("graph g(%x: f32[2]) { return %x }")
    with pytest.raises(InputError, match=message):
        graphopt.run(graph, **options)


def test_what_a_run_may_be_told(mx):
    import numpy as np

    graph = graphopt.parse("graph g(%x: f32[2]) { %y = relu(%x) : f32[2] return %y }")
    for device in ("cpu", "gpu", mx.cpu_pinned().device_type):
        assert str(graphopt.run(graph, "none", device=device).graph) == str(graph)
    for value in (np.ones(2, "float32"), mx.nd.ones(2)):
        given = {"feeds": {"x": value}, "check": True, "strict": np.bool_(True)}
        assert str(graphopt.run(graph, "cse", **given).graph) == str(graph)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("load", (None,), InputError, r"load\(\) takes a path, not a NoneType"),
        ("parse", (None,), ParseError, r"parse\(\) takes the text of a graph, not a NoneType"),
        ("lift", ({"x": 8},), InputError, "shape 8, given for 'x', is no shape"),
        ("lower", (None, "cpu"), InputError, "ctx 'cpu' is no context: give mx.cpu"),
        ("lower", ([1],), InputError, r"lower\(\) takes values by name, not a list"),
    ],
)
def test_arguments_of_other_kinds_are_refused(mx, name, arguments, error, message):
    graph = graphopt.parse("graph g(%x: f32[2]) { return %x }")
    given = {"lift": (mx.sym.relu(mx.sym.var("x")),), "lower": (graph,)}.get(name, ())
    with pytest.raises(error, match=message):
        getattr(graphopt, name)(*given, *arguments)


def test_a_gpu_that_is_not_there_is_refused(mx):
    graph = graphopt.parse("graph g(%x: f32[2]) { return %x }")
    with pytest.raises(InputError, match=r"there is no gpu\(99\) here: MXNet finds \d+ GPUs"):
        graphopt.lower(graph, {}, mx.gpu(99))


def test_a_pass_without_a_name_is_refused():
    class Nameless(Pass):
        def run(self, graph, cx):
            return graph

    with pytest.raises(ParseError, match="pass Nameless has no name: give its class one"):
        graphopt.optimize(passes=[Nameless()])


class Nothing(Pass):
    """Forgets to return its graph."""

    name: ClassVar[str] = "nothing"

    def run(self, graph, cx):
        graph.copy()


@pytest.mark.parametrize(
    ("passes", "hint"), [([2], "2"), (3, "3"), ([Nothing], ".*: make one, Nothing()")]
)
def test_what_is_no_pipeline_is_refused(passes, hint):
    graph = graphopt.parse("graph g(%x: f32[2]) { return %x }")
    with pytest.raises(ParseError, match="such as 'cse,dce' or passes or both, not " + hint):
        graphopt.run(graph, passes)


def test_texts_stand_beside_passes():
    graph = graphopt.parse("graph g(%x: f32[2]) { return %x }")
    found = graphopt.run(graph, ["cse,dce", Nothing(), "dce"])
    names = ["eliminate-common-subexpressions", "eliminate-dead-code"]
    assert [r.pass_text for r in found.receipts] == [*names, "nothing", names[1]]
    assert found.receipts[2].reason == "it returned None, not a graph"
    assert found.receipts[2].status == "rolled back"
