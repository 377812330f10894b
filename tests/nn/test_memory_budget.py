"""Training within a budget: same values, same gradients, whatever is computed again."""

from __future__ import annotations

import gc
import json
import re
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.backend.recompute import _work_of, marked
from graphopt.backend.step import bind, watch_gradient
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, InputError, UnsupportedError
from graphopt.frontend.symbol import lift_symbol
from graphopt.memory.listing import repeated
from graphopt.memory.sizes import parse_size
from tests.nn.budgets import Tuned, both, check, deep, image, least, near, pools, small, told

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def test_a_step_has_the_same_gradients_and_states() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record():
            out = net(image())
            loss = (out**2).sum()
        loss.backward()
        return [out]

    check(both(deep(), run))


def test_several_steps_with_a_trainer() -> None:
    def run(net: Any) -> list[Any]:
        trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
        losses = []
        for step in range(3):
            with autograd.record():
                loss = (net(image(seed=step)) ** 2).sum()
            loss.backward()
            trainer.step(8)
            losses.append(loss)
        return losses

    check(both(deep(), run))


def test_two_calls_before_one_backward() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record():
            one, two = net(image(seed=1)), net(image(seed=2))
            loss = (one * two).sum() + (one**2).sum()
        loss.backward()
        return [one, two]

    check(both(deep(), run))


def test_gradients_of_inputs() -> None:
    net, x = deep(), image()
    net(x)
    budget = least(net) + 2 * 4 * x.size
    x.attach_grad()

    def run(net: Any) -> list[Any]:
        with autograd.record():
            loss = (net(x * 2) ** 2).sum()
        loss.backward()
        return [x.grad]

    check(both(net, run, budget))


def test_gradients_that_are_added() -> None:
    net = deep()
    net(image())
    for p in net.collect_params().values():
        if p.grad_req == "write":
            p.grad_req = "add"

    def run(which: Any) -> list[Any]:
        for step in range(2):
            with autograd.record():
                loss = (which(image(seed=step)) ** 2).sum()
                loss = loss + which(image(seed=step + 5)).sum()
            loss.backward()
        return []

    check(both(net, run))


def test_frozen_parameters_get_no_gradient() -> None:
    net = deep()
    net(image())
    frozen = net[0].weight
    frozen.grad_req = "null"

    def run(which: Any) -> list[Any]:
        with autograd.record():
            loss = (which(image()) ** 2).sum()
        loss.backward()
        return []

    check(both(net, run))


def test_gradients_asked_for_by_name_leave_the_others() -> None:
    net = deep()
    net(image())
    weight = net[0].weight

    def run(which: Any) -> list[Any]:
        with autograd.record():
            loss = (which(image()) ** 2).sum()
        (gradient,) = autograd.grad(loss, [weight.data()])
        return [gradient]

    check(both(net, run))


def test_a_call_inside_another_record_scope() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record():
            one = net(image(seed=1))
            with autograd.pause():
                apart = net(image(seed=2))
            with autograd.record():
                two = net(image(seed=3))
            loss = (one * apart).sum() + (two**2).sum()
        loss.backward()
        return [one, apart, two]

    check(both(deep(), run))


def test_recording_without_training() -> None:
    def run(net: Any) -> list[Any]:
        with autograd.record(train_mode=False):
            loss = (net(image()) ** 2).sum()
        loss.backward()
        return [loss]

    check(both(deep(), run))


def test_dropout_has_one_mask_for_forward_and_backward() -> None:
    net = deep(dropout=0.5)
    net(image())
    fast = graphopt.optimize(net, memory=least(net))
    with autograd.record():
        out = fast(image())
    out.backward()
    # Linear in the last layer: its gradient is what came in, and that is not masked anew.
    last = net[-1]
    want = (out - last.bias.data()).asnumpy().sum()
    got = (last.weight.grad() * last.weight.data()).asnumpy().sum()
    assert got == pytest.approx(want, rel=1e-4)


def test_a_second_backward_is_refused() -> None:
    net = deep()
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.record():
        loss = fast(image()).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(mx.MXNetError, match="leave out retain_graph"):
        loss.backward()


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (8, 3, 32, 32)}}])
def test_a_backward_in_another_mode_than_the_call_is_refused(options: Any) -> None:
    net = deep(1)
    net(image())
    fast = graphopt.optimize(net, **options)
    with autograd.record():
        loss = fast(image()).sum()
    with pytest.raises(mx.MXNetError, match="leave out train_mode=False"):
        loss.backward(train_mode=False)
    with autograd.record(train_mode=False):
        loss = fast(image()).sum()
    loss.backward(train_mode=False)
    got = net[0].weight.grad().asnumpy().copy()
    with autograd.record(train_mode=False):
        loss = net(image()).sum()
    loss.backward(train_mode=False)
    np.testing.assert_allclose(got, net[0].weight.grad().asnumpy(), rtol=1e-4, atol=1e-4)


