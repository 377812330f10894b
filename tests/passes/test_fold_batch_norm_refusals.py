"""What fold-batch-norm leaves as it is, what it says of that, and its contract as a pass."""

from __future__ import annotations

import pytest

from graphopt.backend.infer import with_types
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from tests.passes.fold_batch_norm_support import BN, CONV, fold, net


def refused(graph: Graph, **settings: object) -> str:
    """The reason of the only remark about a graph that stays as it is."""
    result = fold(graph, **settings)
    assert result.receipts[0].status in ("unchanged", "refused")
    (remark,) = result.remarks
    return remark.message


# -- refusals --------------------------------------------------------------------------------

PAD = "%l = Convolution(%y, %w) {kernel=(3, 3), num_filter=6, pad=(1, 1), no_bias=True}"
NOT_FOLDED = {
    "another reader": (
        f"{CONV} %y = BatchNorm(%conv, {BN} return %y, %conv",
        {},
        "not folded: 'conv' is an output of the graph; 'y' is an output of the graph",
    ),
    "two readers": (
        f"{CONV} %y = BatchNorm(%conv, {BN} %r = relu(%conv) return %y, %r",
        {},
        "not folded: 'conv' has 2 readers; 'y' is an output of the graph",
    ),
    "nothing to fold into": (
        f"%r = relu(%x) %y = BatchNorm(%r, {BN} %s = relu(%y) return %s",
        {},
        "not folded: it stands behind 'r' (relu); it stands in front of 's' (relu)",
    ),
    "padding": (
        f"%y = BatchNorm(%x, {BN} {PAD} return %l",
        {},
        "not folded: it stands behind 'x' (data); its shift would be missing at the border of 'l'",
    ),
    "deconvolution": (
        f"%y = BatchNorm(%x, {BN} %l = Deconvolution(%y, %w) {{kernel=(3, 3), num_filter=6}}"
        " return %l",
        {"w": "f32[4,6,3,3]"},
        "not folded: it stands behind 'x' (data); its shift would be missing at the border of 'l'",
    ),
    "another axis": (
        f"{CONV} %y = BatchNorm(%conv, %gamma, %beta, %mean, %var) {{axis=2}} return %y",
        {},
        "not folded: it scales axis 2, which is not the channel axis of 'conv';"
        " 'y' is an output of the graph",
    ),
    "another axis in front": (
        "%y = BatchNorm(%x, %gamma, %beta, %mean, %var) {axis=2}"
        " %l = Convolution(%y, %w) {kernel=(3, 3), num_filter=6, no_bias=True} return %l",
        {},
        "not folded: it stands behind 'x' (data); axis 2 holds no channels of 'l'",
    ),
    "an axis that is not contracted": (
        "%y = BatchNorm(%x, %gamma, %beta, %mean, %var)"
        " %l = FullyConnected(%y, %w) {num_hidden=6, flatten=False, no_bias=True} return %l",
        {"x": "f32[2,3,4]", "w": "f32[6,4]"},
        "not folded: it stands behind 'x' (data); axis 1 is not summed over by 'l'",
    ),
    "an axis that is not there": (
        "%y = _mul_scalar(%x) {scalar=2.0}"
        " %l = FullyConnected(%y, %w) {num_hidden=6, no_bias=True} return %l",
        {"x": "f32[4]", "w": "f32[6,1]"},
        "not folded: it stands behind 'x' (data); axis 1 is not summed over by 'l'",
    ),
    "statistics that are read": (
        f"{CONV} %y = BatchNorm(%conv, %gamma, %beta, %mean, %var) {{output_mean_var=True}}"
        " return %y, %y#1",
        {},
        "its mean or variance is read (output_mean_var)",
    ),
    "a weight that depends on data": (
        "%v = relu(%x) %l = Convolution(%x, %v) {kernel=(2, 2), num_filter=2, no_bias=True}"
        f" %y = BatchNorm(%l, {BN} return %y",
        {"x": "f32[2,2,2,2]"},
        "not folded: 'v' depends on data; 'y' is an output of the graph",
    ),
    "a scale that depends on data": (
        f"%g = sum(%x) {{axis=(0, 2, 3)}} {CONV.replace('num_filter=6', 'num_filter=4')}"
        " %y = BatchNorm(%conv, %g, %beta, %mean, %var) return %y",
        {"w": "f32[4,4,3,3]"},
        "'g' depends on data",
    ),
    "control dependency": (
        f"{CONV} %y = BatchNorm(%conv, {BN} %z = relu(%x) after(%conv) return %y, %z",
        {},
        "not folded: a control dependency names 'conv'; 'y' is an output of the graph",
    ),
    "data that nothing is known of": (
        f"%v = Reshape(%x) {{shape=(0, -1, 6, 6)}} %y = BatchNorm(%v, {BN}"
        " %l = Convolution(%y, %w) {kernel=(3, 3), num_filter=6, no_bias=True} return %l",
        {},
        "not folded: it stands behind 'v' (Reshape);"
        " its shift may be large beside what it leaves of the graph's data",
    ),
    "a large number that is taken from data": (
        "%y = _minus_scalar(%x) {scalar=2026}"
        " %l = Convolution(%y, %w) {kernel=(3, 3), num_filter=6, no_bias=True} return %l",
        {},
        "not folded: it stands behind 'x' (data);"
        " its shift may be large beside what it leaves of the graph's data",
    ),
    "not flattened": (
        f"%y = BatchNorm(%x, {BN} %f = Flatten(%y) %l = relu(%f) return %l",
        {},
        "not folded: it stands behind 'x' (data); it stands in front of 'l' (relu)",
    ),
}


