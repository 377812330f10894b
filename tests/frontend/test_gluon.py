"""Tracing Gluon Blocks: what they return, what cannot be traced, and that nothing stays behind."""

import numpy as np
import pytest

import graphopt
from graphopt.api.lifting import lift
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.frontend.blocks import descendants, describe
from graphopt.frontend.gluon import lift_block, lift_traced, trace
from graphopt.ir.verify import verify

mx = import_mxnet()
nn = mx.gluon.nn


def array(*shape):
    return mx.nd.ones(shape)


def block_class(forward, **children):
    """A HybridBlock class with that hybrid_forward."""

    class Net(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                for name, make in children.items():
                    setattr(self, name, make())

    Net.hybrid_forward = forward
    return Net


def ready(block):
    block.initialize()
    return block


def snapshot(block):
    """What a Block holds, its children's too, by identity."""
    return [
        {
            key: (id(value), str(value) if key.startswith("_cached") else "")
            for key, value in vars(b).items()
        }
        for b in descendants(block)
    ]


def test_one_input():
    net = ready(nn.Dense(3, in_units=4))
    graph = lift(net, {"data": (2, 4)})
    verify(graph, "captured")
    assert [(n.name, n.op, str(n.type)) for n in graph.inputs] == [
        ("data", "data", "f32[2,4]"),
        (net.weight.name, "param", "f32[3,4]"),
        (net.bias.name, "param", "f32[3]"),
    ]
    assert str(graph.type_of(graph.outputs[0])) == "f32[2,3]"
    assert graph.name == net.name


def test_several_inputs_in_call_order():
    net = block_class(lambda self, F, a, b: F.concat(b, a * 2, dim=1))()
    traced = trace(net, [array(2, 3), array(2, 5)])
    assert traced.names == ("data0", "data1")
    graph = lift(net, {"data0": (2, 3), "data1": (2, 5)})
    assert str(graph.type_of(graph.outputs[0])) == "f32[2,8]"


def test_nested_results_and_arguments():
    net = block_class(lambda self, F, a, pair: [a + pair[0], [pair[1], a * 2]])()
    traced = trace(net, [array(2), [array(2), array(2)]])
    assert traced.names == ("data0", "data1", "data2")
    found = traced.symbol.eval(data0=array(2), data1=array(2) * 3, data2=array(2) * 5)
    outputs, rest = mx.gluon.block._regroup(list(found), traced.results)
    assert [v.asnumpy()[0] for v in (outputs, *rest)] == [4, 5, 2]


def test_none_arguments_are_left_out():
    def forward(self, F, a, mask=None, b=None):
        return a if mask is not None else a + b

    traced = trace(block_class(forward)(), [array(2), None, array(2)])
    assert traced.names == ("data0", "data1")
    assert traced.symbol.list_inputs() == ["data0", "data1"]


def test_children_that_share_parameters():
    first = nn.Dense(4, in_units=4)
    second = nn.Dense(4, in_units=4, params=first.params)
    net = nn.HybridSequential()
    net.add(first, second, first)
    graph = lift(ready(net), {"data": (2, 4)})
    assert [node.name for node in graph.role("param")] == [first.weight.name, first.bias.name]
    assert sum(node.op == "FullyConnected" for node in graph) == 3
    assert len(descendants(net)) == 3


@pytest.mark.parametrize(
    "make", [lambda: mx.gluon.rnn.LSTM(5, input_size=3), lambda: mx.gluon.rnn.GRU(5, input_size=3)]
)
def test_rnn_layers(make):
    net = ready(make())
    graph = lift(net, {"data": (7, 2, 3)})
    verify(graph)
    assert any(node.op == "RNN" for node in graph)
    assert str(graph.type_of(graph.outputs[0])) == "f32[7,2,5]"


def test_batch_norm_has_auxiliary_states():
    graph = lift(ready(nn.BatchNorm(in_channels=3)), {"data": (2, 3)})
    assert len(graph.role("aux")) == 2


def test_symbol_block():
    x = mx.sym.var("x", dtype="float32")
    net = mx.gluon.SymbolBlock(mx.sym.FullyConnected(x, num_hidden=3, name="fc"), x)
    graph = lift(net, {"data": (2, 4)})
    assert {node.name for node in graph.inputs} == {"data", "fc_weight", "fc_bias"}


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_imported_parameters_have_the_types_of_their_arrays(tmp_path):
    """They know no shape, or a part of it, until MXNet infers it in a call that needs it."""
    x = mx.sym.var("data")
    hidden = mx.sym.broadcast_add(x, mx.sym.var("table"))
    net = mx.sym.FullyConnected(hidden, mx.sym.var("w", shape=(3, 0)), num_hidden=3, no_bias=True)
    net.save(str(tmp_path / "net.json"))
    values = {
        "table": mx.nd.ones((1, 4), dtype="float64"),
        "w": mx.nd.ones((3, 4), dtype="float64"),
    }
    mx.nd.save(str(tmp_path / "net.params"), values)
    files = str(tmp_path / "net.json"), ["data"], str(tmp_path / "net.params")
    block = mx.gluon.SymbolBlock.imports(*files)
    graph = lift(block, {"data": (2, 4)}, {"data": "float64"})
    assert [str(node.type) for node in graph.role("param")] == ["f64[1,4]", "f64[3,4]"]
    assert str(graph.type_of(graph.outputs[0])) == "f64[2,3]"
    batch = mx.nd.ones((2, 4), dtype="float64")
    np.testing.assert_allclose(graphopt.optimize(block)(batch).asnumpy(), block(batch).asnumpy())


def test_dtypes():
    net = nn.Dense(3, in_units=4)
    net.cast("float64")
    graph = lift(ready(net), {"data": (2, 4)}, {"data": "float64"})
    assert str(graph.type_of(graph.outputs[0])) == "f64[2,3]"


def test_uninitialized_blocks_can_be_lifted():
    graph = lift(nn.Dense(3), {"data": (2, 4)})
    assert str(graph.role("param")[0].type) == "f32[3,4]"


def test_values_are_the_blocks():
    net = nn.HybridSequential()
    net.add(nn.Dense(6, activation="relu"), nn.BatchNorm(), nn.Dense(2))
    ready(net)
    x = mx.nd.random.normal(shape=(3, 4))
    expected = net(x).asnumpy()
    traced = trace(net, [x])
    graph = lift_traced(net, traced, {"data": (3, 4)}, {})
    from graphopt.backend.lower import lower

    params = {name: p.data() for name, p in net.collect_params().items()}
    np.testing.assert_allclose(lower(graph, params)(x)[0].asnumpy(), expected, rtol=1e-5, atol=1e-6)


# -- nothing stays behind -----------------------------------------------------------------------


@pytest.mark.parametrize("hybridized", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_nothing_is_cached_on_the_block(hybridized, called):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, in_units=4), nn.Dropout(0.5), nn.Dense(2, in_units=4))
    ready(net)
    if hybridized:
        net.hybridize()
    if called:
        net(array(2, 4))
    before = snapshot(net)
    lift_block(net, {"data": (2, 4)}, {})
    assert snapshot(net) == before


