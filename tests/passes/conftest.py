"""Fixtures for tests of single passes."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.pipeline.base import Pass


@pytest.fixture
def work() -> Callable[[Callable[[], Any]], int]:
    """How many function calls something takes: a measure of time that does not depend on it."""

    def count(action: Callable[[], Any]) -> int:
        calls = 0

        def profile(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        previous = sys.getprofile()
        sys.setprofile(profile)
        try:
            action()
        finally:
            sys.setprofile(previous)
        return calls

    return count


@pytest.fixture
def example() -> Callable[[type[Pass]], tuple[Graph, Graph]]:
    """The graphs before and after in the example of a pass's docstring."""

    def read(cls: type[Pass]) -> tuple[Graph, Graph]:
        block = textwrap.dedent((cls.__doc__ or "").partition("Example::")[2])
        before, after = re.split(r"// after\n", block)
        return parse(before), parse(after)

    return read