def test_a_gradient_of_a_gradient_is_refused_at_once() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    fast = graphopt.optimize(net, memory="1GB")
    x.attach_grad()
    with autograd.record():
        loss = fast(x).sum()
        with pytest.raises(mx.MXNetError, match="leave out create_graph"):
            autograd.grad(loss, [x], create_graph=True, retain_graph=True)
        loss.backward()  # nothing ran, so this one can
    found = x.grad.asnumpy().copy()
    with autograd.record():
        loss = net(x).sum()
    loss.backward()
    np.testing.assert_allclose(found, x.grad.asnumpy(), rtol=1e-4, atol=1e-6)


def test_memory_of_a_call_is_free_when_its_tape_is_gone() -> None:
    net = deep()
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    for _ in range(5):
        with autograd.record():
            loss = fast(image()).sum()
        loss.backward()
    for _ in range(5):
        with autograd.record():
            loss = fast(image()).sum()
        del loss
        gc.collect()
    assert len(pools(fast)) == 1


def test_new_parameters_are_followed() -> None:
    net = deep()
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    for seed in range(3):
        mx.random.seed(seed)
        net.initialize(mx.init.Xavier(), force_reinit=True)
        with autograd.record():
            loss = (fast(image()) ** 2).sum()
            want = (net(image()) ** 2).sum()
        loss.backward()
        got = net[0].weight.grad().asnumpy().copy()
        want.backward()
        np.testing.assert_allclose(got, net[0].weight.grad().asnumpy(), rtol=1e-3, atol=5e-3)


def test_a_net_of_symbols_has_a_budget_too() -> None:
    net = deep()
    net(image())
    symbol = net(mx.sym.var("data"))
    params = {name: p.data().copy() for name, p in net.collect_params().items()}
    fast = graphopt.optimize(symbol, memory="1GB")
    for name, value in params.items():
        fast.params[name] = value
        if not name.endswith(("mean", "var")):
            value.attach_grad()
    fast._data = ["data"]
    with autograd.record():
        loss = (fast(image()) ** 2).sum()
        want = (net(image()) ** 2).sum()
    loss.backward()
    want.backward()
    name = net[0].weight.name
    np.testing.assert_allclose(
        params[name].grad.asnumpy(), net[0].weight.grad().asnumpy(), rtol=1e-3, atol=1e-4
    )


def test_one_array_under_two_names_gets_the_sum_of_its_gradients() -> None:
    x, a, b = (mx.sym.var(name) for name in ("data", "a", "b"))
    both_of = mx.sym.dot(mx.sym.tanh(mx.sym.dot(x, a)), b)
    weight = mx.nd.array(np.random.default_rng(0).normal(size=(4, 4)))
    weight.attach_grad()
    model = graphopt.optimize(both_of, memory="1GB")
    model.params |= {"a": weight, "b": weight}
    model._data = ["data"]
    rows = mx.nd.array(np.random.default_rng(1).normal(size=(3, 4)))
    found = []
    for run in (model, lambda x: mx.nd.dot(mx.nd.tanh(mx.nd.dot(x, weight)), weight)):
        with autograd.record():
            loss = (run(rows) ** 2).sum()
        loss.backward()
        found.append(weight.grad.asnumpy().copy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_inference_is_not_touched() -> None:
    net = deep()
    x = image()
    want = net(x).asnumpy()
    fast = graphopt.optimize(net, memory="1kB")
    np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-4, atol=1e-5)


def test_numpy_arrays_go_in_and_out() -> None:
    mx.random.seed(0)
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.Dense(2))
    net.initialize()
    with mx.util.np_array(True):
        x = mx.np.ones((3, 5))
        fast = graphopt.optimize(net, memory="1GB")
        with autograd.record():
            found = fast(x)
        found.backward()
    assert isinstance(found, mx.np.ndarray)


# Orders


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


