"""Nets with cond and while_loop learn as MXNet's Python has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.kernels import bridge

mx = import_mxnet()


class Net(mx.gluon.HybridBlock):
    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__()
        self.f = f

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.f(F, x)


def branching(F: Any, x: Any) -> Any:
    h = F.tanh(x)
    return F.contrib.cond(F.sum(h) > 0, lambda: h * 3, lambda: h * 5)


def looping(F: Any, x: Any) -> Any:
    _, (_, last) = F.contrib.while_loop(
        cond=lambda i, a: i < 3,
        func=lambda i, a: ((), (i + 1, F.tanh(a) * 2)),
        loop_vars=(F.zeros((1,)), F.exp(x)),
        max_iterations=4,
    )
    return last


def steps(x: np.ndarray, net: Any) -> list[np.ndarray]:
    """The output and the gradient of its sum."""
    given = mx.nd.array(x)
    given.attach_grad()
    with mx.autograd.record():
        out = net(given)
    out.backward()
    return [out.asnumpy(), given.grad.asnumpy()]


def assert_learns(f: Callable[..., Any], net: Any) -> None:
    rng = np.random.default_rng(0)
    for sign in (1, -1) * 4:
        x = sign * rng.uniform(0, 1, (4, 3))
        for got, want in zip(steps(x, net), steps(x, Net(f)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("f", [branching, looping])
def test_gradients(f: Callable[..., Any]) -> None:
    assert_learns(f, graphopt.optimize(Net(f), strict=True))


def test_by_its_python_where_nothing_mends_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "why_not", lambda _mxnet: "no compiler")
    net = graphopt.optimize(Net(branching))
    assert_learns(branching, net)
    assert "(_cond) has no gradients in a graph: no compiler" in net.explain()
    with pytest.raises(UnsupportedError, match="no compiler"):
        steps(np.ones((4, 3)), graphopt.optimize(Net(branching), strict=True))


def test_a_condition_that_reads_what_the_body_does_not() -> None:
    def up_to(F: Any, x: Any) -> Any:
        most = F.sum(x)
        _, (_, last) = F.contrib.while_loop(
            cond=lambda i, a: i < most,
            func=lambda i, a: ((), (i + 1, F.tanh(a) * 2)),
            loop_vars=(F.zeros((1,)), F.exp(x)),
            max_iterations=4,
        )
        return last

    net = graphopt.optimize(Net(up_to))
    assert_learns(up_to, net)
    assert "its condition reads what its body does not" in net.explain()


@pytest.mark.parametrize("f", [branching, looping])
def test_checked_while_autograd_records(f: Callable[..., Any]) -> None:
    assert_learns(f, graphopt.optimize(Net(f), check=True, strict=True))


def test_a_loop_that_takes_no_step() -> None:
    def doubled(F: Any, x: Any) -> Any:
        _, (last,) = F.contrib.while_loop(
            cond=lambda a: F.sum(a) < 8,
            func=lambda a: ([a * 2], [a * 2]),
            loop_vars=[x * 1],
            max_iterations=9,
        )
        return last

    net = graphopt.optimize(Net(doubled))
    for value in (2, 3, 0.5):
        given = np.full((2, 3), value)
        for got, want in zip(steps(given, net), steps(given, Net(doubled)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    assert "it emits what nobody reads, and may take no step" in net.explain()


def foreach(body: Callable[..., Any], states: Callable[..., Any] = lambda s: s) -> Any:
    def run(F: Any, x: Any) -> Any:
        outputs, _ = F.contrib.foreach(lambda d, t: body(F, d, t), x, states(F.mean(x, axis=0)))
        return outputs[0] if isinstance(outputs, list) else outputs

    return run


def foreach_product(F: Any, x: Any) -> Any:
    captured = F.exp(x)

    def body(d: Any, t: Any) -> Any:
        column = F.linalg.gemm2(captured, F.reshape(d + t, (3, 1)))
        back = F.linalg.gemm2(captured, column, transpose_a=True)
        return t, F.tanh(F.reshape(back, (3,)))

    outputs, _ = F.contrib.foreach(body, x, F.mean(x, axis=0))
    return outputs


#: Bodies, and why a graph in which MXNet runs the loop has no gradients.
LOOPS: list[tuple[Any, str]] = [
    (foreach(lambda F, d, t: (t, t + d)), ""),
    (foreach(lambda F, d, t: (d + t, d)), ""),
    (foreach(lambda F, d, t: (d + t[0], [d]), lambda s: [s]), ""),
    (foreach(lambda F, d, t: (d * t, t)), ""),
    (foreach(lambda F, d, t: (d + t[1], [t[0] + d, t[0]]), lambda s: [s, s * 2]), ""),
    (foreach(lambda F, d, t: (d + t, F.BlockGrad(t + d))), "its body computes what has none"),
    (foreach(lambda F, d, t: ([d * t, F.argmax(t, axis=0)], t + d)), "computes what has none"),
    (foreach_product, "MXNet does not add up the gradients of"),
]


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("at", range(len(LOOPS)))
def test_loops_over_rows(at: int, precise: bool) -> None:
    f, why_not = LOOPS[at]

    class Rows(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return f(F, F.reshape(x, (4, 3)))

    # Where every bit counts no loop becomes a recurrence.
    fast, plain = graphopt.optimize(Rows(), precise=precise), Rows()
    x = np.linspace(-1, 1, 12).reshape(4, 3)
    for _ in range(3):
        for got, want in zip(steps(x, fast), steps(x, plain), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    told = fast.explain()
    if precise or "1 recurrence" not in told:
        assert why_not in told
        assert ("has no gradients in a graph" in told) == bool(why_not)
