"""Exports of optimized nets: plain MXNet loads them, and what cannot be written says why."""

from __future__ import annotations

import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from tests.nn.optimize_support import image, same, small_cnn

mx = import_mxnet()


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_export_loads_in_plain_mxnet(tmp_path, mode: str) -> None:
    net = small_cnn()
    fast = graphopt.optimize(net, mode=mode)
    x = image()
    want = fast(x)
    fast.export(str(tmp_path / "m"), 3)
    block = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "m-symbol.json"), ["data"], str(tmp_path / "m-0003.params")
    )
    same(block(x), want)
    model = graphopt.load(tmp_path / "m-symbol.json", tmp_path / "m-0003.params")
    same(model(x), want)


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_exports_that_cannot_be_written(tmp_path, mode: str) -> None:
    fast = graphopt.optimize(small_cnn(), mode=mode)
    fast(image())
    with pytest.raises(InputError, match=r"cannot write .*: there is no folder"):
        fast.export(tmp_path / "none" / "m")
    with pytest.raises(InputError, match=r"cannot write '.*y': File name too long$"):
        fast.export(tmp_path / ("y" * 300))
    with pytest.raises(InputError, match="no file's name has a null character"):
        fast.export(f"{tmp_path}/a\0b")
    assert list(tmp_path.iterdir()) == []
