"""Executors none of whose arguments looks like data, or that have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()

WEIGHT = mx.sym.var("fc_weight", shape=(3, 4))
SYMBOLS = {
    "penalty": mx.sym.sum(mx.sym.square(WEIGHT)),
    "gram": mx.sym.dot(WEIGHT, WEIGHT, transpose_b=True),
    "constants": mx.sym.arange(6).reshape((2, 3)) + 1,
    "noise": mx.sym.random.normal(shape=(2, 3)),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", SYMBOLS)
def test_they_are_called(name: str, *, train: bool) -> None:
    def called(executor: Any) -> tuple[Any, ...]:
        for array in executor.arg_arrays:
            array[:] = np.arange(12).reshape(3, 4)
        mx.random.seed(1)
        found = [executor.forward(is_train=train)[0].asnumpy() for _ in range(2)]
        if train and executor.arg_arrays:
            executor.backward([mx.nd.ones_like(executor.outputs[0])])
            found += [array.asnumpy() for array in executor.grad_arrays]
        return tuple(found)

    plain, given = (SYMBOLS[name].simple_bind(mx.cpu()) for _ in range(2))
    for got, want in zip(called(graphopt.optimize(given)), called(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
