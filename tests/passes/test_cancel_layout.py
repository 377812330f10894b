from __future__ import annotations

import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import parse_type
from graphopt.passes.cancel_layout import CancelLayout
from graphopt.pipeline.base import PassContext, Settings
from graphopt.testing import assert_equivalent, assert_ir, run_pass

NAME = "cancel-layout"
INPUTS = "%p: f32[2,3,4], %q: f32[2,3,4], %c: f32[3,4], %z: f32[1,4,1]"


def graph_of(lines: str, inputs: str = INPUTS) -> Graph:
    """A typed graph; ``%x`` and ``%y`` are inner values, the last line makes ``%r``."""
    body = "\n".join(
        f"{line} : ({', '.join('?' * line.count('#out'))})".replace("#out", "")
        if "#out" in line
        else line
        for line in lines.strip().split("\n")
    )
    text = (
        f"graph g({inputs}) {{\n%x = tanh(%p)\n%y = sigmoid(%q)\n{body}\n"
        "%out = exp(%r)\nreturn %out\n}"
    )
    return run_pass(parse(text), "infer-types", target=MXNetTarget()).graph


def ops(graph: Graph) -> list[str]:
    found = [f"{n.op}{n.attrs.text if n.attrs else ''}" for n in graph if not n.is_input]
    return [op for op in found if op not in ("tanh", "sigmoid", "exp")]


def reasons(result) -> str:
    return "\n".join(r.message for r in result.remarks if r.kind.value == "missed")


