"""Python of Blocks that does something else for Symbols than for arrays, and is not hybridized."""

from __future__ import annotations

import copy
import logging
import types
from collections.abc import Callable
from typing import Any

import numpy
import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError

mx = import_mxnet()
nd = mx.nd
NDArray = mx.nd.NDArray


class Net(mx.gluon.HybridBlock):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__(prefix="net_")
        self.f = f

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.f(F, x)


def fails(F: Any, x: Any) -> Any:
    try:
        return F.tanh(x) if x.sum() > 3 else x * 3
    except Exception:  # noqa: BLE001
        return x * 5


TABLE = {"double": lambda F, x: x * 2 if isinstance(x, NDArray) else x * 3}
CLASSES = (NDArray, np.ndarray)
MODULE = mx.nd


class Helper:
    def double(self, x: Any) -> Any:
        return x * 2 if isinstance(x, NDArray) else x * 3

    @staticmethod
    def twice(x: Any) -> Any:
        return x * 2 if isinstance(x, NDArray) else x * 3


HELPER = Helper()


def paused(F: Any, x: Any) -> Any:
    with mx.autograd.pause():
        h = F.tanh(x)
    return h * x


def detached(F: Any, x: Any) -> Any:
    try:
        return F.tanh(x) * x.detach()
    except Exception:  # noqa: BLE001
        return F.tanh(x) * x


def seeded(F: Any, x: Any) -> Any:
    mx.random.seed(5)
    return x + F.random.uniform(shape=(2, 3))


ASKED: dict[str, Callable[..., Any]] = {
    "a part of an array": lambda F, x: x[0] * 2,
    "the rows of an array": lambda F, x: F.add_n(*[r * (i + 1) for i, r in enumerate(x)]),
    "rows as arguments": lambda F, x: F.stack(*x, axis=1),
    "the length of an array": lambda F, x: x.sum(axis=0) / len(x),
    "the truth of an array": fails,
    "'shape' of an array": lambda F, x: x / x.shape[-1] if hasattr(x, "shape") else x,
    "'context' of an array": lambda F, x: x * 2 if getattr(x, "context", None) else x,
    "compares with a module": lambda F, x: x * 2 if F is mx.nd else x * 3,
    "compares with a name": lambda F, x: x * 2 if nd == F else x * 3,
    "compares with modules": lambda F, x: x * 3 if F in (mx.sym, mx.symbol) else x * 2,
    "asks whether something is an array": lambda F, x: x * 2 if isinstance(x, NDArray) else x,
    "the name of a class": lambda F, x: x * 2 if type(x).__name__ == "NDArray" else x,
    "the name of a module": lambda F, x: x * 2 if F.__name__.endswith("ndarray") else x,
    "within": lambda F, x: (lambda y: y * 2 if isinstance(y, mx.nd.NDArray) else y)(x),
    "asks by a function in a dict": lambda F, x: TABLE["double"](F, x),
    "asks by an object": lambda F, x: HELPER.double(x),
    "asks by a class": lambda F, x: Helper.twice(x),
    "asks for several classes": lambda F, x: x * 2 if isinstance(x, CLASSES) else x * 3,
    "asks for __class__": lambda F, x: x * 2 if x.__class__ is NDArray else x * 3,
    "compares with another name": lambda F, x: x * 2 if F is MODULE else x * 3,
    "another state of autograd": paused,
    "'detach' of an array": detached,
    "sets a seed": seeded,
}


def called(net: Any, *, train: bool) -> list[np.ndarray]:
    x = mx.nd.array([[1, 2, 3], [4, 5, 7]])
    x.attach_grad()
    for _ in range(2):
        with mx.autograd.record() if train else mx.autograd.pause():
            y = net(x)
        if train:
            y.backward()
    return [y.asnumpy(), x.grad.asnumpy()]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("what", ASKED)
def test_what_they_ask_is_answered_by_arrays(what: str, train: bool) -> None:
    fast = graphopt.optimize(Net(ASKED[what]))
    found, want = called(fast, train=train), called(Net(ASKED[what]), train=train)
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["a part of an array", "'shape' of an array", "sets a seed"])
def test_it_is_told(what: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"is called every time: .*{what}"):
        graphopt.optimize(Net(ASKED[what]), strict=True)(mx.nd.ones((2, 3)))


#: MXNet cannot hybridize these.
REFUSED = {"the truth of an array", "'shape' of an array"}
REFUSED |= {"another state of autograd", "sets a seed"}


@pytest.mark.parametrize("what", [w for w in ASKED if w not in REFUSED])
def test_hybridized_ones_are_given_symbols(what: str) -> None:
    def hybridized() -> Any:
        net = Net(ASKED[what])
        net.hybridize()
        return net

    fast = graphopt.optimize(hybridized())
    found, want = called(fast, train=False), called(hybridized(), train=False)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5, atol=1e-6)
    assert fast._graphopt_entries()


