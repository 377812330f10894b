"""How remarks and reports tell counts."""

import pytest

from graphopt.pipeline.remarks import counted


@pytest.mark.parametrize(
    ("count", "words", "told"),
    [
        (0, ["calls"], "0 calls"),
        (1, ["calls"], "1 call"),
        (2, ["calls"], "2 calls"),
        (1, ["by columns"], "1 by columns"),
        (1, ["flushes", "flush"], "1 flush"),
        (2, ["flushes", "flush"], "2 flushes"),
        (1, ["more types", "more type"], "1 more type"),
    ],
)
def test_counts(count: int, words: list[str], told: str) -> None:
    assert counted(count, *words) == told