#: what it is -> (lines, operators left)
CASES = {
    "reshape back": ("%a = Reshape(%x) {shape=(6, 4)}\n%r = Reshape(%a) {shape=(2, 3, 4)}", []),
    "reshape twice": (
        "%a = Reshape(%x) {shape=(6, 4)}\n%r = Reshape(%a) {shape=(-1, 2)}",
        ["Reshape{shape=(-1, 2)}"],
    ),
    "copied extent of another shape": (
        "%a = Reshape(%x) {shape=(6, 4)}\n%r = Reshape(%a) {shape=(0, 2, 2)}",
        ["Reshape{shape=(-3, -4, -1, 2)}"],
    ),
    "copied extent of the batch": (
        "%a = Reshape(%x) {shape=(0, -1)}\n%r = Reshape(%a) {shape=(0, 2, -1)}",
        ["Reshape{shape=(0, 2, -1)}"],
    ),
    "flatten": (
        "%a = Reshape(%x) {shape=(2, 12, 1)}\n%r = Flatten(%a)",
        ["Flatten"],
    ),
    "flatten twice": ("%a = Flatten(%x)\n%r = Flatten(%a)", ["Flatten"]),
    "squeeze expand": ("%a = expand_dims(%x) {axis=1}\n%r = squeeze(%a) {axis=1}", []),
    "reshape_like": ("%a = Reshape(%x) {shape=(6, 4)}\n%r = reshape_like(%a, %y)", []),
    "transpose back": (
        "%a = transpose(%x) {axes=(1, 2, 0)}\n%r = transpose(%a) {axes=(2, 0, 1)}",
        [],
    ),
    "transpose twice": (
        "%a = transpose(%x) {axes=(1, 2, 0)}\n%r = transpose(%a) {axes=(1, 2, 0)}",
        ["transpose{axes=(2, 0, 1)}"],
    ),
    "all axes reversed": ("%a = transpose(%x)\n%r = transpose(%a)", []),
    "swap": (
        "%a = SwapAxis(%x) {dim1=0, dim2=2}\n%r = transpose(%a) {axes=(2, 1, 0)}",
        [],
    ),
    "unit axes": (
        "%a = expand_dims(%x) {axis=1}\n%r = transpose(%a) {axes=(1, 0, 2, 3)}",
        ["Reshape{shape=(-4, 1, -1, 0, 0)}"],
    ),
    "pulled up": (
        "%a = transpose(%x)\n%b = relu(%a)\n%d = _mul_scalar(%b) {scalar=2}\n%r = transpose(%d)",
        ["relu", "_mul_scalar{scalar=2}"],
    ),
    "pulled up from two": (
        "%a = transpose(%x)\n%b = transpose(%y)\n%d = elemwise_add(%a, %b)\n%r = transpose(%d)",
        ["elemwise_add"],
    ),
    "pulled up, a small one is left": (
        "%a = transpose(%x) {axes=(0, 2, 1)}\n%d = broadcast_add(%a, %z)\n"
        "%r = transpose(%d) {axes=(0, 2, 1)}",
        ["Reshape{shape=(-4, 1, -1, -3)}", "broadcast_add"],
    ),
    "sum": (
        "%a = transpose(%x) {axes=(0, 2, 1)}\n%r = sum(%a) {axis=2}",
        ["sum{axis=(1,)}"],
    ),
    "max of a reordered rest": (
        "%a = transpose(%x) {axes=(2, 1, 0)}\n%r = max(%a) {axis=1}",
        ["max{axis=(1,)}", "transpose{axes=(1, 0)}"],
    ),
    "mean that keeps its axis": (
        "%a = transpose(%x) {axes=(0, 2, 1)}\n%r = mean(%a) {axis=1, exclude=True, keepdims=True}",
        ["mean{axis=(0, 1), keepdims=True}", "Reshape{shape=(0, -3, 1)}"],
    ),
    "batch_dot": (
        "%a = transpose(%x) {axes=(0, 2, 1)}\n%r = batch_dot(%a, %y)",
        ["batch_dot{transpose_a=True}"],
    ),
    "dot": (
        "%a = Reshape(%x) {shape=(6, 4)}\n%b = transpose(%c)\n%r = dot(%a, %b)",
        ["Reshape{shape=(6, 4)}", "dot{transpose_b=True}"],
    ),
    "FullyConnected": (
        "%a = Flatten(%x)\n%w = Reshape(%c) {shape=(1, 12)}\n"
        "%r = FullyConnected(%a, %w) {no_bias=True, num_hidden=1}",
        ["Reshape{shape=(1, 12)}", "FullyConnected{no_bias=True, num_hidden=1}"],
    ),
    "slice of a slice": (
        "%a = slice_axis(%x) {axis=2, begin=1, end=None}\n"
        "%r = slice_axis(%a) {axis=2, begin=-2, end=-1}",
        ["slice_axis{axis=2, begin=2, end=3}"],
    ),
    "slice of everything": ("%r = slice(%x) {begin=(None, 0), end=(2, None)}", []),
    "slice of a concatenation": (
        "%a = Concat(%x, %y) {dim=1, num_args=2}\n%r = slice_axis(%a) {axis=1, begin=3, end=6}",
        [],
    ),
    "slice of a part": (
        "%a = Concat(%x, %y) {dim=1, num_args=2}\n%r = slice(%a) {begin=(None, 4), end=(None, 6)}",
        ["slice_axis{axis=1, begin=1, end=3}"],
    ),
    "split and joined": (
        "%a = SliceChannel(%x) {axis=2, num_outputs=2} #out#out\n"
        "%r = Concat(%a, %a#1) {dim=2, num_args=2}",
        [],
    ),
    "joined and split": (
        "%a = Concat(%x, %y) {dim=1, num_args=2}\n%b = SliceChannel(%a) {num_outputs=2} #out#out\n"
        "%r = elemwise_sub(%b#1, %b)",
        ["elemwise_sub"],
    ),
    "split_v2": (
        "%a = _split_v2(%x) {axis=2, indices=(0, 1), sections=0} #out#out\n"
        "%r = Concat(%a, %a#1) {dim=2, num_args=2}",
        [],
    ),
    "adjacent slices": (
        "%a = slice_axis(%x) {axis=2, begin=0, end=1}\n"
        "%b = slice_axis(%x) {axis=2, begin=1, end=3}\n"
        "%r = Concat(%a, %b, %y) {dim=2, num_args=3}",
        ["slice_axis{axis=2, begin=0, end=3}", "Concat{dim=2, num_args=2}"],
    ),
    "concatenation of one": ("%r = Concat(%x) {dim=1, num_args=1}", []),
    "reverse": ("%a = reverse(%x) {axis=(0, 2)}\n%r = reverse(%a) {axis=(2, 0)}", []),
}


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(CancelLayout)
    assert run_pass(before, NAME).graph == after


