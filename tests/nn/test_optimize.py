"""Optimized views of Gluon Blocks: same values, same gradients, same parameters, same object."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, ParseError, UnsupportedError

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def small_cnn(dropout: float = 0.0) -> object:
    mx.random.seed(0)
    net = nn.HybridSequential()
    with net.name_scope():
        net.add(
            nn.Conv2D(4, 3, padding=1, use_bias=False),
            nn.BatchNorm(),
            nn.Activation("relu"),
            nn.MaxPool2D(),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Dense(5),
        )
    net.initialize(mx.init.Xavier())
    return net


def image(batch: int = 2) -> object:
    return mx.nd.random.uniform(shape=(batch, 3, 8, 8))


def gradients(net: object, x: object) -> dict[str, np.ndarray]:
    params = {k: p for k, p in net.collect_params().items() if p.grad_req != "null"}
    for p in params.values():
        p.zero_grad()
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    return {k: p.grad().asnumpy().copy() for k, p in params.items()}


def same(a: object, b: object, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=tol, atol=tol)


def test_layouts_of_arguments_and_results_are_kept():
    """GluonTS writes them beside what it exports."""

    class Nested(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, states):
            return x + states[0], [states[1] * 2]

    x = mx.nd.ones((2, 3))
    kept = []
    for net in (Nested(), graphopt.optimize(Nested())):
        net.hybridize()
        net(x, [x, x])
        kept.append((net._in_format, net._out_format))
    assert kept[0] == kept[1] == ([0, [0, 0]], [0, [0]])


@pytest.mark.parametrize("mode", ["auto", "training", "inference"])
def test_outputs_are_those_of_the_plain_net(mode: str) -> None:
    net = small_cnn()
    x = image()
    if mode == "training":
        with autograd.train_mode():
            want = net(x)
    else:
        want = net(x)
    fast = graphopt.optimize(net, mode=mode)
    with autograd.train_mode() if mode == "training" else autograd.predict_mode():
        same(fast(x), want)
        same(fast(x), want)


def test_gradients_and_running_statistics_are_those_of_the_plain_net() -> None:
    plain, net = small_cnn(), small_cnn()
    x = image()
    plain(x), net(x)
    for a, b in zip(plain.collect_params().values(), net.collect_params().values(), strict=True):
        b.set_data(a.data())
    fast = graphopt.optimize(net)
    want, got = gradients(plain, x), gradients(fast, x)
    for a, b in zip(want.values(), got.values(), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
    for a, b in zip(
        plain.collect_params(".*running.*").values(),
        net.collect_params(".*running.*").values(),
        strict=True,
    ):
        same(a.data(), b.data())


def test_the_view_is_the_users_net_in_all_but_its_call() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    assert isinstance(fast, nn.HybridSequential)
    assert type(net) is nn.HybridSequential
    assert fast.collect_params().keys() == net.collect_params().keys()
    assert all(
        a is b
        for a, b in zip(fast.collect_params().values(), net.collect_params().values(), strict=True)
    )
    assert fast[0] is net[0]
    assert fast.name == net.name
    assert "HybridSequential" in repr(fast)


def test_nothing_is_left_on_the_users_net() -> None:
    net = small_cnn()
    net(image())
    before = {key: id(value) for key, value in vars(net).items()}
    fast = graphopt.optimize(net)
    fast(image())
    fast.hybridize()
    with autograd.record():
        fast(image())
    assert {key: id(value) for key, value in vars(net).items()} == before
    assert not net._active
    assert not net._cached_graph


def test_parameters_stay_live_in_auto_mode() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    x = image()
    trainer = mx.gluon.Trainer(fast.collect_params(), "sgd", {"learning_rate": 0.01})
    for _ in range(3):
        with autograd.record():
            loss = (fast(x) ** 2).mean()
        loss.backward()
        trainer.step(2)
        same(fast(x), net(x))


def test_inference_mode_freezes_until_reset() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net, mode="inference")
    x = image()
    fast(x)
    for p in net.collect_params(".*(gamma|beta|running_mean)").values():
        p.set_data(p.data() + 0.5)
    fast.reset()
    same(fast(x), net(x), 1e-4)


def test_load_parameters_resets_a_frozen_net(tmp_path) -> None:
    source, net = small_cnn(), small_cnn()
    x = image()
    source(x)
    for p in source.collect_params().values():
        p.set_data(p.data() + 0.1)
    source.save_parameters(str(tmp_path / "p"))
    fast = graphopt.optimize(net, mode="inference")
    fast(x)
    fast.load_parameters(str(tmp_path / "p"))
    same(fast(x), source(x), 1e-4)


def test_save_and_load_parameters_have_the_same_names(tmp_path) -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    fast(image())
    fast.save_parameters(str(tmp_path / "a"))
    net.save_parameters(str(tmp_path / "b"))
    assert mx.nd.load(str(tmp_path / "a")).keys() == mx.nd.load(str(tmp_path / "b")).keys()


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_export_loads_in_plain_mxnet(tmp_path, mode: str) -> None:
    net = small_cnn()
    fast = graphopt.optimize(net, mode=mode)
    x = image()
    want = fast(x)
    fast.export(str(tmp_path / "m"), 3)
    block = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "m-symbol.json"), ["data"], str(tmp_path / "m-0003.params")
    )
    same(block(x), want)
    model = graphopt.load(tmp_path / "m-symbol.json", tmp_path / "m-0003.params")
    same(model(x), want)


def test_every_signature_compiles_once() -> None:
    fast = graphopt.optimize(small_cnn())
    for batch in (1, 2, 1, 2):
        fast(image(batch))
    with autograd.record():
        fast(image(2))
    assert len(fast.receipts()) == 3


def test_a_net_that_asks_autograd_is_traced_in_each_state() -> None:
    class Net(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Dense(3)

        def hybrid_forward(self, F, x):
            found = self.dense(x)
            if autograd.is_recording():
                found = F.concat(found, x)
            return F.tanh(found) if autograd.is_training() else found

    net, x = Net(), mx.nd.random.uniform(shape=(2, 4))
    net.initialize()
    for options in ({}, {"strict": True}, {"mode": "training"}):
        optimized = graphopt.optimize(net, **options)
        for _ in range(2):
            for scope in (autograd.record, autograd.pause):
                for train_mode in (True, False):
                    with scope(train_mode=train_mode):
                        same(optimized(x), net(x))
        assert len(optimized.graphopt_state.compiled.entries) == 4


def test_states_of_autograd_share_a_graph_that_comes_out_alike() -> None:
    net = small_cnn(dropout=0.5)
    optimized, x = graphopt.optimize(net), image()
    for scope in (autograd.record, autograd.train_mode, autograd.record):
        with scope():
            optimized(x)
    with autograd.record(train_mode=False):
        same(optimized(x), net(x))
    assert len(optimized.graphopt_state.compiled.entries) == 1


def test_casting_recompiles() -> None:
    fast = graphopt.optimize(small_cnn(), mode="inference")
    x = image()
    want = fast(x)
    fast.cast("float64")
    same(fast(x.astype("float64")), want, 1e-4)
    assert fast(x.astype("float64")).dtype == np.float64


def test_hybridize_compiles_in_what_blocks_within_were_told() -> None:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(8, in_units=4), mx.gluon.nn.Dropout(0.9))
    net.initialize()
    fast, x = graphopt.optimize(net), mx.nd.ones((2, 4))
    with mx.autograd.record():
        assert (fast(x) == 0).sum().asscalar()
    net[1]._rate = 0
    fast.hybridize()
    with mx.autograd.record():
        assert not (fast(x) == 0).sum().asscalar()


def test_decorator_on_a_class_keeps_names_and_type() -> None:
    class Net(mx.gluon.HybridBlock):
        def __init__(self, units: int, **kwargs: object) -> None:
            super().__init__(**kwargs)
            self.units = units
            with self.name_scope():
                self.dense = nn.Dense(units)

        def hybrid_forward(self, F, x):
            return F.relu(self.dense(x)), [x + 1, None]

    fast_class = graphopt.optimize(mode="inference")(Net)
    net = fast_class(4)
    assert isinstance(net, Net)
    assert net.name.startswith("net")
    net.initialize()
    x = mx.nd.ones((2, 3))
    out, (plus, nothing) = net(x)
    assert out.shape == (2, 4)
    assert nothing is None
    same(plus, x + 1)
    assert graphopt.optimize(Net)(2).units == 2


def test_decorator_on_a_function() -> None:
    @graphopt.optimize
    def build(units: int) -> object:
        """Build it."""
        return nn.Dense(units)

    net = build(3)
    net.initialize()
    assert build.__doc__ == "Build it."
    assert net(mx.nd.ones((1, 2))).shape == (1, 3)
    assert net.receipts()


def test_several_inputs_nested_and_none() -> None:
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, pair, mask=None):
            y = F.broadcast_add(x, pair[0]) * pair[1]
            return y if mask is None else y * mask

    net = Net()
    fast = graphopt.optimize(net)
    a, b = mx.nd.ones((2, 3)), mx.nd.ones((2, 3)) * 2
    same(fast(a, [a, b]), net(a, [a, b]))
    same(fast(a, [a, b], b), net(a, [a, b], b))
    same(fast(a, [a, b], None), net(a, [a, b], None))


class Mixed(mx.gluon.Block):
    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.head = nn.Dense(4, activation="relu")
            self.tail = nn.HybridSequential()
            self.tail.add(nn.Dense(3), nn.LayerNorm())
        self.layers = [self.head, self.tail]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if x.sum().asscalar() > 1e9:
                return x
        return x


def test_a_plain_block_is_taken_child_by_child() -> None:
    net = Mixed()
    net.initialize()
    fast = graphopt.optimize(net, record=False)
    x = mx.nd.random.normal(shape=(2, 6))
    same(fast(x), net(x))
    text = fast.explain()
    assert "is no HybridBlock" in text
    assert "child 'head': Dense" in text
    assert len(fast.receipts()) == 2
    assert type(net.head) is nn.Dense
    want, got = gradients(net, x), gradients(fast, x)
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-5)


def test_a_hybrid_block_that_looks_at_values_is_taken_child_by_child() -> None:
    class Peeks(mx.gluon.HybridBlock):
        def __init__(self, **kwargs: object) -> None:
            super().__init__(**kwargs)
            with self.name_scope():
                self.dense = nn.Dense(2)

        def hybrid_forward(self, F, x):
            y = self.dense(x)
            return y if y.sum().asscalar() > 0 else -y

    net = Peeks()
    net.initialize()
    x = mx.nd.ones((1, 3))
    fast = graphopt.optimize(net)
    same(fast(x), net(x))
    assert "cannot be traced" in fast.explain()
    with pytest.raises(UnsupportedError, match="cannot be traced"):
        graphopt.optimize(net, strict=True)(x)


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_recurrent_layers_with_states(mode: str) -> None:
    net = mx.gluon.rnn.LSTM(5, num_layers=2)
    net.initialize()
    fast = graphopt.optimize(net, mode=mode)
    x = mx.nd.random.normal(shape=(4, 2, 3))
    same(fast(x), net(x))
    states = net.begin_state(batch_size=2)
    want, want_states = net(x, states)
    got, got_states = fast(x, states)
    same(got, want)
    for a, b in zip(got_states, want_states, strict=True):
        same(a, b)


def test_hooks_run_around_the_compiled_call() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    seen: list[str] = []
    fast.register_forward_pre_hook(lambda block, args: seen.append("before"))
    fast.register_forward_hook(lambda block, args, out: seen.append(type(out).__name__))
    fast(image())
    assert seen == ["before", "NDArray"]


@pytest.mark.parametrize("active", [False, True])
def test_hooks_of_children_see_arrays(active: bool) -> None:
    net = small_cnn()
    net.hybridize(active)
    seen: list[str] = []
    net[0].register_forward_hook(lambda block, args, out: seen.append(type(out).__name__))
    fast = graphopt.optimize(net)
    for _ in range(2):
        fast(image())
    assert seen == ["NDArray"] * 2
    assert "forward hooks" in fast.explain()


def test_inside_a_parent_hybridized_or_not() -> None:
    net = small_cnn()
    x = image()
    net(x)
    parent = nn.HybridSequential()
    parent.add(graphopt.optimize(net), nn.Dense(2))
    parent[1].initialize()
    want = parent(x)
    parent.hybridize()
    same(parent(x), want)


def test_two_calls_before_one_backward_and_gradients_that_add() -> None:
    plain, fast = (small_cnn() for _ in range(2))
    x, y = image(), image()
    plain(x), fast(x)
    for a, b in zip(plain.collect_params().values(), fast.collect_params().values(), strict=True):
        b.set_data(a.data())
    view = graphopt.optimize(fast)
    grads = []
    for net, owner in ((plain, plain), (view, fast)):
        weight = owner[0].weight
        weight.grad_req = "add"
        weight.zero_grad()
        for _ in range(2):
            with autograd.record():
                loss = (net(x) * net(y)).sum()
            loss.backward()
        grads.append(weight.grad().asnumpy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def test_gradients_through_a_child_that_returns_its_input() -> None:
    class Residual(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.body = nn.Dense(3, in_units=3)
                self.shortcut = mx.gluon.contrib.nn.Identity()

        def forward(self, x):
            return self.shortcut(self.body(x))

    net = Residual()
    net.initialize()
    x = mx.nd.ones((2, 3))
    want, got = gradients(net, x), gradients(graphopt.optimize(net), x)
    for key, value in want.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-5)


def test_gradients_of_an_input_that_is_returned() -> None:
    class Both(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x, y):
            return x, F.broadcast_minimum(x, y)

    x, y = mx.nd.array([[2.0, -1.0]]), mx.nd.array([[1.0, 1.0]])
    x.attach_grad()
    net = graphopt.optimize(Both())
    with autograd.record():
        returned, least = net(x, y)
        loss = (3 * returned + least).sum()
    loss.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), [[3.0, 4.0]])


@pytest.mark.parametrize("train_mode", [True, False])
def test_gradients_of_inputs(train_mode: bool) -> None:
    # No BatchNorm: MXNet's own backward through it is not reproducible with train_mode=False.
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="tanh"), nn.Dropout(0.0), nn.Dense(2))
    net.initialize()
    grads = []
    for model in (net, graphopt.optimize(net)):
        x = mx.nd.ones((2, 3)) * 0.3
        x.attach_grad()
        with autograd.record(train_mode=train_mode):
            loss = (model(x) ** 2).sum()
        loss.backward(train_mode=train_mode)
        grads.append(x.grad.asnumpy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-5)


def test_dropout_is_random_in_training_and_gone_in_inference() -> None:
    fast = graphopt.optimize(small_cnn(dropout=0.5))
    x = image()
    same(fast(x), fast(x))
    with autograd.record():
        a, b = fast(x), fast(x)
    assert not np.allclose(a.asnumpy(), b.asnumpy())


def test_several_contexts() -> None:
    net = nn.Dense(3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    fast = graphopt.optimize(net)
    for ctx in (mx.cpu(0), mx.cpu(1)):
        x = mx.nd.ones((2, 4), ctx=ctx)
        same(fast(x), net(x))
        assert fast(x).ctx == ctx


def test_integer_and_half_inputs() -> None:
    net = nn.HybridSequential()
    net.add(nn.Embedding(10, 4), nn.Dense(2))
    net.initialize()
    fast = graphopt.optimize(net)
    for dtype in ("int32", "float32"):
        x = mx.nd.array([[1, 2], [3, 4]], dtype=dtype)
        same(fast(x), net(x))


def test_an_already_hybridized_net() -> None:
    net = small_cnn()
    net.hybridize(static_alloc=True)
    x = image()
    want = net(x)
    same(graphopt.optimize(net)(x), want)
    same(net(x), want)


def test_deepcopy_gives_a_view_of_a_copy() -> None:
    fast = graphopt.optimize(small_cnn())
    x = image()
    want = fast(x)
    twin = copy.deepcopy(fast)
    same(twin(x), want)
    assert twin[0].weight is not fast[0].weight


@graphopt.optimize
class Decorated(mx.gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(3)

    def hybrid_forward(self, F, x):
        return self.dense(x)


def test_views_and_decorated_blocks_are_pickled() -> None:
    decorated = Decorated()
    decorated.initialize()
    for fast, x in (
        (graphopt.optimize(small_cnn(), memory="1GB"), image()),
        (decorated, mx.nd.ones((2, 4))),
    ):
        with mx.autograd.record():
            loss = fast(x).sum()
        loss.backward()
        twin = pickle.loads(pickle.dumps(fast))
        same(twin(x), fast(x))
        assert type(twin) is type(decorated) or "memory" not in twin.explain()
        assert repr(twin).startswith("Optimized[")


def test_outputs_are_not_overwritten_by_later_calls() -> None:
    for mode in ("auto", "inference"):
        fast = graphopt.optimize(small_cnn(), mode=mode)
        first = fast(image())
        kept = first.asnumpy().copy()
        fast(image())
        np.testing.assert_array_equal(first.asnumpy(), kept)


def test_check_compares_on_the_first_calls_values() -> None:
    fast = graphopt.optimize(small_cnn(), mode="inference", check=True)
    fast(image())
    (receipts,) = fast.receipts().values()
    assert any(r.max_error is not None for r in receipts)


def test_uninitialized_net_says_so() -> None:
    with pytest.raises(InputError, match=r"is not initialized: call \.initialize"):
        graphopt.optimize(nn.Dense(2))(mx.nd.ones((1, 2)))


def test_a_forward_that_raises_raises_the_users_error_and_changes_nothing() -> None:
    class Broken(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            raise KeyError("my own")

    net = Broken()
    fast = graphopt.optimize(net)
    with pytest.raises(KeyError, match="my own"):
        fast(mx.nd.ones((1,)))
    assert type(net) is Broken


def test_inputs_that_do_not_fit_name_the_node() -> None:
    net = nn.Dense(2, in_units=3)
    net.initialize()
    with pytest.raises(InputError, match="FullyConnected"):
        graphopt.optimize(net)(mx.nd.ones((1, 4)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"net": None}, InputError, "cannot optimize None: does what builds the net return it"),
        ({"net": 3}, InputError, "cannot optimize a int: give a Gluon Block, a Symbol"),
        ({"net": dict}, InputError, "cannot optimize class dict: it is no Gluon Block"),
        ({"mode": "fast"}, InputError, "mode 'fast' is none of auto, training, inference"),
        ({"passes": "dec"}, ParseError, "did you mean 'dce'"),
        ({"memory": "much"}, InputError, "is no size"),
        ({"record": "x"}, InputError, "record='x' is none of True, False, None"),
        ({"strict": "no"}, InputError, "strict='no' is none of True, False"),
        ({"check": None}, InputError, "check=None is none of True, False"),
    ],
)
def test_bad_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        graphopt.optimize(**arguments)


def test_reports_before_the_first_call() -> None:
    fast = graphopt.optimize(small_cnn())
    assert "nothing compiled yet" in fast.explain()
    assert fast.receipts() == {}
    with pytest.raises(InputError, match="call it once first"):
        fast.graph()
    with pytest.raises(InputError, match="call it once first"):
        fast.export("x")


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_exports_that_cannot_be_written(tmp_path, mode: str) -> None:
    fast = graphopt.optimize(small_cnn(), mode=mode)
    fast(image())
    with pytest.raises(InputError, match=r"cannot write .*: there is no folder"):
        fast.export(tmp_path / "none" / "m")
    with pytest.raises(InputError, match=r"cannot write '.*y': File name too long$"):
        fast.export(tmp_path / ("y" * 300))
    with pytest.raises(InputError, match="no file's name has a null character"):
        fast.export(f"{tmp_path}/a\0b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_report_is_one_html_page_with_every_pass(tmp_path, mode: str) -> None:
    fast = graphopt.optimize(small_cnn(), mode=mode)
    with pytest.raises(InputError, match="call it once first"):
        fast.report(tmp_path / "r.html")
    fast(image())
    text = fast.report(tmp_path / "r.html").read_text()
    assert "<html" in text
    for receipt in next(iter(fast.receipts().values())):
        assert receipt.pass_text in text
    with pytest.raises(InputError, match="cannot write"):
        fast.report(tmp_path / "none" / "r.html")
    with pytest.raises(InputError, match=r"cannot write .*null byte"):
        fast.report(f"{tmp_path}/a\0b")
    with pytest.raises(InputError, match="takes the path of a file, not a NoneType"):
        fast.report(None)


def test_batches_in_shared_memory() -> None:
    """As DataLoader's workers bring them; a hybridized net would refuse them."""
    net = mx.gluon.nn.Dense(4, in_units=3)
    net.initialize()
    x = mx.nd.random.normal(shape=(2, 3))
    shared = x.as_in_context(mx.Context("cpu_shared", 0))
    fast = graphopt.optimize(net)
    assert np.allclose(fast(shared).asnumpy(), net(x).asnumpy(), rtol=1e-5)
    with mx.autograd.record():
        y = fast(shared)
    y.backward()
    assert np.array_equal(net.bias.grad().asnumpy(), np.full(4, 2.0))


