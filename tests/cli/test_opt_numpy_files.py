"""Files that ``graphopt opt -o`` writes of nets of ``mx.np``, for which an extent of 0 is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Graphopt


def _rectified(sym: Any, hidden: Any) -> Any:
    return sym.np.where(hidden > 0, hidden, sym.np.zeros_like(hidden))


def _joined(sym: Any, hidden: Any) -> Any:
    return sym.np.concatenate([hidden, sym.np.zeros_like(hidden)], axis=0)


def _with_zeros(sym: Any, hidden: Any) -> Any:
    return sym.np.sum(hidden, axis=0, keepdims=True) + sym.np.ones_like(hidden)


@pytest.mark.parametrize("function", [_rectified, _joined, _with_zeros])
def test_fills_have_the_extents_they_had(
    graphopt: Graphopt, tmp_path: Path, mx: Any, function: Callable[[Any, Any], Any]
) -> None:
    data = mx.sym.var("data").as_np_ndarray()
    symbol = function(mx.sym, mx.sym.np.tanh(data))
    symbol.save(str(tmp_path / "m-symbol.json"))
    path = tmp_path / "out-symbol.json"
    given = (tmp_path / "m-symbol.json", "--shape", "data:2,3")
    ran = graphopt("opt", *given, "-o", path)
    assert ran.code == 0
    with mx.util.np_shape(True), mx.util.np_array(True):
        x = mx.np.random.uniform(-1, 1, size=(2, 3))
        plain, made = (
            mx.gluon.SymbolBlock.imports(str(each), ["data"])
            for each in (tmp_path / "m-symbol.json", path)
        )
        np.testing.assert_allclose(made(x).asnumpy(), plain(x).asnumpy(), rtol=1e-5, atol=1e-6)
