"""Running graphs to compare them: gradients, and what is left of the user's random stream."""

from __future__ import annotations

import numpy as np
import pytest

import graphopt
from graphopt.backend.infer import with_types
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse

mx = import_mxnet()

STEADY = "graph g(%x: f32[2,4]) { %y = Dropout(%x) return %y }"
DRAWING = """graph g(%x: f32[2,4]) {
  %n = _random_normal() {shape=(2, 4)}
  %y = elemwise_add(%x, %n)
  return %y
}"""


class Shifted(mx.gluon.HybridBlock):
    """A layer and a constant to fold."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(4, in_units=5)

    def hybrid_forward(self, F, x):
        return F.broadcast_add(self.dense(x), F.arange(0, 4).reshape((1, -1)))


def drawn() -> np.ndarray:
    return mx.nd.random.uniform(shape=(3,)).asnumpy()


def graph_of(text: str) -> Graph:
    return with_types(parse(text))


@pytest.mark.parametrize("options", [{}, {"check": True}, {"mode": "inference"}])
@pytest.mark.parametrize("learns", [False, True])
def test_compiling_leaves_the_random_stream_as_it_was(options: dict, learns: bool) -> None:
    net = Shifted()
    net.initialize()
    fast = graphopt.optimize(net, **options)
    mx.random.seed(3)
    with mx.autograd.record() if learns else mx.autograd.pause():
        fast(mx.nd.ones((3, 5)))
    found = drawn()
    mx.random.seed(3)
    np.testing.assert_array_equal(found, drawn())


@pytest.mark.parametrize("run", ["evaluate", "times_ms"])
def test_a_graph_that_draws_nothing_reads_no_stream(run: str) -> None:
    graph = graph_of(STEADY)
    mx.random.seed(3)
    if run == "evaluate":
        MXNetTarget().evaluate(graph, random_feeds(graph))
    else:
        MXNetTarget().times_ms([graph])
    found = drawn()
    mx.random.seed(3)
    np.testing.assert_array_equal(found, drawn())


@pytest.mark.parametrize(("text", "training"), [(STEADY, True), (DRAWING, False)])
def test_what_draws_does_so_alike_and_the_stream_goes_on_by_its_seed(text, training) -> None:
    graph, streams, outputs = graph_of(text), [], []
    for seed in (3, 3, 4):
        mx.random.seed(seed)
        found = MXNetTarget().evaluate(graph, random_feeds(graph), training=training)
        MXNetTarget().times_ms([graph], training=training)
        outputs.append(found["output0"])
        streams.append(drawn())
    np.testing.assert_array_equal(outputs[0], outputs[2])
    np.testing.assert_array_equal(streams[0], streams[1])
    assert not np.array_equal(streams[0], streams[2])


class Tokens(mx.gluon.HybridBlock):
    """Words, by numbers of a float type, and a gain that has nothing to do with them."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.embedding = mx.gluon.nn.Embedding(10, 4)
            self.dense = mx.gluon.nn.Dense(3, flatten=False, in_units=4)

    def hybrid_forward(self, F, ids, gain):
        return F.broadcast_mul(self.dense(self.embedding(ids + 1)), gain)


def test_training_an_embedding_of_floats_is_checked() -> None:
    net, ids, gain = Tokens(), mx.nd.array([[0, 3], [1, 1]]), mx.nd.ones((1,))
    net.initialize()
    gain.attach_grad()
    found = []
    for called in (net, graphopt.optimize(net, check=True)):
        with mx.autograd.record():
            loss = (called(ids, gain) ** 2).sum()
        loss.backward()
        learned = [parameter.grad().asnumpy() for parameter in net.collect_params().values()]
        found.append([loss.asnumpy(), gain.grad.asnumpy(), *learned])
    for plain, fast in zip(*found, strict=True):
        np.testing.assert_allclose(fast, plain, rtol=1e-4)


def test_gradients_stop_where_mxnet_has_none() -> None:
    graph = graph_of("""graph g(%x: f32[2,3], %z: f32[2,3], param %w: f32[9,4]) {
      %i = _plus_scalar(%x) {scalar=1.0}
      %j = floor(%z)
      %a = Embedding(%i, %w) {input_dim=9, output_dim=4}
      %b = Embedding(%j, %w) {input_dim=9, output_dim=4}
      %y = elemwise_add(%a, %b)
      return %y
    }""")
    target, feeds = MXNetTarget(), random_feeds(graph)
    found = target.evaluate(graph, feeds, gradients=True)
    assert {name for name in found if name.startswith("grad:")} >= {"grad:w"}
    assert "grad:x" not in found
    assert target.times_ms([graph], training=True)[0] > 0


@pytest.mark.parametrize("op", ["hstack", "dstack", "column_stack"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 0, 4)])
def test_stacks_of_what_is_computed(op: str, shape: tuple[int, ...]) -> None:
    """MXNet infers shapes of what they read that it could not run."""
    extents = ",".join(map(str, shape))
    text = f"""graph g(%x: f32[{extents}], %y: f32[{extents}]) {{
      %h = exp(%x)
      %s = _npi_{op}(%h, %y) {{num_args=2}}
      return %s
    }}"""
    with mx.util.np_shape(True):
        graph = graph_of(text)
        feeds = random_feeds(graph, seed=1)
        runs = [MXNetTarget().evaluate(graph, feeds, gradients=g) for g in (False, True)]
    wanted = getattr(np, op)([np.exp(feeds["x"]), feeds["y"]])
    for found in runs:
        assert found["output0"].shape == wanted.shape
        np.testing.assert_allclose(found["output0"], wanted, rtol=1e-6)
    assert runs[1]["grad:x"].shape == shape


def test_checked_nets_with_stacks() -> None:
    class Stacked(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return F.np.dstack([F.np.exp(x), F.np.abs(y)])

    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    with mx.util.np_shape(True), mx.util.np_array(True):
        fast, a = graphopt.optimize(Stacked(), check=True), mx.np.array(x)
        a.attach_grad()
        found = fast(a, a)
        with mx.autograd.record():
            learned = fast(a, a)
        learned.backward()
        gradient = a.grad.asnumpy()
    wanted = np.dstack([np.exp(x), np.abs(x)])
    np.testing.assert_allclose(found.asnumpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(learned.asnumpy(), wanted, rtol=1e-5)
    np.testing.assert_allclose(gradient, np.exp(x) + np.sign(x), rtol=1e-5)
