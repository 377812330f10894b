"""Random programs of what recording has shorter ways for: batched, and one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import SampleError
from tests.batching.comparing import Fn, flat, initialized, rand, same
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn
nd = mx.nd
WIDTH, WORDS = 4, 7
PLAIN, WAITS, RAISES, WRITES = "plain", "waits", "raises", "writes"


class Pair(mx.gluon.HybridBlock):
    """Two rows to three, in a tuple or a list."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind
        with self.name_scope():
            self.a, self.b = nn.Dense(WIDTH, in_units=WIDTH), nn.Dense(WIDTH, in_units=WIDTH)

    def hybrid_forward(self, F: Any, x: Any, y: Any) -> Any:
        a = F.sigmoid(self.a(x))
        return self._kind([a, F.tanh(self.b(y)) * a, x * 2 - y])


class Sample:
    """One sample's program: every step makes another row of WIDTH."""

    def __init__(self, net: Any, seed: int, arrays: Any, mode: str) -> None:
        self.net, self.rng, self.mode = net, random.Random(seed), mode
        self.row, self.words, self.letters, self.deep = arrays
        self.values = [self.row * 1, self.deep[:, 1], net.scale.data() * 1]

    def pick(self) -> Any:
        return self.rng.choice(self.values)

    def some(self) -> list[Any]:
        return [self.pick() for _ in range(self.rng.randint(1, 4))]

    def at(self, x: Any) -> int:
        return self.rng.randrange(-x.shape[1], x.shape[1])

    def steps(self) -> list[Callable[[], Any]]:
        net, rng = self.net, self.rng
        known = [
            lambda: nd.tanh(self.pick()),
            lambda: net.dense(self.pick()),
            lambda: rng.choice(net.pair(self.pick(), self.pick())),
            lambda: rng.choice(net.listed(self.pick(), net.scale.data())),
            lambda: net.embed(self.words)[:, self.at(self.words)],
            lambda: net.embed(self.words).sum(axis=1),
            lambda: net.embed(self.words[:, 1:])[:, 0],
            lambda: net.other(self.words)[:, self.at(self.words)],
            lambda: net.embed(self.letters)[:, self.at(self.letters)].mean(axis=1),
            lambda: self.deep[:, self.at(self.deep)],
            lambda: self.deep[:, -1] + self.deep.sum(axis=1),
            lambda: nd.add_n(*self.some()),
            lambda: sum(self.some()),
            lambda: sum(self.some()) + nd.add_n(*self.some()),
            lambda: self.pick() + nd.zeros((1, WIDTH)),
            lambda: self.pick() * nd.ones((1, WIDTH)),
            lambda: nd.reshape(self.pick(), shape=(1, WIDTH)),
            lambda: self.pick().expand_dims(0)[0],
            lambda: nd.concat(self.pick()[:, :2], self.pick()[:, 2:], dim=1),
            lambda: nd.concat(*self.some(), dim=0)[0:1],
            lambda: nd.concat(*self.some(), dim=0).sum(axis=0, keepdims=True),
            lambda: net.embed(self.words)[:, 0] * nd.sign(self.deep[:, 0]),
            self.paused,
            self.on_device,
            self.hooked,
        ]
        more = {WAITS: self.waits, RAISES: self.raises, WRITES: self.writes}
        if self.mode != WRITES:  # it waits: samples would write in another order
            known.append(lambda: net.inner([(self.pick(),), (self.pick(),)])[0:1])
        return known + [more[self.mode]] * 3 if self.mode in more else known

    def paused(self) -> Any:
        with mx.autograd.pause():
            fixed = net_of_three(self) + nd.ones((1, WIDTH))
            if self.mode == WAITS and self.rng.random() < 0.5:
                fixed = fixed * (2 if fixed.sum().asscalar() > 0 else 1)
        return fixed * self.pick()

    def on_device(self) -> Any:
        found = []
        for number in self.rng.sample(range(4), 2):
            with mx.Context("cpu", number):
                found.append(nd.ones((1, WIDTH)).as_in_context(mx.cpu()) * number)
        return nd.add_n(self.pick(), *found)

    def hooked(self) -> Any:
        if self.rng.random() < 0.1:
            self.net.pair.register_forward_hook(lambda *_: None)
        return self.net.pair(self.pick(), self.pick())[0]

    def waits(self) -> Any:
        x = self.pick()
        return nd.tanh(x) if x.sum().asscalar() > 0.1 else x * 2

    def raises(self) -> Any:
        if self.rng.random() < 0.1:
            raise ValueError("a sample that fails")
        return self.waits()

    def writes(self) -> Any:
        before = self.pick()
        self.net.noted[:] = self.net.noted * 0.5 + 0.1
        weight = self.net.embed.weight
        weight.set_data(weight.data() * 0.9)
        return before + self.net.noted + self.net.embed(self.words)[:, 0]

    def run(self, length: int) -> Any:
        for _ in range(length):
            self.values.append(nd.clip(self.rng.choice(self.steps())(), -3, 3))
        return self.values[-1], [self.pick(), self.values[-2]]


