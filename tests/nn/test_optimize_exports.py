"""Exports of optimized nets: plain MXNet loads them, and what cannot be written says why."""

from __future__ import annotations

import warnings

import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from tests.nn.optimize_support import image, same, small_cnn

mx = import_mxnet()


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


class Positions(mx.gluon.HybridBlock):
    """A parameter that something is computed of, and that is added to data."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.table = self.params.get("table", shape=(1, 7, 5), init=mx.init.Uniform(1))

    def hybrid_forward(self, F, x, table):
        return F.broadcast_add(x, F.tanh(table))


@pytest.mark.parametrize("mode", ["auto", "inference"])
@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(Positions, (3, 7, 5)), (lambda: mx.gluon.rnn.LSTM(8, input_size=5), (7, 3, 5))],
    ids=["positions", "lstm"],
)
def test_exports_are_bound_by_the_shape_of_data(
    tmp_path, make, shape: tuple[int, ...], kernels: bool, mode: str
) -> None:
    """What is computed of parameters has a shape that MXNet cannot find."""
    net = make()
    net.initialize(mx.init.Uniform(0.5))
    fast = graphopt.optimize(net, mode=mode)
    x = mx.nd.random.normal(shape=shape)
    want = fast(x)
    fast.export(str(tmp_path / "m"), kernels=kernels)
    symbol, args, aux = mx.model.load_checkpoint(str(tmp_path / "m"), 0)
    executor = symbol.simple_bind(mx.cpu(), grad_req="null", data=shape)
    executor.copy_params_from(args, aux)
    same(executor.forward(data=x)[0], want)


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


class Turned(mx.gluon.HybridBlock):
    """To passes that know of one sample, a transpose is a view and means over the batch go."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(6, flatten=False, in_units=6)
            self.table = self.params.get("table", shape=(1, 6), init=mx.init.Uniform(1))

    def hybrid_forward(self, F, x, table):
        turned = F.transpose(F.tanh(F.transpose(self.dense(x), (1, 0, 2))) * 2, (1, 2, 0))
        means = F.mean(turned, axis=2)
        centred = F.broadcast_sub(means, F.mean(means, axis=0, keepdims=True))
        return F.broadcast_mul(means, table) + centred, turned


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("is_loaded", [False, True])
def test_exports_after_one_sample_serve_any_batch(tmp_path, is_loaded: bool) -> None:
    net = Turned()
    net.initialize(mx.init.Xavier())
    batches = [mx.nd.random.normal(shape=(count, 9, 6)) for count in (1, 2, 5)]
    wanted = [net(x) for x in batches]
    if is_loaded:
        net.hybridize()
        net(batches[0])
        net.export(str(tmp_path / "plain"))
        files = [tmp_path / "plain-symbol.json", tmp_path / "plain-0000.params"]
        fast = graphopt.load(*files)
    else:
        fast = graphopt.optimize(net, mode="inference")
    fast(batches[0])
    fast.export(str(tmp_path / "m"))
    files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
    plain = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    for x, want in zip(batches, wanted, strict=True):
        for got, expected in zip(plain(x), want, strict=True):
            same(got, expected)


class Unrolled(mx.gluon.HybridBlock):
    """The first state is zeros of the shape of a batch."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.cell = mx.gluon.rnn.LSTMCell(8, input_size=5)

    def hybrid_forward(self, F, x):
        return self.cell.unroll(6, x, layout="NTC", merge_outputs=True)[0]


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize(
    "make", [Unrolled, lambda: mx.gluon.rnn.LSTM(8, layout="NTC", input_size=5)]
)
def test_exports_of_recurrences_serve_any_batch(tmp_path, make, samples: int) -> None:
    net = make()
    net.initialize(mx.init.Uniform(0.5))
    fast = graphopt.optimize(net, mode="inference")
    fast(mx.nd.ones((samples, 6, 5)))
    fast.export(str(tmp_path / "m"))
    files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
    plain = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    for count in (1, 3, 4):
        x = mx.nd.random.normal(shape=(count, 6, 5))
        same(plain(x), net(x))


#: Functions of data and of what a layer makes of it, whose numbers follow the sizes.
COUNTING = {
    "mean over the batch": lambda F, y: F.broadcast_sub(
        y, F.reshape(F.sum(y) / F.sum(F.ones_like(y)), (1, 1, 1))
    ),
    "mean over steps": lambda F, y: F.broadcast_div(
        F.sum(y, axis=1), F.sum(F.ones_like(y), axis=1)
    ),
    "number of samples": lambda F, y: F.broadcast_div(
        y,
        F.reshape(
            F.cast(F.slice_axis(F.shape_array(y), axis=0, begin=0, end=1), "float32"), (1, 1, 1)
        ),
    ),
}


class Counting(mx.gluon.HybridBlock):
    """Counts what it is given."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        with self.name_scope():
            self.dense = mx.gluon.nn.Dense(4, flatten=False, in_units=6)

    def hybrid_forward(self, F, x):
        return self.function(F, self.dense(x))


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("function", COUNTING.values(), ids=COUNTING)
@pytest.mark.parametrize("samples", [1, 3])
def test_files_of_nets_that_count(tmp_path, function, samples: int) -> None:
    net = Counting(function)
    net.initialize(mx.init.Normal(1))
    fast = graphopt.optimize(net, mode="inference")
    fast(mx.nd.ones((samples, 5, 6)))
    with pytest.warns(UserWarning, match="the net as it is"):
        fast.export(str(tmp_path / "m"))
    files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
    plain = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    for shape in ((1, 5, 6), (2, 5, 6), (3, 5, 6), (3, 9, 6)):
        x = mx.nd.random.normal(shape=shape)
        same(plain(x), net(x))