class AroundLSTM(mx.gluon.Block):
    """Python around a recurrence: what no tracing can follow."""

    def __init__(self, **more: object) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.enter = mx.gluon.nn.Dense(5, flatten=False, in_units=3)
            self.lstm = mx.gluon.rnn.LSTM(4, input_size=5)
            self.leave = mx.gluon.nn.Dense(2, flatten=False, in_units=4)

    def forward(self, x):
        y = self.lstm(self.enter(x))
        if y.sum().asscalar() > 0:  # depends on values
            y = -y
        return self.leave(y)


def test_a_block_around_a_recurrence_is_split() -> None:
    net = AroundLSTM()
    net.initialize(mx.init.Uniform(0.5))
    fast = graphopt.optimize(net, record=False)
    for steps, batch in ((6, 2), (9, 2), (4, 3)):
        x = mx.nd.random.normal(shape=(steps, batch, 3))
        assert np.allclose(fast(x).asnumpy(), net(x).asnumpy(), atol=1e-6)
    told = fast.explain()
    for name, part in {"enter": "pre", "lstm": "core", "leave": "post"}.items():
        (line,) = (line for line in told.splitlines() if f"child '{name}'" in line)
        assert f"({part}" in line
    assert "import-rnn" in told


class Step(mx.gluon.HybridBlock):
    """A cell that adds to its state, and hands the sum on."""

    def __init__(self, *, single: bool) -> None:
        super().__init__()
        self.single = single
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(8, in_units=8)

    def hybrid_forward(self, F, x, state):
        added = self.dense(x) + state
        return (added, added) if self.single else (F.tanh(added), added)


