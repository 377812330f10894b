from __future__ import annotations

import itertools

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import parse_type
from graphopt.passes.simplify_algebra import SimplifyAlgebra
from graphopt.pipeline.base import PassContext, Settings
from graphopt.testing import assert_equivalent, run_pass
from tests.tiers import one_of

mx = import_mxnet()
NAME = "simplify-algebra"


def graph_of(lines: str, dtype: str = "f32") -> Graph:
    """A graph over two inputs; lines are ``name = op(...) {attrs}``, of the inputs' type.

    A line may state its own type behind a colon. The first line makes the inputs inner values, so
    that one may become the result.
    """
    body = ["%x = tanh(%p)", "%y = sigmoid(%q)", *lines.strip().split("\n")]
    typed = [line if " : " in line else f"{line} : {dtype}[4,6]" for line in body]
    text = "\n".join(typed)
    return parse(
        f"graph g(%p: {dtype}[4,6], %q: {dtype}[4,6]) {{\n{text}\n%out = exp(%r) :"
        f" {typed[-1].rpartition(' : ')[2]}\nreturn %out\n}}"
    )


def ops(graph: Graph) -> list[str]:
    """What stands between the tanh and sigmoid in front and the exp behind."""
    found = [f"{n.op}{n.attrs.text if n.attrs else ''}" for n in graph if not n.is_input]
    return [op for op in found if op not in ("tanh", "sigmoid", "exp")]


def simplify(lines: str, dtype: str = "f32", **settings: object):
    graph = graph_of(lines, dtype)
    return graph, run_pass(graph, NAME, **settings)


def reasons(result) -> str:
    return "\n".join(r.message for r in result.remarks if r.kind.value == "missed")


#: what it is -> (lines, operators left)
ALWAYS = {
    "x*1": ("%r = _mul_scalar(%x) {scalar=1}", []),
    "x/1": ("%r = _div_scalar(%x) {scalar=1}", []),
    "x-0": ("%r = _minus_scalar(%x) {scalar=0.0}", []),
    "x**1": ("%r = _power_scalar(%x) {scalar=1}", []),
    "--x": ("%a = negative(%x)\n%r = negative(%a)", []),
    "-(x*3)": ("%a = _mul_scalar(%x) {scalar=3}\n%r = negative(%a)", ["_mul_scalar{scalar=-3.0}"]),
    "-x*3": ("%a = negative(%x)\n%r = _mul_scalar(%a) {scalar=3}", ["_mul_scalar{scalar=-3.0}"]),
    "x*-1": ("%r = _mul_scalar(%x) {scalar=-1}", ["negative"]),
    "x/4": ("%r = _div_scalar(%x) {scalar=4}", ["_mul_scalar{scalar=0.25}"]),
    "1/x": ("%r = _rdiv_scalar(%x) {scalar=1}", ["reciprocal"]),
    "x*ones": (
        '%a = _ones() {dtype="float32", shape=(4, 6)}\n%r = broadcast_mul(%a, %x)',
        [],
    ),
    "x+full": (
        "%a = _full() {shape=(1, 6), value=2.5} : f32[1,6]\n%r = broadcast_add(%x, %a)",
        ["_plus_scalar{scalar=2.5}"],
    ),
    "full/x": (
        "%a = _full() {shape=(4, 6), value=3.0}\n%r = elemwise_div(%a, %y)",
        ["_rdiv_scalar{scalar=3.0}"],
    ),
    "ones-x": ("%a = ones_like(%y)\n%r = elemwise_sub(%a, %x)", ["_rminus_scalar{scalar=1.0}"]),
    "clip clip": (
        "%a = clip(%x) {a_max=0.5, a_min=-0.5}\n%r = clip(%a) {a_max=0.3, a_min=-2}",
        ["clip{a_max=0.3, a_min=-0.5}"],
    ),
    "max max": (
        "%a = _maximum_scalar(%x) {scalar=0.1}\n%r = _maximum_scalar(%a) {scalar=-0.2}",
        ["_maximum_scalar{scalar=0.1}"],
    ),
    "relu relu": ("%a = relu(%x)\n%r = relu(%a)", ["relu"]),
    "relu layer twice": (
        '%a = Activation(%x) {act_type="relu"}\n%r = Activation(%a) {act_type="relu"}',
        ['Activation{act_type="relu"}'],
    ),
    "abs square": ("%a = square(%x)\n%r = abs(%a)", ["square"]),
    "abs -x": ("%a = negative(%x)\n%r = abs(%a)", ["abs"]),
    "square abs": ("%a = abs(%x)\n%r = square(%a)", ["square"]),
    "broadcast": ("%r = broadcast_maximum(%x, %y)", ["_maximum"]),
    "x*x": ("%r = broadcast_mul(%x, %x)", ["square"]),
    "x+x": ("%r = elemwise_add(%x, %x)", ["_mul_scalar{scalar=2.0}"]),
    "x+-y": ("%a = negative(%y)\n%r = elemwise_add(%a, %x)", ["elemwise_sub"]),
    "x--y": ("%a = negative(%y)\n%r = elemwise_sub(%x, %a)", ["elemwise_add"]),
    "-x*-y": (
        "%a = negative(%x)\n%b = negative(%y)\n%r = elemwise_mul(%a, %b)",
        ["elemwise_mul"],
    ),
    "sum of one": (
        "%a = expand_dims(%x) {axis=1} : f32[4,1,6]\n%r = mean(%a) {axis=1}",
        ["expand_dims{axis=1}", "Reshape{shape=(0, -3)}"],
    ),
    "max of max": (
        "%a = max(%x) {axis=1} : f32[4]\n%r = max(%a) {axis=0} : f32[1]",
        ["max{axis=(0, 1)}"],
    ),
    "there and back": (
        '%a = Cast(%x) {dtype="float64"} : f64[4,6]\n%r = Cast(%a) {dtype="float32"}',
        [],
    ),
    "by way of f64": (
        '%a = Cast(%x) {dtype="float64"} : f64[4,6]\n%r = Cast(%a) {dtype="float16"} : f16[4,6]',
        ['Cast{dtype="float16"}'],
    ),
}

