from __future__ import annotations

import numpy as np
import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.constant import add_constant, constant_array
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType, parse_type
from graphopt.passes.fold_constants import FoldConstants
from graphopt.pipeline.base import PassContext
from graphopt.testing import assert_equivalent, assert_ir, run_pass


class Counting(MXNetTarget):
    """MXNet, and how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def evaluate(self, *args, **options):
        self.calls += 1
        return super().evaluate(*args, **options)


def fold(graph, options="", **settings):
    return run_pass(graph, f"fold-constants{options}", target=MXNetTarget(), **settings)


def net(nodes: str, result: str = "%c", type_: str = "f32[6]") -> Graph:
    """A graph that adds a constant to its input."""
    text = f"""
        graph g(%x: {type_}, param %w: f32[2,3]) {{
          {nodes}
          %y = elemwise_add(%x, {result}) : {type_}
          return %y
        }}
    """
    return parse(text.strip())


def messages(result) -> list[str]:
    return [str(r).removeprefix("missed: fold-constants: ") for r in result.remarks]


def value_of(graph: Graph, name: str = "c") -> list[float]:
    return constant_array(graph.find(name)).tolist()


ARANGE = "%c = _arange() {start=0.0, stop=6.0} : f32[6]"


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(FoldConstants)
    assert fold(before).graph == after


def test_one_evaluation_for_all():
    graph = net(
        """
        %a = _arange() {start=0.0, stop=6.0} : f32[6]
        %b = _mul_scalar(%a) {scalar=2.0} : f32[6]
        %p = elemwise_add(%x, %b) : f32[6]
        %q = elemwise_add(%p, %a) : f32[6]
        %s = SliceChannel(%b) {axis=0, num_outputs=2} : (f32[3], f32[3])
        %c = Concat(%s#1, %s#1) {dim=0, num_args=2} : f32[6]
        %r = elemwise_add(%q, %c) : f32[6]
        %t = broadcast_add(%w, %s#1) : f32[2,3]
        """,
        "%r",
    )
    graph.set_outputs([*graph.outputs, graph.find("t").out()])
    target = Counting()
    result = run_pass(graph, "fold-constants", target=target)
    assert target.calls == 1
    assert result.receipts[0].stats == {"folded": 4}
    folded = result.graph
    assert value_of(folded, "b") == [0, 2, 4, 6, 8, 10]
    assert value_of(folded) == [6, 8, 10] * 2
    assert value_of(folded, "s_output1") == [6, 8, 10]
    assert all(n.name != "s" for n in folded)
    assert_equivalent(graph, folded)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("%c = zeros_like(%x) : f32[6]", '_zeros() {dtype="float32", shape=(6,)}'),
        ("%c = ones_like(%x) : f32[6]", '_ones() {dtype="float32", shape=(6,)}'),
        (
            "%a = _ones() {shape=(6,)} : f32[6] %c = _mul_scalar(%a) {scalar=0.3} : f32[6]",
            '_full() {dtype="float32", shape=(6,), value=0.30000001192092896}',
        ),
        (
            "%a = zeros_like(%x) : f32[6] %c = _plus_scalar(%a) {scalar=1.0} : f32[6]",
            '_ones() {dtype="float32", shape=(6,)}',
        ),
        (
            "%a = _full() {shape=(3,), value=2.0} : f32[3] %c = tile(%a) {reps=(2,)} : f32[6]",
            '_full() {dtype="float32", shape=(6,), value=2.0}',
        ),
    ],
)
def test_equal_elements_become_a_fill(nodes, expected):
    assert_ir(fold(net(nodes)), str(net(f"%c = {expected} : f32[6]")))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("%s = shape_array(%w) : i64[2] %c = tile(%s) {reps=(3,)} : i64[6]", [2, 3] * 3),
        ("%s = size_array(%w) : i64[1] %t = shape_array(%s) : i64[1]"
         " %c = Concat(%s, %t) {dim=0, num_args=2} : i64[2]", [6, 1]),
        ("%c = _contrib_arange_like(%x) : f32[6]", [0, 1, 2, 3, 4, 5]),
        (
            "%a = _arange() {start=0.0, stop=9.0} : f32[9] %c = slice_like(%a, %x) : f32[6]",
            [0, 1, 2, 3, 4, 5],
        ),
    ],
)  # fmt: skip
def test_shapes_are_constants(nodes, expected):
    type_ = nodes.rpartition(": ")[2]
    text = f"""
        graph g(%x: f32[6], param %w: f32[2,3], %z: {type_}) {{
          {nodes}
          %y = elemwise_add(%z, %c) : {type_}
          return %y
        }}
    """
    graph = parse(text.strip())
    result = fold(graph)
    assert value_of(result.graph) == expected
    assert len(result.graph) == 5
    assert_equivalent(graph, result.graph)
    assert fold(graph, "{use_shapes=False}").graph.find("c").op != "constant"


def test_types_complete_the_shapes_of_fills():
    text = "%a = _zeros() {shape=(0,)} : f32[6] %c = cos(%a) : f32[6]"
    assert fold(net(text)).graph.find("c").attrs["shape"] == (6,)


def test_inputs_of_what_is_too_large_for_a_constant():
    graph = parse(
        """
        graph g(%x: f32[6], %z: f32[9]) {
          %a = zeros_like(%x) : f32[6]
          %b = _plus_scalar(%a) {scalar=7.0} : f32[6]
          %r = _arange() {start=0.0, stop=3.0} : f32[3]
          %c = Concat(%b, %r) {dim=0, num_args=2} : f32[9]
          %y = elemwise_add(%z, %c) : f32[9]
          return %y
        }
        """.strip()
    )
    target = Counting()
    result = run_pass(graph, "fold-constants{max_bytes=12}", target=target)
    assert target.calls == 1
    assert [result.graph.find(n).op for n in "brc"] == ["_full", "constant", "Concat"]
    assert messages(result)[0] == (
        "1 constant values stay: they are not uniform and have more than 12 bytes [c]"
    )
    assert_equivalent(graph, result.graph)


@pytest.mark.parametrize(
    ("type_", "value", "op"),
    [
        ("f16[2]", "-0.0", "constant"),
        ("f32[2]", "nan", "constant"),
        ("f64[2]", "inf", "constant"),
        ("f64[2]", "1e+300", "constant"),
        ("f64[2]", "0.1", "constant"),
        ("f64[2]", "-4503599627370497.0", "_full"),
        ("f32[2]", "3.4028234663852886e+38", "_full"),
        ("f32[2]", "1e-45", "_full"),
        ("u8[2]", "200.0", "_full"),
        ("b1[2]", "1.0", "_ones"),
        ("i64[2]", "9007199254740992.0", "_full"),
    ],
)
def test_fills_are_exact(type_, value, op):
    types = [parse_type(type_)]
    graph = Graph()
    data = add_constant(graph, np.full((1, 2), float(value)).astype(types[0].dtype), "data")
    flat = graph.add("Reshape", [data], {"shape": (2,)}, types, "c")
    graph.set_outputs([graph.add("_copy", [flat], types=types, name="y")])
    # A graph output has to be computed, so the constant is what it reads.
    folded = fold(graph).graph
    assert folded.find("c").op == op
    before, after = (MXNetTarget().evaluate(g, {})["output0"] for g in (graph, folded))
    assert before.tobytes() == after.tobytes()


# -- refusals --------------------------------------------------------------------------------


def test_without_a_target():
    result = run_pass(net(ARANGE), "fold-constants")
    assert result.receipts[0].status == "unchanged"
    assert messages(result) == ["1 constant values stay: there is no target to evaluate them [c]"]
    zeros = run_pass(net("%c = zeros_like(%x) : f32[6]"), "fold-constants")
    assert zeros.graph.find("c").op == "_zeros"


@pytest.mark.parametrize(
    ("nodes", "type_", "reason"),
    [
        ("%c = _arange() {start=0.0, stop=6.0}", "f32[6]", "they have no static type"),
        ("%c = zeros_like(%h) : f32[?]", "f32[6]", "they have no static type"),
        ("%c = _arange() {start=0.0, stop=6.0} : f32[0]", "f32[0]",
         "they have no axes or no elements"),
        ("%c = _eye() {N=3000} : f32[3000,3000]", "f32[3000,3000]",
         "evaluating them takes arrays of more than 16777216 bytes"),
        ("%c = _eye() {N=200} : f32[200,200]", "f32[200,200]",
         "they are not uniform and have more than 65536 bytes"),
        ("%c = _eye() {N=3} : f32[3,4]", "f32[3,4]", "the target evaluates them to another type"),
    ],
)  # fmt: skip
def test_what_stays(nodes, type_, reason):
    graph = parse(
        f"graph g(%x: {type_}, %h: ?) {{ {nodes} %y = elemwise_add(%x, %c) : {type_} return %y }}"
    )
    result = fold(graph)
    assert result.graph is graph
    assert messages(result) == [f"1 constant values stay: {reason} [c]"]


@pytest.mark.parametrize(
    "nodes",
    [
        "%c = _random_normal() {shape=(6,)} : f32[6]",
        "%a = _zeros() {shape=(6,)} : f32[6] %c = mystery(%a) : f32[6]",
        '%a = _zeros() {shape=(6,)} : f32[6] %c = Dropout(%a) {mode="always"} : f32[6]',
        "%c = _arange() {infer_range=True, start=0.0} : f32[6]",
        "%a = Reshape(%w) {shape=(6,)} : f32[6] %c = negative(%a) : f32[6]",
        "%c = _zeros() {shape=(6,)} : f32[6]",
        "%c = _full() {shape=(6,), value=3.0} : f32[6]",
        "%c = _arange() {start=0.0, stop=6.0} after(%x) : f32[6]",
        "%a = _zeros() {shape=(6,)} : f32[6] %c = cos(%a) : f32[6] [graph b(%h: ?) { return %h }]",
    ],
)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_nothing_to_fold(nodes, mode):
    graph = net(nodes)
    result = fold(graph, mode=mode)
    assert result.graph is graph
    assert not result.remarks


def test_dropout_is_evaluated_at_inference_only():
    graph = net(f"{ARANGE.replace('%c', '%a')} %c = Dropout(%a) {{p=0.5}} : f32[6]")
    assert value_of(fold(graph).graph) == [0, 1, 2, 3, 4, 5]
    training = fold(graph, mode="training").graph
    assert training.find("c").op == "Dropout"
    assert value_of(training, "a") == [0, 1, 2, 3, 4, 5]


def test_graph_outputs_are_computed():
    text = """
        graph g(%x: f32[6]) {
          %a = _arange() {start=0.0, stop=6.0} : f32[6]
          %b = cos(%a) : f32[6]
          %z = zeros_like(%x) : f32[6]
          return %b, %z
        }
    """
    result = fold(text)
    assert [result.graph.find(n).op for n in "abz"] == ["constant", "cos", "_zeros"]
    assert messages(result)[0] == ("1 constant values stay: graph outputs have to be computed [b]")
    assert_equivalent(parse(text.strip()), result.graph)


def test_variables_get_names_of_their_own():
    graph = Graph()
    x = graph.add_input("x", type=TensorType("float32", (6,)))
    attrs = {"start": 0.0, "stop": 6.0}
    types = [TensorType("float32", (6,))]
    values = [graph.add("_arange", (), attrs, types, name) for name in ("x", "", "")]
    sums = graph.add("add_n", [x, *values], {"num_args": 4}, types, "y")
    graph.set_outputs([sums])
    folded = fold(graph).graph
    assert [n.name for n in folded] == ["x", "x_1", "constant", "constant_1", "y"]
    assert_equivalent(graph, folded)


# -- equivalence -----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_values_are_the_same(training):
    graph = parse(
        """
        graph g(%x: f32[2,4,8,8], param %w: f32[1,4,1,1]) {
          %rows = _arange() {start=0.0, stop=8.0} : f32[8]
          %grid = Reshape(%rows) {shape=(1, 1, 8, 1)} : f32[1,1,8,1]
          %all = broadcast_like(%grid, %x) : f32[2,4,8,8]
          %ones = ones_like(%x) : f32[2,4,8,8]
          %half = _mul_scalar(%ones) {scalar=0.5} : f32[2,4,8,8]
          %prior = _contrib_MultiBoxPrior(%x) {ratios=(1.0,), sizes=(0.5,)} : f32[1,64,4]
          %mixed = elemwise_add(%all, %half) : f32[2,4,8,8]
          %stop = BlockGrad(%mixed) : f32[2,4,8,8]
          %h = elemwise_mul(%x, %stop) : f32[2,4,8,8]
          %k = broadcast_mul(%h, %w) : f32[2,4,8,8]
          %flat = Reshape(%k) {shape=(-1, 64, 4)} : f32[2,64,4]
          %y = broadcast_add(%flat, %prior) : f32[2,64,4]
          return %y
        }
        """.strip()
    )
    result = fold(graph, mode="training" if training else "inference")
    assert result.receipts[0].stats == {"folded": 2}
    assert_equivalent(graph, result.graph, training=training)


def test_inputs_that_are_not_read_any_more_have_no_gradient():
    graph = net("%a = zeros_like(%w) : f32[2,3] %c = Reshape(%a) {shape=(6,)} : f32[6]")
    result = fold(graph, mode="training")
    assert not result.graph.node_users(result.graph.find("w").id)
    assert_equivalent(graph, result.graph, training=True)


# -- contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_second_run_changes_nothing(mode):
    once = fold(net(ARANGE), mode=mode).graph
    assert fold(once, mode=mode).graph is once


class Ones:
    """A target that takes everything for a vector with one large element."""

    def infer_types(self, graph):
        raise NotImplementedError

    def evaluate(self, graph, feeds, *, training=False, gradients=False):
        array = np.array([1, 2], np.float32)
        return {f"output{i}": array for i in range(len(graph.outputs))}


def _constant_chain(length: int) -> Graph:
    """A chain of constant operators; every fourth value meets the data."""
    type_ = TensorType("float32", (2,))
    graph = Graph()
    data = graph.add_input("x", type=type_)
    value = graph.add("_arange", (), {"start": 0.0, "stop": 2.0}, [type_], "c")
    for number in range(length):
        value = graph.add("cos", [value], types=[type_], name=f"n{number}")
        if number % 4 == 0:
            data = graph.add("elemwise_add", [data, value], types=[type_], name=f"y{number}")
    graph.set_outputs([data])
    return graph


@pytest.mark.parametrize("options", [{}, {"max_bytes": 4}])
def test_time_is_linear(work, options):
    graphs = {length: _constant_chain(length) for length in (1_000, 2_000)}
    calls = {
        n: work(lambda g=g: FoldConstants(**options).run(g, PassContext(target=Ones())))
        for n, g in graphs.items()
    }
    assert calls[2_000] < 2.3 * calls[1_000]


ALL_CONSTANT = """
    graph g(%x: f32[2,3]) {
      %z = zeros_like(%x) : f32[2,3]
      %y = _plus_scalar(%z) {scalar=2.0} : f32[2,3]
      %s = zeros_like(%y) : f32[2,3]
      return %s
    }
"""


def test_something_is_left_to_differentiate():
    graph = parse(ALL_CONSTANT.strip())
    assert [node.op for node in fold(graph).graph] == ["_zeros", "data"]
    result = fold(graph, mode="training")
    assert result.graph.is_unchanged_from(graph)
    assert messages(result)[-1] == (
        "no output would read an input, and MXNet differentiates no such graph"
    )


def test_gradients_of_a_net_that_is_constant(mx):
    import graphopt

    class Constant(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return F.zeros_like(x) ** 0.5

    net = Constant()
    net.hybridize()
    x = mx.nd.ones((2, 3))
    x.attach_grad()
    optimized = graphopt.optimize(net)
    with mx.autograd.record():
        y = optimized(x)
    y.backward()
    assert y.asnumpy().tolist() == x.grad.asnumpy().tolist() == np.zeros((2, 3)).tolist()


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_one_of_several_outputs_may_be_constant(mode):
    text = ALL_CONSTANT.replace("return %s", "%t = tanh(%x) : f32[2,3] return %s, %t")
    ops = [node.op for node in fold(parse(text.strip()), mode=mode).graph]
    assert ops == ["_zeros", "data", "tanh"]


@pytest.mark.parametrize("is_read", [True, False])
def test_the_shape_of_a_random_value(is_read: bool):
    """It is taken for a constant if the value is drawn all the same."""
    more = ", %d" if is_read else ""
    graph = with_types(
        parse(f"""graph g(%x: f32[2,3], %y: f32[2,3]) {{
            %d = Dropout(%x) {{p=0.5}}
            %o = ones_like(%d)
            %m = Dropout(%o) {{p=0.5}}
            %r = elemwise_mul(%m, %y)
            return %r{more} }}""")
    )
    result = fold(graph, mode="training")
    ops = [node.op for node in result.graph]
    assert ops.count("Dropout") == 2
    assert ("_ones" in ops) is is_read
    reasons = " ".join(str(remark) for remark in result.remarks)
    assert ("would not run any more" in reasons) is not is_read


# -- what follows other shapes ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "goes_by"),
    [
        ("%c = zeros_like(%x)", set()),
        ("%a = ones_like(%x) %c = _mul_scalar(%a) {scalar=3.0}", set()),
        (
            "%a = ones_like(%x) %b = mean(%a) {axis=0, keepdims=True} %c = tile(%b) {reps=(6,)}",
            set(),
        ),
        (
            "%a = ones_like(%x) %b = sum(%a) {axis=0, keepdims=True} %c = tile(%b) {reps=(6,)}",
            {(6,)},
        ),
        ("%a = ones_like(%x) %c = _contrib_div_sqrt_dim(%a)", {(6,)}),
        (
            "%a = ones_like(%x) %b = Concat(%a, %a) {dim=0, num_args=2} %c = slice_like(%b, %x)",
            set(),
        ),
        (
            "%a = ones_like(%x) %z = zeros_like(%x) %b = Concat(%a, %z) {dim=0, num_args=2}"
            " %c = slice_like(%b, %x)",
            {(6,)},
        ),
        (
            "%a = ones_like(%x) %e = exp(%a) %z = sin(%a) %b = Concat(%e, %z) {dim=0, num_args=2}"
            " %c = slice_like(%b, %x)",
            {(6,)},
        ),
        (
            "%f = _full() {shape=(6,), value=0.5} %a = Concat(%f, %f) {dim=0, num_args=2}"
            " %c = slice_like(%a, %x)",
            set(),
        ),
        ("%a = ones_like(%x) %z = zeros_like(%x) %c = broadcast_maximum(%a, %z)", set()),
        ("%c = _contrib_arange_like(%x)", set()),
        ("%c = _contrib_arange_like(%x) {start=1.0}", {(6,)}),
        ("%a = _contrib_arange_like(%x) %z = zeros_like(%a) %c = elemwise_add(%a, %z)", set()),
        ("%a = _contrib_arange_like(%x) %z = ones_like(%a) %c = elemwise_add(%a, %z)", {(6,)}),
        (
            "%a = _contrib_arange_like(%x) %i = Cast(%a) {dtype='int32'}"
            " %c = Cast(%i) {dtype='float32'}",
            set(),
        ),
        (
            "%a = _contrib_arange_like(%x) %i = Cast(%a) {dtype='uint8'}"
            " %c = Cast(%i) {dtype='float32'}",
            {(6,)},
        ),
        ("%a = _contrib_arange_like(%x) %c = clip(%a) {a_min=0.0, a_max=9.0}", {(6,)}),
        ("%a = _contrib_arange_like(%x) %c = _lesser_scalar(%a) {scalar=9.0}", {(6,)}),
        ("%a = _arange() {start=0.0, stop=6.0} %c = clip(%a) {a_min=0.0, a_max=9.0}", set()),
    ],
)
def test_shapes_that_values_go_by(nodes: str, goes_by: set[tuple[int, ...]]) -> None:
    """Two shapes may give values that look alike, where a third one does not."""
    text = nodes.replace(" %", "\n%").replace("'", '"')
    graph = with_types(
        parse(f"graph g(%x: f32[6]) {{\n{text}\n%y = elemwise_add(%x, %c)\nreturn %y\n}}")
    )
    result = fold(graph)
    assert result.shapes == goes_by
    assert not result.graph.find("c").inputs