def test_nothing_is_cached_by_a_trace_that_fails():
    net = block_class(lambda self, F, x: self.dense(x) + x.shape[0], dense=lambda: nn.Dense(2))()
    before = snapshot(net)
    with pytest.raises(UnsupportedError):
        trace(net, [array(2, 4)])
    assert snapshot(net) == before


def test_own_hooks_are_kept_and_not_run():
    net, calls = ready(nn.Dense(3, in_units=4)), []
    net.register_forward_hook(lambda *args: calls.append(args))
    net.register_forward_pre_hook(lambda *args: calls.append(args))
    before = snapshot(net)
    trace(net, [array(2, 4)])
    assert not calls
    assert snapshot(net) == before
    net(array(2, 4))
    assert len(calls) == 2


# -- what cannot be traced ----------------------------------------------------------------------


def refused(net, *args):
    with pytest.raises(UnsupportedError) as caught:
        trace(net, args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_plain_blocks():
    net = nn.Sequential()
    assert refused(net, array(2)) == f"Sequential {net.name!r} is no HybridBlock"


def test_hooks_of_children():
    net = nn.HybridSequential()
    net.add(nn.Dense(2), nn.Dense(3))
    net[1].register_forward_hook(lambda *args: None)
    assert refused(net, array(2, 4)) == (
        f"Dense {net[1].name!r} has forward hooks, which need arrays"
    )


def test_blocks_that_raise():
    def forward(self, F, x):
        raise KeyError("no luck\nat all")

    net = block_class(forward)()
    assert refused(net, array(2)).startswith(f"{describe(net)} cannot be traced: KeyError: ")


def test_blocks_that_read_values():
    net = block_class(lambda self, F, x: x if x.asnumpy().sum() > 0 else -x)()
    assert "cannot be traced: " in refused(net, array(2))


def test_blocks_that_return_no_arrays():
    net = block_class(lambda self, F, x: 3)()
    assert "cannot be traced: " in refused(net, array(2))


def test_no_arguments():
    net = block_class(lambda self, F, x=None: x)()
    assert refused(net, None) == "all arguments are None"


def test_foreign_variables():
    net = block_class(lambda self, F, x: x + F.var("stray"))()
    with pytest.raises(UnsupportedError, match=r"reads 'stray', which is no parameter of it$"):
        lift(net, {"data": (2,)})


@pytest.mark.parametrize("shapes", [{}, {"x": (2, 4)}, {"data": (2,), "data1": (2,)}])
def test_shapes_have_to_name_the_inputs(shapes):
    with pytest.raises(InputError, match=r"^give the shape of every input of Dense 'dense"):
        lift(nn.Dense(3), shapes)


def test_shapes_that_do_not_fit():
    with pytest.raises(InputError, match=r"FullyConnected\) do not fit"):
        lift(nn.Dense(3, in_units=5), {"data": (2, 4)})


def test_other_things_cannot_be_lifted():
    with pytest.raises(InputError, match=r"^cannot lift a int: give a Symbol"):
        lift(3)


@pytest.fixture
def numpy_interface():
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


@pytest.mark.parametrize("layer", [mx.gluon.rnn.LSTM, mx.gluon.rnn.GRU, mx.gluon.rnn.RNN])
def test_default_states_of_the_numpy_interface(layer, numpy_interface) -> None:
    """MXNet takes the batch of 0 it writes for "unknown" for a batch of none."""
    net = nn.HybridSequential()
    net.add(nn.Dense(6, flatten=False), layer(5, 2, layout="NTC", bidirectional=True))
    net.initialize()
    x = mx.np.random.uniform(size=(3, 4, 2))
    wanted = net(x)
    graph = lift(net, {"data": (3, 4, 2)})
    assert str(graph.type_of(graph.outputs[0])) == "f32[3,4,10]"
    found = graphopt.optimize(net)(x)
    np.testing.assert_allclose(found.asnumpy(), wanted.asnumpy(), rtol=1e-5, atol=1e-6)


NUMPY_OUTPUTS = {
    "one": lambda total, scaled: total,
    "a list": lambda total, scaled: [total, scaled],
    "a group": lambda total, scaled: mx.sym.Group([total, scaled], mx.sym.np._Symbol),
}


def numpy_block(outputs):
    a, b = (mx.sym.var(name, dtype="float32").as_np_ndarray() for name in ("first", "second"))
    total = mx.sym.np.add(a, b)
    return mx.gluon.SymbolBlock(outputs(total, mx.sym.np.multiply(a, total)), [a, b])


def values(found):
    return [array.asnumpy() for array in (found if isinstance(found, list) else [found])]


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("outputs", NUMPY_OUTPUTS.values(), ids=NUMPY_OUTPUTS)
def test_symbol_blocks_of_the_numpy_interface(outputs, inner, numpy_interface):
    """MXNet's copy of such a graph is shallow: composing it would rename the user's inputs."""
    block = numpy_block(outputs)
    net = block
    if inner:
        net = block_class(lambda self, F, x, y: self.inner(x, y), inner=lambda: block)()
    x, y = mx.np.array([1.0, 2.0]), mx.np.array([3.0, 5.0])
    wanted, before = values(net(x, y)), snapshot(net)
    assert trace(net, [x, y]).names == ("data0", "data1")
    assert snapshot(net) == before
    fast = graphopt.optimize(net)
    with mx.autograd.record():
        learned = fast(x, y)
    for found in (fast(x, y), learned, net(x, y)):
        np.testing.assert_array_equal(values(found), wanted)
    assert block._cached_graph[1].list_inputs() == ["first", "second"]


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_an_imported_net_of_the_numpy_interface(numpy_interface, tmp_path):
    net = nn.HybridSequential()
    net.add(nn.Dense(4, activation="relu"), nn.Dense(2))
    ready(net).hybridize()
    x = mx.np.random.uniform(size=(2, 3))
    wanted = net(x).asnumpy()
    net.export(str(tmp_path / "net"))
    files = str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params")
    block = mx.gluon.SymbolBlock.imports(*files)
    assert len(lift(block, {"data": (2, 3)}).role("param")) == 4
    np.testing.assert_allclose(graphopt.optimize(block)(x).asnumpy(), wanted, rtol=1e-5)
