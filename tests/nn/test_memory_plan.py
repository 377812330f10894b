"""What a net says of the memory that its steps take: of those that run, not of others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.memory import check_packing
from tests.nn.budgets import Tuned, deep, image

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def step(net: Any, x: Any) -> None:
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()


def taken(net: Any) -> int:
    """What MXNet says that the executor of the last step took."""
    engine = net.graphopt_state.compiled.entries[-1].lowered._engine
    return int(engine.megabytes) << 20


def test_a_step_within_a_budget_shows_what_is_computed_again() -> None:
    net = deep(3)
    net(image(32))
    fast = graphopt.optimize(net, memory="9MB")
    step(fast, image(32))
    plan = fast.memory_plan()
    again = re.search(r"(\d+) of \d+ operators are computed again", fast.explain())
    assert again is not None
    assert len(plan.repeated) == int(again[1]) > 0
    assert plan.reported_bytes == taken(fast)
    check_packing(plan.buffers, plan.offsets, capacity=plan.arena)
    assert plan.arena <= plan.reported_bytes + (1 << 20)
    text = plan.report()
    assert f"again        {len(plan.repeated)} operators are computed again: net_" in text
    assert re.search(r"  f+b+r[rb]*b", text)
    names = {name for node in fast.graph() for name in (node.name, *node.origin)}
    assert set(plan.layers) <= {re.sub(r"_fwd$", "", name) for name in names}

    plain = graphopt.memory.plan(fast.graph(), training=True)
    assert not plain.repeated
    assert plan.peak < plain.peak


def test_more_gradients_make_another_plan() -> None:
    net, x = deep(2), image(32)
    net(x)
    fast = graphopt.optimize(net, memory="1GB")
    step(fast, x)
    without = fast.memory_plan()
    x.attach_grad()
    step(fast, x)
    with_input = fast.memory_plan()
    assert with_input.reported_bytes == taken(fast)
    more = with_input.schedule.given["gradients"] - without.schedule.given["gradients"]
    assert more == x.size * 4


def lstm() -> Any:
    net = mx.gluon.rnn.LSTM(48, num_layers=2, input_size=32)
    net.initialize()
    return net, mx.nd.ones((40, 32, 32))


def fused() -> Any:
    class Gated(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.layers = [nn.Dense(512, in_units=512) for _ in range(6)]
                for layer in self.layers:
                    self.register_child(layer)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            for layer in self.layers:
                made = layer(x)
                x = F.broadcast_mul(F.sigmoid(made), F.tanh(made)) + x * 0.5
            return x

    net = Gated()
    net.initialize()
    return net, mx.nd.ones((2048, 512))


@pytest.mark.parametrize("make", [lstm, fused])
@pytest.mark.parametrize("share", [1.0, 0.85])
def test_the_plan_is_of_the_step_that_runs(make: Any, share: float) -> None:
    net, x = make()
    roomy = graphopt.optimize(net, memory="1GB")
    step(roomy, x)
    held = sum(roomy.memory_plan().schedule.given.values())
    budget = int(share * taken(roomy)) + held + (1 << 20)
    fast = graphopt.optimize(net, memory=budget)
    step(fast, x)
    plan = fast.memory_plan("training")
    assert plan.reported_bytes == taken(fast)
    assert bool(plan.repeated) == ("computed again" in fast.explain())
    assert plan.training
    check_packing(plan.buffers, plan.offsets, capacity=plan.arena)


def test_a_step_that_ends_in_the_gradient_of_a_kernel_has_a_plan() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.LayerNorm())
    net.initialize()
    x = mx.nd.ones((200, 32))
    net(x)
    net.collect_params().setattr("grad_req", "null")
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.record():
        fast(x)
    last = fast.memory_plan("training").schedule.operations[-1]
    assert (last.phase, last.op) == ("backward", "_backward_graphopt_fused_alone")


def test_an_order_of_its_own_is_part_of_the_plan() -> None:
    net, x = Tuned(), mx.nd.ones((64, 1024))
    net.initialize()
    fast = graphopt.optimize(net, memory="6MB")
    step(fast, x)
    plan = fast.memory_plan()
    assert "operators run in another order" in fast.explain()
    assert plan.reported_bytes == taken(fast)
    assert any(operation.after for operation in plan.schedule.operations)


def test_other_runs_have_plans_too() -> None:
    net, x = deep(2), image(4)
    fast = graphopt.optimize(net)
    with pytest.raises(InputError, match="call it once first"):
        fast.memory_plan()
    fast(x)
    assert not fast.memory_plan().training
    net[0].weight.grad_req = "null"
    step(fast, x)
    plan = fast.memory_plan("training")
    assert plan.training
    assert not plan.repeated
    learned = [p for p in net.collect_params().values() if p.grad_req != "null"]
    given = plan.schedule.given["gradients"]
    assert given == sum(4 * int(np.prod(p.shape)) for p in learned)
    with pytest.raises(InputError, match="call it once first"):
        graphopt.optimize(net).memory_plan("training")


def test_a_net_of_symbols_has_plans() -> None:
    weight = mx.nd.ones((4, 4))
    weight.attach_grad()
    made = mx.sym.tanh(mx.sym.dot(mx.sym.var("data"), mx.sym.var("w")))
    fast = graphopt.optimize(made, memory="1GB")
    fast.params["w"], fast._data = weight, ["data"]
    with pytest.raises(InputError, match="call it once first"):
        fast.memory_plan()
    with autograd.record():
        loss = fast(mx.nd.ones((3, 4))).sum()
    loss.backward()
    assert fast.memory_plan().training
    assert fast.memory_plan().schedule.given["gradients"] == 4 * 4 * 4


def test_the_report_draws_the_step_that_runs(tmp_path: Path) -> None:
    net = deep(3)
    net(image(32))
    fast = graphopt.optimize(net, memory="9MB")
    step(fast, image(32))
    text = fast.report(tmp_path / "r.html").read_text()
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    *_, runs = json.loads(found[1])["memory"]
    plan = fast.memory_plan()
    assert runs["title"] == "as it runs in planned memory"
    assert runs["repeated"] == len(plan.repeated) > 0
    assert runs["peak"] == plan.peak
    assert sum("(computed again)" in name for name in runs["steps"]) == len(plan.repeated)


def test_what_trees_compute_in_is_said_not_to_be_counted() -> None:
    layer = graphopt.nn.ChildSumTreeLSTM(6, 5)
    layer.initialize()
    fast = graphopt.optimize(layer)
    x, parents = mx.nd.ones((4, 5)), mx.nd.array([1, -1, 1, 1], dtype="int32")
    with autograd.record():
        out, _ = fast(x, parents)
    out.backward()
    plan = fast.memory_plan()
    (tree,) = plan.uncounted
    assert f"what {tree} compute in, sized by their levels" in plan.report()
    assert plan.as_dict()["uncounted"] == [tree]
