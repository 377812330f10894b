"""Who else has the memory of arrays, as MXNet counts its owners."""

from __future__ import annotations

import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels.bridge.memory import have_one_memory, is_shared
from graphopt.kernels.bridge.versions import fit

mx = import_mxnet()

pytestmark = pytest.mark.skipif(not fit(mx), reason="this MXNet does not tell")


def test_views_share_memory() -> None:
    array, other = mx.nd.empty((2, 3)), mx.nd.empty((2, 3))
    assert not is_shared(mx, array)
    for view in (array[1], array.reshape((6,)), array.detach()):
        assert is_shared(mx, array)
        assert is_shared(mx, view)
        assert have_one_memory(mx, array, view)
        assert not have_one_memory(mx, other, view)
    del view
    assert not is_shared(mx, array)


def test_executors_share_memory() -> None:
    array = mx.nd.empty((2, 3))
    executor = mx.sym.tanh(mx.sym.var("x")).bind(mx.cpu(), {"x": array})
    assert is_shared(mx, array)
    assert have_one_memory(mx, array, executor.arg_arrays[0])
