"""Blocks with an ``export`` of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Named(nn.HybridSequential):  # type: ignore[misc, name-defined]
    """Writes a list of its classes beside what Gluon writes."""

    def export(self, path: str, classes: tuple[str, ...] = ("cat", "dog")) -> str:
        super().export(path, epoch=3)
        Path(f"{path}.txt").write_text("\n".join(classes))
        return path


class Single(nn.HybridSequential):  # type: ignore[misc, name-defined]
    """Gives its files other names."""

    def export(self, path: str) -> None:
        self._cached_graph[1].save(f"{path}-symbol.json")
        params = {f"arg:{name}": p.data() for name, p in self.collect_params().items()}
        mx.nd.save(f"{path}.params", params)


def made(cls: type) -> Any:
    net = cls()
    net.add(nn.Dense(3, in_units=2, activation="tanh"), nn.Dense(2, in_units=3))
    net.initialize()
    return net


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("hybridized", [True, False])
@pytest.mark.parametrize("cls", [Named, Single])
def test_it_is_called(cls: type, hybridized: bool, tmp_path: Path) -> None:
    net, x = made(cls), mx.nd.array([[1, -2], [0.5, 3]])
    if hybridized:
        net.hybridize()
    fast = graphopt.optimize(net)
    with pytest.raises(Exception, match=r"call|subscript|index"):
        fast.export(str(tmp_path / "early"))
    want = fast(x).asnumpy()
    fast.export(str(tmp_path / "m"))
    files = {"m-symbol.json", "m-0003.params", "m.txt"}
    assert {f.name for f in tmp_path.iterdir()} == (
        files if cls is Named else {"m-symbol.json", "m.params"}
    )
    params = tmp_path / ("m-0003.params" if cls is Named else "m.params")
    loaded = gluon.SymbolBlock.imports(str(tmp_path / "m-symbol.json"), ["data"], str(params))
    np.testing.assert_allclose(loaded(x).asnumpy(), want, rtol=1e-6, atol=1e-6)
