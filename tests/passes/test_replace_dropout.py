from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.backend import reference
from graphopt.backend.infer import with_types
from graphopt.backend.reference_ops.dropout import mask
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import run_pass

mx = import_mxnet()
TARGET = MXNetTarget()


def graph(text: str) -> Graph:
    return with_types(parse(text))


def run(given: Graph, **settings: object) -> Result:
    return run_pass(given, "replace-dropout", target=TARGET, **{"mode": "training"} | settings)


def ops(found: Graph) -> list[str]:
    return [node.op for node in found if not node.is_input]


@pytest.mark.parametrize("dropped", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("shape", [(3, 5), (4096,), (5, 4097), (70, 1000)])
def test_values_and_gradients_are_those_of_the_reference(
    dropped: float, shape: tuple[int, ...]
) -> None:
    extents = ",".join(map(str, shape))
    given = graph(
        f"graph g(%x: f32[{extents}], %s: i32[2])"
        f" {{ %y = graphopt_dropout(%x, %s) {{p={dropped}, salt=3}} %z = square(%y) return %z }}"
    )
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=shape).astype("float32")}
    feeds["s"] = np.array([123456789, 2**31 - 5], "int32")
    found = TARGET.evaluate(given, feeds, training=True, gradients=True)
    (expected,) = reference.run(given, feeds, training=True)
    np.testing.assert_allclose(found["output0"], expected, rtol=1e-6)
    factors = mask(feeds["s"], 3, dropped, shape)
    assert 0 < (factors == 0).sum() < factors.size or factors.size < 20
    # Gradients are asked for by random weights of the outputs; where nothing passes, they are 0.
    np.testing.assert_array_equal(found["grad:x"] == 0, factors == 0)
    plain = TARGET.evaluate(given, feeds)["output0"]
    np.testing.assert_array_equal(plain, feeds["x"] ** 2)


@pytest.mark.parametrize("dropped", [0.1, 0.5, 0.9])
def test_masks_are_random(dropped: float) -> None:
    count = 1 << 20
    kept = {
        (seed, salt): mask(np.array([seed, 7], "int32"), salt, dropped, (count,)) != 0
        for seed in (1, 2)
        for salt in (0, 1)
    }
    keep, deviation = 1 - dropped, np.sqrt(dropped * (1 - dropped) / count)
    first = kept[1, 0]
    for found in kept.values():
        assert abs(found.mean() - keep) < 5 * deviation
        # Of runs of 64, as many variants of how many are kept as independent draws give.
        spread = found.reshape(-1, 64).sum(1).var() / (64 * keep * dropped)
        assert abs(spread - 1) < 0.06
        for lag in (1, 2, 3, 8, 16, 64, 768, 4096, 4097):
            both = (found[lag:] & found[:-lag]).mean()
            assert abs(both - keep**2) < 6 * deviation
        if found is not first:
            assert abs((found & first).mean() - keep**2) < 6 * deviation


def test_all_are_of_one_seed_and_of_masks_of_their_own() -> None:
    given = graph("""graph g(%x: f32[64,64]) {
      %a = Dropout(%x) {p=0.25}
      %b = Dropout(%x) {p=0.25}
      return %a, %b
    }""")
    result = run(given)
    assert ops(result.graph) == ["_random_randint", "graphopt_dropout", "graphopt_dropout"]
    feeds = {"x": np.ones((64, 64), "float32")}
    found = TARGET.evaluate(result.graph, feeds, training=True, gradients=True)
    assert (found["output0"] != found["output1"]).any()
    plain = unfuse(result.graph)
    assert [op for op in ops(plain) if op != "_random_randint"] == ["Dropout", "Dropout"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('%y = Dropout(%x) {p=0.5, mode="always"}', "it drops in inference too"),
        ("%y = Dropout(%x) {p=0.5, axes=(0,)}", "elements share"),
        ("%y = Dropout(%x) {p=0.0}", "its share is 0"),
        ('%h = Cast(%x) {dtype="float16"} %y = Dropout(%h)', "it is float16"),
    ],
)
def test_refusals(text: str, why: str) -> None:
    given = graph(f"graph g(%x: f32[4,8]) {{ {text} return %y }}")
    result = run(given)
    assert result.graph is given
    assert why in str(result.remarks)


def test_precise_keeps_mxnets_masks() -> None:
    given = graph("graph g(%x: f32[4,8]) { %y = Dropout(%x) {p=0.5} return %y }")
    result = run(given, precise=True)
    assert result.graph is given
    assert "masks are others than MXNet draws, which precise=True does not allow" in str(result)


def net_of(dropped: float) -> object:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(64, in_units=64), mx.gluon.nn.Dropout(dropped))
    net.initialize(mx.init.One())
    return net


def test_gradients_have_the_mask_of_the_call() -> None:
    plain = net_of(0.5)
    net = graphopt.optimize(plain)
    x = mx.nd.ones((8, 64))
    x.attach_grad()
    for _ in range(3):
        with mx.autograd.record():
            y = net(x)
        y.backward()
        kept = (y.asnumpy() != 0).astype("float32") * 2
        np.testing.assert_allclose(plain[0].bias.grad().asnumpy(), kept.sum(0), rtol=1e-6)
    assert "graphopt_dropout" in str(net.graph("training"))


@pytest.mark.parametrize("settings", [{"check": True}, {"memory": 10_000_000}, {"strict": True}])
def test_other_ways_to_compile(settings: dict[str, object]) -> None:
    plain = net_of(0.5)
    net = graphopt.optimize(plain, **settings)
    x = mx.nd.ones((8, 64))
    with mx.autograd.record():
        y = net(x)
    y.backward()
    kept = (y.asnumpy() != 0).astype("float32") * 2
    assert 0 < (kept == 0).mean() < 1
    np.testing.assert_allclose(plain[0].bias.grad().asnumpy(), kept.sum(0), rtol=1e-6)
    assert "graphopt_dropout" in str(net.graph("training"))
    told = "values were not compared: masks are others than MXNet draws"
    assert any(told in str(remark) for remark in net.remarks()) == bool(settings.get("check"))


def test_each_call_draws_anew_and_seeds_are_mxnets() -> None:
    net = graphopt.optimize(net_of(0.5))
    x = mx.nd.ones((8, 64))
    found = []
    for seed in (5, None, 5, 6):
        if seed is not None:
            mx.random.seed(seed)
        with mx.autograd.record():
            found.append(net(x).asnumpy())
    assert (found[0] != found[1]).any()
    assert (found[0] != found[3]).any()
    np.testing.assert_array_equal(found[0], found[2])


def test_what_is_recorded_without_training_drops_nothing() -> None:
    net = graphopt.optimize(net_of(0.5))
    x = mx.nd.ones((8, 64))
    x.attach_grad()
    with mx.autograd.record(train_mode=False):
        y = net(x)
    y.backward(train_mode=False)
    np.testing.assert_array_equal(y.asnumpy(), np.full((8, 64), 64, "float32"))
    np.testing.assert_array_equal(x.grad.asnumpy(), np.full((8, 64), 64, "float32"))
