"""Files that ``graphopt opt -o`` writes: what sizes they serve, what lies beside them."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.api.loading import load

NET = """\
graph net(%data: f32[2,4], param %weight: f32[3,4], param %bias: f32[3]) {
  %fc = FullyConnected(%data, %weight, %bias) {num_hidden=3} : f32[2,3]
  %left = relu(%fc) : f32[2,3]
  %sum = elemwise_add(%left, %left) : f32[2,3]
  return %sum
}
"""


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_a_net_of_convolutions_is_written_for_any_batch(graphopt, tmp_path, mx):
    nn = mx.gluon.nn
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
    net.add(nn.Conv2D(8, 3, in_channels=8), nn.GlobalAvgPool2D(), nn.Dense(5))
    net.initialize()
    net.hybridize()
    x = mx.nd.random.uniform(shape=(5, 3, 8, 8))
    want = net(x).asnumpy()
    net.export(str(tmp_path / "m"))
    given = (tmp_path / "m-symbol.json", "--params", tmp_path / "m-0000.params")
    path, params = tmp_path / "out-symbol.json", tmp_path / "out-0000.params"
    assert graphopt("opt", *given, "--shape", "data:2,3,8,8", "-o", path).code == 0
    plain = mx.gluon.SymbolBlock.imports(str(path), ["data"], str(params))
    for called in (plain, load(path, params)):
        np.testing.assert_allclose(called(x).asnumpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2])
def test_json_has_no_operators_but_mxnets(graphopt, tmp_path, mx, rows):
    data, p = mx.sym.var("data"), mx.sym.var("p", shape=(1, 3))
    scaled = mx.sym.broadcast_mul(mx.sym.tanh(data) + 1, mx.sym.sigmoid(p))
    symbol = mx.sym.Group([scaled, mx.sym.norm(p, axis=0)])  # the latter is computed now
    symbol.save(str(tmp_path / "m-symbol.json"))
    mx.nd.save(str(tmp_path / "m-0000.params"), {"arg:p": mx.nd.ones((1, 3))})
    given = (tmp_path / "m-symbol.json", "--params", tmp_path / "m-0000.params")
    path = tmp_path / "out-symbol.json"
    ran = graphopt("opt", *given, "--shape", f"data:{rows},3", "-o", path)
    assert ran.code == 0
    assert ("data of these shapes alone" in ran.err) == (rows == 1)
    assert ("--shape with more than one sample" in ran.err) == (rows == 1)
    made, params, _ = mx.model.load_checkpoint(str(tmp_path / "out"), 0)
    assert "graphopt_" not in made.tojson()
    x = mx.nd.random.uniform(shape=(rows, 3))
    found = made.bind(mx.cpu(), {"data": x, **params}).forward()
    wanted = symbol.bind(mx.cpu(), {"data": x, "p": mx.nd.ones((1, 3))}).forward()
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_first_states_are_written_for_any_batch(graphopt, tmp_path, mx):
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.rnn.LSTM(8, input_size=5), mx.gluon.nn.Dense(3, flatten=False, in_units=8))
    net.initialize()
    net.hybridize()
    x = mx.nd.random.uniform(shape=(4, 6, 5))
    want = net(x).asnumpy()
    net.export(str(tmp_path / "m"))
    given = (tmp_path / "m-symbol.json", "--params", tmp_path / "m-0000.params")
    path, params = tmp_path / "out-symbol.json", tmp_path / "out-0000.params"
    ran = graphopt("opt", *given, "--shape", "data:7,2,5", "-o", path)
    assert ran.code == 0
    assert "alone" not in ran.err
    plain = mx.gluon.SymbolBlock.imports(str(path), ["data"], str(params))
    np.testing.assert_allclose(plain(x).asnumpy(), want, rtol=1e-4, atol=1e-5)


def test_what_counts_serves_the_given_shapes(graphopt, tmp_path):
    path = tmp_path / "counts.gir"
    path.write_text(
        "graph counts(%data: f32[2,3]) {\n"
        "  %like = ones_like(%data) : f32[2,3]\n"
        "  %count = sum(%like) : f32[1]\n"
        "  %y = broadcast_add(%data, %count) : f32[2,3]\n"
        "  return %y\n}\n"
    )
    ran = graphopt("opt", path, "-o", tmp_path / "out-symbol.json")
    assert ran.code == 0
    assert ran.err.splitlines()[-1] == (
        "it serves data of these shapes alone, as passes went by them: data (2, 3)"
    )


@pytest.mark.parametrize("rows", [6, 20])
@pytest.mark.parametrize("parts", [[(0, 10)], [(0, 4), (4, 10)]], ids=["whole", "joined"])
def test_what_takes_all_of_short_data_serves_the_given_shapes(graphopt, tmp_path, mx, parts, rows):
    data = mx.sym.var("data")
    taken = [mx.sym.slice(data, begin=(begin,), end=(end,)) for begin, end in parts]
    whole = mx.sym.concat(*taken, dim=0) if len(taken) > 1 else taken[0]
    (whole * 2).save(str(tmp_path / "m-symbol.json"))
    given = (tmp_path / "m-symbol.json", "--shape", f"data:{rows},3")
    ran = graphopt("opt", *given, "-o", tmp_path / "out-symbol.json")
    assert ran.code == 0
    assert ("data of these shapes alone" in ran.err) == (rows < 10)


@pytest.mark.parametrize("taken", [10, 64])
def test_what_takes_all_of_short_data_below_the_end_of_a_table(graphopt, tmp_path, mx, taken):
    data, table = mx.sym.var("data"), mx.sym.var("table", shape=(64, 3))
    placed = mx.sym.broadcast_add(data, mx.sym.slice_like(table, data, axes=(0,)))
    symbol = mx.sym.slice(placed, begin=(0,), end=(taken,)) * 2
    symbol.save(str(tmp_path / "m-symbol.json"))
    given = (tmp_path / "m-symbol.json", "--shape", "data:6,3", "--mode", "inference")
    ran = graphopt("opt", *given, "-o", tmp_path / "out-symbol.json")
    assert ran.code == 0
    assert ("data of these shapes alone" in ran.err) == (taken == 10)


def test_models_of_one_size_need_no_word(graphopt, tmp_path):
    path = tmp_path / "flat.gir"
    path.write_text(NET)
    ran = graphopt("opt", path, "-o", tmp_path / "out-symbol.json")
    assert ran.code == 0
    assert "alone" not in ran.err


def _labelled(mx, tmp_path):
    """A net with states and a label in two files, and its Symbol."""
    sym = mx.sym
    hidden = sym.BatchNorm(
        sym.Convolution(sym.var("data"), kernel=(3, 3), num_filter=4, name="c"), name="bn"
    )
    fc = sym.FullyConnected(hidden, num_hidden=3, name="fc")
    loss = sym.MakeLoss(sym.sum((fc - 2 * sym.var("softmax_label")) ** 2, axis=1))
    symbol = sym.Group([sym.BlockGrad(fc), loss])
    shapes, _, states = symbol.infer_shape(data=(2, 3, 8, 8))
    names = symbol.list_arguments()
    arrays = {f"arg:{n}": mx.nd.random.uniform(shape=s) for n, s in zip(names, shapes, strict=True)}
    arrays |= {
        f"aux:{n}": mx.nd.ones(s)
        for n, s in zip(symbol.list_auxiliary_states(), states, strict=True)
    }
    label = arrays.pop("arg:softmax_label")
    del arrays["arg:data"]
    symbol.save(str(tmp_path / "m-symbol.json"))
    mx.nd.save(str(tmp_path / "m-0000.params"), arrays)
    return symbol, label


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_labels_are_no_parameters(graphopt, tmp_path, mx, mode):
    _, label = _labelled(mx, tmp_path)
    given = (tmp_path / "m-symbol.json", "--params", tmp_path / "m-0000.params", "--mode", mode)
    path = tmp_path / "out-symbol.json"
    assert graphopt("opt", *given, "--shape", "data:2,3,8,8", "-o", path).code == 0
    rows = 5
    feeds = {
        "data": mx.nd.random.uniform(shape=(rows, 3, 8, 8)),
        "softmax_label": mx.nd.random.uniform(shape=(rows, *label.shape[1:])),
    }
    found = []
    for prefix in ("m", "out"):
        made, args, aux = mx.model.load_checkpoint(str(tmp_path / prefix), 0)
        assert "softmax_label" in made.list_arguments()
        assert "softmax_label" not in args
        executor = made.bind(mx.cpu(), {**args, **feeds}, aux_states=aux)
        found.append([out.asnumpy() for out in executor.forward()])
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_shapes_of_parameters_are_in_the_file(graphopt, tmp_path, mx):
    _labelled(mx, tmp_path)
    path = tmp_path / "out-symbol.json"
    ran = graphopt("opt", tmp_path / "m-symbol.json", "--shape", "data:2,3,8,8", "-o", path)
    assert ran.code == 0
    assert "states are arguments of it: 'bn_moving_var' and 1 more" in ran.err
    symbol = mx.sym.load(str(path))
    arguments, outputs, _ = symbol.infer_shape(data=(5, 3, 8, 8))
    assert outputs == [(5, 3), (5,)]
    assert dict(zip(symbol.list_arguments(), arguments, strict=True))["c_weight"] == (4, 3, 3, 3)
    symbol.simple_bind(mx.cpu(), data=(5, 3, 8, 8), grad_req="null")


def test_attributes_that_mxnet_does_not_accept(graphopt, tmp_path):
    (tmp_path / "net.gir").write_text(
        "graph net(%x: f32[2,3], param %g: f32[3], param %b: f32[3], aux %m: f32[3],"
        " aux %v: f32[3]) {\n"
        "  %y = Activation(%x) {act_type=nan} : f32[2,3]\n"
        "  %z = BatchNorm(%y, %g, %b, %m, %v) {axis=1} : f32[2,3]\n"
        "  return %z\n}\n"
    )
    ran = graphopt("opt", tmp_path / "net.gir", "-p", "dce", "-o", tmp_path / "o-symbol.json")
    assert (ran.code, ran.out) == (1, "")
    assert "graphopt: error: MXNet does not accept the result: Invalid Input: 'nan'" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["net.gir"]


def test_labels_need_no_shape(graphopt, tmp_path, mx):
    _labelled(mx, tmp_path)
    ran = graphopt("inspect", tmp_path / "m-symbol.json")
    assert "the shape of input 'data' must be given" in ran.err


def test_a_dash_is_stdout(graphopt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.gir").write_text(NET)
    given = ("opt", "net.gir", "-p", "cse", "--emit", "json")
    assert graphopt(*given, "-o", "-") == graphopt(*given)
    assert [path.name for path in tmp_path.iterdir()] == ["net.gir"]


@pytest.mark.parametrize("verb", ["view", "bisect"])
def test_verbs_that_need_a_name_refuse_a_dash(graphopt, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.gir").write_text(NET)
    ran = graphopt(verb, "net.gir", "-p", "cse", "-o", "-")
    assert ran.code == 2
    assert "-o: name a file; '-' is stdout" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["net.gir"]
