"""Sizes at which extents meet tell nothing of those at which they do not."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.ir.fingerprint import fingerprint_of_any_size
from graphopt.nn.inner_sizes import InnerSizes
from graphopt.nn.other_sizes import OtherSizes
from tests.tiers import one_of

mx = import_mxnet()
nn = mx.gluon.nn


@pytest.fixture(autouse=True)
def sizes_are_compiled() -> None:
    """Not here."""


class Cut(mx.gluon.HybridBlock):
    """Reads the first ten steps of a sequence, as many as there are."""

    def __init__(self) -> None:
        super().__init__(prefix="cut_")
        with self.name_scope():
            self.first = nn.Dense(8, flatten=False, in_units=6)
            self.last = nn.Dense(4, flatten=False, in_units=8)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = self.first(F.slice(x, begin=(None, 0), end=(None, 10)))
        return F.softmax(self.last(F.relu(x))).square().sum(axis=1)


class Upscaled(mx.gluon.HybridBlock):
    """Scores of each pixel, cut to the size of the image."""

    def __init__(self) -> None:
        super().__init__(prefix="upscaled_")
        with self.name_scope():
            self.down = nn.Conv2D(4, 3, strides=4, padding=1, in_channels=3)
            self.up = nn.Conv2DTranspose(2, 4, strides=4, in_channels=4)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.slice_like(self.up(F.relu(self.down(x))), x, axes=(2, 3)) * 2


def pooled() -> Any:
    net = nn.HybridSequential(prefix="pooled_")
    with net.name_scope():
        net.add(nn.Conv2D(4, 3, strides=4, padding=1, in_channels=3, activation="relu"))
        net.add(nn.HybridLambda(_to_four), nn.Conv2D(2, 1, in_channels=4))
    return net


def _to_four(F: Any, x: Any) -> Any:
    return F.contrib.AdaptiveAvgPooling2D(x, output_size=(4, 4))


class Parted(mx.gluon.HybridBlock):
    """Takes the first ten steps in two parts."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        head = F.slice(x, begin=(None, 0), end=(None, 4))
        tail = F.slice(x, begin=(None, 4), end=(None, 10))
        return F.tanh(F.concat(head, tail, dim=1) * 2)


class Places(mx.gluon.HybridBlock):
    """Adds what is known of each step by its place, which ends to differ at the tenth."""

    def __init__(self, known: Callable[[Any, Any], Any]) -> None:
        super().__init__(prefix="places_")
        self.known = known

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        known = self.known(F, F.contrib.arange_like(x, axis=1))
        return F.tanh(F.broadcast_add(x * 2, known.reshape((1, -1, 1))))


def _clipped(F: Any, places: Any) -> Any:
    return F.clip(places, 0, 9)


def _few(F: Any, places: Any) -> Any:
    return places < 10


def _at_least(F: Any, places: Any) -> Any:
    return F.maximum(places, 9)


def _how_many(F: Any, places: Any) -> Any:
    return (places < 5).sum(axis=0, keepdims=True)


class Masked(mx.gluon.HybridBlock):
    """Scales all steps by what is computed of fills, which ends to differ below the fifth."""

    def __init__(self, scale: Callable[[Any, Any], Any]) -> None:
        super().__init__(prefix="masked_")
        self.scale = scale

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.tanh(F.broadcast_mul(x * 2, self.scale(F, x)))


def _number_of_steps(F: Any, x: Any) -> Any:
    return F.clip(F.sum(F.ones_like(x), axis=1, keepdims=True), 0, 5)


def _are_many(F: Any, x: Any) -> Any:
    return F.sum(F.ones_like(x), axis=1, keepdims=True) > 4


def _first_of_two(F: Any, x: Any) -> Any:
    mask = F.concat(F.ones_like(x), F.zeros_like(x), dim=1)
    return F.sum(F.slice(mask, begin=(None, 0), end=(None, 5)), axis=1, keepdims=True)


def _behind_ones(F: Any, x: Any) -> Any:
    mask = F.concat(F.ones_like(x), F.zeros_like(x), dim=1)
    return F.max(F.slice(mask, begin=(None, 5), end=(None, 6)), axis=1, keepdims=True)


