"""Operators of users, which may count their calls, and of which nobody knows what they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()


@pytest.fixture(autouse=True)
def sizes_are_compiled() -> None:
    """Not here."""


class Counts(mx.operator.CustomOp):
    """Twice its input; it counts its calls in a state, as running statistics do."""

    calls = 0

    def forward(self, is_train, req, in_data, out_data, aux):
        Counts.calls += 1
        self.assign(out_data[0], req[0], in_data[0] * 2)
        aux[0][:] = aux[0] + 1


@mx.operator.register("graphopt_test_counts")
class CountsProp(mx.operator.CustomOpProp):
    """Registers it."""

    def list_auxiliary_states(self):
        return ["seen"]

    def infer_shape(self, shapes):
        return shapes, shapes, [(1,)]

    def create_operator(self, ctx, shapes, dtypes):
        return Counts()


class Counted(mx.gluon.HybridBlock):
    """A net with such an operator."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.first = mx.gluon.nn.Dense(16, in_units=8)
            self.last = mx.gluon.nn.Dense(3, in_units=16)
            self.seen = self.params.get(
                "seen", shape=(1,), init="zeros", grad_req="null", differentiable=False
            )

    def hybrid_forward(self, F, x, seen):
        h = F.Custom(self.first(x), seen, op_type="graphopt_test_counts")
        return self.last(F.relu(h))


@pytest.mark.parametrize("options", [{}, {"mode": "inference"}])
def test_they_run_once_a_call(options: dict[str, Any]) -> None:
    net = Counted()
    net.initialize()
    fast = graphopt.optimize(net, **options)
    Counts.calls = 0
    sizes = (4, 4, *range(5, 16))  # some are compiled for, and what is for any size runs others
    for size in sizes:
        x = mx.nd.ones((size, 8))
        found = fast(x).asnumpy()
        plain = net.last(mx.nd.relu(net.first(x) * 2))
        np.testing.assert_allclose(found, plain.asnumpy(), rtol=1e-4, atol=1e-6)
    assert Counts.calls == net.seen.data().asscalar() == len(sizes)


