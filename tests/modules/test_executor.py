"""Optimized executors against MXNet's own, on the same arrays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.modules.binding import BindingSymbol
from graphopt.modules.executor import OptimizedExecutor

mx = import_mxnet()
sym = mx.sym


def chain() -> Any:
    x = sym.var("data")
    return sym.tanh(x * sym.var("w") + 1.5) * sym.sigmoid(x) + sym.exp(-x * x)


def bound(symbol: Any, grad_req: Any = "write", **shapes: Any) -> Any:
    executor = symbol.simple_bind(mx.cpu(), grad_req=grad_req, **shapes)
    rng = np.random.default_rng(0)
    for array in executor.arg_arrays:
        array[:] = rng.standard_normal(array.shape)
    return executor


def pair(symbol: Any, grad_req: Any = "write", **shapes: Any) -> tuple[Any, Any]:
    """An optimized executor, and MXNet's on other arrays with the same numbers."""
    fast = graphopt.optimize(bound(symbol, grad_req, **shapes))
    assert isinstance(fast, OptimizedExecutor)
    return fast, bound(symbol, grad_req, **shapes)


def assert_same(fast: Any, plain: Any) -> None:
    for got, want in zip(fast.outputs, plain.outputs, strict=True):
        assert_near(got, want)
    for name, want in plain.grad_dict.items():
        got = fast.grad_dict[name]
        assert (got is None) == (want is None)
        if want is not None:
            assert_near(got, want, name)


def assert_near(got: Any, want: Any, name: str = "") -> None:
    """By the largest number, as sums of such numbers round."""
    found, expected = got.asnumpy(), want.asnumpy()
    largest = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * largest, err_msg=name)


def test_gradients() -> None:
    head = mx.nd.array(np.random.default_rng(1).standard_normal((6, 5)))
    fast, plain = pair(chain(), data=(6, 5), w=(6, 5))
    for _ in range(3):
        for executor in (fast, plain):
            executor.forward(is_train=True)
            executor.backward(head)
        assert_same(fast, plain)
    assert "fuse-pointwise" in fast.explain()


@pytest.mark.parametrize("give", [lambda h: h, lambda h: [h], lambda h: {"_plus1_output": h}])
def test_heads(give: Any) -> None:
    head = mx.nd.ones((2, 3)) * 2
    symbol = sym.Group([sym.elemwise_add(sym.var("a"), sym.var("b"), name="_plus1")])
    fast = graphopt.optimize(bound(symbol, a=(2, 3), b=(2, 3)))
    fast.forward(is_train=True)
    fast.backward(give(head))
    assert (fast.grad_dict["a"].asnumpy() == 2).all()


def test_gradients_are_added_or_left_out() -> None:
    fast, plain = pair(chain(), {"data": "null", "w": "add"}, data=(6, 5), w=(6, 5))
    for executor in (fast, plain):
        executor.grad_dict["w"][:] = 1
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward([mx.nd.ones((6, 5))])
    assert fast.grad_dict["data"] is None
    assert_same(fast, plain)


def test_gradients_in_inference() -> None:
    """Dropout drops nothing then, and BatchNorm has its moving averages."""
    x = sym.BatchNorm(sym.var("data"), fix_gamma=False, name="bn")
    fast, plain = pair(sym.Dropout(sym.tanh(x), p=0.5), data=(6, 5))
    for executor in (fast, plain):
        executor.aux_dict["bn_moving_mean"][:] = 0.5
        executor.aux_dict["bn_moving_var"][:] = 2
        executor.forward(is_train=False)
        executor.backward(mx.nd.ones((6, 5)), is_train=False)
    assert_same(fast, plain)
    assert (fast.aux_dict["bn_moving_mean"].asnumpy() == 0.5).all()


def test_without_gradients() -> None:
    """There is nothing to do, whether there are arrays for them or not."""
    arrays = {"data": mx.nd.ones((6, 5)), "w": mx.nd.ones((6, 5))}
    unused = {name: mx.nd.ones((6, 5)) * 3 for name in arrays}
    for gradients in (None, unused):
        executor = chain().bind(mx.cpu(), arrays, args_grad=gradients, grad_req="null")
        fast = graphopt.optimize(executor)
        fast.forward(is_train=True)
        fast.backward(mx.nd.ones((6, 5)))
    assert all((array.asnumpy() == 3).all() for array in unused.values())


