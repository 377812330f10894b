"""Texts that are no specs: each is refused by name, whatever would read it."""

from __future__ import annotations

import pytest

from graphopt.errors import ParseError
from graphopt.kernels.spec_parser import parse


@pytest.mark.parametrize(
    "text",
    [
        "f32[a|b] (f32[a,b]) { %1 = floor %0; return %1:f32[a] }",
        "f32[a|b] (f32[a,b]) { %1 = floor %0; return %1:f32[a,b], %1:f16[1,1] }",
        "f32[|a] (f32[a]) { %1 = reduce_max %0; %2 = sub %0 %1; return %1:f32[], %2:f32[] }",
        "f32[a|b|c] (f32[1,b,c]) { %1 = square %0; return %1:f32[c] }",
        "f32[a|b] (f32[a], f32[b]) { %2 = add %0 %1; %3 = softmax %2; return %3:f32[a] }",
    ],
    ids=["a row", "beside one", "a number", "columns", "softmax"],
)
def test_values_within_rows_are_reduced_by_instructions(text: str) -> None:
    with pytest.raises(ParseError, match="varies along rows; reduce that first"):
        parse(text)


def test_values_of_rows_are_summed_over_rows() -> None:
    texts = (
        "f32[a|b] (f32[a,b]) { %1 = reduce_sum %0; return %1:f32[] }",
        "f32[a|b] (f32[a,b], f32[a]) { %2 = neg %1; return %0:f32[a,b], %2:f32[] }",
        "f32[a|b,c] (f32[a,b,c]) { %1 = neg %0; return %1:f32[b] }",
        "f32[a,b] (f32[a,b]) { %1 = neg %0; return %1:f32[] }",
    )
    for text in texts:
        assert str(parse(text)) == text