def test_a_budget_on_two_contexts() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    net = deep()
    net(image())
    net.collect_params().reset_ctx(contexts)
    parts = mx.gluon.utils.split_and_load(image(), contexts)
    fast = graphopt.optimize(net, memory=least(net, parts[0]))
    found = []
    for which in (net, fast):
        for _ in range(2):
            with autograd.record():
                losses = [(which(part) ** 2).sum() for part in parts]
            autograd.backward(losses)
        params = [p for p in net.collect_params().values() if p.grad_req != "null"]
        found.append([array.asnumpy() for p in params for array in p.list_grad()])
    near((found[0], found[1]))
    assert fast.explain().count("computed again") == 2


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


# What is asked for


@pytest.mark.parametrize("memory", ["much", "-1MB", -5, 0, "0", True, "", "inf", "1,5GB", "9e9GB"])
def test_what_is_no_budget_is_refused_at_once(memory: Any) -> None:
    with pytest.raises(InputError, match="is no size"):
        graphopt.optimize(deep(), memory=memory)


@pytest.mark.parametrize("memory", ["900", "300kB"])
def test_a_budget_below_the_weights_says_the_least(memory: str) -> None:
    net = deep(layers=1)
    net.add(nn.Dense(9000, in_units=5))
    net.initialize(force_reinit=True)
    net(image())
    with pytest.raises(BudgetError) as caught, autograd.record():
        graphopt.optimize(net, memory=memory)(image())
    text = str(caught.value)
    found = re.fullmatch(
        r"a training step of 'net' cannot run in .*: the least is (.*), of which (.*) are inputs,"
        r" parameters and their gradients",
        text,
    )
    assert found is not None, text
    held = sum(p.data().size for p in net.collect_params().values())
    grads = sum(p.grad().size for p in net.collect_params().values() if p.grad_req != "null")
    want = 4 * (held + grads + image().size)
    assert parse_size(found[2]) == pytest.approx(want, rel=0.1)
    assert parse_size(found[1]) > parse_size(found[2]) > parse_size(memory)


@pytest.mark.parametrize("shape", [(), (0, 3), "64", (2.5,), 7, (True, 3), None])
def test_shapes_that_cannot_be(shape: Any) -> None:
    with pytest.raises(InputError, match="is no shape"):
        graphopt.optimize(deep(), max_shapes={"data": shape})


@pytest.mark.parametrize("shapes", ["data", [("data", (1, 2))], {}])
def test_largest_shapes_without_names_are_refused(shapes: Any) -> None:
    with pytest.raises(InputError, match=r"names no input; write \{'data': \(64, 500\)\}"):
        graphopt.optimize(deep(), max_shapes=shapes)


def test_largest_shapes_may_be_of_numpy() -> None:
    net = small()
    fast = graphopt.optimize(net, max_shapes={"data": (np.int64(4), 5)})
    with autograd.record():
        fast(mx.nd.ones((2, 5)))
    assert len(fast.graphopt_state.compiled.entries) == 2


def test_a_budget_for_inference_is_refused() -> None:
    with pytest.raises(InputError, match="about training"):
        graphopt.optimize(deep(), mode="inference", memory="1GB")


def test_a_net_that_does_not_compile_whole_is_refused() -> None:
    class Plain(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)

        def forward(self, x: Any) -> Any:
            return self.dense(x) if x.sum().asscalar() else x

    net = Plain()
    net.initialize()
    with pytest.raises(UnsupportedError, match="compile whole"), autograd.record():
        graphopt.optimize(net, memory="1GB")(mx.nd.ones((2, 2)))


# Inputs


def bindings(net: Any) -> int:
    return sum(len(pool.bindings) for pool in pools(net)._pools)


def test_a_batch_that_comes_again_needs_no_other_executor() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    fast = graphopt.optimize(net, memory="1GB")
    for _ in range(3):
        with autograd.record():
            loss = fast(x).sum()
        loss.backward()
    with autograd.record():
        fast(x)  # autograd keeps what it knows of an array until a backward
    with autograd.record():
        fast(x + 0)
    assert bindings(fast) == 1