def test_mxnet_runs_what_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("no room for it")

    for is_train in (True, False):
        fast, plain = pair(chain(), data=(6, 5), w=(6, 5))
        if not is_train:  # which compiles; what backward needs does not
            fast.forward(is_train=False)
        with monkeypatch.context() as patch:
            patch.setattr("graphopt.api.model.build_graph", refusing)
            for executor in (fast, plain):
                executor.forward(is_train=is_train)
                executor.backward(mx.nd.ones((6, 5)))
        assert_same(fast, plain)
        assert fast.explain() == "MXNet's executor runs it: no room for it"
    strict = graphopt.optimize(bound(chain(), data=(6, 5), w=(6, 5)), strict=True)
    monkeypatch.setattr("graphopt.api.model.build_graph", refusing)
    with pytest.raises(UnsupportedError, match="no room for it"):
        strict.forward()


def test_backward_twice() -> None:
    """MXNet's executor has overwritten by then what the second one reads."""
    fast, _ = pair(chain(), {"data": "write", "w": "add"}, data=(6, 5), w=(6, 5))
    fast.forward(is_train=True)
    found = []
    for scale in (1, 3):
        fast.backward(mx.nd.ones((6, 5)) * scale)
        found.append({name: array.asnumpy() for name, array in fast.grad_dict.items()})
    np.testing.assert_allclose(found[1]["data"], found[0]["data"] * 3, rtol=1e-5)
    np.testing.assert_allclose(found[1]["w"], found[0]["w"] * 4, rtol=1e-5)


def test_outputs_stay_the_same_arrays() -> None:
    """As executors write them anew in each call, programs keep them."""
    plain = bound(chain(), data=(6, 5), w=(6, 5))
    fast = graphopt.optimize(plain)
    kept = fast.outputs[0]
    assert (kept.asnumpy() == 0).all()
    for scale in (1, 2):
        data = mx.nd.ones((6, 5)) * scale
        assert fast.forward(data=data)[0] is kept
        plain.forward(data=data)
        assert_same(fast, plain)
        assert np.array_equal(
            kept.asnumpy(), fast.output_dict[plain._symbol.list_outputs()[0]].asnumpy()
        )


@pytest.mark.parametrize("is_bound_before", [False, True])
@pytest.mark.parametrize("width", [5, 400])
def test_outputs_keep_their_memory(width: int, is_bound_before: bool) -> None:
    """Other executors are bound on it, and programs look at parts of it."""
    x = sym.FullyConnected(sym.var("data"), num_hidden=width, name="wide")
    symbol = sym.Group([sym.tanh(x) * x, sym.L2Normalization(x)])
    found = []
    for is_optimized in (False, True):
        first = bound(symbol, data=(6, width))
        if is_optimized and not is_bound_before:
            first = graphopt.optimize(first)
        kept, views, seconds = first.outputs, [], []
        for output in kept:
            views += [output[1], output[1:3], output.reshape((width, 6)), output.detach()]
            seconds.append((sym.var("x") * 2).bind(mx.cpu(), {"x": output}))
        if is_optimized and is_bound_before:
            first = graphopt.optimize(first)
        if is_optimized:
            seconds[0] = graphopt.optimize(seconds[0])
        seen = []
        for step in range(6):
            first.forward(is_train=step % 4 < 2, data=mx.nd.ones((6, width)) * step / 5)
            doubled = [second.forward(is_train=True)[0] for second in seconds]
            seen += [array.asnumpy() for array in (*first.outputs, *kept, *views, *doubled)]
        found.append(seen)
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_outputs_of_an_executor_that_stays_are_its_own() -> None:
    plain = bound(chain(), data=(6, 5), w=(6, 5))
    kept = plain.outputs[0]
    fast = graphopt.optimize(plain)
    before = plain.forward(data=mx.nd.zeros((6, 5)))[0].asnumpy()
    assert not np.array_equal(fast.forward(data=mx.nd.ones((6, 5)))[0].asnumpy(), before)
    assert np.array_equal(kept.asnumpy(), before)


def test_an_executor_that_nobody_holds_is_gone_at_once() -> None:
    fast, _ = pair(chain(), data=(6, 5), w=(6, 5))
    fast.forward(is_train=True)
    fast.backward(mx.nd.ones((6, 5)))
    fast.forward()
    seen = weakref.ref(fast)
    gc.disable()
    try:
        del fast
        assert seen() is None
    finally:
        gc.enable()


def test_outputs_in_one_memory() -> None:
    """MXNet's executor gives an argument as it is, and what is the same twice once."""
    x = sym.var("data")
    y = sym.tanh(x)
    symbol = sym.Group([x, y, sym.identity(y)])
    plain, given = (symbol.bind(mx.cpu(), {"data": mx.nd.ones((6, 5))}) for _ in range(2))
    fast = graphopt.optimize(given)
    kept = given.outputs
    del given
    for step in range(6):
        for executor in (fast, plain):
            executor.forward(is_train=step % 4 < 2, data=mx.nd.ones((6, 5)) * step / 5)
        for got, want in zip((*fast.outputs, *kept), plain.outputs * 2, strict=True):
            assert_near(got, want)


