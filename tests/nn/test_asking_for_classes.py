"""Methods of views and twins that ask for their class, and write to it: as on the user's Block."""

from __future__ import annotations

import abc
import operator
from typing import Any, Generic, TypeVar
from unittest import mock

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()
gluon, nn = mx.gluon, mx.gluon.nn

T = TypeVar("T")


class Abstract(gluon.Block, abc.ABC):
    """What the child below is made of."""

    @abc.abstractmethod
    def title(self) -> str: ...

    def says(self) -> str:
        return f"this is {self.title()}"

    def forward(self, x):
        return x if x.sum().asscalar() > 0 else -x


class Counted(Abstract, Generic[T]):
    """Counts on its class, and calls its base in the way that goes for leaf classes."""

    calls = 0
    layer: Any = None

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layer = nn.Dense(2, in_units=2)

    def title(self) -> str:
        return "counted"

    def says(self) -> str:
        return super(self.__class__, self).says() + "!"

    def counts(self) -> Any:
        type(self).calls += 1
        self.__class__.calls += 10
        return self.calls, type(self).calls, self.__class__.calls, Counted.calls

    def sets_and_deletes(self) -> Any:
        type(self).mark = self
        found = Counted.__dict__["mark"]
        del type(self).mark
        return found, hasattr(Counted, "mark"), type(self).layer

    def kinds(self, other: Any) -> Any:
        mine, others = type(self), type(other)
        asked = issubclass(others, mine), issubclass(mine, others), mine == others
        asked += isinstance(other, mine), isinstance(self, others), hash(mine) == hash(others)
        asked += self.__class__ is Counted, isinstance(other, self.__class__), mine in {Counted}
        return (*asked, others in {Counted, nn.Dense}, self.__class__ is other.__class__)

    def of_kind(self) -> Any:
        return str(type(self)[int]), type(type(self)[int]()), issubclass(int, type(self))

    def abstract(self) -> Any:
        others = self, self.layer, 3
        return [(isinstance(other, Abstract), isinstance(other, Other)) for other in others]

    def forward(self, x):
        type(self).calls += 1
        return super(self.__class__, self).forward(self.layer(x))


class Other(Abstract):
    """Another class of that base, which asks all of its subclasses."""

    def title(self) -> str:
        return "other"


class Graph(gluon.HybridBlock):
    """Counts on its class, and is compiled."""

    calls = 0

    def counts(self) -> Any:
        type(self).calls += 1
        self.__class__.calls += 10
        return type(self).calls, Graph.calls

    def hybrid_forward(self, F, x):
        return F.relu(x)


class SubGraph(Graph):
    """Calls its base in the way that goes for leaf classes."""

    def counts(self) -> Any:
        return super(self.__class__, self).counts()

    def hybrid_forward(self, F, x):
        return super(self.__class__, self).hybrid_forward(F, x) * 2


class Net(gluon.Block):
    """Has these as children."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.counted, self.again, self.other = Counted(), Counted(), Other()
            self.graph, self.sub = Graph(), SubGraph()

    def kinds(self) -> Any:
        others = self.counted, self.again, self.graph, Counted()
        return [self.counted.kinds(other) for other in others]

    def of_graphs(self) -> Any:
        kinds = type(self.graph), type(self.sub), type(self.counted.layer)
        found = [{Graph: 1, SubGraph: 2, nn.Dense: 3}[kind] for kind in kinds]
        return found, kinds[0] == Graph, kinds[1] == Graph, self.sub.__class__ is SubGraph

    def graphs_count(self) -> Any:
        return self.graph.counts(), self.sub.counts()

    def ask_child(self, name: str) -> Any:
        return getattr(self.counted, name)()

    def forward(self, x):
        return self.sub(self.graph(self.other(self.again(self.counted(x)))))


def fresh() -> Any:
    Counted.calls = Graph.calls = SubGraph.calls = 0
    net = Net()
    net.initialize(mx.init.One(), ctx=mx.cpu())
    return net


def told(value: Any, net: Any) -> Any:
    if value is net.counted:
        return "child"
    return [told(part, net) for part in value] if isinstance(value, (list, tuple)) else value


OF_CHILDREN = ["says", "counts", "sets_and_deletes", "of_kind", "abstract"]


@pytest.mark.parametrize("record", [False, None])
@pytest.mark.parametrize("name", ["kinds", "of_graphs", "graphs_count", *OF_CHILDREN])
def test_classes_are_the_users(name: str, record: bool | None) -> None:
    def ask(called: Any) -> Any:
        return called.ask_child(name) if name in OF_CHILDREN else getattr(called, name)()

    x, answers = mx.nd.array([[1, 2]]), []
    for is_plain in (True, False):
        net = fresh()
        called = net if is_plain else graphopt.optimize(net, record=record)
        results = [called(x).asnumpy() for _ in range(3)]
        np.testing.assert_allclose(results, np.full((3, 1, 2), 12), atol=1e-5)
        asked = told([ask(called), ask(called)], net)
        answers.append((asked, Counted.calls, Graph.calls))
    assert answers[0] == answers[1]


def test_views_are_asked_for_their_classes() -> None:
    net = SubGraph()
    view = graphopt.optimize(net)
    SubGraph.calls = 0
    assert view.counts()[0] == net.__class__.calls == 11
    assert view.__class__ is SubGraph
    kind = type(view)
    assert kind == SubGraph
    assert kind != Graph
    assert isinstance(net, type(view))
    assert issubclass(SubGraph, type(view))
    assert not issubclass(Graph, type(view))
    assert {"explain", "counts", "collect_params"} <= {*dir(view)}
    x = mx.nd.array([[1, -2]])
    np.testing.assert_allclose(view(x).asnumpy(), net(x).asnumpy(), atol=1e-6)


def test_decorated_classes_are_those_of_their_instances() -> None:
    @graphopt.optimize
    class Decorated(gluon.Block):
        made = 0

        def __init__(self) -> None:
            super(self.__class__, self).__init__()
            type(self).made += 1
            self.__class__.made += 10

        def forward(self, x):
            return x * 2

    net, x = Decorated(), mx.nd.array([[1, -2]])
    assert Decorated.made == 11
    assert net.__class__ is Decorated
    kind = type(net)
    assert kind == Decorated
    np.testing.assert_allclose(net(x).asnumpy(), [[2, -4]], atol=1e-6)


def test_a_patched_method_comes_back() -> None:
    class Doubled(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            return x * 2

    fast = graphopt.optimize(Doubled())
    own = vars(Doubled)["hybrid_forward"]
    with mock.patch.object(type(fast), "hybrid_forward", lambda self, F, x: x * 10):
        assert graphopt.optimize(Doubled())(mx.nd.ones(1)).asscalar() == 10
    assert vars(Doubled)["hybrid_forward"] is own
    assert graphopt.optimize(Doubled())(mx.nd.ones(1)).asscalar() == 2


def test_subclasses_of_a_nets_class_are_others() -> None:
    cls: Any = type(graphopt.optimize(nn.Dense(2)))

    class Other(cls):
        pass

    assert operator.eq(Other, Other)
    assert not operator.ne(Other, Other)
    assert Other not in [nn.Dense, cls]
    assert cls == nn.Dense
