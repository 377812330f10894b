"""Kernels over channels in blocks against the same kernels over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graphopt.errors import GraphoptError
from graphopt.kernels.blocks import in_blocks
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.run import run
from graphopt.kernels.spec_parser import parse

BLOCK = 4


def blocked(array: Any) -> Any:
    """(n, c, ...) in blocks of four channels."""
    n, c, *more = array.shape
    split = array.reshape(n, c // BLOCK, BLOCK, *more)
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def by_channel(array: Any, operand: Any) -> Any:
    """What does not run along all axes: the same numbers in the same order."""
    if 1 not in operand.axes:
        return array
    at = operand.axes.index(1)
    shape = array.shape
    return array.reshape(*shape[:at], shape[at] // BLOCK, *shape[at + 1 :], BLOCK)


@pytest.mark.parametrize(
    "text",
    [
        "f32[a,b,c,d] (f32[a,b,c,d], f32[b]) { %2 = mul %0 %1; return %2:f32[a,b,c,d] }",
        "f32[a,b,c,d] (f32[a,b,c,d], f32[a,b,1,1]) { %2 = mul %0 %1; return %2:f32[a,b,c,d] }",
        "f32[a,b,c,d] (f32[a,b,c,d], f32[1,b,1,1], f32[1], f32[a,1,c,d])"
        " { %4 = mul %0 %1; %5 = add %4 %2; %6 = max %5 %3; return %6:f32[a,b,c,d] }",
        "f32[a,b,c] (f32[a,b,c], f32[a,b,c]) { %2 = sub %0 %1; return %2:f32[a,b,c] }",
        "f32[a,b,c,d] (f32[a,b,c,d], f32[a,b,c,d]) { %2 = mul %0 %1; return %2:f32[b] }",
        "f32[a,b,c,d] (f32[a,b,c,d], f32[a,b,c,d]) { %2 = mul %0 %1; return %2:f32[a,b,1,1] }",
    ],
)
def test_blocks_and_rows_agree(text: str) -> None:
    spec = parse(text)
    extents = (2, 8, 3, 5)[: spec.rank]
    rng = np.random.default_rng(0)
    arrays = [
        rng.normal(size=[1 if axis is None else extents[axis] for axis in operand.axes]).astype("f")
        for operand in spec.inputs
    ]
    every = tuple(range(spec.rank))
    laid = [
        blocked(array) if operand.axes == every else by_channel(array, operand)
        for operand, array in zip(spec.inputs, arrays, strict=True)
    ]
    found = run(in_blocks(spec), laid)
    for result, want, got in zip(spec.outputs, evaluate(spec, arrays), found, strict=True):
        operand = result.operand
        expected = blocked(want) if operand.axes == every else by_channel(want, operand)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f32[a,b] (f32[a,b]) { %1 = neg %0; return %1:f32[a,b] }", "no kernel over blocks"),
        ("f32[a,b|c] (f32[a,b,c]) { %1 = softmax %0; return %1:f32[a,b,c] }", "no kernel over"),
        (
            "f32[a,b,c] (f32[a,b,c], f32[b,c]) { %2 = mul %0 %1; return %2:f32[a,b,c] }",
            "is in another order in blocks of channels",
        ),
    ],
)
def test_refusals(text: str, why: str) -> None:
    with pytest.raises(GraphoptError, match=why):
        in_blocks(parse(text))