def _cut(F, x):
    return F.slice(x, begin=(None, 0), end=(None, 10)) * 2


def _pooled(F, x):
    x = F.Pooling(F.expand_dims(x, axis=1), kernel=(2, 2), stride=(2, 2), pool_type="max")
    return F.contrib.AdaptiveAvgPooling2D(x, output_size=(3, 3)) * 2


def _near(F, x):
    at = F.contrib.arange_like(x, axis=1)
    far = F.abs(F.broadcast_minus(at.reshape((1, -1)), at.reshape((-1, 1))))
    return F.batch_dot(F.broadcast_mul(F.batch_dot(x, x, transpose_b=True), far < 12), x)


def _clipped(F, x):
    places = F.clip(F.contrib.arange_like(x, axis=1), 0, 9)
    return F.broadcast_add(x * 2, places.reshape((1, -1, 1)))


def _counted(F, x):
    return F.broadcast_div(x * 2, F.clip(F.sum(F.ones_like(x), axis=1, keepdims=True), 0, 6))


def _parted(F, x):
    head = F.slice(x, begin=(None, 0), end=(None, 4))
    tail = F.slice(x, begin=(None, 4), end=(None, 10))
    return F.tanh(F.concat(head, tail, dim=1) * 2)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("function", [_cut, _pooled, _near, _clipped, _counted, _parted])
def test_files_of_nets_for_which_short_data_are_others(tmp_path, function) -> None:
    net = mx.gluon.nn.HybridLambda(function)
    fast = graphopt.optimize(net, mode="inference")
    fast(mx.nd.ones((2, 6, 6)))
    with pytest.warns(UserWarning, match="the net as it is"):
        fast.export(str(tmp_path / "m"))
    plain = mx.gluon.SymbolBlock.imports(str(tmp_path / "m-symbol.json"), ["data"])
    for steps in (6, 7, 20, 5):
        x = mx.nd.random.normal(shape=(2, steps, 6))
        same(plain(x), net(x))


class Positions(mx.gluon.HybridBlock):
    """Adds the rows of a table, which are all the steps there may be, and takes the first ones."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.taken = taken
        self.table = self.params.get("table", shape=(1, 64, 6))

    def hybrid_forward(self, F, x, table):
        x = F.broadcast_add(x, F.slice_like(table, x, axes=(1,)))
        return F.tanh(F.slice(x, begin=(None, 0), end=(None, self.taken)) * 2)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize(
    ("steps", "taken", "serves"),
    [(6, 10, False), (6, 63, False), (62, 63, False), (6, 64, True), (16, 10, True)],
)
def test_files_of_nets_with_tables_of_positions(tmp_path, steps, taken, serves) -> None:
    net = Positions(taken)
    net.initialize(mx.init.Normal(1))
    fast = graphopt.optimize(net, mode="inference")
    fast(mx.nd.ones((2, steps, 6)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fast.export(str(tmp_path / "m"))
    assert any("the net as it is" in str(each.message) for each in told) is not serves
    files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
    plain = mx.gluon.SymbolBlock.imports(files[0], ["data"], files[1])
    for longer in (steps, 63, 64):
        x = mx.nd.random.normal(shape=(2, longer, 6))
        same(plain(x), net(x))


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_exports_of_symbol_blocks_keep_the_names_of_inputs(tmp_path, mode: str) -> None:
    words, bias = mx.sym.var("words"), mx.sym.var("bias")
    symbol = mx.sym.FullyConnected(words, num_hidden=2, name="fc") + bias
    net = mx.gluon.SymbolBlock(symbol, [words, bias])
    net.initialize(mx.init.One())
    fast = graphopt.optimize(net, mode=mode)
    arrays = mx.nd.ones((2, 3)), mx.nd.ones((2, 2))
    want = fast(*arrays)
    fast.export(str(tmp_path / "m"))
    files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
    block = mx.gluon.SymbolBlock.imports(files[0], ["words", "bias"], files[1])
    same(block(*arrays), want)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_exports_of_symbol_blocks_keep_casts(tmp_path, mode: str) -> None:
    words = mx.sym.var("words")
    cast = mx.sym.amp_cast(mx.sym.tanh(words), dtype="float16")
    symbol = mx.sym.amp_cast(cast * 3, dtype="float32") + words
    fast = graphopt.optimize(mx.gluon.SymbolBlock(symbol, [words]), mode=mode)
    x = mx.nd.random.normal(shape=(2, 3))
    fast(x)
    fast.export(str(tmp_path / "m"), remove_amp_cast=False)
    written = mx.sym.load(str(tmp_path / "m-symbol.json"))
    assert "amp_cast" in written.tojson(remove_amp_cast=False)
    assert written.list_arguments() == ["words"]