@pytest.mark.parametrize("case", NOT_FOLDED)
def test_refusals(case):
    body, types, reason = NOT_FOLDED[case]
    graph = net(body, **types)
    assert refused(graph) == reason


@pytest.mark.parametrize("sums", ["_plus _minus", "_minus _plus", "_plus _rminus"])
@pytest.mark.parametrize("where", ["behind", "in front"])
def test_sums_that_round_stay(sums, where):
    one, other = sums.split()
    rounded = (
        f"%p = {one}_scalar(%{{0}}) {{{{scalar=12582912.0}}}}"
        f" %q = {other}_scalar(%p) {{{{scalar=12582912.0}}}}"
    )
    if where == "behind":
        body = f"{CONV} {rounded.format('conv')} return %q"
    else:
        body = f"%x1 = relu(%x) {rounded.format('x1')} {CONV.replace('%x', '%q')} return %conv"
    result = fold(net(body))
    assert result.receipts[0].status in ("unchanged", "refused")
    assert all("rounding may be their purpose" in remark.message for remark in result.remarks)


def test_unknown_shapes_are_refused():
    text = """
        graph g(%x: ?, param %w: ?, param %gamma: ?, param %beta: ?, aux %mean: ?, aux %var: ?) {
          %l = Convolution(%x, %w) {kernel=(3, 3), num_filter=6, no_bias=True}
          %y = BatchNorm(%l, %gamma, %beta, %mean, %var)
          return %y
        }
    """
    assert refused(parse(text)) == "'gamma' has type ?"


@pytest.mark.parametrize(
    "body",
    [
        "%y = _div_scalar({0}) {{scalar=0}}",
        "%y = _mul_scalar({0}) {{scalar=inf}}",
        "%y = broadcast_mul({0}, {0})",
        "%y = broadcast_div(%k, {0})",
        "%y = broadcast_mul({0}, %wide)",
        "%y = broadcast_mul({0}, %plane)",
        "%y = relu({0})",
    ],
)
def test_what_is_no_scale_stays_without_a_word(body):
    given = "param %k: f32[1,1,1,1], param %wide: f32[2,4,1,1], param %plane: f32[4,4]"
    graph = with_types(
        parse(
            f"graph g(%x: f32[2,4,6,6], param %w: f32[4,4,3,3], {given}) {{"
            " %l = Convolution(%x, %w) {kernel=(3, 3), num_filter=4, no_bias=True}"
            f" {body.format('%l')} return %y }}"
        )
    )
    result = fold(graph)
    assert result.receipts[0].status == "unchanged"
    assert not result.remarks


def test_a_factor_that_enlarges_its_input_stays():
    graph = with_types(
        parse(
            "graph g(%x: f32[2,4], param %w: f32[1,4], param %k: f32[5]) {"
            " %l = FullyConnected(%x, %w) {num_hidden=1, no_bias=True}"
            " %y = broadcast_mul(%l, %k) return %y }"
        )
    )
    assert fold(graph).receipts[0].status == "unchanged"


def test_a_sparse_weight_is_refused():
    graph = net(f"{CONV} %y = BatchNorm(%conv, {BN} return %y")
    weight = graph.find("w")
    graph.update(weight.but(attrs=weight.attrs.set(__storage_type__="1")))
    assert refused(graph) == "not folded: 'w' is sparse; 'y' is an output of the graph"


# -- contract --------------------------------------------------------------------------------


def test_modes():
    graph = net(f"{CONV} %y = BatchNorm(%conv, {BN} return %y")
    assert refused(graph, mode="training") == "it would change what training computes"
    assert refused(graph, frozen=False) == "it needs frozen parameters: use mode='inference'"
    assert refused(graph, precise=True) == (
        "folded weights are rounded once more, which precise=True does not allow"
    )


def test_a_second_run_changes_nothing():
    graph = net(
        f"%s = _minus_scalar(%x) {{scalar=1.0}} %q = BatchNorm(%s, %gamma, %beta, %mean, %var)"
        " %l = Convolution(%q, %w, %b) {kernel=(3, 3), num_filter=4}"
        f" %y = BatchNorm(%l, {BN} return %y",
        w="f32[4,4,3,3]",
    )
    once = fold(graph).graph
    again = fold(once)
    assert again.graph is once
    assert not again.remarks
    assert [n.name for n in once.inputs] == [n.name for n in graph.inputs]


def test_a_graph_without_parameters_is_returned_as_it_is():
    graph = parse("graph g(%x: f32[2]) { %y = relu(%x) : f32[2] return %y }")
    assert fold(graph).graph is graph


def test_cost_is_linear(work):
    def chain(length: int) -> Graph:
        body = "".join(
            f"%c{i} = Convolution(%r{i}, %w) {{kernel=(1, 1), no_bias=True, num_filter=2}} :"
            f" f32[1,2,1,1] %b{i} = BatchNorm(%c{i}, %g, %g, %g, %g) : f32[1,2,1,1]"
            f" %r{i + 1} = relu(%b{i}) : f32[1,2,1,1]\n"
            for i in range(length)
        )
        return parse(
            "graph g(%r0: f32[1,2,1,1], param %w: f32[2,2,1,1], param %g: f32[2]) {"
            f" {body} return %r{length} }}"
        )

    small, large = chain(100), chain(200)
    assert work(lambda: fold(large)) < 2.3 * work(lambda: fold(small))