class Counted(mx.gluon.HybridBlock):
    """Has a gradient that is divided by the number of elements."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.LinearRegressionOutput(x * 2, F.BlockGrad(x))


def masked(scale: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    return lambda: Masked(scale)


def placed(known: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    return lambda: Places(known)


def text(steps: int) -> Any:
    return mx.nd.array(np.random.default_rng(steps).normal(size=(3, steps, 6)))


def image(extent: int) -> Any:
    return mx.nd.array(np.random.default_rng(extent).normal(size=(2, 3, extent, extent)))


def oblong(height: int) -> Any:
    """An image of 24 pixels, or of ever more if it is higher than that."""
    width = 24 // height if height < 24 else 5
    return mx.nd.array(np.random.default_rng(height).normal(size=(2, height, width)))


NETS: dict[str, tuple[Callable[[], Any], Callable[[int], Any], list[int]]] = {
    "cut": (Cut, text, [6, 8, 7, 12, 10, 20]),
    "parted": (Parted, text, [6, 8, 7, 12, 10, 20]),
    "upscaled": (Upscaled, image, [16, 32, 24, 18, 40, 22]),
    "clipped": (placed(_clipped), text, [6, 8, 7, 12, 10, 20]),
    "few": (placed(_few), text, [6, 8, 7, 12, 10, 20]),
    "at least": (placed(_at_least), text, [6, 8, 7, 12, 10, 20]),
    "how many": (placed(_how_many), text, [6, 8, 7, 3, 4, 20]),
    "number of steps": (masked(_number_of_steps), text, [6, 8, 7, 3, 4, 12, 2]),
    "are many": (masked(_are_many), text, [6, 8, 7, 3, 4, 12, 2]),
    "first of two": (masked(_first_of_two), text, [6, 8, 7, 3, 4, 12, 2]),
    "behind ones": (masked(_behind_ones), text, [6, 8, 7, 3, 4, 12, 5]),
    "counted": (Counted, oblong, [4, 6, 3, 25, 30]),
    "pooled": (pooled, image, [14, 16, 15, 20, 32]),
}


@pytest.mark.usefixtures("preferred")
@pytest.mark.parametrize(("learns", "name"), one_of(2, itertools.product([False, True], NETS)))
def test_extents_that_meet(name: str, learns: bool) -> None:
    make, data, sizes = NETS[name]
    plain = make()
    plain.initialize(mx.init.Normal(0.4))
    net = graphopt.optimize(plain)
    for size in sizes:
        found = [_called(block, data(size), learns) for block in (plain, net)]
        assert found[0].shape == found[1].shape, size
        np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5, err_msg=str(size))
    first, second, *_ = net._graphopt_entries()
    graphs = {fingerprint_of_any_size(entry.result.graph) for entry in (first, second)}
    assert len(graphs) == 1  # which alone tells nothing of a third size


def test_what_a_net_computes_is_inferred_once_for_each_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inferred: list[tuple[int, ...]] = []
    infer = InnerSizes._inferred

    def counted(sizes: InnerSizes, given: Any) -> Any:
        inferred.append(*given)
        return infer(sizes, given)

    monkeypatch.setattr(InnerSizes, "_inferred", counted)
    net = graphopt.optimize(Cut())
    net.initialize()
    with monkeypatch.context() as compiled:
        compiled.setattr(OtherSizes, "find", lambda *_: None)
        for steps in (6, 7, 8, 9):
            net(text(steps))
    for steps in (12, 11):
        net(text(steps))
        assert inferred.count((3, steps, 6)) == 1
    assert all(inferred.count((3, steps, 6)) == 1 for steps in (6, 7, 8, 9))


def test_extents_that_are_kept_are_freed_at_once() -> None:
    net = graphopt.optimize(Cut())
    net.initialize()
    net(text(6))
    (entry,) = net._graphopt_entries()
    sizes = InnerSizes(entry.traced, entry.original)
    assert sizes.of(((3, 6, 6),)) == sizes.of(((3, 6, 6),))
    kept = weakref.ref(sizes)
    del sizes
    assert kept() is None


def _called(block: Any, x: Any, learns: bool) -> Any:
    if not learns:
        return block(x).asnumpy()
    x.attach_grad()
    with mx.autograd.record():
        loss = block(x)
    loss.backward()
    return np.concatenate([loss.asnumpy().ravel(), x.grad.asnumpy().ravel()])
