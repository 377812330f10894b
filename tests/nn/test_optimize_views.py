"""Optimized views are the user's Blocks in all but their calls: types, names, hooks and copies."""

from __future__ import annotations

import copy
import pickle

import graphopt
from graphopt.compat import import_mxnet
from tests.nn.optimize_support import image, same, small_cnn

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


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
    fast.reset()
    with autograd.record():
        fast(image())
    assert {key: id(value) for key, value in vars(net).items()} == before
    assert not net._active
    assert not net._cached_graph


def test_save_and_load_parameters_have_the_same_names(tmp_path) -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    fast(image())
    fast.save_parameters(str(tmp_path / "a"))
    net.save_parameters(str(tmp_path / "b"))
    assert mx.nd.load(str(tmp_path / "a")).keys() == mx.nd.load(str(tmp_path / "b")).keys()


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


def test_hooks_run_around_the_compiled_call() -> None:
    net = small_cnn()
    fast = graphopt.optimize(net)
    seen: list[str] = []
    fast.register_forward_pre_hook(lambda block, args: seen.append("before"))
    fast.register_forward_hook(lambda block, args, out: seen.append(type(out).__name__))
    fast(image())
    assert seen == ["before", "NDArray"]


def test_slices_are_views_of_slices() -> None:
    net = small_cnn()
    part = graphopt.optimize(net, precise=True)[:2]
    assert isinstance(part, nn.HybridSequential)
    assert [each is own for each, own in zip(part, net, strict=False)] == [True, True]
    x = image()
    want = net[:2](x)
    for twin in (part, copy.copy(part), copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        same(twin(x), want)
        assert twin.receipts()
        assert twin._graphopt_config.precise


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
