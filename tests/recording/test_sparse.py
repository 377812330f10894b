"""Plain Blocks that make sparse arrays of dense ones: what makes them runs at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.recording.arrays import Ref, pending, settle
from tests.recording.nets import array, block, programs

mx = import_mxnet()
nn, nd = mx.gluon.nn, mx.nd


def told_by_storage(self: Any, h: Any) -> Any:
    return h * (2 if nd.cast_storage(h, "csr").stype == "csr" else 3)


def told_by_class(self: Any, h: Any) -> Any:
    return h * (2 if isinstance(h.tostype("csr"), nd.sparse.CSRNDArray) else 3)


def told_by_product(self: Any, h: Any) -> Any:
    product = nd.dot(h, nd.ones((3, 3)), forward_stype="csr")
    return h * (2 if product.stype == "csr" else 3)


def told_by_numbers(self: Any, h: Any) -> Any:
    matrix = nd.sparse.csr_matrix(np.eye(4)[:, :3]) * 2
    return h * (2 if matrix.stype == "csr" else 3)


def parts(self: Any, h: Any) -> Any:
    return h * h.tostype("row_sparse").indices.shape[0]


def kept(self: Any, h: Any) -> Any:
    self.kept = h.tostype("row_sparse")
    return h + 1


def values_read(self: Any, h: Any) -> Any:
    return h * float(h.tostype("csr").asnumpy().sum())


def returned(self: Any, h: Any) -> Any:
    return nd.tanh(h), h.tostype("csr")


def multiplied(self: Any, h: Any) -> Any:
    return nd.tanh(nd.dot(h.tostype("csr"), self.w.data()))


FUNCTIONS = [
    *(told_by_storage, told_by_class, told_by_product, told_by_numbers),
    *(parts, kept, values_read, returned, multiplied),
]


class Of(mx.gluon.Block):
    """What a function makes of a layer's results."""

    def __init__(self, function: Any, child: Any = None) -> None:
        super().__init__()
        self._function, self.child = function, child
        with self.name_scope():
            self.layer = nn.Dense(3, in_units=6)
            self.w = self.params.get("w", shape=(3, 2))

    def forward(self, x: Any) -> Any:
        return self._function(self, nd.relu(self.layer(x)))


def steps(function: Any, child: Any = None, **options: Any) -> list[Any]:
    """Results, their storage and gradients of some calls, every other one of which learns."""
    mx.random.seed(3)
    net = Of(function, child)
    net.initialize(mx.init.Uniform(0.5))
    run = graphopt.optimize(net, **options) if options else net
    found: list[Any] = []
    for at in range(8):
        with mx.autograd.record() if at % 2 else mx.autograd.pause():
            made = run(array(4, 6))
        made = made if isinstance(made, tuple) else (made,)
        if at % 2:
            made[0].backward()
            found.append(net.layer.weight.grad().asnumpy())
        found += [array.asnumpy() for array in made] + [array.stype for array in made]
    return found


def assert_alike(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, str):
            assert one == other
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("record", [True, None])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_are_those_of_python(function: Any, record: bool | None) -> None:
    assert_alike(steps(function, record=record), steps(function))


class Sparse(mx.gluon.HybridBlock):
    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.cast_storage(x * 2, "csr")


def by_child(self: Any, h: Any) -> Any:
    made = self.child(h)
    return nd.tanh(h) * (2 if made.stype == "csr" else 3)


def test_hybridized_children_return_sparse_arrays() -> None:
    def child() -> Any:
        made = Sparse()
        made.hybridize()
        return made

    assert_alike(steps(by_child, child(), record=True), steps(by_child, child()))


def test_what_is_around_is_recorded() -> None:
    net = block(lambda self, x: nd.tanh(nd.relu(x) + 1) * nd.relu(x).tostype("csr").data.sum())
    optimized = graphopt.optimize(net, record=True)
    for _ in range(3):
        found = optimized(array(3, 4))
    np.testing.assert_allclose(found.asnumpy(), net(array(3, 4)).asnumpy(), rtol=1e-5, atol=1e-6)
    assert programs(optimized).compiled


def test_an_unforeseen_sparse_array_is_told() -> None:
    promised: Any = pending(Ref(None, 0, ((2, 2), "float32")), is_np=False)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"made a csr array.*record=False"):
        settle(promised, nd.ones((2, 2)).tostype("csr"))
