from __future__ import annotations

from typing import Any

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, assert_ir, run_pass

STEPS = 5


def net(step: str, join: str, axis: int = 0, inputs: str = "") -> Graph:
    """``step`` for every step of %x, with #x for its row and %y for the result; then ``join``."""
    shape = "5,2,3" if axis == 0 else "2,5,3"
    lines = [f"%s = SliceChannel(%x) {{axis={axis}, num_outputs={STEPS}, squeeze_axis=True}}"]
    lines += [
        step.replace("#x", f"%s#{k}").replace("%y", f"%y{k}").replace("%m", f"%m{k}")
        for k in range(STEPS)
    ]
    every = ", ".join(f"%y{k}" for k in range(STEPS))
    backwards = ", ".join(f"%y{k}" for k in reversed(range(STEPS)))
    lines.append(join.replace("EVERY", every).replace("BACKWARDS", backwards))
    return with_types(parse(f"graph g(%x: f32[{shape}]{inputs}) {{ {' '.join(lines)} }}"))


def hoisted(graph: Graph, **settings: Any) -> Result:
    result = run_pass(graph, "hoist-projections", target=MXNetTarget(), **settings)
    assert_equivalent(graph, result.graph, training=settings.get("mode") == "training")
    return result


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if not node.is_input]


DENSE = "%y = FullyConnected(#x, %w, %b) {num_hidden=4}"
STACK = "%j = stack(EVERY) {axis=0, num_args=5} return %j"
PARAMETERS = ", param %w: f32[4,3], param %b: f32[4]"


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_dense_layer_of_every_step(mode: str) -> None:
    result = hoisted(net(DENSE, STACK, inputs=PARAMETERS), mode=mode)
    assert_ir(
        result,
        """graph g(%x: f32[5,2,3], param %w: f32[4,3], param %b: f32[4]) {
          %y0_steps = FullyConnected(%x, %w, %b) {flatten=False, num_hidden=4} : f32[5,2,4]
          return %y0_steps
        }""",
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("other", [0, 1])
def test_layouts(axis: int, other: int) -> None:
    join = f"%j = stack(EVERY) {{axis={other}, num_args=5}} return %j"
    result = hoisted(net(DENSE, join, axis, PARAMETERS))
    expected = ["FullyConnected"] if axis == other else ["FullyConnected", "SwapAxis"]
    assert ops(result.graph) == expected


def test_joined_backwards() -> None:
    result = hoisted(net("%y = tanh(#x)", "%j = stack(BACKWARDS) {axis=0, num_args=5} return %j"))
    assert ops(result.graph) == ["tanh", "reverse"]


def test_chains_of_operators() -> None:
    step = "%m = FullyConnected(#x, %w, %b) {num_hidden=4} %y = softmax(%m) {axis=1}"
    assert ops(hoisted(net(step, STACK, inputs=PARAMETERS)).graph) == ["FullyConnected", "softmax"]


def test_two_sequences() -> None:
    step = "%m = sigmoid(#x) %y = Concat(%m, #x) {dim=1, num_args=2}"
    assert ops(hoisted(net(step, STACK)).graph) == ["sigmoid", "Concat"]


def test_single_steps_are_cut_again() -> None:
    result = hoisted(net("%y = tanh(#x)", "%j = add_n(EVERY) {num_args=5} return %j, %y2"))
    assert ops(result.graph) == ["tanh", "SliceChannel", "add_n"]


@pytest.mark.parametrize(
    "step",
    [
        "%y = Dropout(#x) {p=0.5}",  # its own mask for every step
        "%y = elemwise_add(#x, %r)",  # a matrix would be stretched along the steps
        "%y = sum(#x) {axis=0}",
        "%y = broadcast_to(#x) {shape=(2, 3)}",  # says the shape of one step
    ],
)
def test_what_stays(step: str) -> None:
    graph = net(step, "%j = add_n(EVERY) {num_args=5} return %j", inputs=", %r: f32[2,3]")
    result = run_pass(graph, "hoist-projections", target=MXNetTarget())
    assert result.graph.is_unchanged_from(graph)


def test_steps_that_differ_stay() -> None:
    graph = net("%y = tanh(#x)", "%k = sigmoid(%s#1) %j = add_n(EVERY, %k) {num_args=6} return %j")
    text = str(graph).replace("%y3 = tanh(", "%y3 = relu(")
    assert ops(hoisted(parse(text)).graph).count("tanh") == STEPS - 1