def test_autograd_of_the_user_is_left_alone() -> None:
    """Arrays that are bound may have gradients of their own, and be in a tape."""
    arrays = {"data": mx.nd.ones((6, 5)), "w": mx.nd.ones((6, 5))}
    arrays["w"].attach_grad()
    plain = chain().bind(mx.cpu(), arrays, args_grad={"w": mx.nd.zeros((6, 5))})
    fast = graphopt.optimize(plain)
    with mx.autograd.record():
        loss = (arrays["w"] * 7).sum()
        fast.forward(is_train=True)
        fast.backward(mx.nd.ones((6, 5)))
    loss.backward()
    assert (arrays["w"].grad.asnumpy() == 7).all()
    assert (fast.grad_dict["w"].asnumpy() != 7).all()


def test_reshape() -> None:
    found = sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc")
    fast, plain = pair(found, data=(6, 5))
    smaller = fast.reshape(data=(2, 5))
    assert smaller.arg_dict["fc_weight"] is fast.arg_dict["fc_weight"]
    assert smaller.arg_dict["data"].shape == (2, 5)
    assert smaller.grad_dict["data"].shape == (2, 5)
    plain = plain.reshape(data=(2, 5))
    for executor in (smaller, plain):
        executor.forward(is_train=True, data=mx.nd.ones((2, 5)))
        executor.backward(mx.nd.ones((2, 3)))
    assert_same(smaller, plain)
    with pytest.raises(InputError, match="'fc_weight' would have another shape"):
        fast.reshape(data=(2, 7))
    wider = fast.reshape(partial_shaping=True, data=(2, 7))
    assert wider.arg_dict["fc_weight"].shape == (3, 7)
    assert wider.arg_dict["fc_bias"] is fast.arg_dict["fc_bias"]
    wider.arg_dict["fc_weight"][:] = 2
    found = wider.forward(data=mx.nd.ones((2, 7)))[0] - fast.arg_dict["fc_bias"]
    assert abs(found.asnumpy() - 14).max() < 1e-5


def test_losses_need_no_heads() -> None:
    x = sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc")
    loss = sym.MakeLoss(sym.sum(sym.square(x)), name="loss")
    fast, plain = pair(sym.Group([loss, sym.BlockGrad(x)]), data=(6, 5))
    for executor in (fast, plain):
        executor.forward(is_train=True)
        executor.backward()
    assert_same(fast, plain)


def test_custom_operators() -> None:
    class Twice(mx.operator.CustomOp):  # type: ignore[misc]
        def forward(self, req: Any, in_data: Any, out_data: Any, **_: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req: Any, out_grad: Any, in_grad: Any, **_: Any) -> None:
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register("graphopt_test_twice")
    class TwiceProp(mx.operator.CustomOpProp):  # type: ignore[misc]
        def create_operator(self, *_: Any) -> Any:
            return Twice()

    x = sym.Custom(sym.tanh(sym.var("data")), op_type="graphopt_test_twice")
    fast, plain = pair(sym.exp(x) * 2, data=(3, 4))
    for executor in (fast, plain):
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((3, 4)))
    assert_same(fast, plain)


@pytest.mark.parametrize("dtypes", [None, {}, {"w": "float64"}, {"data": "float64"}])
def test_dtypes_of_a_simple_bind(dtypes: Any) -> None:
    """MXNet takes float32 for what says nothing, unless the caller gives dtypes."""
    rows = sym.take(sym.var("w"), sym.var("data", dtype="int32"))
    symbol = sym.Group([rows, sym.tanh(sym.var("y", dtype="float64"))])
    view = graphopt.optimize(mx.mod.Module(symbol, ["data", "y"], None)).symbol
    shapes = {"data": (2, 3), "w": (5, 4), "y": (2, 3)}
    if dtypes is not None and "w" not in dtypes:
        for each in (symbol, view):
            with pytest.raises(RuntimeError, match="w: -1"):
                each.simple_bind(mx.cpu(), type_dict=dtypes, **shapes)
        return
    plain, fast = (e.simple_bind(mx.cpu(), type_dict=dtypes, **shapes) for e in (symbol, view))
    assert isinstance(fast, OptimizedExecutor)
    for found, want in ((fast.arg_dict, plain.arg_dict), (fast.grad_dict, plain.grad_dict)):
        assert {n: a.dtype for n, a in found.items()} == {n: a.dtype for n, a in want.items()}


