"""Files that ``graphopt opt -o`` writes of nets that fill arrays of the shape of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Graphopt

Function = Callable[[Any, Any], Any]


def _stacked(sym: Any, x: Any) -> Any:
    return sym.stack(sym.tanh(x), sym.zeros_like(x), axis=0)


def _in_front(sym: Any, x: Any) -> Any:
    return sym.concat(sym.zeros_like(x), sym.tanh(x), dim=0)


def _returned(sym: Any, x: Any) -> Any:
    return sym.Group([sym.zeros_like(x), sym.tanh(x)])


def _multiplied(sym: Any, x: Any) -> Any:
    return sym.batch_dot(sym.tanh(x), sym.ones_like(x), transpose_b=True)


def _chosen(sym: Any, x: Any) -> Any:
    return sym.where(x > 0, sym.ones_like(x), sym.zeros_like(x))


def _added(sym: Any, x: Any) -> Any:
    return sym.add_n(sym.tanh(x), sym.ones_like(x), x)


@pytest.mark.parametrize(
    ("function", "alone"),
    [
        (_stacked, True),
        (_in_front, True),
        (_returned, True),
        (_multiplied, True),
        (_chosen, True),
        (_added, False),
    ],
)
def test_they_can_be_bound(
    graphopt: Graphopt, tmp_path: Path, mx: Any, function: Function, alone: bool
) -> None:
    symbol = function(mx.sym, mx.sym.var("data"))
    symbol.save(str(tmp_path / "m-symbol.json"))
    path = tmp_path / "out-symbol.json"
    given = (tmp_path / "m-symbol.json", "--shape", "data:2,3,4")
    ran = graphopt("opt", *given, "--mode", "inference", "-o", path)
    assert ran.code == 0
    assert ("it serves data of these shapes alone" in ran.err) is alone
    x = mx.nd.random.normal(shape=(2, 3, 4))
    found, wanted = (
        each.simple_bind(mx.cpu(), data=x.shape, grad_req="null").forward(data=x)
        for each in (mx.sym.load(str(path)), symbol)
    )
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)
