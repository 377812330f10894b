"""Training within a budget: the order of operators, what is computed again, and planned memory."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

import graphopt
from graphopt.backend.recompute import _work_of, marked
from graphopt.backend.step import bind, watch_gradient
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from graphopt.memory.listing import repeated
from tests.nn.budgets import Tuned, check, deep, image, least, told

mx = import_mxnet()
autograd = mx.autograd


def test_another_order_comes_before_computing_again() -> None:
    net = Tuned()
    net.initialize()
    x = mx.nd.array(np.random.default_rng(0).normal(size=(64, 1024)))
    found = []
    fast = graphopt.optimize(net, memory="6MB")
    for which in (net, fast):
        with autograd.record():
            loss = (which(x) ** 2).sum()
        loss.backward()
        found.append([loss.asnumpy(), net.last.weight.grad().asnumpy().copy()])
    check((found[0], found[1]))
    assert re.fullmatch(
        r"a step takes 5\.9 MB \(655 kB of it for inputs, parameters, states and gradients\)"
        r" instead of 6\.9 MB: operators run in another order",
        told(fast),
    )


def test_a_step_that_nobody_differentiates_has_a_budget_too() -> None:
    """Features that a head is trained on."""
    net = Tuned()
    net.initialize()
    net.collect_params().setattr("grad_req", "null")
    x = mx.nd.array(np.random.default_rng(0).normal(size=(64, 1024)))
    fast = graphopt.optimize(net, memory=least(net, x))
    head = mx.gluon.nn.Dense(2, in_units=8)
    head.initialize(mx.init.One())
    found = []
    for which in (net, fast):
        with autograd.record():
            loss = (head(which(x)) ** 2).sum()
        loss.backward()
        found.append([loss.asnumpy(), head.weight.grad().asnumpy().copy()])
    check((found[0], found[1]))
    assert "instead of" in told(fast)


def test_what_waits_for_another_operator_still_does_when_values_are_computed_again() -> None:
    x = mx.sym.var("data")
    first = mx.sym.tanh(x, name="first")
    other = mx.sym.exp(mx.sym.sin(first, name="second"), name="third")
    document = json.loads(mx.sym.cos(mx.sym.sigmoid(other + first), name="last").tojson())
    names = [node["name"] for node in document["nodes"]]
    document["nodes"][names.index("last")]["control_deps"] = [names.index("second")]
    made = marked(document, {"third"}, {"first", "second"})
    (last,) = (node for node in made["nodes"] if node["name"] == "last")
    assert [made["nodes"][at]["name"] for at in last["control_deps"]] == ["second"]


def test_what_is_kept_is_not_computed_again() -> None:
    net = deep(4)
    net(image())
    symbol = net(mx.sym.var("data"))
    document = json.loads(symbol.tojson())
    names = [n["name"] for n in document["nodes"] if n["op"] != "null"]
    kept = {name for name in names if "conv" in name}
    arrays = {"data": image()} | {n: p.data() for n, p in net.collect_params().items()}
    watch_gradient("Convolution")
    gradients = []
    for marks in (set(), {name for name in names[:-1] if name not in kept}):
        gradient = {n: mx.nd.zeros(arrays[n].shape) for n in symbol.list_arguments()}
        made = mx.sym.load_json(json.dumps(marked(document, marks, kept if marks else ())))
        executor = bind(
            made,
            mx.cpu(),
            {n: arrays[n] for n in made.list_arguments()},
            gradient,
            {n: arrays[n].copy() for n in made.list_auxiliary_states()},
        )
        again = repeated(executor.debug_str())
        assert {n for n in again if "batchnorm" in n} == {n for n in marks if "batchnorm" in n}
        assert not again & kept
        out = executor.forward(is_train=True)[0]
        executor.backward([mx.nd.ones_like(out)])
        gradients.append({name: array.asnumpy() for name, array in gradient.items()})
    for name, want in gradients[0].items():
        np.testing.assert_allclose(gradients[1][name], want, rtol=1e-4, atol=1e-4, err_msg=name)


def test_what_mxnet_refuses_to_compute_for_nobody_is_not_computed_again() -> None:
    """The gradient of ReLU reads the ReLU's output, and nobody what went in."""
    mixed = mx.sym.var("data")
    for at in range(3):
        mixed = mx.sym.relu(mx.sym.hard_sigmoid(mixed, name=f"hard{at}"), name=f"relu{at}")
    graph = lift_symbol(mixed, {"data": (4, 5)})
    able = {one.name for one in _work_of(graph, {}, "cpu") if one.can_repeat}
    assert able == {"relu0", "relu1"}  # relu2 is the output


def test_recurrences_compute_in_memory_that_mxnet_plans() -> None:
    net = mx.gluon.rnn.LSTM(64, input_size=32)
    net.initialize()
    fast = graphopt.optimize(net, memory="1GB")
    x = mx.nd.ones((10, 8, 32))
    with autograd.record():
        out = fast(x)
    out.backward()
    (entry,) = fast.graphopt_state.compiled.entries
    (plan,) = entry.lowered._engine._plans
    inside = plan.symbol.get_internals()
    _, shapes, _ = inside.infer_shape(data=x.shape)
    node = next(n for n in json.loads(inside.tojson())["nodes"] if n["op"] == "graphopt_recurrence")
    made = [s for n, s in zip(inside.list_outputs(), shapes, strict=True) if node["name"] in n]
    (scratch,) = made[-1:]
    assert len(scratch) == 1
    packed = 4 * 64 * (64 + 32)  # weights
    assert packed < scratch[0] < 4 * packed


def test_what_gradients_of_outputs_alone_are_summed_in_is_planned() -> None:
    class Places(mx.gluon.HybridBlock):
        """A table added to all rows: its gradient is summed up over them."""

        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.table = self.params.get("table", shape=(64, 32))

        def hybrid_forward(self, F: Any, x: Any, table: Any) -> Any:
            sums = F.broadcast_add(F.dot(x, table, transpose_b=True), F.sum(table, axis=1))
            return F.relu(sums) * 2.0 + 1.0

    net = Places()
    net.initialize(mx.init.Normal(1.0))
    x = mx.nd.array(np.random.default_rng(0).normal(size=(5000, 32)))
    found = []
    fast = graphopt.optimize(net, memory="1GB")
    for which in (net, fast):
        with autograd.record():
            loss = (which(x) ** 2).sum()
        loss.backward()
        found.append([net.table.grad().asnumpy().copy()])
    check((found[0], found[1]))
    (entry,) = fast.graphopt_state.compiled.entries
    nodes = json.loads(entry.lowered._engine._plans[0].symbol.tojson())["nodes"]
    fused = [node for node in nodes if node["op"] == "graphopt_fused"]
    assert fused
    assert all("extents" in node["attrs"] for node in fused)
    # The same net over other shapes, where nothing is planned, states none.
    plain = graphopt.optimize(net)
    with autograd.record():
        plain(x)
    assert "extents" not in plain.graphopt_state.compiled.entries[0].lowered.symbol.tojson()
