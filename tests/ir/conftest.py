"""MXNet's registry of operators."""

from __future__ import annotations

import pytest

from tests.ir.ops_support import Registry


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry()