@pytest.mark.parametrize("case", CASES)
def test_result(case):
    lines, expected = CASES[case]
    assert ops(run_pass(graph_of(lines), NAME).graph) == expected


def test_views_merge_without_shapes():
    text = """
    graph g(%x: f32[*]) {
      %a = Flatten(%x) : f32[*]
      %b = Flatten(%a) : f32[*]
      %c = expand_dims(%b) {axis=1} : f32[*]
      %d = squeeze(%c) {axis=1} : f32[*]
      %e = Reshape(%d) {shape=(-1, 4)} : f32[*]
      %f = Reshape(%e) {shape=(0, 2, 2)} : f32[*]
      return %f
    }
    """
    assert_ir(
        run_pass(text, NAME),
        """
        graph g(%x: f32[*]) {
          %e = Reshape(%x) {shape=(-1, 4)} : f32[*]
          %f = Reshape(%e) {shape=(0, 2, 2)} : f32[*]
          return %f
        }
        """,
    )


def test_names_inside_a_region_stay():
    lines = CASES["pulled up"][0]
    graph = run_pass(graph_of(lines), NAME).graph
    assert [n.name for n in graph if not n.is_input][:4] == ["x", "b", "r", "out"]


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        "%a = Reshape(%x) {shape=(6, 4)}\n%b = Reshape(%a) {shape=(4, 6)}\n%d = exp(%b)\n"
        "%e = Reshape(%a) {shape=(4, 6)}\n%r = dot(%d, %a)",
        "%a = elemwise_add(%x, %y)\n%r = transpose(%a)",
        "%a = Concat(%x, %y) {dim=1, num_args=2}\n%r = slice_axis(%a) {axis=1, begin=2, end=4}",
        "%a = SliceChannel(%x) {axis=2, num_outputs=2} #out#out\n"
        "%r = Concat(%a#1, %a) {dim=2, num_args=2}",
        "%a = Concat(%x, %y) {dim=1, num_args=2}\n"
        "%b = SliceChannel(%a) {num_outputs=3} #out#out#out\n%r = elemwise_sub(%b#1, %b)",
        "%a = reverse(%x) {axis=(0, 2)}\n%r = reverse(%a) {axis=(1,)}",
        "%r = slice(%x) {begin=(0, 0, 3), end=(2, 3, 0), step=(1, 1, -1)}",
        # These divide by the last and by the first extent.
        "%a = transpose(%x) {axes=(0, 2, 1)}\n%b = _contrib_div_sqrt_dim(%a)\n"
        "%r = transpose(%b) {axes=(0, 2, 1)}",
        '%a = transpose(%x)\n%b = MakeLoss(%a) {normalization="batch"}\n%r = transpose(%b)',
        "%a = Flatten(%x)\n%w = Reshape(%c) {shape=(1, 12)}\n"
        "%r = FullyConnected(%a, %w) {flatten=False, no_bias=True, num_hidden=1}",
    ],
)
def test_kept(lines):
    graph = graph_of(lines)
    assert run_pass(graph, NAME).graph is graph


def test_a_transpose_is_not_moved_where_more_would_be_transposed():
    lines = (
        "%a = transpose(%x)\n%d = transpose(%a) {axes=(0, 2, 1)}\n"
        "%e = Reshape(%y) {shape=(4, 3, 2)}\n%b = elemwise_add(%d, %e)\n%r = transpose(%b)"
    )
    # The transposes of x become one, which a second cannot cancel; y would need one more.
    graph = run_pass(graph_of(lines.replace("(4, 3, 2)", "(4, 2, 3)")), NAME)
    assert [op.split("{")[0] for op in ops(graph.graph)].count("transpose") == 2
    assert "pull-transpose: moving it up would transpose 192 bytes instead of 192" in reasons(graph)