#: As above; ``precise`` forbids these.
ROUNDING = {
    "x+0": ("%r = _plus_scalar(%x) {scalar=0}", []),
    "x+1+2": (
        "%a = _plus_scalar(%x) {scalar=1}\n%r = _plus_scalar(%a) {scalar=2}",
        ["_plus_scalar{scalar=3.0}"],
    ),
    "x+3-1": (
        "%a = _plus_scalar(%x) {scalar=3}\n%r = _minus_scalar(%a) {scalar=1}",
        ["_plus_scalar{scalar=2.0}"],
    ),
    "1-(x+2)": (
        "%a = _plus_scalar(%x) {scalar=-2}\n%r = _rminus_scalar(%a) {scalar=1}",
        ["_rminus_scalar{scalar=3.0}"],
    ),
    "x*3/4": (
        "%a = _mul_scalar(%x) {scalar=3}\n%r = _div_scalar(%a) {scalar=5}",
        ["_mul_scalar{scalar=0.6}"],
    ),
    "x/3/5": (
        "%a = _div_scalar(%x) {scalar=3}\n%r = _div_scalar(%a) {scalar=5}",
        ["_div_scalar{scalar=15.0}"],
    ),
    "2/(y*3)": (
        "%a = _mul_scalar(%y) {scalar=4}\n%r = _rdiv_scalar(%a) {scalar=2}",
        ["_rdiv_scalar{scalar=0.5}"],
    ),
    "x**2": ("%r = _power_scalar(%x) {scalar=2}", ["square"]),
    "x**3": ("%r = _power_scalar(%x) {scalar=3}", ["square", "elemwise_mul"]),
    "x**4": ("%r = _power_scalar(%x) {scalar=4.0}", ["square", "square"]),
    "y**.5": ("%r = _power_scalar(%y) {scalar=0.5}", ["sqrt"]),
    "y**-.5": ("%r = _power_scalar(%y) {scalar=-0.5}", ["rsqrt"]),
    "x**-.5": ("%r = _power_scalar(%x) {scalar=-0.5}", ["_plus_scalar{scalar=0.0}", "rsqrt"]),
    "(x+1)**.5": (
        "%a = _plus_scalar(%x) {scalar=1.0}\n%r = _power_scalar(%a) {scalar=0.5}",
        ["_plus_scalar{scalar=1.0}", "sqrt"],
    ),
    "(-x)**.5": (
        "%a = negative(%x)\n%r = _power_scalar(%a) {scalar=0.5}",
        ["negative", "_plus_scalar{scalar=0.0}", "sqrt"],
    ),
    "y**-1": ("%r = _power_scalar(%y) {scalar=-1}", ["reciprocal"]),
    "window": (
        "%a = _maximum_scalar(%x) {scalar=-0.2}\n%r = _minimum_scalar(%a) {scalar=0.3}",
        ["clip{a_max=0.3, a_min=-0.2}"],
    ),
    "max relu": (
        "%a = relu(%x)\n%r = _maximum_scalar(%a) {scalar=0.1}",
        ["_maximum_scalar{scalar=0.1}"],
    ),
    "leaky": ("%r = LeakyReLU(%x) {slope=0}", ['Activation{act_type="relu"}']),
    "log1p": ("%a = _plus_scalar(%y) {scalar=1}\n%r = log(%a)", ["log1p"]),
    "expm1": ("%a = exp(%x)\n%r = _minus_scalar(%a) {scalar=1}", ["expm1"]),
    "rsqrt": ("%a = sqrt(%y)\n%r = _rdiv_scalar(%a) {scalar=1}", ["rsqrt"]),
    "x*(1/y)": ("%a = reciprocal(%y)\n%r = elemwise_mul(%a, %x)", ["elemwise_div"]),
    "x/(1/y)": ("%a = reciprocal(%y)\n%r = elemwise_div(%x, %a)", ["elemwise_mul"]),
    "mean of mean": (
        "%a = mean(%x) {axis=1, keepdims=True} : f32[4,1]\n"
        "%r = mean(%a) {axis=0, keepdims=True} : f32[1,1]",
        ["mean{axis=(0, 1), keepdims=True}"],
    ),
}

