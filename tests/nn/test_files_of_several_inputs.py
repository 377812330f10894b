"""Files of nets of several inputs, which had equal extents when they were called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.optimize_support import same

mx = import_mxnet()
Shape = tuple[int, ...]
Function = Callable[..., Any]


class Joining(mx.gluon.HybridBlock):
    """Makes something of what a layer makes of data, and of other data."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3, in_units=3, flatten=False)

    def hybrid_forward(self, F: Any, *data: Any) -> Any:
        return self.function(F, self.dense(data[0]), *data[1:])


def _cut(F: Any, x: Any, y: Any) -> Any:
    return F.slice_like(x, y)


def _like(F: Any, x: Any, y: Any) -> Any:
    return F.sum(F.broadcast_like(x, y), axis=0)


def _added(F: Any, x: Any, y: Any) -> Any:
    return F.broadcast_add(x, y)


def _counted(F: Any, x: Any, y: Any) -> Any:
    return F.broadcast_div(x, F.sum(F.ones_like(y)))


def _attended(F: Any, x: Any, mask: Any) -> Any:
    scores = F.batch_dot(x, x, transpose_b=True) * mask
    count = F.sum(F.ones_like(mask), axis=2, keepdims=True)
    return F.broadcast_div(F.batch_dot(scores, x), count)


def _times(F: Any, x: Any, y: Any) -> Any:
    return F.broadcast_mul(x, F.sigmoid(y))


def _zeroed(F: Any, x: Any, y: Any) -> Any:
    return F.broadcast_add(x, F.zeros_like(F.slice_axis(y, axis=0, begin=0, end=1)))


def _exported(function: Function, shapes: tuple[Shape, Shape], path: Path) -> tuple[Any, Any]:
    """A net, and plain MXNet's of the file that was written after a call with such shapes."""
    net = Joining(function)
    net.initialize(mx.init.Normal(1))
    fast = graphopt.optimize(net, mode="inference")
    fast(*(mx.nd.random.normal(shape=shape) for shape in shapes))
    fast.export(str(path / "m"))
    names = ["data0", "data1"]
    mx.mod.Module(mx.sym.load(str(path / "m-symbol.json")), names, label_names=None)
    files = str(path / "m-symbol.json"), str(path / "m-0000.params")
    return net, mx.gluon.SymbolBlock.imports(files[0], names, files[1])


@pytest.mark.filterwarnings("ignore:Cannot decide type", "ignore:.*the net as it is")
@pytest.mark.parametrize(
    ("function", "shapes", "later"),
    [
        (_cut, ((2, 4, 3), (2, 4, 3)), ((2, 7, 3), (2, 5, 3))),
        (_like, ((2, 3), (2, 3)), ((1, 3), (4, 3))),
        (_added, ((2, 3), (2, 3)), ((4, 3), (1, 3))),
        (_added, ((2, 3), (2, 3)), ((1, 3), (4, 3))),
        (_counted, ((2, 3), (2, 3)), ((2, 3), (5, 3))),
        (_counted, ((2, 3), (4, 3)), ((2, 3), (5, 3))),
        (_attended, ((2, 4, 3), (2, 4, 4)), ((3, 6, 3), (3, 6, 6))),
        (_zeroed, ((2, 3), (2, 3)), ((4, 3), (3, 3))),
    ],
)
def test_later_ones_may_have_others(
    tmp_path: Path, function: Function, shapes: tuple[Shape, Shape], later: tuple[Shape, Shape]
) -> None:
    net, plain = _exported(function, shapes, tmp_path)
    for each in (shapes, later):
        data = [mx.nd.random.normal(shape=shape) for shape in each]
        same(plain(*data), net(*data))


@pytest.mark.filterwarnings("error:.*the net as it is", "ignore:Cannot decide type")
@pytest.mark.parametrize(
    ("function", "shapes"),
    [(_times, ((2, 3), (1, 3))), (_times, ((2, 3), (2, 1))), (_times, ((4, 3), (1, 3)))],
)
def test_a_row_for_all_samples_is_no_sample(
    tmp_path: Path, function: Function, shapes: tuple[Shape, Shape]
) -> None:
    net, plain = _exported(function, shapes, tmp_path)
    data = [mx.nd.random.normal(shape=shape) for shape in shapes]
    same(plain(*data), net(*data))
