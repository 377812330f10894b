"""fuse-batch-norm."""

from __future__ import annotations

import itertools

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import BATCH_NORM
from graphopt.ir.parser import parse
from graphopt.kernels import bridge
from graphopt.passes.fuse_batch_norm import FuseBatchNorm
from graphopt.testing import assert_equivalent, run_pass
from tests.tiers import one_of

PASS = "fuse-batch-norm"
RELU = '%y = Activation(%n) {act_type="relu"}'


def net(
    tail: str = RELU,
    attrs: str = "fix_gamma=False",
    *,
    channels: int = 16,
    x: str = "f32[2,8,12,11]",
    result: str = "%y",
) -> Graph:
    """A convolution, which leaves blocks of channels, and a BatchNorm behind it."""
    found = parse(
        f"""
        graph net(%x: {x}, param %w: ?, param %g: ?, param %b: ?, aux %m: ?, aux %var: ?) {{
          %c = Convolution(%x, %w) {{kernel=(1, 1), no_bias=True, num_filter={channels}}}
          %n = BatchNorm(%c, %g, %b, %m, %var) {{{attrs}}}
          {tail}
          return {result}
        }}"""
    )
    return with_types(found)


def fused(graph: Graph) -> int:
    return sum(node.op == BATCH_NORM for node in graph)


def test_example(example):
    before, after = example(FuseBatchNorm)
    result = run_pass(before, PASS, mode="training")
    assert result.graph == after
    assert result.receipts[0].stats == {"fused": 1}
    assert_equivalent(before, result.graph, training=True)


NO_FUNCTION = "no function that its kernel has alone reads it"

FUNCTIONS = [
    RELU,
    "%y = relu(%n)",
    "%y = clip(%n) {a_max=0.75, a_min=-0.5}",
    "%y = LeakyReLU(%n) {slope=0.1}",
    '%y = LeakyReLU(%n) {act_type="leaky"}',
    "%s = elemwise_add(%n, %c) %y = relu(%s)",
    "%s = broadcast_add(%c, %n) %y = relu(%s)",
    "%s = sigmoid(%n) %y = elemwise_mul(%n, %s)",
    '%s = Activation(%n) {act_type="sigmoid"} %y = broadcast_mul(%s, %n)',
    "%s = hard_sigmoid(%n) {alpha=0.16666667} %y = elemwise_mul(%n, %s)",
    "%p = _plus_scalar(%n) {scalar=3} %k = clip(%p) {a_min=0, a_max=6}"
    " %s = _div_scalar(%k) {scalar=6} %y = elemwise_mul(%n, %s)",
    "%p = _plus_scalar(%n) {scalar=3.0} %k = clip(%p) {a_min=0.0, a_max=6.0}"
    " %s = elemwise_mul(%k, %n) %y = _mul_scalar(%s) {scalar=0.16666666666666666}",
]


@pytest.mark.parametrize(
    ("tail", "channels"), one_of(4, itertools.product(FUNCTIONS, [3, 8, 24, 32, 48]))
)
def test_equivalent(tail: str, channels: int) -> None:
    before = net(tail, channels=channels)
    after = run_pass(before, PASS, mode="training").graph
    assert fused(after) == 1
    assert_equivalent(before, after, training=True, seeds=(0,))
    assert_equivalent(before, after, seeds=(0,))
    assert unfuse(after) == before


@pytest.mark.parametrize("attrs", ["", "use_global_stats=True", "eps=0.1, momentum=0.5"])
def test_attributes(attrs: str) -> None:
    before = net(attrs=attrs)
    after = run_pass(before, PASS, mode="training").graph
    assert fused(after) == 1
    assert_equivalent(before, after, training=True)


def test_arrays_stay_in_blocks() -> None:
    before = net(channels=32)
    after = run_pass(before, PASS, mode="training").graph
    own = bridge.load(import_mxnet())
    calls = own.graphopt_calls_in_blocks()
    assert_equivalent(before, after, training=True, seeds=(0,))
    assert own.graphopt_calls_in_blocks() == calls + 2  # forward and backward