#: As above; gradients forbid these.
INFERENCE = {
    "max(x, -inf)": ("%r = _maximum_scalar(%x) {scalar=-inf}", []),
    "min(x, inf)": ("%r = _minimum_scalar(%x) {scalar=inf}", []),
    "max(x, 0)": ("%r = _maximum_scalar(%x) {scalar=0}", ["relu"]),
    "relu6": (
        "%a = relu(%x)\n%r = clip(%a) {a_max=0.6, a_min=0}",
        ["clip{a_max=0.6, a_min=0.0}"],
    ),
    "y**0": ("%r = _power_scalar(%y) {scalar=0}", ["ones_like"]),
    "sqrt square": ("%a = square(%x)\n%r = sqrt(%a)", ["abs"]),
    "1/rsqrt": ("%a = rsqrt(%y)\n%r = reciprocal(%a)", ["sqrt"]),
    "1/(2/y)": (
        "%a = _rdiv_scalar(%y) {scalar=2}\n%r = reciprocal(%a)",
        ["_mul_scalar{scalar=0.5}"],
    ),
    "max(zeros, x)": ("%a = zeros_like(%x)\n%r = _maximum(%a, %x)", ["relu"]),
}
CASES = {**ALWAYS, **ROUNDING, **INFERENCE}


# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(SimplifyAlgebra)
    assert run_pass(before, NAME).graph == after


@pytest.mark.parametrize("case", CASES)
def test_result(case):
    lines, expected = CASES[case]
    _, result = simplify(lines)
    assert ops(result.graph) == expected


