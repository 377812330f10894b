"""Files of nets whose names are not ASCII: MXNet reads none of the escapes that JSON may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import graphopt
from graphopt.backend.recompute import with_distinct_outputs
from graphopt.compat import import_mxnet
from tests.nn.optimize_support import same

mx = import_mxnet()


def _layer() -> Any:
    data = mx.sym.var("größe")
    symbol = mx.sym.FullyConnected(data, num_hidden=4, name="層")
    return mx.gluon.SymbolBlock(symbol, [data])


def _recurrence() -> Any:
    return mx.gluon.rnn.LSTM(4, input_size=3, prefix="größe_")


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("mode", ["auto", "inference"])
@pytest.mark.parametrize(
    ("make", "shape"), [(_layer, (2, 3)), (_recurrence, (5, 2, 3))], ids=["layer", "recurrence"]
)
def test_names_are_written_as_they_are(
    tmp_path: Path, make: Any, shape: tuple[int, ...], mode: str
) -> None:
    net = make()
    net.initialize(mx.init.Uniform(0.5))
    fast = graphopt.optimize(net, mode=mode)
    x = mx.nd.random.uniform(shape=shape)
    want = net(x)
    fast(x)
    fast.export(str(tmp_path / "m"))
    files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
    data = "größe" if make is _layer else "data"
    same(mx.gluon.SymbolBlock.imports(files[0], [data], files[1])(x), want)


def test_outputs_that_are_one_value_get_their_own() -> None:
    data = mx.sym.var("größe")
    doubled = data * 2
    symbol = with_distinct_outputs(mx.sym.Group([doubled, doubled]))
    x = mx.nd.random.uniform(shape=(2, 3))
    for got in symbol.bind(mx.cpu(), {"größe": x}).forward():
        same(got, x * 2)
