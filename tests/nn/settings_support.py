"""What tests of settings share: nets that read an attribute, and calls that are checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn


class Scaled(mx.gluon.HybridBlock):
    """Scales by an attribute, which its class has at first."""

    by: Any = 1.0

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        by = self.by
        while isinstance(by, (list, dict)):
            by = by[0]
        return F.tanh(x * (by(2.0) if callable(by) else float(by)))


class Net(mx.gluon.HybridBlock):
    """Has one further in."""

    def __init__(self) -> None:
        super().__init__(prefix="net_")
        with self.name_scope():
            self.inner = nn.HybridSequential(prefix="inner_")
            self.inner.add(Scaled(prefix="scaled_"))

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(self.inner(x) + 1)


def data() -> Any:
    return mx.nd.array(np.linspace(-1, 1, 6).reshape(2, 3))


def check(fast: Any, plain: Any) -> None:
    found, want = fast(data()).asnumpy(), plain(data()).asnumpy()
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


class Constant:
    """How to scale, of a class of the user's."""

    default = 1.0

    def __init__(self, by: float) -> None:
        self.by = by
