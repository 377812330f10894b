"""MXNet's bilinear resizing and its gradient, computed by the bridge."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.kernels import bridge

mx = import_mxnet()

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 9), {"height": 20, "width": 31}),
    ((1, 5, 7, 9), {"height": 3, "width": 2}),
    ((2, 2, 6, 5), {"height": 6, "width": 5}),
    ((1, 4, 6, 5), {"height": 6, "width": 11}),
    ((3, 1, 1, 1), {"height": 4, "width": 5}),
    ((1, 2, 9, 8), {"height": 1, "width": 1}),
    ((1, 21, 40, 40), {"scale_height": 8.0, "scale_width": 8.0}),
    ((2, 3, 8, 6), {"scale_height": 0.5, "scale_width": 2.0, "mode": "odd_scale"}),
]


def calls() -> int:
    mx.nd.waitall()
    return int(bridge.load(mx).graphopt_mended_calls())


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def step(shape: tuple[int, ...], dtype: str, **options: Any) -> list[np.ndarray]:
    """The output and the gradient."""
    x = mx.nd.array(numbers(shape, 0), dtype=dtype)
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.contrib.BilinearResize2D(x, **options)
    y.backward(mx.nd.array(numbers(y.shape, 1), dtype=dtype))
    return [y.asnumpy(), x.grad.asnumpy()]


@pytest.mark.parametrize("aligns", [True, False])
@pytest.mark.parametrize(("shape", "options"), CASES)
def test_values_and_gradients(
    shape: tuple[int, ...], options: dict[str, Any], aligns: bool
) -> None:
    before = calls()
    found = step(shape, "float32", align_corners=aligns, **options)
    assert calls() == before + 2
    expected = step(shape, "float64", align_corners=aligns, **options)
    assert calls() == before + 2
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_to_the_size_of_others() -> None:
    x, other = mx.nd.array(numbers((2, 3, 5, 4), 0)), mx.nd.array(numbers((2, 1, 9, 11), 1))
    x.attach_grad()
    other.attach_grad()
    before = calls()
    with mx.autograd.record():
        y = mx.nd.contrib.BilinearResize2D(x, other, mode="like")
    y.backward()
    assert calls() == before + 2
    want = step((2, 3, 5, 4), "float32", height=9, width=11)[0]
    np.testing.assert_array_equal(y.asnumpy(), want)
    np.testing.assert_allclose(x.grad.sum().asscalar(), y.size, rtol=1e-5)
    assert not other.grad.asnumpy().any()


def test_added_gradients_are_left_to_mxnet() -> None:
    x = mx.nd.array(numbers((1, 2, 4, 4), 0))
    x.attach_grad("add")
    for _ in range(2):
        with mx.autograd.record():
            y = mx.nd.contrib.BilinearResize2D(x, height=8, width=8)
        y.backward()
    np.testing.assert_allclose(x.grad.sum().asscalar(), 2 * y.size, rtol=1e-5)


ALONE = """
import sys
import numpy as np
np.bool = bool
import mxnet as mx
x = mx.nd.array(np.load(sys.argv[1]))
for aligns in (True, False):
    for size in ((23, 50), (4, 3)):
        options = {"height": size[0], "width": size[1], "align_corners": aligns}
        y = mx.nd.contrib.BilinearResize2D(x, **options)
        sys.stdout.buffer.write(y.asnumpy().tobytes())
"""


def test_values_are_those_of_mxnet_to_the_bit(tmp_path: Path) -> None:
    x = numbers((2, 3, 9, 13), 2).astype("float32")
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "x.npy")],
        capture_output=True,
        env=dict(os.environ),
        timeout=120,
        check=True,
    )
    found = b"".join(
        mx.nd.contrib.BilinearResize2D(
            mx.nd.array(x), height=height, width=width, align_corners=aligns
        )
        .asnumpy()
        .tobytes()
        for aligns in (True, False)
        for height, width in ((23, 50), (4, 3))
    )
    assert found == done.stdout