@pytest.mark.parametrize("passes", ["default", "eliminate-dead-code"])
@pytest.mark.parametrize("single", [False, True])
def test_a_cell_that_hands_on_sums_can_be_called_again_before_backward(single, passes):
    # With static memory MXNet overwrites the gradient between two such calls.
    net = Step(single=single)
    net.initialize(mx.init.Xavier())
    fast = graphopt.optimize(net, passes=passes)

    def gradient(cell, seed):
        x, state = (mx.nd.array(a) for a in np.random.RandomState(seed).randn(2, 4, 8))
        others = [mx.nd.full((4, 8), 1e9) for _ in range(40)]
        mx.nd.waitall()
        del others  # what is freed is not zero
        with mx.autograd.record():
            for _ in range(3):
                x, state = cell(x, state)
            loss = (x * x).sum()
        loss.backward()
        return net.dense.weight.grad().asnumpy().copy()

    for seed in range(4):
        wanted = gradient(net, seed)
        assert np.allclose(gradient(fast, seed), wanted, rtol=1e-4, atol=1e-4)


def test_explain_tells_of_methods_that_mxnet_runs() -> None:
    class Siamese(nn.HybridSequential):
        def template(self, x):
            return self[0](x)

    net = Siamese()
    net.add(nn.Dense(3))
    net.initialize()
    optimized = graphopt.optimize(net)
    optimized.template(mx.nd.ones((2, 4)))
    assert optimized.explain().endswith("of the Block itself; MXNet runs its methods template")
    assert graphopt.optimize(nn.HybridSequential()).explain().endswith("at the first call")


