"""Which cases `make test` takes, and which are left to `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(every: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters of which one of ``every`` stays quick; the others are marked slow.

    Args:
        every: distance of the cases that `make test` takes, beginning with the first. One that has
            a divisor in common with the length of a parameter's list would take some values never.
        cases: values for `pytest.mark.parametrize`; a tuple is a value for each name.
    """
    return [case if number % every == 0 else _slow(case) for number, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
