"""Classes of twins and views: nothing of the user's hears of them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn


class Registering(type):
    """Registers the classes it makes, each under a tag."""

    made: ClassVar[list[str]] = []

    def __new__(cls, name: str, bases: Any, body: Any, *, tag: str) -> Any:
        return super().__new__(cls, name, bases, body)

    def __init__(cls, name: str, bases: Any, body: Any, *, tag: str) -> None:
        super().__init__(name, bases, body)
        assert f"{name} {tag}" not in cls.made, "a class of that name is there already"
        cls.made.append(f"{name} {tag}")


class Tagged:
    """Registers its subclasses, each under a tag."""

    made: ClassVar[list[str]] = []

    def __init_subclass__(cls, *, tag: str, **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.made.append(f"{cls.__name__} {tag}")


class Signed(gluon.Block, metaclass=Registering, tag="of a metaclass"):
    """Is taken child by child."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = nn.Dense(2, in_units=2)

    def another(self) -> Any:
        return type(self)()

    def forward(self, x):
        return self.dense(x) if x.sum().asscalar() > 0 else -x


class Graph(gluon.HybridBlock, metaclass=Registering, tag="of a graph"):
    """Is compiled."""

    def hybrid_forward(self, F, x):
        return F.relu(x) * 2


class Heard(Tagged, gluon.Block, tag="of a base"):
    """Has a base that hears of subclasses, and children of classes whose class does."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.signed, self.graph = Signed(), Graph()

    def another_child(self) -> Any:
        return self.signed.another()

    def forward(self, x):
        return self.graph(self.signed(x))


class Nested(Tagged, gluon.Block, tag="of a parent"):
    """Has it as a child."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.heard = Heard()

    def another_child(self) -> Any:
        return self.heard.another_child()

    def forward(self, x):
        return self.heard(x)


@pytest.mark.parametrize("record", [False, None])
def test_metaclasses_and_bases_hear_of_no_class_but_the_users(record: bool | None) -> None:
    known = [*Registering.made], [*Tagged.made]
    net = Nested()
    net.initialize(mx.init.Uniform(1), ctx=mx.cpu())
    view = graphopt.optimize(net, record=record)
    x = mx.nd.array([[1, 2]])
    for _ in range(3):
        np.testing.assert_allclose(view(x).asnumpy(), net(x).asnumpy(), atol=1e-6)
    assert type(view.another_child()) is Signed
    assert (Registering.made, Tagged.made) == known


def test_metaclasses_hear_of_a_decorated_class_once() -> None:
    known = [*Registering.made]

    @graphopt.optimize
    class Decorated(Graph, tag="decorated"):
        pass

    net, x = Decorated(), mx.nd.array([[1, -2]])
    np.testing.assert_allclose(net(x).asnumpy(), [[2, 0]], atol=1e-6)
    assert Registering.made == [*known, "Decorated decorated"]
    Registering.made.remove("Decorated decorated")