def test_explain_tells_of_equal_layers_once() -> None:
    from graphopt.nn.explain import _grouped

    told = ["a: faster, 1 ms", "b, c: faster, 1 ms", "d: faster, 2 ms", "e: faster, 1 ms"]
    assert _grouped(told) == ["a and 2 more: faster, 1 ms", "d: faster, 2 ms"]
    steps = [f"cell: packed {0.1 * n:.1f} ms, by MXNet {n} ms" for n in (2, 1, 3)]
    spans = "cell and 2 more: packed 0.1 to 0.3 ms, by MXNet 1 to 3 ms"
    assert _grouped([*steps, *told[2:3]]) == [spans, "d: faster, 2 ms"]


def test_weights_that_follow_from_inputs_are_those_of_each_call():
    class Hyper(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.dense = mx.gluon.nn.Dense(5, in_units=8)

        def hybrid_forward(self, F, x, weight, bias):
            hidden = F.FullyConnected(x, F.tanh(weight), bias, num_hidden=8)
            return F.relu(self.dense(hidden))

    net = Hyper()
    net.initialize(mx.init.Xavier())
    fast = graphopt.optimize(net)
    rng = np.random.default_rng(0)
    for _ in range(3):
        inputs = [mx.nd.array(rng.standard_normal(shape)) for shape in ((4, 8), (8, 8), (8,))]
        np.testing.assert_allclose(
            fast(*inputs).asnumpy(), net(*inputs).asnumpy(), rtol=1e-4, atol=1e-5
        )


def test_hybridize_and_optimize_for_take_what_mxnet_takes():
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize()
    x = mx.nd.array([[1.0, 2.0, 3.0]])
    want, fast = net(x).asnumpy(), graphopt.optimize(net)
    fast.hybridize(True, "MKLDNN")
    np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-6)
    fast.optimize_for(x, backend="MKLDNN", static_alloc=True)
    assert len(fast.receipts()) == 1
    np.testing.assert_allclose(fast(x).asnumpy(), want, rtol=1e-6)
    with pytest.raises(InputError, match="name the backend"):
        fast.optimize_for(x, "MKLDNN")