@pytest.mark.parametrize("f", [paused, detached])
def test_what_counts_in_training_only(f: Callable[..., Any]) -> None:
    fast, plain = graphopt.optimize(Net(f)), Net(f)
    for train in (False, True, False, True):
        found, want = called(fast, train=train), called(plain, train=train)
        for one, other in zip(found, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_within_a_hybridized_one() -> None:
    class Outer(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net(ASKED["a part of an array"])
            self.inner.hybridize()

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.tanh(self.inner(x))

    fast = graphopt.optimize(Outer())
    found, want = called(fast, train=False), called(Outer(), train=False)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5, atol=1e-6)
    assert fast._graphopt_entries()


def test_results_of_several_are_lists_of_either() -> None:
    def split(F: Any, x: Any) -> Any:
        parts = F.split(x, num_outputs=3, axis=1)
        return F.add_n(*parts) * len(parts) + parts[0] + sum(part for part in parts)

    fast = graphopt.optimize(Net(split))
    found, want = called(fast, train=True), called(Net(split), train=True)
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert fast._graphopt_entries()


def test_inputs_that_are_written_are_the_callers() -> None:
    def clipping(F: Any, x: Any) -> Any:
        F.clip(x, a_min=0, a_max=1, out=x)
        return x * 2

    given = mx.nd.array([-1, 0.5, 3])
    fast = graphopt.optimize(Net(clipping))
    np.testing.assert_array_equal(fast(given).asnumpy(), [0, 1, 2])
    np.testing.assert_array_equal(given.asnumpy(), [0, 0.5, 1])


def test_symbols_are_as_before() -> None:
    own = dict(vars(mx.sym.Symbol))
    graphopt.optimize(Net(ASKED["a part of an array"]))(mx.nd.ones((2, 3)))
    assert dict(vars(mx.sym.Symbol)) == own


def test_tuples_of_numpys_are_no_symbols() -> None:
    class Diagonal(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.np.diag_indices_from(x)

    with mx.util.np_shape(True), mx.util.np_array(True):
        found = graphopt.optimize(Diagonal())(mx.np.ones((3, 3)))
    assert isinstance(found, tuple)
    assert [part.asnumpy().tolist() for part in found] == [[0, 1, 2]] * 2


@pytest.mark.parametrize("extents", [(-1, 1), (3, -1), (0, -4, 3, 1), (2, 3)])
def test_reshapes_as_arrays_take_them(extents: tuple[int, ...]) -> None:
    def reshaped(F: Any, x: Any) -> Any:
        return F.softmax(x.reshape(*extents), axis=-1) * x.reshape(*extents)

    fast, x = graphopt.optimize(Net(reshaped)), mx.nd.array([[1, 2, 3], [4, 5, 7]])
    found, want = fast(x), Net(reshaped)(x)
    assert found.shape == want.shape
    np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-5)
    assert fast._graphopt_entries()


def test_a_copy_of_an_array_has_no_gradient() -> None:
    def squared(F: Any, x: Any) -> Any:
        return F.tanh(x) * copy.deepcopy(x)

    found, want = (called(n, train=True) for n in (graphopt.optimize(Net(squared)), Net(squared)))
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def documented(F: Any, x: Any) -> Any:
    """Of an NDArray or a Symbol."""
    return F.tanh(x) if documented.__name__ else x


def arrays_of_numpy(F: Any, x: Any) -> Any:
    return F.tanh(x).astype(np.float32) if isinstance([1], (list, np.ndarray)) else x


UNSUSPECTED: dict[str, Callable[..., Any]] = {
    "text": lambda F, x: F.tanh(x) if str(len("ab")) == "nd" else F.exp(x),
    "symbol": lambda F, x: F.tanh(x) if {"symbol": 1}["symbol"] == 2 else F.exp(x),
    "out": lambda F, x: {"in": x, "out": F.exp(x)}["out" if "out" in ("in", "out") else "in"],
    "numpy": lambda F, x: F.exp(x) if isinstance(1, (list, numpy.ndarray)) else F.tanh(x),
    "documented": documented,
    "arrays of numpy": arrays_of_numpy,
    "attribute": lambda F, x: F.exp(x) if types.SimpleNamespace(nd=2, symbol=1).nd == 2 else x,
    "logger": lambda F, x: F.exp(x) if logging.getLogger(__name__) and "symbol" else x,
}


@pytest.mark.parametrize("what", UNSUSPECTED)
def test_what_is_no_question(what: str) -> None:
    fast = graphopt.optimize(Net(UNSUSPECTED[what]), strict=True)
    found, want = called(fast, train=False), called(Net(UNSUSPECTED[what]), train=False)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5)


def test_methods_of_a_class_that_a_block_holds() -> None:
    class Holding(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.helper = Helper

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.helper.twice(F.tanh(x))

    found, want = (called(n, train=False) for n in (graphopt.optimize(Holding()), Holding()))
    np.testing.assert_allclose(found[0], want[0], rtol=1e-5)


@pytest.mark.parametrize("ask", [copy.deepcopy, len])
def test_questions_of_numpys_arrays(ask: Callable[..., Any]) -> None:
    class Asking(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            try:
                return F.np.tanh(x) * ask(x)
            except TypeError:
                return x

    with mx.util.np_shape(True), mx.util.np_array(True):
        results = []
        for net in (graphopt.optimize(Asking()), Asking()):
            x = mx.np.array([[1.0, 2, 3], [4, 5, 7]])
            x.attach_grad()
            with mx.autograd.record():
                y = net(x)
            y.backward()
            results.append((y.asnumpy(), x.grad.asnumpy()))
    for found, want in zip(*results, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_numbers_that_are_drawn_as_for_arrays() -> None:
    """Dropout in training mode drops in inference; of no shape one number is drawn for all."""

    def dropped(F: Any, x: Any) -> Any:
        with mx.autograd.train_mode():
            return F.Dropout(x, p=0.5)

    x = mx.nd.ones((50, 20))
    found = graphopt.optimize(Net(dropped))(x).asnumpy()
    assert 0.2 < (found == 0).mean() < 0.8
    found = graphopt.optimize(Net(lambda F, x: x + F.random.uniform()))(x).asnumpy()
    assert np.unique(found).size == 1