@pytest.mark.parametrize(
    "lines",
    [
        "%a = transpose(%x)\n%b = _npi_where(%m, %a, %w)\n%r = transpose(%b)",
        '%b = Cast(%m) {dtype="float32"}\n%r = transpose(%b)',
    ],
)
def test_a_bool_array_is_not_transposed(lines):
    graph = graph_of(lines, f"{INPUTS}, %m: b1[4,3,2], %w: f32[4,3,2]")
    result = run_pass(graph, NAME)
    assert result.graph is graph
    assert "pull-transpose: MXNet does not transpose bool arrays" in reasons(result)


def test_a_bool_array_of_one_row_is_pulled_through():
    inputs = f"{INPUTS}, %m: b1[4,1,1]"
    graph = graph_of(
        '%a = transpose(%x)\n%f = Cast(%m) {dtype="float32"}\n%b = broadcast_mul(%a, %f)\n'
        "%r = transpose(%b)",
        inputs,
    )
    after = run_pass(graph, NAME).graph
    assert "transpose" not in {node.op for node in after}
    assert_equivalent(graph, after, seeds=(0,), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("sum", "the sum would be taken in another order"),
        ("batch_dot", "the product would be summed in another order"),
    ],
)
def test_precise_keeps_the_order_of_sums(case, reason):
    graph = graph_of(CASES[case][0])
    result = run_pass(graph, NAME, precise=True)
    assert result.graph is graph
    assert reason in reasons(result)


def test_an_input_is_not_returned():
    text = """
    graph g(%x: f32[2,3]) {
      %a = transpose(%x) : f32[3,2]
      %b = transpose(%a) : f32[2,3]
      return %b
    }
    """
    result = run_pass(text, NAME)
    assert result.receipts[0].status == "unchanged"
    assert "the graph would return its own input" in reasons(result)


# -- equivalence -----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equivalence(case, training):
    graph = graph_of(CASES[case][0])
    after = run_pass(graph, NAME, mode="training" if training else "inference").graph
    assert after is not graph
    assert_equivalent(graph, after, training=training, seeds=(0,), rtol=1e-5, atol=1e-6)


def test_attention():
    from graphopt.compat import import_mxnet

    mx = import_mxnet()

    def heads(x):
        x = mx.sym.transpose(mx.sym.reshape(x, shape=(0, 0, 2, -1)), axes=(0, 2, 1, 3))
        return mx.sym.reshape(x, shape=(-1, 0, 0), reverse=True)

    q, k, v = (heads(mx.sym.Variable(name)) for name in "qkv")
    weights = mx.sym.softmax(mx.sym.batch_dot(q, mx.sym.transpose(k, axes=(0, 2, 1))))
    graph = lift_symbol(mx.sym.batch_dot(weights, v), dict.fromkeys("qkv", (2, 5, 8)))
    result = run_pass(graph, NAME, mode="training")
    assert dict(result.receipts[0].stats) == {"transpose-into-product": 1}
    assert_equivalent(graph, result.graph, training=True)


# -- contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_second_run_changes_nothing(case):
    graph = run_pass(graph_of(CASES[case][0]), NAME).graph
    assert run_pass(graph, NAME).graph is graph


def sandwich(length: int) -> Graph:
    """Pointwise operators with a transpose between any two."""
    graph = Graph("g")
    types = parse_type("f32[4,6]"), parse_type("f32[6,4]")
    value = graph.add_input("x", type=types[0])
    for number in range(length):
        op, attrs = ("tanh", {}) if number % 2 else ("transpose", {"axes": (1, 0)})
        type_ = types[(number // 2 + 1) % 2]
        value = graph.add(op, [value], attrs, (type_,), f"n{number}")
    graph.set_outputs([value])
    return graph


def test_steps_are_linear(work):
    counts = []
    for length in (500, 1000):
        graph = sandwich(length)
        counts.append(work(lambda g=graph: CancelLayout().run(g, PassContext(Settings()))))
    assert counts[1] <= 2.3 * counts[0]


def test_a_deep_chain_cancels():
    graph = CancelLayout().run(sandwich(5_000), PassContext(Settings()))
    assert {n.op for n in graph} == {"data", "tanh"}
