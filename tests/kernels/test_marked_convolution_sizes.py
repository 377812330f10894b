"""Steps of training in pairs where one number is much larger than all others."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels.convolutions.marked import PAIRED_WINOGRAD4
from graphopt.kernels.convolutions.spec import PAIRED
from tests.kernels.test_marked_convolution import TOLERANCE, all_by, arguments, check, numbers

mx = import_mxnet()

#: By filters of a matrix, and of so many that those who multiply transform them.
CASES = [
    (PAIRED, 1, (2, 64, 12, 12), 64),
    (PAIRED, 1, (2, 320, 12, 12), 288),
    (PAIRED_WINOGRAD4, 3, (2, 64, 12, 12), 64),
    (PAIRED_WINOGRAD4, 3, (2, 208, 20, 20), 176),
]


def step(given: list[np.ndarray], **more: str) -> list[np.ndarray]:
    """The output and gradients of images and filters; the output's gradient is given last."""
    x, w, head = (mx.nd.array(array) for array in given)
    x.attach_grad()
    w.attach_grad()
    options = {"kernel": w.shape[2:], "pad": (w.shape[2] // 2,) * 2, "num_filter": len(w)}
    with mx.autograd.record():
        y = mx.nd.Convolution(x, w, **options, no_bias=True, **more)
    y.backward(head)
    return [each.asnumpy() for each in (y, x.grad, w.grad)]


@pytest.mark.parametrize("where", ["images", "filters", "gradient"])
@pytest.mark.parametrize(("name", "size", "shape", "filters"), CASES)
def test_a_lone_large_number_leaves_others_alone(
    name: str, size: int, shape: tuple[int, ...], filters: int, where: str
) -> None:
    given = arguments(shape, filters, bias=False, size=size)
    given.append(numbers((shape[0], filters, *shape[2:]), seed=3))
    given[["images", "filters", "gradient"].index(where)][0, 5, 0, 0] = 1e6
    others = {
        "images": lambda y, dx, dw: [y[1:], dx, np.delete(dw, 5, 1)],
        "filters": lambda y, dx, dw: [y[:, 1:], np.delete(dx, 5, 1), dw],
        "gradient": lambda y, dx, dw: [y, dx[1:], np.delete(dw, 5, 0)],
    }[where]
    check(others(*step(given, **all_by(name))), others(*step(given)), TOLERANCE)
