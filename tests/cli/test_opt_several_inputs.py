"""What ``graphopt opt -o`` says of files of models of several inputs of equal extents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Graphopt


@pytest.mark.parametrize(
    ("op", "alone"),
    [
        ("slice_like", True),
        ("broadcast_like", True),
        ("broadcast_add", True),
        ("elemwise_add", False),
        ("dot", False),
    ],
)
def test_that_they_serve_these_alone(
    graphopt: Graphopt, tmp_path: Path, mx: Any, op: str, alone: bool
) -> None:
    made = getattr(mx.sym, op)(mx.sym.tanh(mx.sym.var("x")), mx.sym.var("y"))
    made.save(str(tmp_path / "m-symbol.json"))
    given = (tmp_path / "m-symbol.json", "--shape", "x:3,3", "--shape", "y:3,3")
    ran = graphopt("opt", *given, "--mode", "inference", "-o", tmp_path / "out-symbol.json")
    assert ran.code == 0
    assert ("it serves data of these shapes alone" in ran.err) is alone
