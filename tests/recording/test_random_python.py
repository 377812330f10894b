"""Random straight-line Python on arrays, recorded and as MXNet runs it: equal to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()

#: Lines over earlier arrays ``a`` and ``b``, all of shape (4, 6) or what a view makes of it.
LINES = {
    "scale": lambda a, b: a * 0.5 + 1,
    "sum": lambda a, b: a.reshape((4, 6)) - b.reshape((4, 6)),
    "relu": lambda a, b: mx.nd.relu(a),
    "view": lambda a, b: a.reshape((6, 4)),
    "flat view": lambda a, b: a.reshape((-1,)),
    "rows": lambda a, b: a.reshape((4, 6))[1:3].tile((2, 1)),
    "row view": lambda a, b: (a.reshape((4, 6))[2], a)[1],
    "columns": lambda a, b: mx.nd.concat(a.reshape((4, 6))[:, 2:], b.reshape((4, 6))[:, :2], dim=1),
    "turned": lambda a, b: a.reshape((4, 6)).T,
    "transposed twice": lambda a, b: mx.nd.transpose(a.reshape((2, 12))),
    "product": lambda a, b: mx.nd.dot(a.reshape((4, 6)), b.reshape((6, 4))).tile((1, 2))[:, 1:7],
    "read": lambda a, b: (
        a * 2 if float(a.reshape((-1,))[3].asscalar()) > 0 else a - b.reshape(a.shape)
    ),
    "copy": lambda a, b: a.copy(),
    "cast": lambda a, b: a.astype("float64").astype("float32"),
    "same": lambda a, b: a,
    "parts": lambda a, b: mx.nd.concat(*mx.nd.split(a.reshape((4, 6)), 3, axis=1), dim=1),
    "host": lambda a, b: mx.nd.array(a.asnumpy() + 1),
}
#: Lines that write, and return what was written into.
WRITES = {
    "fill": lambda a, b: a.__setitem__(slice(None), 2),
    "write a row": lambda a, b: a.__setitem__(0, 3),
    "write an array": lambda a, b: a.__setitem__(slice(None), b.reshape(a.shape) * 0.5),
    "write through a view": lambda a, b: a.reshape((-1,)).__setitem__(slice(0, 5), -1),
    "write through a row": lambda a, b: a.reshape((4, 6))[1].__setitem__(slice(None), 7),
    "add in place": lambda a, b: a.__iadd__(1.5),
    "multiply in place": lambda a, b: a.__imul__(b.reshape(a.shape)),
    "write what is detached": lambda a, b: a.detach().__setitem__(0, 9),
    "add to what is detached": lambda a, b: a.detach().__iadd__(0.5),
    "out": lambda a, b: mx.nd.broadcast_add(a, b.reshape(a.shape), out=a),
}

_names = st.sampled_from([*LINES, *WRITES])
_programs = st.lists(
    st.tuples(_names, st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=14
)


def net_of(program: list[tuple[str, int, int]], kept: list[int]):
    class Net(mx.gluon.Block):
        def forward(self, x, y):
            arrays = [x * 1, y + 0]
            for name, first, second in program:
                a, b = arrays[first % len(arrays)], arrays[second % len(arrays)]
                if name in WRITES:
                    WRITES[name](a, b)
                else:
                    arrays.append(LINES[name](a, b))
            return [arrays[number % len(arrays)] for number in kept]

    return Net()


@settings(max_examples=60, deadline=None)
@given(_programs, st.lists(st.integers(0, 30), min_size=1, max_size=5))
def test_random_python(program: list[tuple[str, int, int]], kept: list[int]) -> None:
    rng = np.random.default_rng(0)
    args = [mx.nd.array(rng.integers(-4, 5, (4, 6)) / 4) for _ in range(2)]
    net = net_of(program, kept)
    optimized = graphopt.optimize(net, record=True, passes="none")
    for _ in range(2):
        wanted, found = net(*args), optimized(*args)
        for one, other in zip(wanted, found, strict=True):
            assert type(other) is mx.nd.NDArray
            np.testing.assert_array_equal(other.asnumpy(), one.asnumpy())


_smooth = st.sampled_from([n for n in LINES if n not in ("host", "relu")])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(_smooth, st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=10),
    st.lists(st.integers(0, 30), min_size=1, max_size=3),
)
def test_random_gradients(program: list[tuple[str, int, int]], kept: list[int]) -> None:
    rng = np.random.default_rng(1)
    args = [mx.nd.array(rng.integers(-4, 5, (4, 6)) / 4) for _ in range(2)]
    net, gradients = net_of(program, kept), []
    for call in (net, graphopt.optimize(net, record=True, passes="none")):
        for arg in args:
            arg.attach_grad()
        with mx.autograd.record():
            loss = sum((a.reshape((-1,)) * a.reshape((-1,))).sum() for a in call(*args))
        loss.backward()
        gradients.append([a.grad.asnumpy() for a in args])
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", WRITES)
def test_writes_into_arguments(name: str) -> None:
    class Net(mx.gluon.Block):
        def forward(self, x, y):
            before = x * 2
            WRITES[name](x, y)
            return before, x + y

    found = []
    for call in (Net(), graphopt.optimize(Net(), record=True)):
        args = [mx.nd.arange(24).reshape((4, 6)), mx.nd.ones((4, 6))]
        found.append([a.asnumpy() for a in (*call(*args), *args)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(other, one)
