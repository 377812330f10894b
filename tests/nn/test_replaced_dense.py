"""Nets whose dense layers are our products, by whatever means this processor has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import graphopt
from graphopt.backend import tuning
from graphopt.backend.target import MXNetTarget


class Always(MXNetTarget):
    """A target whose means are always the faster ones."""

    def dense_means(self) -> str:
        return "in pairs"

    def measured_once(self, parts, measure, place=()):
        return [1.0, 2.0] if parts[0] == "dense" else super().measured_once(parts, measure)


@pytest.fixture(autouse=True)
def unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MXNetTarget", Always)


def net() -> Any:
    mx.random.seed(0)
    made = mx.gluon.nn.HybridSequential()
    made.add(
        mx.gluon.nn.Dense(300, activation="relu", in_units=400),
        mx.gluon.nn.Dense(200, in_units=300, use_bias=False, flatten=False),
    )
    made.initialize(mx.init.Xavier())
    return made


def data(rows: int) -> Any:
    return mx.nd.array(np.random.default_rng(rows).standard_normal((rows, 400)))


def gradients(block: Any, x: Any, times: int = 1) -> list[np.ndarray]:
    x.attach_grad()
    with mx.autograd.record():
        losses = [(block(x) ** 2).mean() for _ in range(times)]
    mx.autograd.backward(losses)
    params = block.collect_params().values()
    return [losses[0].asnumpy(), x.grad.asnumpy(), *(p.grad().asnumpy() for p in params)]


def check(found: list[np.ndarray], want: list[np.ndarray]) -> None:
    for got, right in zip(found, want, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=2e-6 * abs(right).max())


@pytest.mark.parametrize("more", [{}, {"memory": "200MB"}, {"max_shapes": {"data": (160, 400)}}])
def test_trains_as_the_net_does(more: dict[str, Any]) -> None:
    block = net()
    fast = graphopt.optimize(block, **more)
    for rows in (160, 100, 160):
        check(gradients(fast, data(rows)), gradients(block, data(rows)))
    check([fast(data(150)).asnumpy()], [block(data(150)).asnumpy()])
    assert "in pairs 1 ms, by MXNet 2 ms" in str(fast.explain())


def test_gradients_are_added_up_and_of_two_calls() -> None:
    block = net()
    fast = graphopt.optimize(block)
    for parameter in block.collect_params().values():
        parameter.grad_req = "add"
    found = []
    for one in (fast, block):
        block.collect_params().zero_grad()
        gradients(one, data(160), times=2)
        found.append(gradients(one, data(160)))
    check(*found)


def test_small_batches_and_exact_nets_are_left_alone() -> None:
    fast = graphopt.optimize(net())
    gradients(fast, data(8))
    assert "in pairs 1 ms" not in str(fast.explain())
    precise = graphopt.optimize(net(), precise=True)
    gradients(precise, data(160))
    assert "in pairs 1 ms" not in str(precise.explain())


def test_frozen_nets_keep_weights_for_few_and_for_many_rows() -> None:
    block = net()
    frozen = graphopt.optimize(block, mode="inference")
    for rows in (1, 160, 40, 160):
        check([frozen(data(rows)).asnumpy()], [block(data(rows)).asnumpy()])


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_recurrent_layers_with_kept_weights(rows: int) -> None:
    """Packed once, for few rows as for many: 400 units are enough for the unit."""
    mx.random.seed(0)
    plain = mx.gluon.rnn.LSTM(220, input_size=50)
    plain.initialize()
    layer = graphopt.nn.LSTM(220, input_size=50, params=plain.collect_params())
    fast = graphopt.optimize(layer, mode="inference")
    for batch in (rows, 3, 33, rows):
        x = mx.nd.array(np.random.default_rng(batch).standard_normal((6, batch, 50)))
        np.testing.assert_allclose(
            fast(x).asnumpy(), plain(x).asnumpy(), rtol=1e-4, atol=1e-5, err_msg=str(batch)
        )


def test_the_unit_can_be_left_unused() -> None:
    script = "import graphopt, mxnet; from graphopt.kernels import products;"
    script += "print(products.has_matrix_unit(mxnet))"
    root = str(Path(graphopt.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": root, "GRAPHOPT_AMX": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