def test_names_and_origins_stay():
    text = """
    graph g(%x: f32[2]) {
      %a = exp(%x) : f32[2]
      %b = _mul_scalar(%a) {scalar=1} : f32[2]
      return %b
    }
    """
    graph = run_pass(text, NAME).graph
    assert [(n.name, n.op) for n in graph] == [("x", "data"), ("b", "exp")]


def test_constants_of_equal_elements_are_scalars():
    import numpy as np

    from graphopt.ir.constant import add_constant

    graph = Graph("g")
    x = graph.add_input("x", type=parse_type("f32[4,6]"))
    half = add_constant(graph, np.full((1, 6), 0.5, np.float32), "half")
    ramp = add_constant(graph, np.arange(6, dtype=np.float32), "ramp")
    product = graph.add("broadcast_mul", [x, half], types=x.types, name="product")
    total = graph.add("broadcast_add", [product, ramp], types=x.types, name="total")
    graph.set_outputs([total])
    after = run_pass(graph, NAME).graph
    assert [n.op for n in after] == ["data", "_mul_scalar", "constant", "broadcast_add"]
    assert_equivalent(graph, after, training=True)


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ROUNDING)
def test_precise_forbids_rounding(case):
    graph, result = simplify(ROUNDING[case][0], precise=True)
    # Some are brought into a plainer form that keeps every bit, and no further.
    assert len(ops(result.graph)) == len(ops(graph))
    assert reasons(result)


@pytest.mark.parametrize("case", INFERENCE)
def test_training_forbids_other_gradients(case):
    graph, result = simplify(INFERENCE[case][0], mode="training")
    assert len(ops(result.graph)) == len(ops(graph))
    assert "gradient" in reasons(result)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("%r = _mul_scalar(%x) {scalar=0}", "x * 0 is not 0 for infinite and undefined x"),
        (
            "%a = _plus_scalar(%x) {scalar=1e8}\n%r = _minus_scalar(%a) {scalar=1e8}",
            "the scalars cancel, so that rounding x may be their purpose",
        ),
        (
            "%a = _minus_scalar(%x) {scalar=2e38}\n%r = _minus_scalar(%a) {scalar=3e38}",
            "their sum is no float32",
        ),
        (
            "%a = _mul_scalar(%x) {scalar=1e30}\n%r = _mul_scalar(%a) {scalar=1e-30}",
            "the product may overflow or vanish halfway",
        ),
        (
            "%a = clip(%x) {a_max=1, a_min=0}\n%r = clip(%a) {a_max=3, a_min=2}",
            "the windows do not overlap, the result is constant",
        ),
        ("%r = elemwise_sub(%x, %x)", "it is not 0 for infinite and undefined x"),
        ("%r = elemwise_div(%x, %x)", "it is not 1 for x = 0"),
        ("%a = exp(%x)\n%r = log(%a)", "exp(x) may overflow"),
        ("%a = log(%x)\n%r = exp(%a)", "x < 0 gives no number"),
        ("%a = sqrt(%x)\n%r = square(%a)", "x < 0 gives no number"),
        (
            "%a = sqrt(%y)\n%b = reciprocal(%a)\n%r = elemwise_add(%a, %b)",
            "'a', a part of it, is read elsewhere too",
        ),
    ],
)
def test_refusal_tells_why(lines, reason):
    graph, result = simplify(lines)
    assert result.graph is graph
    assert reason in reasons(result)


