"""optimize(net, record=True): Python runs at every call, what it calls runs as one graph."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.recording.arrays import PENDING
from graphopt.recording.tape import INVOKE

mx = import_mxnet()
nn = mx.gluon.nn


@pytest.fixture
def numpy_interface() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def replaced() -> list[Any]:
    """What is replaced while a Block is recorded."""
    register, autograd = mx.ndarray.register, mx.autograd
    return [
        register._imperative_invoke,
        register._verify_all_legacy_ndarrays,
        register._verify_all_np_ndarrays,
        autograd.set_recording,
        autograd.set_training,
        mx.nd.NDArray.__setitem__,
        mx.np.ndarray.__setitem__,
        mx.gluon.Parameter._finish_deferred_init,
        mx.gluon.HybridBlock._call_cached_op,
        mx.gluon.block._check_all_np_ndarrays,
    ]


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    before = replaced()
    yield
    assert replaced() == before
    assert before[0] is INVOKE


def block(forward: Callable[..., Any], **children: Any) -> Any:
    """A plain Block with that forward."""

    class Net(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            for name, child in children.items():
                setattr(self, name, child)

    Net.forward = forward
    net = Net()
    net.initialize(mx.init.Normal(0.5))
    return net


def array(*shape: int) -> Any:
    return mx.nd.array(np.random.default_rng(0).standard_normal(shape))


def values(found: Any) -> list[np.ndarray]:
    if isinstance(found, (list, tuple)):
        return [a for item in found for a in values(item)]
    return [found.asnumpy()]


def assert_same(net: Any, *args: Any, **options: Any) -> Any:
    """The recorded net returns what the net returns, twice; gives the optimized net."""
    optimized = graphopt.optimize(net, record=True, **options)
    for _ in range(2):
        wanted, found = values(net(*args)), values(optimized(*args))
        assert len(wanted) == len(found)
        for one, other in zip(wanted, found, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    return optimized


def programs(optimized: Any) -> Any:
    return optimized.graphopt_state.recorded.programs


# -- what is one graph ---------------------------------------------------------------------------


def test_shapes_are_known_and_one_graph_is_made() -> None:
    def forward(self, x):
        assert x.ndim == 3
        assert x.size == 24
        assert x.dtype is np.float32
        assert x.ctx == mx.cpu()
        y = self.dense(x.reshape((x.shape[0] * x.shape[1], -1)))
        assert y.shape == (6, 5)
        assert len(y) == 6
        assert y.stype == "default"
        return mx.nd.softmax(y.reshape((2, -1, 5)) / math.sqrt(y.shape[1]), axis=-1)

    optimized = assert_same(block(forward, dense=nn.Dense(5)), array(2, 3, 4))
    assert programs(optimized).runs == 2
    assert programs(optimized).new == 1
    (entry,) = programs(optimized).entries
    assert len([n for n in entry.original if not n.is_input]) > 3
    assert "its Python runs at every call; 2 programs were run, 1 of them new" in (
        optimized.explain()
    )


def test_what_is_returned_is_an_ordinary_array() -> None:
    net = block(lambda self, x: {"twice": x * 2, "pair": (x + 1, [x - 1])})
    found = graphopt.optimize(net, record=True)(array(2, 3))
    arrays = (found["twice"], found["pair"][0], found["pair"][1][0])
    assert all(type(a) is mx.nd.NDArray for a in arrays)
    found["twice"][:] = 7
    assert found["twice"].asnumpy().tolist() == [[7] * 3] * 2


def test_arguments_may_be_anything() -> None:
    def forward(self, tree, scale=1.0):
        return sum((self(x, scale) if isinstance(x, tuple) else x * scale) for x in tree)

    net = block(forward)
    assert_same(net, (array(2, 2), (array(2, 2), array(2, 2))), 3.0)


def test_another_shape_is_another_program() -> None:
    net = block(lambda self, x: self.dense(x.reshape((0, -1))), dense=nn.Dense(3, in_units=4))
    optimized = graphopt.optimize(net, record=True)
    for rows in (2, 5, 2, 5):
        np.testing.assert_allclose(
            optimized(array(rows, 4)).asnumpy(), net(array(rows, 4)).asnumpy(), rtol=1e-5
        )
    assert programs(optimized).new == 2


def test_values_kept_in_attributes_are_computed() -> None:
    def forward(self, x):
        self.weights = mx.nd.softmax(self.dense(x))
        forgotten = x * 100  # noqa: F841 - nobody holds it when the call ends
        return mx.nd.dot(self.weights, x)

    net = block(forward, dense=nn.Dense(4))
    optimized = assert_same(net, array(4, 4))
    kept = optimized.weights
    assert type(kept) is mx.nd.NDArray
    np.testing.assert_allclose(kept.asnumpy().sum(axis=1), np.ones(4), rtol=1e-5)
    (entry,) = programs(optimized).entries
    assert len(entry.original.outputs) == 2


def test_hybridized_children_are_inlined_and_stay_hybridized() -> None:
    child = nn.HybridSequential()
    child.add(nn.Dense(8, activation="relu"), nn.Dense(3))
    net = block(lambda self, x: mx.nd.tanh(self.child(x) * 2), child=child)
    child.hybridize()
    optimized = assert_same(net, array(2, 4))
    (entry,) = programs(optimized).entries
    assert sum(n.op == "FullyConnected" for n in entry.original) == 2
    assert child._active


def test_inference_mode_folds_parameters() -> None:
    net = block(
        lambda self, x: mx.nd.relu(self.norm(self.conv(x))),
        conv=nn.Conv2D(4, 3),
        norm=nn.BatchNorm(),
    )
    optimized = assert_same(net, array(2, 3, 8, 8), mode="inference")
    (entry,) = programs(optimized).entries
    assert not any(n.op == "BatchNorm" for n in entry.result.graph)


def test_children_that_are_optimized_are_part_of_it() -> None:
    child = nn.HybridSequential()
    child.add(nn.Dense(3, in_units=4))
    net = block(lambda self, x: mx.nd.tanh(self.child(x)), child=graphopt.optimize(child))
    optimized = assert_same(net, array(2, 4))
    (entry,) = programs(optimized).entries
    assert {n.op for n in entry.original if not n.is_input} == {"FullyConnected", "tanh"}


# -- values and writes ---------------------------------------------------------------------------


def test_reading_a_value_runs_what_there_is() -> None:
    def forward(self, x):
        y = self.dense(x)
        return y * 2 if float(y.sum().asscalar()) > 0 else y * -3

    optimized = assert_same(block(forward, dense=nn.Dense(4)), array(3, 4))
    assert programs(optimized).runs == 4


def test_a_loop_until_a_value_is_small() -> None:
    def forward(self, x):
        steps = 0
        while x.norm() > 1:
            x = x / 2
            steps += 1
        return x, mx.nd.array([steps])

    assert_same(block(forward), array(3, 4) * 10)


def test_writes_are_seen() -> None:
    def forward(self, x):
        y = x * 2
        y[:, 0] = 5
        z = y + 1
        y += 10
        y[1] = z[0]
        return y, z

    assert_same(block(forward), array(3, 4))


def test_writes_are_seen_through_views() -> None:
    def forward(self, x):
        y = x * 2
        flat, row = y.reshape((-1,)), y[1]
        y[:] = 3
        row[:] = 4
        flat[0] = 5
        return y, flat, row

    assert_same(block(forward), array(3, 4))


def test_writes_into_arrays_from_outside() -> None:
    def forward(self, x):
        before = self.state * 1
        seen = x * self.state
        self.state[:] = seen.mean()
        return before, seen, x * self.state

    net = block(forward)
    net.state = mx.nd.array([2.0])
    x, found = array(3, 4), {}
    for name, call in (("plain", net), ("recorded", graphopt.optimize(net, record=True))):
        net.state[:] = 2
        found[name] = values(call(x)) + values(net.state)
    for one, other in zip(found["plain"], found["recorded"], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5)


def test_an_output_argument() -> None:
    def forward(self, x):
        y = mx.nd.zeros((3, 4))
        z = x + y
        mx.nd.broadcast_add(x, x, out=y)
        return y, z

    assert_same(block(forward), array(3, 4))


KEYS = [
    0,
    -1,
    slice(1, 3),
    slice(None),
    slice(None, None, 2),
    slice(None, None, -1),
    (slice(None), 1),
    (1, 2),
    (slice(None), None),
    (Ellipsis, 0),
    (slice(1, None), slice(None, -1), None),
    (0, slice(None), 1),
    [0, 2],
    (slice(None), [0, 0, 1]),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("is_np", [False, True])
def test_indexing(key: Any, is_np: bool) -> None:
    if is_np:
        mx.npx.set_np()
    try:
        x = mx.np.arange(24).reshape(3, 4, 2) if is_np else mx.nd.arange(24).reshape((3, 4, 2))
        assert_same(block(lambda self, x: (x * 2)[key]), x)
    finally:
        mx.npx.reset_np()


def test_indexing_out_of_bounds_raises_as_ever() -> None:
    net = graphopt.optimize(block(lambda self, x: (x * 2)[:, 9]), record=True)
    with pytest.raises(IndexError, match="out of bounds"):
        net(array(2, 3))
    assert graphopt.optimize(block(lambda self, x: x + 1), record=True)(array(1)).shape == (1,)


METHODS: dict[str, Callable[[Any], Any]] = {
    "copy": lambda y: y.copy(),
    "astype": lambda y: y.astype("float64"),
    "cast to itself": lambda y: y.astype("float32", copy=False),
    "detach": lambda y: y.detach(),
    "T": lambda y: y.T,
    "as_in_context": lambda y: y.as_in_context(mx.cpu()),
    "split": lambda y: mx.nd.split(y, 2, axis=1),
    "iteration": lambda y: [row * 2 for row in y],
    "comparison": lambda y: (y > 0) * y,
    "right operand": lambda y: 2 / (1 - y),
    "no axes": lambda y: y.sum(),
    "reverse": lambda y: y.reshape((0, -1), reverse=True),
    "topk": lambda y: y.topk(k=2, ret_typ="both"),
    "numbers of rows": lambda y: mx.nd.take(y, mx.nd.array([1, 0])),
    "random of a seed": lambda y: y + mx.nd.random.uniform(shape=(1,)) * 0,
}


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    assert_same(block(lambda self, x: METHODS[name](x * 2)), array(3, 4))


def test_results_of_unknown_shape() -> None:
    def forward(self, x):
        kept = mx.nd.contrib.boolean_mask(x * 2, (x.sum(axis=1) > 0))
        return kept * 3

    assert_same(block(forward), array(6, 4))


# -- gradients and state -------------------------------------------------------------------------


def gradients(net: Any, call: Any, *args: Any) -> dict[str, np.ndarray]:
    mx.random.seed(1)
    for arg in args:
        arg.attach_grad()
    with mx.autograd.record():
        loss = mx.nd.sum(call(*args) ** 2)
    loss.backward()
    found = {f"arg{n}": a.grad.asnumpy() for n, a in enumerate(args)}
    return found | {
        k: p.grad().asnumpy() for k, p in net.collect_params().items() if p.grad_req != "null"
    }


def assert_same_gradients(net: Any, *args: Any) -> None:
    net(*args)  # parameters get their shapes
    optimized = graphopt.optimize(net, record=True)
    for _ in range(2):
        wanted, found = gradients(net, net, *args), gradients(net, optimized, *args)
        for name in wanted:
            np.testing.assert_allclose(
                found[name], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name
            )


def test_gradients() -> None:
    def forward(self, x):
        y = mx.nd.tanh(self.first(x))
        return self.second(mx.nd.concat(y, y[:, :2] * 3, dim=1))

    assert_same_gradients(block(forward, first=nn.Dense(5), second=nn.Dense(3)), array(4, 6))


def test_gradients_across_a_value_that_is_read() -> None:
    def forward(self, x):
        y = self.first(x)
        scale = 2.0 if y.mean().asscalar() > -100 else 1.0
        return self.second(mx.nd.tanh(y) * scale)

    assert_same_gradients(block(forward, first=nn.Dense(5), second=nn.Dense(3)), array(4, 6))


def test_no_gradients_through_paused_parts() -> None:
    def forward(self, x):
        with mx.autograd.pause():
            fixed = self.first(x)
        return self.second(x) * fixed + x.detach()

    net = block(forward, first=nn.Dense(3), second=nn.Dense(3))
    assert_same_gradients(net, array(4, 3))
    assert not net.first.weight.grad().asnumpy().any()


def test_batch_norm_moves_its_statistics() -> None:
    net = block(lambda self, x: mx.nd.relu(self.norm(x)), norm=nn.BatchNorm(in_channels=3))
    moved = []
    for call in (net, graphopt.optimize(net, record=True)):
        net.norm.running_mean.set_data(mx.nd.zeros(3))
        with mx.autograd.record():
            loss = call(array(4, 3, 5, 5)).sum()
        loss.backward()
        mx.nd.waitall()
        moved.append(net.norm.running_mean.data().asnumpy())
    assert moved[0].any()
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-4)


def test_dropout_draws_at_every_call() -> None:
    optimized = graphopt.optimize(
        block(lambda self, x: self.drop(x * 1), drop=nn.Dropout(0.5)), record=True
    )
    with mx.autograd.record():
        first, second = optimized(mx.nd.ones((20, 20))), optimized(mx.nd.ones((20, 20)))
    assert (first != second).sum().asscalar() > 0
    assert optimized(mx.nd.ones((3,))).asnumpy().tolist() == [1, 1, 1]


def test_rows_in_use_of_an_embedding() -> None:
    net = block(
        lambda self, x: self.table(x).sum(axis=1) * 2, table=nn.Embedding(9, 3, sparse_grad=True)
    )
    found = []
    for call in (net, graphopt.optimize(net, record=True)):
        with mx.autograd.record():
            loss = (call(mx.nd.array([[1, 2], [2, 5]])) ** 2).sum()
        loss.backward()
        gradient = net.table.weight.grad()
        assert gradient.stype == "row_sparse"
        found.append(gradient.asnumpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_functions_with_a_backward_of_their_own() -> None:
    class Twice(mx.autograd.Function):
        def forward(self, x):
            return x * 2

        def backward(self, gradient):
            return gradient * 5

    net = block(lambda self, x: Twice()(self.dense(x)) + x[:, :3], dense=nn.Dense(3))
    assert_same_gradients(net, array(2, 4))


def test_parameters_that_are_replaced() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)), dense=nn.Dense(3, in_units=4))
    optimized = graphopt.optimize(net, record=True)
    x = array(2, 4)
    optimized(x)
    net.initialize(mx.init.One(), force_reinit=True)
    np.testing.assert_allclose(optimized(x).asnumpy(), net(x).asnumpy(), rtol=1e-5)
    net.dense.weight.set_data(mx.nd.zeros((3, 4)))
    assert not optimized(x).asnumpy().any()


# -- what is not compiled ------------------------------------------------------------------------


def test_numbers_that_change_from_call_to_call() -> None:
    def forward(self, x):
        self.step = getattr(self, "step", 0) + 1
        return self.dense(x) * self.step

    net = block(forward, dense=nn.Dense(2))
    optimized, x = graphopt.optimize(net, record=True, passes="none"), array(1, 2)
    for _ in range(30):
        found = optimized(x).asnumpy()
        np.testing.assert_allclose(found, net.dense(x).asnumpy() * net.step, rtol=1e-5)
    assert programs(optimized).is_in_vain
    assert "most programs are new" in optimized.explain()


def test_many_lengths_are_not_in_vain() -> None:
    net = block(lambda self, x: self.dense(x.reshape((0, -1))), dense=nn.Dense(2, in_units=3))
    optimized = graphopt.optimize(net, record=True, passes="none")
    for rows in range(1, 40):
        optimized(array(rows, 3))
    assert programs(optimized).new == 39
    assert not programs(optimized).is_in_vain


def test_a_program_that_mxnet_has_no_graph_for() -> None:
    def forward(self, x):
        ones = mx.nd.ones((3,))
        # Statistics that are computed are no variables, which a graph wants them to be.
        return mx.nd.BatchNorm(x, ones, ones * 0, ones * 0, ones * 2, use_global_stats=True) + 1

    optimized = assert_same(block(forward), array(2, 3, 4, 4))
    assert "runs call by call" in optimized.explain()


def test_python_operators_run_at_once() -> None:
    class Plus(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            self.assign(out_data[0], req[0], in_data[0] + 1)

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0])

    class PlusProp(mx.operator.CustomOpProp):
        def create_operator(self, ctx, shapes, dtypes):
            return Plus()

    mx.operator.register("graphopt_test_plus")(PlusProp)
    assert_same(
        block(lambda self, x: mx.nd.Custom(x * 2, op_type="graphopt_test_plus") * 3), array(2, 2)
    )


def test_what_the_block_raises_is_raised() -> None:
    def forward(self, x):
        y = x * 2
        if x.shape[0] == 3:
            raise KeyError("no such thing")
        return y

    optimized = graphopt.optimize(block(forward), record=True)
    with pytest.raises(KeyError, match="no such thing"):
        optimized(array(3, 1))
    assert optimized(array(2, 1)).shape == (2, 1)


def test_a_wrong_call_raises_what_mxnet_raises() -> None:
    optimized = graphopt.optimize(block(lambda self, x: mx.nd.dot(x, x)), record=True)
    with pytest.raises(mx.MXNetError):
        optimized(array(2, 3)).asnumpy()


@pytest.mark.parametrize("option", [{"memory": "1GB"}, {"max_shapes": {"data": (2, 2)}}])
def test_refused_with_planned_memory(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="leave out record=True"):
        graphopt.optimize(block(lambda self, x: x), record=True, **option)


def test_it_cannot_be_exported(tmp_path: Path) -> None:
    optimized = graphopt.optimize(block(lambda self, x: x * 2), record=True)
    optimized(array(2, 2))
    with pytest.raises(InputError, match="cannot be exported as one graph"):
        optimized.export(tmp_path / "net")


def test_its_graph_and_its_report(tmp_path: Path) -> None:
    optimized = graphopt.optimize(block(lambda self, x: mx.nd.relu(x) * 2 + 1), record=True)
    optimized(array(2, 2))
    assert len(optimized.graph().outputs) == 1
    assert "fuse-pointwise" in optimized.report(tmp_path / "net.html").read_text()


def test_a_net_that_compiles_whole_is_not_recorded() -> None:
    net = nn.HybridSequential()
    net.add(nn.Dense(3))
    net.initialize()
    optimized = graphopt.optimize(net, record=True)
    optimized(array(2, 4))
    assert optimized.graphopt_state.recorded is None


def test_without_it_explain_tells_of_it() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)), dense=nn.Dense(3))
    optimized = graphopt.optimize(net)
    optimized(array(2, 4))
    assert "record=True compiles them" in optimized.explain()


# -- beside others -------------------------------------------------------------------------------


def test_threads() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)) * 2, dense=nn.Dense(3))
    optimized = graphopt.optimize(net, record=True)
    inputs = [array(2 + n % 3, 4) * (n + 1) for n in range(12)]
    wanted = [net(x).asnumpy() for x in inputs]
    found: list[Any] = [None] * len(inputs)

    def work(offset: int) -> None:
        for n in range(offset, len(inputs), 3):
            found[n] = optimized(inputs[n]).asnumpy()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5)


def test_inside_of_a_batch() -> None:
    net = block(lambda self, x: mx.nd.tanh(self.dense(x)) + 1, dense=nn.Dense(3, in_units=4))
    batched = graphopt.batch(graphopt.optimize(net, record=True))
    samples = [(array(1, 4) * n,) for n in range(4)]
    found = batched(samples)
    wanted = np.concatenate([net(x).asnumpy() for (x,) in samples])
    np.testing.assert_allclose(found.asnumpy(), wanted, rtol=1e-5)


def test_a_batch_inside_of_it() -> None:
    inner = block(lambda self, x: mx.nd.tanh(self.dense(x)), dense=nn.Dense(3, in_units=4))
    batched = graphopt.batch(inner)
    net = block(lambda self, x: batched([(x[:1] * 2,), (x[1:] * 3,)]) + 1)
    assert_same(net, array(2, 4))


def test_no_pending_array_stays() -> None:
    kept = []
    net = block(lambda self, x: kept.append(x * 2) or x + 1)
    graphopt.optimize(net, record=True)(array(2, 2))
    assert type(kept[0]) not in PENDING


# -- mx.np ---------------------------------------------------------------------------------------


def masked_softmax(scores: Any, lengths: Any) -> Any:
    shape = scores.shape
    lengths = lengths.repeat(shape[1])
    scores = mx.npx.sequence_mask(scores.reshape(-1, shape[-1]), lengths, True, value=-1e6, axis=1)
    return mx.npx.softmax(scores).reshape(shape)


def attention() -> Any:
    """Attention as textbooks write it: shapes are read, weights are kept."""

    def forward(self, x, lengths):
        def heads(y):
            y = y.reshape(y.shape[0], y.shape[1], 2, -1).transpose(0, 2, 1, 3)
            return y.reshape(-1, y.shape[2], y.shape[3])

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        scores = mx.npx.batch_dot(q, k, transpose_b=True) / math.sqrt(q.shape[-1])
        self.weights = masked_softmax(scores, lengths.repeat(2, axis=0))
        y = mx.npx.batch_dot(self.weights, v)
        y = y.reshape(-1, 2, y.shape[1], y.shape[2]).transpose(0, 2, 1, 3)
        return self.norm(y.reshape(y.shape[0], y.shape[1], -1) + x)

    parts = {name: nn.Dense(8, flatten=False) for name in "qkv"}
    return block(forward, **parts, norm=nn.LayerNorm())


def test_attention_of_the_numpy_interface(numpy_interface: None) -> None:
    net, x = attention(), mx.np.random.normal(size=(3, 5, 8))
    optimized = assert_same(net, x, mx.np.array([2, 5, 3]))
    assert type(optimized(x, mx.np.array([2, 5, 3]))) is mx.np.ndarray
    assert type(optimized.weights) is mx.np.ndarray
    assert optimized.weights.shape == (6, 5, 5)
    assert programs(optimized).new == 1
    (entry,) = programs(optimized).entries
    assert not any(n.op.startswith("_np") for n in entry.result.graph)


def test_arrays_of_the_other_interface_are_refused_as_ever(numpy_interface: None) -> None:
    net = block(lambda self, x: mx.nd.relu(x + 1))
    with pytest.raises(TypeError, match="legacy operator"):
        graphopt.optimize(net, record=True)(mx.np.ones((2, 2)))


def test_gradients_of_the_numpy_interface(numpy_interface: None) -> None:
    net, x = attention(), mx.np.random.normal(size=(3, 5, 8))
    lengths = mx.np.array([2, 5, 3])
    net(x, lengths)
    found = []
    for call in (net, graphopt.optimize(net, record=True)):
        with mx.autograd.record():
            loss = (call(x, lengths) ** 2).mean()
        loss.backward()
        found.append({k: p.grad().asnumpy() for k, p in net.collect_params().items()})
    for key, wanted in found[0].items():
        np.testing.assert_allclose(found[1][key], wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("layer", [mx.gluon.rnn.RNN, mx.gluon.rnn.GRU, mx.gluon.rnn.LSTM])
def test_a_language_model_of_the_numpy_interface(layer: Any, numpy_interface: None) -> None:
    def forward(self, x, state):
        y, state = self.rnn(mx.npx.one_hot(x.T, 9), state)
        return self.dense(y.reshape(-1, y.shape[-1])), state

    net = block(forward, rnn=layer(6), dense=nn.Dense(9))
    state = net.rnn.begin_state(batch_size=2)
    optimized = assert_same(net, mx.np.array([[1, 2, 3], [4, 5, 8]]), state)
    assert programs(optimized).new == 1