class Numbers(mx.operator.CustomOp):
    """Its input times how often it was called, which it keeps for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, is_train, req, in_data, out_data, aux):
        self.calls += 1
        self.assign(out_data[0], req[0], in_data[0] * self.calls)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], out_grad[0] * self.calls)


@mx.operator.register("graphopt_test_numbers")
class NumbersProp(mx.operator.CustomOpProp):
    """Registers it."""

    def create_operator(self, ctx, shapes, dtypes):
        return Numbers()


class Numbered(mx.gluon.HybridBlock):
    """A net with such an operator."""

    def hybrid_forward(self, F, x):
        return F.Custom(F.tanh(x), op_type="graphopt_test_numbers")


def _outputs_and_gradients(net: Any, *, learns: bool) -> list[float]:
    x = mx.nd.ones((1, 1))
    x.attach_grad()
    found = []
    for _ in range(5):
        with mx.autograd.record() if learns else mx.autograd.pause():
            y = net(x)
        found.append(float(y.asnumpy()[0, 0]))
        if learns:
            y.backward()
            found.append(float(x.grad.asnumpy()[0, 0]))
    return found


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("flags", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_they_live_as_long_as_in_mxnet(flags: dict[str, bool] | None, learns: bool) -> None:
    plain, net = Numbered(), Numbered()
    if flags is not None:
        plain.hybridize(**flags)
        net.hybridize(**flags)
    wanted = _outputs_and_gradients(plain, learns=learns)
    found = _outputs_and_gradients(graphopt.optimize(net), learns=learns)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (4, 1)}}])
@pytest.mark.parametrize("flags", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_they_live_as_long_within_a_budget(
    flags: dict[str, bool] | None, options: dict[str, Any]
) -> None:
    plain, net = Numbered(), Numbered()
    if flags is not None:
        plain.hybridize(**flags)
        net.hybridize(**flags)
    wanted = _outputs_and_gradients(plain, learns=True)
    found = _outputs_and_gradients(graphopt.optimize(net, **options), learns=True)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"memory": "1GB"}, {"max_shapes": {"data": (4, 3)}}])
def test_calls_under_way_at_one_time_each_have_their_own(options: dict[str, Any]) -> None:
    net = Numbered()
    fast = graphopt.optimize(net, **options)
    x = mx.nd.array(np.random.default_rng(0).normal(size=(2, 3)))
    x.attach_grad()
    found = []
    for which in (net, fast):
        for rows in (2, 1, 2):
            with mx.autograd.record():
                loss = (which(x[:rows]) * which(x[:rows] * 2)).sum()
                which(x[:rows])  # whose tape nobody runs back
            loss.backward()
            found += [loss.asnumpy(), x.grad.asnumpy()]
    for got, want in zip(found[6:], found[:6], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert len(fast.graphopt_state.compiled._memory.pools(mx.cpu())) <= 3


def _of_module(wrap: Any, steps: str, width: int = 3) -> list[Any]:
    w = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=width, name="fc")
    s = mx.sym.Custom(mx.sym.tanh(w), op_type="graphopt_test_numbers", name="numbers")
    learns = "t" in steps
    module = wrap(mx.mod.Module(s, label_names=None))
    module.bind([("data", (2, 4))], inputs_need_grad=learns, for_training=learns)
    module.init_params(mx.init.One())
    found = []
    for step in steps:
        batch = mx.io.DataBatch([mx.nd.ones((2, 4)) / 8], None)
        module.forward(batch, is_train=step == "t")
        found.append(module.get_outputs()[0].asnumpy())
        if step == "t":
            module.backward([mx.nd.ones((2, width))])
            found.append(module.get_input_grads()[0].asnumpy())
    return found


@pytest.mark.parametrize("steps", ["tttt", "iiii", "titti", "itit"])
def test_a_module_has_one_of_each(steps: str) -> None:
    plain = _of_module(lambda module: module, steps)
    told = []

    def optimized(module: Any) -> Any:
        told.append(graphopt.optimize(module))
        return told[0]

    for found, wanted in zip(_of_module(optimized, steps), plain, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    if "t" in steps:
        assert "prepared once" in told[0].explain()


def test_executors_that_are_bound_anew_have_others() -> None:
    s = mx.sym.Custom(mx.sym.tanh(mx.sym.var("data")), op_type="graphopt_test_numbers")
    for _ in range(6):  # the first of which are hardly called
        fast = graphopt.optimize(s.simple_bind(mx.cpu(), data=(2, 2), grad_req="write"))
        fast.arg_dict["data"][:] = 1
        found = [fast.forward(is_train=True)[0].asnumpy()[0, 0] for _ in range(2)]
        np.testing.assert_allclose(found, [np.tanh(1), 2 * np.tanh(1)], rtol=1e-5)


def test_gradients_are_added_with_an_operator_of_each() -> None:
    s = mx.sym.Custom(mx.sym.tanh(mx.sym.var("data")), op_type="graphopt_test_numbers")
    found = []
    for wrap in (lambda made: made, graphopt.optimize):
        executor = wrap(s.simple_bind(mx.cpu(), data=(2, 2), grad_req="add"))
        executor.arg_dict["data"][:] = 1
        for _ in range(3):
            executor.forward(is_train=True)
            executor.backward(mx.nd.ones((2, 2)))
        found.append(executor.grad_dict["data"].asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_second_backward_of_one_forward() -> None:
    def bound() -> Any:
        h = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="a")
        h = mx.sym.Custom(h, op_type="graphopt_test_numbers")
        h = mx.sym.FullyConnected(h, num_hidden=3, name="b")
        executor = mx.sym.SoftmaxOutput(h, name="s").simple_bind(
            mx.cpu(), data=(2, 5), s_label=(2,)
        )
        for seed, name in enumerate(("data", "a_weight", "b_weight")):
            array = executor.arg_dict[name]
            array[:] = np.random.default_rng(seed).normal(size=array.shape)
        return executor

    plain, fast = bound(), graphopt.optimize(bound())
    for executor in (plain, fast):
        executor.forward(is_train=True)
    for _ in range(3):
        for executor in (plain, fast):
            executor.backward()
        np.testing.assert_allclose(
            fast.grad_dict["data"].asnumpy(), plain.grad_dict["data"].asnumpy(), rtol=1e-4
        )


@pytest.mark.parametrize("modes", ["iiiiii", "iittii", "ttii"])
def test_executors_without_gradients_have_one_of_each(modes: str) -> None:
    w = mx.sym.var("w")
    s = mx.sym.Custom(mx.sym.tanh(mx.sym.var("data") * w), op_type="graphopt_test_numbers")
    found = []
    for wrap in (lambda executor: executor, graphopt.optimize):
        executor = wrap(s.simple_bind(mx.cpu(), data=(2, 2), w=(2, 2), grad_req="null"))
        executor.arg_dict["data"][:] = 1
        values = []
        for number, mode in enumerate(modes):
            executor.arg_dict["w"][:] = 1 + number // 2
            values.append(executor.forward(is_train=mode == "t")[0].asnumpy())
        found.append(values)
    np.testing.assert_allclose(*found, rtol=1e-5)