def test_requests_for_gradients() -> None:
    view = graphopt.optimize(mx.mod.Module(chain(), ["data"], None)).symbol
    for request, message in (
        ("foo", "grad_req of 'data' is 'foo': give one of 'write', 'add', 'null'"),
        (["add", None], "grad_req of 'w' is None: give"),
        ({"w": "inplace"}, "grad_req of 'w' is 'inplace': give"),
        (["write"], r"is \['write'\]: give one for all .*, or a list of 2"),
        (1, "is 1: give one for all arguments, a dictionary by name"),
    ):
        with pytest.raises(InputError, match=message):
            view.simple_bind(mx.cpu(), grad_req=request, data=(6, 5), w=(6, 5))
    executors = [e.simple_bind(mx.cpu(), None, data=(6, 5), w=(6, 5)) for e in (view, chain())]
    for executor in (executors[0], graphopt.optimize(executors[1])):
        assert [*executor.grad_dict.values()] == [None, None]


def test_bad_input() -> None:
    fast, _ = pair(chain(), data=(6, 5), w=(6, 5))
    with pytest.raises(TypeError, match="unknown argument 'x'; there are data, w"):
        fast.forward(x=mx.nd.ones((6, 5)))
    with pytest.raises(ValueError, match="argument 'data' is a list"):
        fast.forward(data=[1])
    with pytest.raises(ValueError, match=r"'data' is \(6, 5\), \(1, 5\) was given"):
        fast.forward(data=np.ones((1, 5)))
    fast.forward(is_train=True)
    with pytest.raises(InputError, match=r"is \(1, 5\), the output \(6, 5\)"):
        fast.backward(mx.nd.ones((1, 5)))
    with pytest.raises(TypeError, match="is a int, no NDArray"):
        fast.backward([1])


