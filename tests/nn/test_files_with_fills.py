"""Files of nets that fill arrays of the shape of data, which MXNet does not infer everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.optimize_support import same

mx = import_mxnet()
Function = Callable[[Any, Any], Any]


def _stacked(F: Any, x: Any) -> Any:
    return F.stack(F.relu(x), F.zeros_like(x), axis=1)


def _correlated(F: Any, x: Any) -> Any:
    return F.Correlation(F.relu(x), F.ones_like(x), pad_size=1, max_displacement=1)


def _upsampled(F: Any, x: Any) -> Any:
    both = F.relu(x), F.zeros_like(x)
    return F.UpSampling(*both, scale=2, sample_type="nearest", num_args=2)


def _added(F: Any, x: Any) -> Any:
    return F.add_n(F.relu(x), F.ones_like(x), x)


def _exported(function: Function, path: Path) -> None:
    fast = graphopt.optimize(mx.gluon.nn.HybridLambda(function), mode="inference")
    fast(mx.nd.ones((2, 2, 6, 6)))
    fast.export(str(path / "m"))


@pytest.mark.filterwarnings("ignore:Cannot decide type", "ignore:.*the net as it is")
@pytest.mark.parametrize("function", [_stacked, _correlated, _upsampled, _added])
def test_exports_can_be_bound(tmp_path: Path, function: Function) -> None:
    _exported(function, tmp_path)
    plain = mx.gluon.SymbolBlock.imports(str(tmp_path / "m-symbol.json"), ["data"])
    symbol = mx.sym.load(str(tmp_path / "m-symbol.json"))
    for samples in (2, 5, 1):
        x = mx.nd.random.normal(shape=(samples, 2, 6, 6))
        want = function(mx.nd, x)
        same(plain(x), want)
        same(symbol.simple_bind(mx.cpu(), data=x.shape).forward(data=x)[0], want)


@pytest.mark.filterwarnings("error:.*the net as it is", "ignore:Cannot decide type")
def test_what_mxnet_infers_is_left_to_it(tmp_path: Path) -> None:
    _exported(_added, tmp_path)