@pytest.mark.parametrize(
    ("lines", "dtype"),
    [
        ("%a = _minus_scalar(%x) {scalar=4e4}\n%r = _minus_scalar(%a) {scalar=3e4}", "f16"),
        # clip holds its bounds as float32.
        ("%a = _maximum_scalar(%x) {scalar=0.1}\n%r = _minimum_scalar(%a) {scalar=3}", "f64"),
        ("%a = _maximum_scalar(%x) {scalar=-1e40}\n%r = _minimum_scalar(%a) {scalar=3}", "f64"),
        # 200 + 100 does not fit; division by parts rounds down twice.
        (
            "%a = _plus_scalar(%x) {scalar=200}\n%r = _plus_scalar(%a) {scalar=100}",
            "u8",
        ),
        ("%a = _div_scalar(%x) {scalar=2}\n%r = _div_scalar(%a) {scalar=3}", "i32"),
        ("%a = _plus_scalar(%x) {scalar=0.5}\n%r = _plus_scalar(%a) {scalar=0.5}", "i32"),
        ("%r = _power_scalar(%x) {scalar=2}", "i32"),
        ("%r = _maximum_scalar(%x) {scalar=0}", "i32"),
        # MXNet's square of integers is rounded to float32, their product is not.
        ("%r = elemwise_mul(%x, %x)", "i32"),
        ("%r = elemwise_mul(%x, %x)", "i64"),
        # The least int8 has no absolute value, and squares wrap.
        ("%a = abs(%x)\n%r = relu(%a)", "i8"),
        ("%a = square(%x)\n%r = abs(%a)", "i32"),
        ("%a = mean(%x) {axis=1} : i64[4]\n%r = mean(%a) {axis=0} : i64[1]", "i64"),
        ("%a = _mul_scalar(%x) {scalar=64}\n%r = _mul_scalar(%a) {scalar=0.02}", "f16"),
        ('%a = Cast(%x) {dtype="float16"} : f16[4,6]\n%r = Cast(%a) {dtype="float32"}', "f32"),
        ("%r = broadcast_add(%x, %y) : ?", "f32"),
    ],
)
def test_kept_without_proof(lines, dtype):
    graph, result = simplify(lines, dtype)
    assert result.graph is graph


def test_integers_merge_where_it_is_exact():
    assert ops(simplify("%r = elemwise_add(%x, %x)", "i32")[1].graph) == ["_mul_scalar{scalar=2.0}"]
    lines = "%a = _plus_scalar(%x) {scalar=20}\n%r = _minus_scalar(%a) {scalar=50}"
    assert ops(simplify(lines, "i32")[1].graph) == ["_minus_scalar{scalar=30.0}"]
    lines = "%a = _mul_scalar(%x) {scalar=5}\n%r = _mul_scalar(%a) {scalar=7}"
    assert ops(simplify(lines, "u8")[1].graph) == ["_mul_scalar{scalar=35.0}"]


# -- equivalence -----------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equivalence(case, training):
    graph, result = simplify(CASES[case][0], mode="training" if training else "inference")
    if result.graph is not graph:
        assert_equivalent(graph, result.graph, training=training, seeds=(0,), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["window", "max relu", "clip clip", "abs square", "leaky", "x*x"])
def test_gradients_at_borders(case):
    import numpy as np

    graph, result = simplify(CASES[case][0], mode="training")
    ties = np.arctanh(np.array([0, -0.2, 0.3, 0.1, -0.5, 0.5] * 4, np.float32)).reshape(4, 6)
    assert_equivalent(graph, result.graph, training=True, seeds=(0,), feeds={"p": ties})


def test_undefined_and_infinite_values_stay():
    import numpy as np

    x = parse("graph g(%x: f32[6]) {\n%a = relu(%x) : f32[6]\nreturn %a\n}")
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -1.0, 2.0], np.float32)
    for line in (
        "_maximum_scalar(%x) {scalar=0}",
        "_power_scalar(%x) {scalar=2}",
        "_power_scalar(%x) {scalar=0}",
    ):
        graph = parse(str(x).replace("relu(%x)", line))
        after = run_pass(graph, NAME).graph
        assert after is not graph
        assert_equivalent(graph, after, seeds=(0,), feeds={"x": values})


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
@pytest.mark.parametrize("negative", [False, True])
def test_powers_of_minus_zero(exponent, negative, mode):
    import numpy as np

    body = "%a = negative(%x) : f32[3]\n" * negative
    graph = parse(
        f"graph g(%x: f32[3]) {{\n{body}%p = _power_scalar(%{'a' if negative else 'x'})"
        f" {{scalar={exponent}}} : f32[3]\nreturn %p\n}}"
    )
    after = run_pass(graph, NAME, mode=mode).graph
    assert after is not graph
    zeros = np.array([-0.0, 0.0, 4.0 * (-1) ** negative], np.float32)
    training = mode == "training"
    assert_equivalent(graph, after, training=training, seeds=(0,), feeds={"x": zeros})