def test_words_are_trained_on_again_and_again() -> None:
    net = nn.HybridSequential()
    net.add(nn.Embedding(50, 8), nn.Dense(8, flatten=False, activation="tanh"), nn.Dense(3))
    net.initialize()
    words = mx.nd.array(np.random.default_rng(0).integers(0, 50, size=(4, 6)), dtype="int32")
    net(words)
    found = []
    for which in (net, graphopt.optimize(net, memory="1GB")):
        for _ in range(3):  # MXNet has no gradient of words
            with autograd.record():
                loss = (which(words) ** 2).sum()
            loss.backward()
        found.append(net[0].weight.grad().asnumpy().copy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


def test_inputs_may_get_a_gradient_later() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.record():
        loss = fast(x).sum()
    loss.backward()
    x.attach_grad()
    found = []
    for which in (net, fast):
        with autograd.record():
            loss = (which(mx.nd.tanh(x * 2)) ** 2).sum()
        loss.backward()
        found.append(x.grad.asnumpy().copy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("leaf", [True, False])
def test_gradients_of_inputs_count_from_the_step_that_has_them(leaf: bool) -> None:
    net, x = small(), mx.nd.ones((200_000, 40))  # of 32 MB
    net(x)

    def step(fast: Any) -> None:
        with autograd.record():
            loss = fast(x if leaf else x * 2).sum()
        loss.backward()

    with pytest.raises(BudgetError) as caught:
        step(graphopt.optimize(net, memory=1000))
    found = re.search(r"the least is ([\d.]+ MB)", str(caught.value))
    assert found is not None
    tight, wide = (graphopt.optimize(net, memory=memory) for memory in (found[1], "1GB"))
    step(tight)
    step(wide)
    assert "(32 MB of it for inputs, parameters, states and gradients)" in told(wide)
    x.attach_grad()
    step(wide)
    assert "(64 MB of it for inputs" in told(wide)
    x.grad[:] = 7
    for _ in range(2):
        with pytest.raises(BudgetError, match=f"cannot run in {found[1]}"):
            step(tight)
    assert (x.grad.asnumpy() == 7).all()
    step(wide)
    got = x.grad.asnumpy().copy()
    step(net)
    np.testing.assert_allclose(got, x.grad.asnumpy(), rtol=1e-4, atol=1e-6)


# Calls that differ


def test_outputs_that_are_one_value_have_gradients_of_their_own() -> None:
    class Twice(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.dense = nn.Dense(4, in_units=6)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            y = F.tanh(self.dense(x))
            return y, y, x, x

    net = Twice()
    net.initialize()
    x = mx.nd.array(np.random.default_rng(0).normal(size=(5, 6)))
    x.attach_grad()
    found = []
    for which in (net, graphopt.optimize(net, memory="1GB")):
        with autograd.record():
            loss = sum((out**2).sum() * (n + 1) for n, out in enumerate(which(x)))
        loss.backward()
        found.append([x.grad.asnumpy().copy(), net.dense.weight.grad().asnumpy().copy()])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_backward_runs_after_the_net_is_gone() -> None:
    net, x = small(), mx.nd.ones((2, 5))
    net(x)
    with autograd.record():
        want = net(x).sum()
    want.backward()
    weight = net[0].weight
    expected = weight.grad().asnumpy().copy()
    weight.zero_grad()
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.record():
        loss = fast(x).sum()
    del fast
    gc.collect()
    loss.backward()
    np.testing.assert_allclose(weight.grad().asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_training_mode_without_gradients_uses_statistics_of_the_batch() -> None:
    net = deep(layers=1)
    net(image())
    fast = graphopt.optimize(net, memory="1GB")
    with autograd.train_mode():
        want, got = net(image()).asnumpy(), fast(image()).asnumpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_what_is_refused_once_is_refused_again() -> None:
    net = small()
    net(mx.nd.ones((2, 5)))
    fast = graphopt.optimize(net, memory="2MB", max_shapes={"data": (100_000, 5)})
    for _ in range(2):
        with pytest.raises(BudgetError), autograd.record():
            fast(mx.nd.ones((2, 5)))


def test_sparse_gradients_are_refused_by_name() -> None:
    net = nn.Embedding(10, 4, sparse_grad=True)
    net.initialize()
    with pytest.raises(UnsupportedError, match="row_sparse"), autograd.record():
        graphopt.optimize(net, memory="1GB")(mx.nd.ones((2, 3)))


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (4, 3)}}])
def test_a_shape_that_is_found_as_it_runs_is_refused(options: dict[str, Any]) -> None:
    class Branching(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.contrib.cond(F.sum(x) > 0, lambda: x * 3, lambda: x * 5)

    net = graphopt.optimize(Branching(prefix="net_"), **options)
    with pytest.raises(UnsupportedError, match=r"'net__cond0' \(_cond\)"), autograd.record():
        net(mx.nd.ones((4, 3)))


def test_shapes_that_are_forgotten_hold_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.nn.compiled.MAX_SIGNATURES", 2)
    fast = graphopt.optimize(small(), max_shapes={"data": (9, 5)})
    for batch in range(1, 9):
        with autograd.record():
            loss = fast(mx.nd.ones((batch, 5))).sum()
        loss.backward()
    (pool,) = pools(fast)._pools
    assert len(pool.bindings) <= 2
