"""Executors of one test tell nothing of those of another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphopt.modules import stay


@pytest.fixture(autouse=True)
def _nothing_was_dropped() -> Iterator[None]:
    stay.forget()
    yield
    stay.forget()