@pytest.mark.parametrize("width", [16, 400])
@pytest.mark.parametrize("infers", [False, True])
def test_steps_without_autograd(width: int, infers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense layers run so behind the first step, by the calling thread or as one operation."""
    monkeypatch.setattr("graphopt.modules.direct._best_of", lambda *_: (1.0, 0.5 if infers else 2))
    x = sym.FullyConnected(sym.var("data"), num_hidden=width, name="wide")
    x = sym.tanh(sym.BatchNorm(x, fix_gamma=False, name="norm"))
    symbol = sym.Group([sym.FullyConnected(x, num_hidden=3, name="out"), x])
    requests = {"data": "add", "wide_bias": "null"}
    requests |= {n: "write" for n in symbol.list_arguments() if n not in requests}
    fast, plain = pair(symbol, requests, data=(32, width))
    head = mx.nd.array(np.random.default_rng(1).standard_normal((32, 3)))
    ones = mx.nd.ones((32, width))
    data = mx.nd.array(np.random.default_rng(2).standard_normal((32, width)))
    for step in range(4):
        for executor in (fast, plain):
            executor.forward(is_train=True, data=data * (step + 1))
            executor.backward([head, ones])
            executor.arg_dict["out_weight"][:] *= 0.9
        assert_same(fast, plain)
        for executor in (fast, plain):
            executor.forward(is_train=False)
        assert_same(fast, plain)
        for executor in (fast, plain):
            executor.backward([head, ones * 2], is_train=False)
        assert_same(fast, plain)
        for name, state in plain.aux_dict.items():
            assert_near(fast.aux_dict[name], state, name)
    assert fast._direct[True] is not None
    assert (fast._direct[False] is not None) == infers
    assert ("inference on these arrays: " in fast.explain()) == infers
    seen: list[str] = []
    fast.set_monitor_callback(lambda name, _: seen.append(name))
    for executor in (fast, plain):
        executor.forward(is_train=True)
        executor.backward([head, ones])
    assert seen
    assert_same(fast, plain)


@pytest.mark.parametrize("infers", [False, True])
def test_sizes_that_come_again_are_timed_once(
    infers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[int] = []

    def best_of(*calls: Callable[[], list[Any]]) -> list[float]:
        timed.append(len(calls))
        return [1.0, 0.5 if infers else 2.0]

    monkeypatch.setattr("graphopt.modules.direct._best_of", best_of)
    x = sym.FullyConnected(sym.var("data"), num_hidden=16, name="wide")
    symbol = sym.FullyConnected(sym.tanh(x), num_hidden=3, name="out")
    fast, plain = pair(symbol, "null", data=(32, 16))
    data = mx.nd.array(np.random.default_rng(1).standard_normal((32, 16)))
    for size in (32, 5, 32, 5, 32):
        fast, plain = (
            executor.reshape(data=(size, 16), partial_shaping=True, allow_up_sizing=True)
            for executor in (fast, plain)
        )
        for executor in (fast, plain):
            executor.forward(is_train=False, data=data[:size])
        assert_same(fast, plain)
        assert ("inference on these arrays: " in fast.explain()) == infers
    assert timed == [2, 2]
    before = fast.outputs[0].copy()
    for name in ("out_weight", "out_bias"):
        fast.arg_dict[name][:] *= 0.5
    assert_near(fast.forward(is_train=False)[0], before * 0.5)


def test_gradients_in_one_array_are_autograds() -> None:
    """Where an array is given twice they are written one after the other."""
    symbol = sym.tanh(sym.var("a")) * sym.sigmoid(sym.var("b"))
    arrays = {"a": mx.nd.ones((6, 5)), "b": mx.nd.ones((6, 5)) * 2}
    shared = mx.nd.zeros((6, 5))
    executor = symbol.bind(mx.cpu(), arrays, args_grad=dict.fromkeys(arrays, shared))
    fast = graphopt.optimize(executor)
    for _ in range(2):
        fast.forward(is_train=True)
        fast.backward(mx.nd.ones((6, 5)))
    assert fast._direct[True] is None


def test_executors_of_mxnets_share_arrays_with_an_optimized_one() -> None:
    fast = graphopt.optimize(bound(chain(), data=(6, 5), w=(6, 5)))
    other = _sharing(chain(), fast, data=(6, 5), w=(6, 5))
    for factor in (1, 2):
        fast.arg_dict["w"][:] = factor * mx.nd.arange(30).reshape((6, 5))
        other.forward(data=fast.arg_dict["data"])
        fast.forward()
        assert_near(other.outputs[0], fast.outputs[0])


def test_a_sparse_executor_shares_the_arrays_of_an_optimized_one() -> None:
    config = graphopt.optimize(mx.mod.Module(chain(), label_names=[]))._symbol.config
    w = sym.var("w")
    dense = BindingSymbol(sym.dot(sym.var("data"), w), config)
    sparse = BindingSymbol(sym.dot(sym.var("data", stype="csr"), w), config)
    fast = dense.simple_bind(mx.cpu(), data=(6, 5), w=(5, 3))
    fast.arg_dict["w"][:] = 3
    plain = _sharing(sparse, fast, data=(6, 5), w=(5, 3))
    assert plain.graphopt_why_plain == "argument 'data' is sparse"
    assert (plain.arg_dict["w"].asnumpy() == 3).all()


def _sharing(symbol: Any, other: Any, **shapes: Any) -> Any:
    return symbol.simple_bind(
        mx.cpu(), shared_exec=other, shared_arg_names=["w"], shared_buffer={}, **shapes
    )


def test_a_symbol_that_names_an_argument_twice_is_mxnets() -> None:
    product = sym.var("a") * sym.var("a") * sym.var("b")
    arrays = [mx.nd.ones((2,)) * value for value in (2, 3, 4)]
    gradients = [mx.nd.zeros((2,)) for _ in arrays]
    plain = product.bind(mx.cpu(), arrays, args_grad=gradients)
    fast = graphopt.optimize(plain)
    assert fast is plain
    assert fast.graphopt_why_plain == "several of its arguments are named 'a'"


@pytest.mark.parametrize("shape", [(5, 1), (1,), (20,)])
def test_a_loss_takes_any_array_for_a_gradient(shape: tuple[int, ...]) -> None:
    loss = sym.SoftmaxOutput(sym.var("data"), sym.var("label"), name="softmax")
    found = []
    for wrap in (lambda executor: executor, graphopt.optimize):
        executor = wrap(loss.simple_bind(mx.cpu(), data=(5, 4), label=(5,)))
        executor.arg_dict["data"][:] = mx.nd.arange(20).reshape((5, 4)) / 20
        for _ in range(3):
            executor.forward(is_train=True)
            executor.backward([mx.nd.ones(shape)])
        found.append(executor.grad_dict["data"].asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_loss_that_reads_its_gradient_wants_one_that_fits() -> None:
    loss = sym.SoftmaxOutput(sym.var("data"), sym.var("label"), out_grad=True, name="softmax")
    fast = graphopt.optimize(loss.simple_bind(mx.cpu(), data=(5, 4), label=(5,)))
    fast.forward(is_train=True)
    with pytest.raises(InputError, match=r"the gradient of 'softmax_output' is \(5, 1\)"):
        fast.backward([mx.nd.ones((5, 1))])
