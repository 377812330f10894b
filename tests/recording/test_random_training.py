"""Random plain Blocks, trained recorded and as MXNet runs them, step by step side by side."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn

ROWS, WIDTH, STEPS = 6, 4, 8
Line = Callable[["Net", Any, Any, int], Any]


def _noted(net: Net, a: Any, b: Any, at: int) -> Any:
    """A moving average that is kept from call to call."""
    found = a if net.state is None else a + 0.3 * net.state
    net.state = (b * 0.5).detach()
    return found


def _less_its_mean(net: Net, a: Any, b: Any, at: int) -> Any:
    with mx.autograd.pause():
        mean = a.mean()
    return a - mean


def _written(net: Net, a: Any, b: Any, at: int) -> Any:
    buffer = mx.nd.zeros((ROWS, WIDTH))
    with mx.autograd.pause():
        buffer[:] = a
        buffer[1:3] = b[0]
    return a + buffer


#: What a Block does with two of the arrays that it has; all are of one shape.
LINES: dict[str, Line] = {
    "layer": lambda net, a, b, at: net.layers[at](a),
    "layer again": lambda net, a, b, at: net.layers[0](a) + b,
    "add": lambda net, a, b, at: a + 0.5 * b,
    "mul": lambda net, a, b, at: a * mx.nd.tanh(b),
    "detach": lambda net, a, b, at: a.detach() * 1.5 + b,
    "block": lambda net, a, b, at: mx.nd.BlockGrad(a) - b,
    "view": lambda net, a, b, at: a.reshape((-1, 2, 2)).reshape((-1, WIDTH)) * 2,
    "rows": lambda net, a, b, at: mx.nd.concat(a[:2], b[2:], dim=0),
    "columns": lambda net, a, b, at: mx.nd.concat(a, b, dim=1)[:, 1 : WIDTH + 1],
    "weight": lambda net, a, b, at: a * net.weight.data(),
    "constant": lambda net, a, b, at: a * net.constant.data(),
    "where": lambda net, a, b, at: mx.nd.where(a > 0, a, b),
    "noise": lambda net, a, b, at: a + 0.1 * mx.nd.random.normal(shape=(ROWS, WIDTH)),
    "branch": lambda net, a, b, at: a * 0.9 if a.shape[0] + at > ROWS else a - b,
    "mode": lambda net, a, b, at: a * 0.5 if mx.autograd.is_training() else a,
    "loss": lambda net, a, b, at: mx.nd.MakeLoss(mx.nd.square(a), grad_scale=0.1),
    "softmax": lambda net, a, b, at: mx.nd.SoftmaxOutput(a, mx.nd.zeros((ROWS,)), grad_scale=0.1),
    "state": _noted,
    "mean": _less_its_mean,
    "write": _written,
}
#: What asks for a number, so that what was recorded runs before the next line.
ASKS: dict[str, Line] = {
    "ask": lambda net, a, b, at: a if float(a.sum().asscalar()) > 0.37 else a * 0.9 + b,
    "host": lambda net, a, b, at: a + mx.nd.array(b.asnumpy()),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda a: a,
    "flat": lambda a: a.reshape((-1,)),
    "row": lambda a: a[1:3],
    "turned": lambda a: a.T,
}


class Net(mx.gluon.Block):  # type: ignore[misc, name-defined]
    """Lines over its arrays, some of which it returns, and some of which it keeps."""

    def __init__(self, seed: int) -> None:
        super().__init__(prefix="net_")
        rng = random.Random(seed)
        names, kinds = [*LINES], ["dense", "dense", "tanh", "norm"]
        if seed % 2:
            names, kinds = names + [*ASKS] * 2, kinds[:-1]
        else:  # which call of a norm updates its means first is not said where programs end early
            names = [name for name in names if name not in ("mean", "write")]
        with self.name_scope():
            self.layers = nn.Sequential()
            for _ in range(3):
                self.layers.add(self._layer(rng.choice(kinds)))
            self.weight = self.params.get("weight", shape=(WIDTH,))
            self.constant = self.params.get_constant("constant", np.linspace(0.5, 1.5, WIDTH))
        count = rng.randint(3, 9)
        self.lines = [
            (rng.choice(["layer", *names]), rng.randrange(n), rng.randrange(n), rng.randrange(3))
            for n in range(1, count + 1)
        ]
        self.returned = [
            (rng.randrange(1, count + 1), rng.choice([*VIEWS])) for _ in range(rng.randint(1, 4))
        ]
        self.returned[0] = (count, "whole")
        self.keeps = [rng.randrange(1, count + 1) for _ in range(rng.choice([0, 0, 1, 2]))]
        self.state: Any = None
        self.kept: list[Any] = []

    @staticmethod
    def _layer(kind: str) -> Any:
        if kind == "norm":
            return nn.BatchNorm(in_channels=WIDTH)
        activation = "tanh" if kind == "tanh" else None
        return nn.Dense(WIDTH, in_units=WIDTH, flatten=False, activation=activation)

    def forward(self, x: Any) -> Any:
        found = [x]
        for name, first, second, layer in self.lines:
            line = LINES.get(name) or ASKS[name]
            found.append(line(self, found[first], found[second], layer))
        self.kept = [found[at] for at in self.keeps]
        return tuple(VIEWS[view](found[at]) for at, view in self.returned)


class Training:
    """A net, its trainer, and what chance decides from step to step."""

    def __init__(self, seed: int, optimized: Callable[[Any], Any]) -> None:
        self.rng = random.Random(seed)
        mx.random.seed(seed)
        self.net = Net(seed)
        self.net.initialize(mx.init.Uniform(0.7))
        self.parameters = [*self.net.collect_params().values()]
        learning = [p for p in self.parameters if p.grad_req != "null"]
        chosen = self.rng.choice(learning)
        # Where a dense layer's weight needs no gradient, MXNet computes none for its bias.
        others = ["write", "write", "add"]
        chosen.grad_req = self.rng.choice(others if "dense" in chosen.name else [*others, "null"])
        self.called = optimized(self.net)
        options = {"learning_rate": 0.02, "momentum": 0.9, "wd": 0.05}
        self.trainer = mx.gluon.Trainer(self.net.collect_params(), "sgd", options)
        # MXNet's SoftmaxOutput writes gradients that it ought to add.
        has_softmax = any(name == "softmax" for name, *_ in self.net.lines)
        self.x_req = self.rng.choice([None, "write", "write" if has_softmax else "add"])

    def step(self, data: Any) -> list[Any]:
        """One of them; everything that anybody can see afterwards."""
        x = mx.nd.array(data)
        if self.x_req:
            x.attach_grad(self.x_req)
        kind = self.rng.choice(["some", "some", "some", "twice", "inference"])
        if kind == "inference":
            found = [*self.called(x)]
        else:
            with mx.autograd.record():
                found = [*self.called(x)]
                read = self.rng.sample(range(len(found)), self.rng.randint(1, len(found)))
                losses = [(found[n] * (n + 1) * 0.3).square().mean() for n in read]
                loss = sum(losses[1:], losses[0])
            if not self._backward(loss, twice=kind == "twice"):
                return [a.asnumpy() for a in found]
            self.trainer.step(1, ignore_stale_grad=True)
        found += self.net.kept + [p.data() for p in self.parameters]
        found += [p.grad() for p in self.parameters if p.grad_req != "null"]
        return [a.asnumpy() for a in [*found, *([x.grad] if self.x_req else [])]]

    @staticmethod
    def _backward(loss: Any, *, twice: bool) -> bool:
        """Whether there was anything to come to."""
        try:
            if twice:
                loss.backward(retain_graph=True)
            loss.backward()
        except mx.MXNetError as error:
            if not re.search("computation(al)? graph", str(error)):
                raise
            return False
        return True


@pytest.mark.filterwarnings("ignore:.*New initializer")  # of constants, by their addresses
@pytest.mark.parametrize("seed", one_of(5, range(40)))
def test_random_training(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = rng.uniform(-1, 1, (STEPS, ROWS, WIDTH))

    def trained(optimized: Callable[[Any], Any]) -> list[list[Any]]:
        training = Training(seed, optimized)
        return [training.step(batch) for batch in batches]

    wanted = trained(lambda net: net)
    found = trained(lambda net: graphopt.optimize(net, record=True))
    for step, (ours, plain) in enumerate(zip(found, wanted, strict=True)):
        for got, expected in zip(ours, plain, strict=True):
            np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4, err_msg=f"step {step}")