def test_relu6_of_a_mobile_net():
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    x = mx.sym.Convolution(mx.sym.Variable("data"), num_filter=4, kernel=(3, 3), name="conv")
    limited = mx.sym._internal._minimum_scalar(
        mx.sym._internal._maximum_scalar(x, scalar=0), scalar=6
    )
    graph = lift_symbol(limited, {"data": (1, 3, 8, 8)})
    for mode in ("inference", "training"):
        after = run_pass(graph, NAME, mode=mode).graph
        assert [n.op for n in after if not n.is_input] == ["Convolution", "clip"]
        assert_equivalent(graph, after, training=mode == "training")


# -- contract --------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_second_run_changes_nothing(case, training):
    settings = {"mode": "training" if training else "inference"}
    _, result = simplify(CASES[case][0], **settings)
    assert run_pass(result.graph, NAME, **settings).graph is result.graph


def chain(length: int) -> Graph:
    graph = Graph("g")
    type_ = parse_type("f32[4]")
    value = graph.add_input("x", type=type_)
    for number in range(length):
        op, scalar = [("_plus_scalar", 0.5), ("_mul_scalar", 1), ("tanh", None)][number % 3]
        attrs = {} if scalar is None else {"scalar": scalar}
        value = graph.add(op, [value], attrs, (type_,), f"n{number}")
    graph.set_outputs([value])
    return graph


def test_steps_are_linear(work):
    counts = []
    for length in (1000, 2000):
        graph = chain(length)
        counts.append(work(lambda g=graph: SimplifyAlgebra().run(g, PassContext(Settings()))))
    assert counts[1] <= 2.3 * counts[0]


def test_a_deep_chain_merges_into_one():
    graph = Graph("g")
    type_ = parse_type("f32[4]")
    value = graph.add_input("x", type=type_)
    for number in range(5_000):
        value = graph.add("_plus_scalar", [value], {"scalar": 0.25}, (type_,), f"n{number}")
    graph.set_outputs([value])
    after = SimplifyAlgebra().run(graph, PassContext(Settings()))
    assert [(n.op, dict(n.attrs)) for n in after][1:] == [("_plus_scalar", {"scalar": 1250.0})]


@pytest.mark.parametrize(
    ("read", "axes", "keepdims"),
    one_of(
        5, itertools.product([(0, 1), (1,), (0,)], [(0, 1, 2), (0, 2), (1,), (-1,)], [True, False])
    ),
)
def test_a_variance_that_is_read_without_its_mean(
    read: tuple[int, ...], axes: tuple[int, ...], keepdims: bool
) -> None:
    """Which MXNet computes of garbage, but for one call at a time."""

    class Moments(mx.gluon.HybridBlock):  # type: ignore[misc, name-defined]
        def hybrid_forward(self, F, x):
            found = F.moments(F.tanh(x), axes=axes, keepdims=keepdims)
            return [found[at] * 2 for at in read]

    plain = Moments()
    fast = graphopt.optimize(Moments())
    x = mx.nd.array(np.random.default_rng(0).normal(size=(2, 3, 14)))
    x.attach_grad()
    for called in (plain, fast) * 2:
        for got, want in zip(called(x), plain(x), strict=True):
            np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-4, atol=1e-6)
    found = []
    for called in (plain, fast):
        with mx.autograd.record():
            loss = mx.nd.add_n(*[(y**2).sum() for y in called(x)])
        loss.backward()
        found.append(x.grad.asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-6)
