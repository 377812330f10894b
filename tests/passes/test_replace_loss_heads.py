"""replace-loss-heads."""

from __future__ import annotations

import pytest

from graphopt.ir.parser import parse
from graphopt.testing import assert_equivalent, assert_ir, run_pass

PASS = "replace-loss-heads"


def head(op: str, attrs: str = "", data: str = "f32[4,5]", label: str = "f32[4]") -> str:
    return (
        f"graph g(%data: {data}, %label: {label}) {{"
        f" %x = relu(%data) : {data} %out = {op}(%x, %label) {attrs} : {data} return %out }}"
    )


def test_golden() -> None:
    assert_ir(
        run_pass(head("SoftmaxOutput", "{grad_scale=2.0}"), PASS),
        """
        graph g(%data: f32[4,5], %label: f32[4]) {
          %x = relu(%data) : f32[4,5]
          %out = softmax(%x) {axis=-1} : f32[4,5]
          return %out
        }
        """,
    )


@pytest.mark.parametrize(
    ("op", "attrs", "data", "label"),
    [
        ("SoftmaxOutput", "", "f32[4,5]", "f32[4]"),
        ("Softmax", "", "f32[4,5]", "f32[4]"),
        ("SoftmaxOutput", "{multi_output=True}", "f32[2,3,4]", "f32[2,4]"),
        ("SoftmaxOutput", "{preserve_shape=True}", "f32[2,3,4]", "f32[2,3]"),
        ("LinearRegressionOutput", "", "f32[4,5]", "f32[4,5]"),
        ("LogisticRegressionOutput", "", "f32[4,5]", "f32[4,5]"),
        ("MAERegressionOutput", "", "f32[4,5]", "f32[4,5]"),
        ("SVMOutput", "", "f32[4,5]", "f32[4]"),
    ],
)
def test_equivalent(op: str, attrs: str, data: str, label: str) -> None:
    before = parse(head(op, attrs, data, label))
    result = run_pass(before, PASS)
    assert result.receipts[0].stats == {"replaced": 1}
    assert_equivalent(before, result.graph)


def test_softmax_over_several_axes_is_left() -> None:
    before = parse(head("SoftmaxOutput", "", "f32[2,3,4]", "f32[2]"))
    result = run_pass(before, PASS)
    assert result.receipts[0].status == "unchanged"
    assert [r.message for r in result.remarks] == ["it normalizes over several axes at once"]


def test_refused_in_training() -> None:
    result = run_pass(head("SoftmaxOutput"), PASS, mode="training")
    assert result.receipts[0].status == "refused"
    assert result.receipts[0].reason == "it would change what training computes"
