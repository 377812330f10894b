"""batch-norm-to-convolution."""

from __future__ import annotations

import pytest

from graphopt.backend.infer import with_types
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.passes.batch_norm_to_convolution import BatchNormToConvolution
from graphopt.testing import assert_equivalent, run_pass

PASS = "batch-norm-to-convolution"


def net(attrs: str = "", x: str = "f32[2,4,6,6]", tail: str = "return %r") -> Graph:
    names = "param %gamma: ?, param %beta: ?, aux %mean: ?, aux %var: ?"
    act = '%r = Activation(%bn) {act_type="relu"}'
    body = f"%p = relu(%x) %bn = BatchNorm(%p, %gamma, %beta, %mean, %var) {{{attrs}}}"
    return with_types(parse(f"graph g(%x: {x}, {names}) {{ {body} {act} {tail} }}"))


def test_example(example):
    before, after = example(BatchNormToConvolution)
    result = run_pass(before, PASS, frozen=True)
    assert result.graph == after
    assert_equivalent(before, result.graph)
    again = run_pass(result.graph, PASS, frozen=True)
    assert again.receipts[0].status == "unchanged"


@pytest.mark.parametrize("attrs", ["", "fix_gamma=False", "eps=0.1, fix_gamma=False", "axis=-3"])
def test_equivalent(attrs: str) -> None:
    before = net(attrs)
    result = run_pass(before, PASS, frozen=True)
    assert result.receipts[0].stats == {"replaced": 1}
    assert_equivalent(before, result.graph)


@pytest.mark.parametrize(
    ("attrs", "x"),
    [("", "f32[2,4]"), ("", "f32[2,4,6]"), ("axis=3", "f32[2,4,6,6]"), ("", "f64[2,4,6,6]")],
)
def test_other_shapes_and_dtypes_are_left(attrs: str, x: str) -> None:
    result = run_pass(net(attrs, x), PASS, frozen=True)
    assert result.receipts[0].status == "unchanged"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": "training"}, "it would change what training computes"),
        ({"frozen": False}, "it needs frozen parameters: use mode='inference'"),
        ({"precise": True}, "the statistics are rounded once more"),
        ({"device": "gpu"}, "it pays on the CPU only, not on the gpu"),
    ],
)
def test_refusals(settings: dict[str, object], reason: str) -> None:
    result = run_pass(net(), PASS, **{"frozen": True, **settings})
    assert result.receipts[0].status == "refused"
    assert reason in result.receipts[0].reason
