"""What cannot be batched: run one by one, or refused, never silently wrong."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, SampleError, UnsupportedError
from tests.batching.comparing import Fn, check, gradients, initialized, rand, same

mx = import_mxnet()
nn = mx.gluon.nn
autograd = mx.autograd


def rows(count: int, width: int = 2) -> list[tuple[Any]]:
    return [(rand(1, width),) for _ in range(count)]


@pytest.mark.parametrize("debug", [False, True])
def test_a_sample_that_raises_does_not_lose_the_others(debug: bool) -> None:
    def forward(net: Any, x: Any, bad: bool) -> Any:
        y = net.g(x)
        if bad:
            raise KeyError("lost")
        return y

    net = initialized(Fn(forward, g=nn.Dense(3, in_units=2)))
    samples = [(rand(1, 2), at in (1, 3)) for at in range(5)]
    with pytest.raises(
        SampleError, match=r"^sample 1 \(and 1 more\) raised KeyError at "
    ) as caught:
        graphopt.batch(net, debug=debug)(samples)
    assert "test_refusals.py" in str(caught.value)
    assert set(caught.value.failures) == {1, 3}
    for at in (0, 2, 4):
        same(caught.value.results[at], net(*samples[at]), 1e-5)
    assert caught.value.results[1] is None


def test_a_sample_that_raises_after_waiting() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.g(x)
        if y.sum().asscalar() > 0:
            raise ValueError("positive")
        return y

    net = initialized(Fn(forward, g=nn.Dense(1, in_units=1, use_bias=False)))
    net.g.weight.set_data(mx.nd.ones((1, 1)))
    samples = [(mx.nd.array([[v]]),) for v in (-1, 1, -2)]
    with pytest.raises(SampleError, match="sample 1 raised ValueError") as caught:
        graphopt.batch(net)(samples)
    assert caught.value.results[2].asscalar() == -2


def test_shapes_that_disagree_are_found_in_the_sample_that_has_them() -> None:
    net = initialized(Fn(lambda net, x, y: x + y))
    samples = [(rand(1, 2), rand(1, 2)), (rand(1, 2), rand(1, 3)), (rand(2, 2), rand(3, 2))]
    with pytest.raises(SampleError, match="sample 1") as caught:
        graphopt.batch(net)(samples)
    assert set(caught.value.failures) == {1, 2}
    assert all(isinstance(e, mx.MXNetError) for e in caught.value.failures.values())


def setitem(y: Any) -> Any:
    y[:] = 0
    return y


def setitem_of_a_row(y: Any) -> Any:
    y[0, 1] = 0
    return y


def add(y: Any) -> Any:
    y += 1
    return y


def multiply(y: Any) -> Any:
    y *= y
    return y


def out(y: Any) -> Any:
    return mx.nd.relu(y, out=y)


@pytest.mark.parametrize("write", [setitem, setitem_of_a_row, add, multiply, out])
def test_writing_into_a_computed_array_is_refused(write: Any) -> None:
    net = initialized(Fn(lambda net, x: write(net.g(x)), g=nn.Dense(2, in_units=2)))
    with pytest.raises(UnsupportedError, match=r"^sample 0: .*graphopt\.batch\(net, debug=True\)"):
        graphopt.batch(net)(rows(2))
    graphopt.batch(net, debug=True)(rows(2))


def test_writing_into_an_argument_is_refused() -> None:
    net = initialized(Fn(lambda net, x: setitem(x)))
    with pytest.raises(UnsupportedError, match="sample 0"):
        graphopt.batch(net)(rows(2))


def test_writing_into_ones_own_array_comes_in_its_place() -> None:
    def forward(net: Any, x: Any) -> Any:
        before = net.g(net.buffer)
        net.buffer[:] = net.buffer * 2
        after = net.g(net.buffer)
        net.buffer += 1
        return x + before, after + x, net.g(net.buffer)

    expected = []
    for debug in (True, False):
        net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
        net.buffer = mx.nd.array([[1, 2]])
        expected.append(graphopt.batch(net, debug=debug)([(mx.nd.ones((1, 2)),)] * 3))
    same(expected[1], expected[0], 1e-5)


def test_arrays_made_in_the_sample_from_numbers() -> None:
    def forward(net: Any, n: int) -> Any:
        return net.g(mx.nd.array([[n, n + 1]])) + mx.nd.full((1, 2), n)

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    batched = check(net, [(n,) for n in (1, 2, 3)])
    assert batched.statistics.flushes == 1


def test_dropout_has_a_mask_for_each_sample() -> None:
    net = initialized(Fn(lambda net, x: net.drop(x), drop=nn.Dropout(0.5)))
    batched = graphopt.batch(net)
    ones = mx.nd.ones((1, 200))
    same(batched([(ones,), (ones,)]), mx.nd.ones((2, 200)), 0)
    with autograd.record():
        a, b = batched([(ones,), (ones,)]).asnumpy()
    assert batched.statistics.groups == 1
    assert set(np.unique(a)) == {0, 2}
    assert (a != b).any()


def test_dropout_that_shares_its_mask_along_the_batch_is_not_merged() -> None:
    net = initialized(Fn(lambda net, x: net.drop(x), drop=nn.Dropout(0.5, axes=(0,))))
    batched = graphopt.batch(net)
    ones = mx.nd.ones((1, 200))
    with autograd.record():
        a, b = batched([(ones,), (ones,)]).asnumpy()
    assert (a != b).any()
    assert "one mask serves several rows" in batched.explain()


def test_random_numbers_are_drawn_for_each_sample() -> None:
    def forward(net: Any, x: Any) -> Any:
        a = mx.nd.random.uniform(shape=(1, 3))
        b = mx.nd.random.normal_like(x) if hasattr(mx.nd.random, "normal_like") else x
        c = mx.nd.sample_uniform(x * 0, x * 0 + 1)
        return a, b, c.reshape((1, -1))

    net = initialized(Fn(forward))
    found = graphopt.batch(net)([(mx.nd.ones((1, 3)),)] * 4)
    for array in (found[0], found[2]):
        assert len(np.unique(array.asnumpy())) == 12


class Noisy(mx.gluon.HybridBlock):
    """Adds noise to its weight, or to every row."""

    def __init__(self, add: Any) -> None:
        super().__init__()
        self.add = add
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(3, 3))

    def hybrid_forward(self, F: Any, x: Any, weight: Any) -> Any:
        return self.add(F, x, weight)


@pytest.mark.parametrize(
    ("add", "least"),
    [
        (lambda F, x, w: F.broadcast_add(F.dot(x, w), F.random.normal(shape=(1, 3))), 6),
        (lambda F, x, w: F.dot(x, w + F.random.normal(shape=(3, 3))), 6),
        (lambda F, x, w: F.dot(x, F.Dropout(w, p=0.5)), 2),  # masks may be equal
    ],
    ids=["rows", "weight", "dropout"],
)
def test_children_draw_for_each_sample(add: Any, least: int) -> None:
    net = initialized(Fn(lambda net, x: net.noisy(x), noisy=Noisy(add)))
    batched = graphopt.batch(net)
    with autograd.train_mode():
        found = batched([(mx.nd.ones((1, 3)),)] * 6)
    assert len(np.unique(found.asnumpy(), axis=0)) >= least
    assert "reads no rows, and does something in every call" in batched.explain()


def test_dropout_of_a_weight_is_one_call_in_inference() -> None:
    noisy = Noisy(lambda F, x, w: F.dot(x, F.Dropout(w, p=0.5)))
    check(
        initialized(Fn(lambda net, x: net.noisy(x), noisy=noisy)), rows(4, 3), groups=1, grads=False
    )


def test_batch_norm_is_refused_in_training_only() -> None:
    norm = nn.BatchNorm(in_channels=2)
    net = initialized(Fn(lambda net, x: net.norm(x), norm=norm))
    samples = rows(3)
    check(net, samples, grads=False)
    with (
        autograd.record(),
        pytest.raises(UnsupportedError, match="in training takes statistics over the samples"),
    ):
        graphopt.batch(net)(samples)
    with autograd.record(train_mode=False):
        graphopt.batch(net)(samples).backward()


def test_operators_that_mix_rows_run_one_by_one() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = mx.nd.softmax(net.g(x), axis=0)
        return mx.nd.dot(y, y, transpose_a=True), mx.nd.transpose(y), mx.nd.sort(y, axis=0)

    net = initialized(Fn(forward, g=nn.Dense(3, in_units=2)))
    batched = check(net, [(rand(n, 2),) for n in (2, 2, 1, 2)])
    text = batched.explain()
    assert "softmax: it works along axis 0" in text
    assert "dot: its first input is transposed" in text


def test_blocks_that_mix_rows_run_operator_by_operator() -> None:
    class Attend(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.g = nn.Dense(3, in_units=2)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            y = self.g(x)
            return F.dot(F.softmax(F.dot(y, y, transpose_b=True)), y)

    for hybridize in (False, True):
        net = initialized(Fn(lambda net, x: net.attend(x), attend=Attend()))
        if hybridize:
            net.hybridize()
        batched = check(net, [(rand(n, 2),) for n in (2, 3, 1)])
        assert "is recorded operator by operator" in batched.explain()


@pytest.mark.parametrize(("begin", "end"), [(0, 9), (-9, 2), (4, None), (2, 2), (0, -5)])
def test_slices_beyond_the_end_raise_what_mxnet_raises(begin: int, end: int | None) -> None:
    def forward(net: Any, x: Any) -> Any:
        return mx.nd.slice_axis(x, axis=1, begin=begin, end=end)

    net, x = Fn(forward), rand(1, 4, 16)
    with pytest.raises(mx.MXNetError) as theirs:
        net(x)
    with pytest.raises(SampleError) as ours:
        graphopt.batch(net)([(x,)])
    last = str(theirs.value).strip().splitlines()[-1]
    assert last.rpartition("Check failed")[2] in str(ours.value.__cause__)


def test_layers_over_sequences_run_one_by_one() -> None:
    lstm = mx.gluon.rnn.LSTM(3, input_size=2)
    net = initialized(Fn(lambda net, x: net.lstm(x), lstm=lstm))
    check(net, [(rand(n, 1, 2),) for n in (2, 4, 2)])


def test_shapes_that_depend_on_values() -> None:
    def forward(net: Any, x: Any, mask: Any) -> Any:
        y = net.g(x)
        return mx.nd.contrib.boolean_mask(y, mask).sum(axis=0) * 2

    net = initialized(Fn(forward, g=nn.Dense(3, in_units=2)))
    masks = [[1, 0, 1], [1, 1, 1], [0, 0, 1]]
    check(net, [(rand(3, 2), mx.nd.array(mask)) for mask in masks])


def test_pausing_autograd_inside_a_sample() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.g(x)
        with autograd.pause():
            z = net.g(x) * 2
            w = mx.nd.concat(y, y, dim=0)
        return y * z + w.sum(axis=0, keepdims=True) + y.detach() + mx.nd.BlockGrad(y)

    check(initialized(Fn(forward, g=nn.Dense(2, in_units=2))), rows(3))


def test_pausing_autograd_does_not_cut_what_others_read() -> None:
    def forward(net: Any, x: Any, swap: bool) -> Any:
        y, other = net.g(x), net.g(x * 2)
        y, other = (other, y) if swap else (y, other)
        with autograd.pause():
            first = mx.nd.relu(y) * 3
        return mx.nd.tanh(y) * first + mx.nd.relu(y) + other

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    check(net, [(rand(1, 2), at % 2 == 0) for at in range(6)])


def test_backward_inside_a_sample_is_refused() -> None:
    def forward(net: Any, x: Any) -> Any:
        with autograd.record():
            y = net.g(x).sum()
        y.backward()
        return x

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    with pytest.raises(UnsupportedError, match=r"^sample 0: backward\(\) from"):
        graphopt.batch(net)(rows(2))


def test_training_mode_inside_a_sample() -> None:
    def forward(net: Any, x: Any) -> Any:
        with autograd.train_mode():
            y = net.drop(x)
        return y, net.drop(x)

    net = initialized(Fn(forward, drop=nn.Dropout(0.5)))
    ones = mx.nd.ones((1, 100))
    dropped, kept = graphopt.batch(net)([(ones,), (ones,)])
    assert set(np.unique(dropped.asnumpy())) == {0, 2}
    assert (kept.asnumpy() == 1).all()


def test_gradients_of_arguments() -> None:
    net = initialized(Fn(lambda net, x: net.g(x) * x, g=nn.Dense(2, in_units=2)))
    samples = rows(3)
    found = []
    for debug in (True, False):
        for (x,) in samples:
            x.attach_grad()
        gradients(lambda debug=debug: graphopt.batch(net, debug=debug)(samples), net)
        found.append([x.grad.asnumpy() for (x,) in samples])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_values_kept_on_the_block_stay_good() -> None:
    def forward(net: Any, x: Any) -> Any:
        net.state = net.g(x) if net.state is None else net.g(x) + net.state
        return net.state

    found = []
    for debug in (True, False):
        net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
        net.state = None
        batched = graphopt.batch(net, debug=debug)
        x = mx.nd.ones((1, 2))
        found.append([batched([(x,), (x,)]), batched([(x,)]), net.state * 1])
    same(found[1], found[0], 1e-5)


def test_hooks_of_blocks_are_called() -> None:
    seen: list[Any] = []
    dense = nn.Dense(2, in_units=2)
    dense.register_forward_hook(lambda block, args, out: seen.append(out.shape))
    dense.register_forward_pre_hook(lambda block, args: seen.append(len(args)))
    check(initialized(Fn(lambda net, x: net.g(x), g=dense)), rows(2), grads=False)
    assert seen == [1, (1, 2)] * 6


def test_other_threads_are_not_recorded() -> None:
    done: list[Any] = []

    def elsewhere() -> None:
        dense = nn.Dense(2, in_units=2)
        dense.initialize()
        with autograd.record():
            y = dense(mx.nd.ones((1, 2))) * 2
        y.backward()
        done.append(type(y))

    def forward(net: Any, x: Any) -> Any:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        y = net.g(x) * 3
        thread.join()
        return y

    check(initialized(Fn(forward, g=nn.Dense(2, in_units=2))), rows(3))
    assert set(done) == {mx.nd.NDArray}


def test_one_batched_net_in_several_threads() -> None:
    def forward(net: Any, x: Any, n: int) -> Any:
        for _ in range(n):
            x = net.g(x)
            if n % 2 and x.sum().asscalar() > 1e9:
                break
        return x

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    batched = graphopt.batch(net)
    samples = [(rand(1, 2), n) for n in (1, 2, 3, 4)]
    expected = [net(*sample).asnumpy() for sample in samples]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(5):
            found[number] = batched(samples).asnumpy()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for array in found.values():
        np.testing.assert_allclose(array, np.concatenate(expected), rtol=1e-5)


def test_a_new_thread_has_a_device_afterwards() -> None:
    net = initialized(Fn(lambda net, x: net.g(x), g=nn.Dense(2, in_units=2)))
    batched, samples = graphopt.batch(net), rows(2)
    found: list[Any] = []

    def work() -> None:
        batched(samples)
        found.append(mx.current_context())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [mx.cpu()]


def test_a_batched_net_inside_a_batched_net() -> None:
    inner = initialized(Fn(lambda net, x: net.g(x), g=nn.Dense(2, in_units=2)))
    batched = graphopt.batch(inner)
    outer = Fn(lambda net, x: batched([(x,), (x * 2,)]))
    samples = rows(3)
    same(graphopt.batch(outer)(samples), graphopt.batch(outer, debug=True)(samples), 1e-5)


def test_python_errors_of_mxnet_are_those_of_a_plain_call() -> None:
    net = initialized(Fn(lambda net, x: x.reshape((3, 5))))
    with pytest.raises(SampleError, match=r"sample 0 .*raised"):
        graphopt.batch(net)(rows(2))
    net = initialized(Fn(lambda net, x: x[4]))
    with pytest.raises(SampleError, match="IndexError") as caught:
        graphopt.batch(net)(rows(2))
    assert isinstance(caught.value, GraphoptError)


class _Cube(autograd.Function):
    """``x ** 3``, with a gradient that nobody could derive."""

    def forward(self, x: Any) -> Any:
        self.save_for_backward(x)
        return x * x * x

    def backward(self, heads: Any) -> Any:
        (x,) = self.saved_tensors
        return heads * 7 * x


def test_functions_of_the_users_keep_their_gradient() -> None:
    def forward(net: Any, x: Any) -> Any:
        y = net.g(_Cube()(net.g(x)))
        return y + _Cube()(y)

    check(initialized(Fn(forward, g=nn.Dense(2, in_units=2))), rows(3))


def test_functions_of_the_users_may_wait_for_values() -> None:
    class Scaled(autograd.Function):
        def __init__(self, scale: Any) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, x: Any) -> Any:
            return x * self.scale

        def backward(self, heads: Any) -> Any:
            return heads * self.scale

    def forward(net: Any, x: Any) -> Any:
        scale = net.g(x) * 3  # real when the function asks, inside of its pause
        return net.g(Scaled(scale)(net.g(x)))

    check(initialized(Fn(forward, g=nn.Dense(2, in_units=2))), rows(3))


@pytest.mark.parametrize("name", ["backward", "grad"])
def test_gradients_inside_a_sample_are_refused(name: str) -> None:
    def forward(net: Any, x: Any) -> Any:
        with autograd.record():
            y = net.g(x).sum()
        getattr(autograd, name)([y], [x])
        return x

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    with pytest.raises(UnsupportedError, match=rf"^sample 0: autograd.{name}\(\) from"):
        graphopt.batch(net)(rows(2))
    assert autograd.backward.__module__ == autograd.grad.__module__ == "mxnet.autograd"


def test_results_may_be_written_into() -> None:
    def forward(net: Any, x: Any) -> Any:
        return x * 2, mx.nd.zeros((1, 4)), mx.nd.zeros((1, 4)), [mx.nd.arange(3)]

    batched = graphopt.batch(Fn(forward))
    for _ in range(2):
        _, zeros, others, (numbers,) = batched(rows(1))
        assert zeros.sum().asscalar() == 0
        assert numbers.sum().asscalar() == 3
        zeros[:], numbers[:] = 5, 7
        assert others.sum().asscalar() == 0


def test_arguments_without_rows_are_computed_at_once() -> None:
    net = Fn(lambda net, x: x * 2)
    with mx.util.np_shape(True):
        for shapes in ([(0, 3)], [(0, 3), (2, 3)], [(1, 0), (1, 0)]):
            check(net, [(mx.nd.zeros(shape),) for shape in shapes], grads=False)