def net_of_three(sample: Sample) -> Any:
    return sample.net.dense(sample.net.embed(sample.words)[:, 0])


def forward(net: Any, seed: int, length: int, mode: str, *arrays: Any) -> Any:
    return Sample(net, seed, arrays, mode).run(length)


def make_net(*, debug: bool) -> Any:
    net = Fn(
        forward,
        dense=nn.Dense(WIDTH, in_units=WIDTH),
        pair=Pair(tuple),
        listed=Pair(list),
        embed=nn.Embedding(WORDS, WIDTH),
        other=nn.Embedding(WORDS, WIDTH, dtype="float32"),
    )
    net.scale = net.params.get("scale", shape=(1, WIDTH))
    net = initialized(net)
    net.inner = graphopt.batch(net.dense, debug=debug)
    net.noted = nd.ones((1, WIDTH))
    return net


def arguments(seed: int, mode: str) -> list[Any]:
    rng, numbers = random.Random(seed), np.random.RandomState(seed)
    shared = rand(1, WIDTH, seed=seed)
    samples = []
    for at in range(rng.randint(1, 9)):
        words = nd.array(numbers.randint(0, WORDS, (1, rng.randint(2, 4))), dtype="int32")
        letters = nd.array(numbers.randint(0, WORDS, (1, rng.randint(1, 3), 2)), dtype="float32")
        row = shared if rng.random() < 0.3 else rand(1, WIDTH, seed=at)
        arrays = (row, words, letters, rand(1, 2 + at % 2, WIDTH, seed=at))
        samples.append((rng.randrange(4) + 100 * seed, rng.randint(1, 20), mode, *arrays))
    return samples


def outcome(call: Callable[[], Any]) -> tuple[Any, list[int]]:
    """What a call returns, or what its samples did that did not raise; and which did."""
    try:
        return call(), []
    except SampleError as error:
        return error.results, sorted(error.failures)


def leaves(samples: list[Any]) -> list[Any]:
    return list({id(a): a for s in samples for a in (s[3], s[6])}.values())


def run(seed: int, mode: str, *, debug: bool, requests: str, **options: Any) -> list[Any]:
    """Two batches, each with gradients and without; everything that can be seen of them."""
    net = make_net(debug=debug)
    batched = graphopt.batch(net, debug=debug, **options)
    seen: list[Any] = []
    for batch in (seed, seed, seed + 1):
        samples = arguments(batch, mode)
        net.noted[:] = 1
        found, failed = outcome(lambda samples=samples: batched(samples))
        seen += [found, failed, net.noted.copy(), net.embed.weight.data().copy()]
        if mode == WRITES:  # MXNet refuses that while it records
            continue
        params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        for p in params:
            p.zero_grad()
        for x in leaves(samples):
            x.attach_grad(requests)
        with mx.autograd.record():
            found, failed = outcome(lambda samples=samples: batched(samples))
            losses = [(a * a).sum() for a in flat(found)]
            loss = nd.add_n(*losses) if losses else None
        if loss is not None and requests == "add":
            loss.backward(retain_graph=True)
        if loss is not None:
            loss.backward()
        gradients = [p.grad().copy() for p in params] + [x.grad for x in leaves(samples)]
        seen += [found, failed, gradients]
    return seen


def compare(seed: int, mode: str, requests: str, **options: Any) -> None:
    got = run(seed, mode, debug=False, requests=requests, **options)
    want = run(seed, mode, debug=True, requests=requests)
    for a, b in zip(got, want, strict=True):
        same(a, b, 1e-4)


# One seed of each mode stays quick, by turns.
@pytest.mark.parametrize(
    ("mode", "seed"),
    one_of(
        2,
        [
            (mode, (number + turn) % 2)
            for number, mode in enumerate([PLAIN, WAITS, RAISES, WRITES])
            for turn in range(2)
        ],
    ),
)
def test_random_recordings(mode: str, seed: int) -> None:
    compare(seed, mode, "add" if seed else "write", scheduler=["depth", "agenda"][seed])