def test_a_block_of_a_residual_net() -> None:
    """Both ways to the sum are normalized: one is taken along, the other one stays."""
    tail = """
      %d = Convolution(%x, %w) {kernel=(1, 1), no_bias=True, num_filter=16}
      %o = BatchNorm(%d, %g, %b, %m2, %var2) {fix_gamma=False}
      %s = elemwise_add(%n, %o)
      %y = relu(%s)"""
    before = with_types(
        parse(
            f"""
            graph net(%x: f32[2,8,12,11], param %w: ?, param %g: ?, param %b: ?,
                      aux %m: ?, aux %var: ?, aux %m2: ?, aux %var2: ?) {{
              %c = Convolution(%x, %w) {{kernel=(1, 1), no_bias=True, num_filter=16}}
              %n = BatchNorm(%c, %g, %b, %m, %var) {{fix_gamma=False}}
              {tail}
              return %y
            }}"""
        )
    )
    result = run_pass(before, PASS, mode="training")
    assert result.receipts[0].stats == {"fused": 1, "with a sum": 1}
    assert [r.message for r in result.remarks] == [
        "it stays: another BatchNorm takes their sum along"
    ]
    assert_equivalent(before, result.graph, training=True)


@pytest.mark.parametrize(
    ("tail", "attrs", "result", "message"),
    [
        (RELU, "", "%y, %n", NO_FUNCTION),
        ("%y = sigmoid(%n)", "", "%y", NO_FUNCTION),
        ("%y = LeakyReLU(%n) {slope=-0.1}", "", "%y", NO_FUNCTION),
        ("%y = clip(%n) {a_max=-1, a_min=1}", "", "%y", NO_FUNCTION),
        ("%y = elemwise_add(%n, %c)", "", "%y", NO_FUNCTION),
        ("%s = elemwise_add(%n, %n) %y = relu(%s)", "", "%y", NO_FUNCTION),
        ("%s = elemwise_add(%n, %c) %y = clip(%s) {a_max=6, a_min=0}", "", "%y", NO_FUNCTION),
        ("%r = relu(%n) %y = elemwise_add(%r, %n)", "", "%y", NO_FUNCTION),
        ("%s = sigmoid(%n) %y = elemwise_mul(%n, %s)", "", "%y, %s", NO_FUNCTION),
        ("%s = sigmoid(%n) %y = elemwise_mul(%c, %s)", "", "%y", NO_FUNCTION),
        ("%s = tanh(%n) %y = elemwise_mul(%n, %s)", "", "%y", NO_FUNCTION),
        ("%s = hard_sigmoid(%n) %y = elemwise_mul(%n, %s)", "", "%y", NO_FUNCTION),
        (
            "%p = _plus_scalar(%n) {scalar=2} %k = clip(%p) {a_min=0, a_max=6}"
            " %s = _div_scalar(%k) {scalar=6} %y = elemwise_mul(%n, %s)",
            "",
            "%y",
            NO_FUNCTION,
        ),
        (
            "%p = _plus_scalar(%n) {scalar=3} %k = clip(%p) {a_min=0, a_max=6}"
            " %y = elemwise_mul(%n, %k)",
            "",
            "%y",
            NO_FUNCTION,
        ),
        (
            "%s = sigmoid(%n) %t = elemwise_mul(%n, %s) %y = elemwise_mul(%t, %n)",
            "",
            "%y",
            NO_FUNCTION,
        ),
        (RELU, "axis=2", "%y", "it is not over the channels of images"),
    ],
)
def test_what_stays(tail: str, attrs: str, result: str, message: str) -> None:
    before = net(tail, attrs, result=result)
    found = run_pass(before, PASS, mode="training")
    assert found.graph == before
    assert message in found.remarks[0].message


def test_other_dtypes_and_ranks_stay() -> None:
    text = """
    graph net(%x: f64[2,8,3,3], param %g: ?, param %b: ?, aux %m: ?, aux %var: ?) {
      %n = BatchNorm(%x, %g, %b, %m, %var)
      %y = relu(%n)
      return %y
    }"""
    found = run_pass(with_types(parse(text)), PASS, mode="training")
    assert "it normalizes float64" in found.remarks[0].message
    found = run_pass(
        with_types(parse(text.replace("f64[2,8,3,3]", "f32[2,8]"))), PASS, mode="training"
    )
    assert "it is not over the channels of images" in found.remarks[0].message


def test_not_in_inference() -> None:
    found = run_pass(net(), PASS, mode="inference", frozen=True)
    assert fused(found.graph) == 0


def test_without_kernels() -> None:
    class Lacking(MXNetTarget):
        def why_no_kernels(self, device: str = "cpu") -> str | None:
            return "there is no compiler"

    found = run_pass(net(), PASS, mode="training", target=Lacking())
    assert fused(found.graph) == 0
    assert found.remarks[0].message == "BatchNorms stay as they are: there is no compiler"
