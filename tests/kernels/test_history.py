"""Which arrays autograd knows of."""

from __future__ import annotations

from graphopt.compat import import_mxnet
from graphopt.kernels.bridge.history import has_history

mx = import_mxnet()


def test_variables_and_what_is_computed_of_them_have_a_history() -> None:
    x, other, apart = (mx.nd.ones((2, 3)) for _ in range(3))
    x.attach_grad()
    with mx.autograd.record():
        y = x * other
        blocked, row, flat = mx.nd.BlockGrad(y), y[0], y.reshape((6,))
        alone = apart * 2
        with mx.autograd.pause():
            paused = y * 2
    assert all(has_history(mx, array) for array in (x, y, row, flat, blocked))
    # MXNet notes `other` as an input without gradient.
    unknown = (other, apart, alone, paused, y.detach(), mx.nd.array(y.asnumpy()))
    assert not any(has_history(mx, array) for array in unknown)
    y.backward()
    assert has_history(mx, x)


def test_arrays_of_either_interface() -> None:
    x = mx.np.ones((2, 3))
    assert not has_history(mx, x)
    x.attach_grad()
    assert has_history(mx, x)
