"""``graphopt.load`` and optimized Symbols."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, ParseError
from graphopt.ir.types import dtype_name
from graphopt.passes import registry
from graphopt.pipeline.spec import build

mx = import_mxnet()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    data = mx.sym.var("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=4, name="fc1"), "relu")
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3, name="fc2"), name="s")
    symbol.save(str(tmp_path / "m-symbol.json"))
    rng = np.random.default_rng(0)
    shapes = {"fc1_weight": (4, 8), "fc1_bias": (4,), "fc2_weight": (3, 4), "fc2_bias": (3,)}
    arrays = {f"arg:{k}": mx.nd.array(rng.standard_normal(s)) for k, s in shapes.items()}
    mx.nd.save(str(tmp_path / "m-0000.params"), arrays)
    return tmp_path


def expected(folder: Path, x: np.ndarray) -> np.ndarray:
    symbol = mx.sym.load(str(folder / "m-symbol.json"))
    arrays = {k[4:]: v for k, v in mx.nd.load(str(folder / "m-0000.params")).items()}
    arrays |= {"data": mx.nd.array(x), "s_label": mx.nd.zeros((len(x),))}
    return symbol.bind(mx.cpu(), arrays).forward()[0].asnumpy()


def test_a_label_need_not_be_given_for_inference(saved: Path) -> None:
    model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params", {"data": (2, 8)})
    x = np.ones((2, 8), np.float32)
    np.testing.assert_allclose(model(x).asnumpy(), expected(saved, x), rtol=1e-5)
    np.testing.assert_allclose(model(data=x).asnumpy(), expected(saved, x), rtol=1e-5)


def test_shapes_of_numpys_integers_are_taken(saved: Path) -> None:
    shape = tuple(np.array([2, 8]))
    model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params", {"data": shape})
    assert len(model.receipts()) == 1
    x = np.ones(shape, np.float32)
    np.testing.assert_allclose(model(x).asnumpy(), expected(saved, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("passes", "message"),
    [("csee", "unknown pass 'csee'"), (3, "a pipeline is a text such as 'cse,dce' .* not 3")],
)
def test_what_is_no_pipeline_is_refused_at_once(saved: Path, passes: Any, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        graphopt.load(saved / "m-symbol.json", saved / "m-0000.params", passes=passes)


def test_passes_may_be_given(saved: Path) -> None:
    x = np.ones((2, 8), np.float32)
    for passes in ("inference,cse", build("inference", registry)):
        model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params", passes=passes)
        np.testing.assert_allclose(model(x).asnumpy(), expected(saved, x), rtol=1e-5, atol=1e-6)


def test_parameters_may_be_lists(saved: Path) -> None:
    params = mx.nd.load(str(saved / "m-0000.params"))
    listed = {key: value.asnumpy().tolist() for key, value in params.items()}
    model = graphopt.load(saved / "m-symbol.json", listed, {"data": (2, 8)})
    x = np.ones((2, 8), np.float32)
    np.testing.assert_allclose(model(x).asnumpy(), expected(saved, x), rtol=1e-5, atol=1e-6)


def test_bfloat16_parameters_may_be_of_numpy(saved: Path) -> None:
    bits = np.zeros((4, 8), [("bfloat16", np.uint16)])
    model = graphopt.load(saved / "m-symbol.json", {"fc1_weight": bits})
    assert dtype_name(model.params["fc1_weight"].dtype) == "bfloat16"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", "str"),
        (None, "NoneType"),
        ([[1], [2, 3]], "list"),
        (np.ones(3, "int16"), "ndarray of"),
    ],
)
def test_parameters_that_are_no_arrays(saved: Path, value: object, kind: str) -> None:
    with pytest.raises(InputError, match=f"parameter 'fc1_bias' is a {kind}.*: give one NDArray"):
        graphopt.load(saved / "m-symbol.json", {"fc1_bias": value})


def test_other_batch_sizes_compile_anew(saved: Path) -> None:
    model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params", {"data": (2, 8)})
    x = np.ones((5, 8), np.float32)
    np.testing.assert_allclose(model(x).asnumpy(), expected(saved, x), rtol=1e-5)
    assert len(model.receipts()) == 2
    assert "operator calls" in model.explain()


def test_parameters_by_dictionary(saved: Path) -> None:
    params = mx.nd.load(str(saved / "m-0000.params"))
    plain = {k[4:]: v.asnumpy() for k, v in params.items()}
    model = graphopt.load(saved / "m-symbol.json", plain, {"data": (1, 8)})
    x = np.zeros((1, 8), np.float32)
    np.testing.assert_allclose(model(x).asnumpy(), expected(saved, x), rtol=1e-5)


def test_export_round_trip(saved: Path) -> None:
    model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params", {"data": (1, 8)})
    x = np.ones((1, 8), np.float32)
    want = model(x).asnumpy()
    model.export(saved / "out", 1)
    again = graphopt.load(saved / "out-symbol.json", saved / "out-0001.params")
    np.testing.assert_allclose(again(x).asnumpy(), want, rtol=1e-6)


def test_names_with_colons(tmp_path: Path) -> None:
    weight, bias = mx.sym.var("net:w"), mx.sym.var("arg:b")
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), weight, bias, num_hidden=2)
    symbol.save(str(tmp_path / "m-symbol.json"))
    values = {"net:w": mx.nd.random.uniform(shape=(2, 3)), "arg:b": mx.nd.array([1, 2])}
    x = mx.nd.random.uniform(shape=(4, 3))
    want = symbol.bind(mx.cpu(), {"data": x, **values}).forward()[0].asnumpy()
    for prefix in ("", "arg:"):
        given = {prefix + name: array for name, array in values.items()}
        got = graphopt.load(tmp_path / "m-symbol.json", given)(x)
        np.testing.assert_allclose(got.asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_an_exported_block_without_parameters(tmp_path: Path) -> None:
    net = mx.gluon.nn.LeakyReLU(0.5)
    net.hybridize()
    x = mx.nd.array([[0.5, -1.0]])
    want = net(x).asnumpy()
    net.export(str(tmp_path / "m"))
    model = graphopt.load(tmp_path / "m-symbol.json", tmp_path / "m-0000.params")
    np.testing.assert_array_equal(model(x).asnumpy(), want)


@pytest.mark.parametrize("mode", ["plain", "auto", "inference"])
def test_positional_inputs_are_those_of_the_block(tmp_path: Path, mode: str) -> None:
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, a, b, c):
            return F.exp(c) - F.square(b) * a

    net = Net()
    inputs = [mx.nd.array([float(n)]) for n in (2, 3, 5)]
    want = net(*inputs).asnumpy()
    if mode == "plain":
        net.hybridize()
    else:
        net = graphopt.optimize(net, mode=mode)
    net(*inputs)
    net.export(str(tmp_path / "m"))
    listed = mx.sym.load(str(tmp_path / "m-symbol.json")).list_inputs()
    assert listed != ["data0", "data1", "data2"]
    model = graphopt.load(tmp_path / "m-symbol.json", tmp_path / "m-0000.params")
    assert model.data == ("data0", "data1", "data2")
    np.testing.assert_allclose(model(*inputs).asnumpy(), want, rtol=1e-6)
    reverse = dict.fromkeys(reversed(model.data), (1,))
    model = graphopt.load(tmp_path / "m-symbol.json", tmp_path / "m-0000.params", reverse)
    np.testing.assert_allclose(model(*reversed(inputs)).asnumpy(), want, rtol=1e-6)


def test_inputs_of_a_symbol_keep_their_order() -> None:
    x, y, ten, two = (mx.sym.var(name) for name in ("x", "data", "data10", "data2"))
    assert graphopt.optimize((y - ten) * (x - two)).data == ("data", "data2", "x", "data10")


def test_bad_files_and_arguments(saved: Path) -> None:
    symbol, params = saved / "m-symbol.json", saved / "m-0000.params"
    with pytest.raises(ParseError, match=r"cannot read .*none.json.*No such file"):
        graphopt.load(saved / "none.json")
    with pytest.raises(InputError, match=r"cannot read .*none.params.*no such file"):
        graphopt.load(symbol, saved / "none.params")
    damaged = saved / "damaged.params"
    damaged.write_bytes(params.read_bytes().replace(b"arg:fc1_weight", b"arg:fc1_\xffeight"))
    with pytest.raises(InputError, match="is no MXNet params file: a name is no text"):
        graphopt.load(symbol, damaged)
    with pytest.raises(InputError, match="is no MXNet params file"):
        graphopt.load(symbol, symbol)
    for given in ([np.ones(3)], 0):
        with pytest.raises(InputError, match=r"are a path, or values by name, not a (list|int)"):
            graphopt.load(symbol, given)
    with pytest.raises(InputError, match="no input 'dat'; did you mean 'data'"):
        graphopt.load(symbol, params, {"dat": (1, 8)})
    with pytest.raises(InputError, match=r"no value for parameter fc1_bias, fc1_weight"):
        graphopt.load(symbol, {}, {"data": (1, 8)})
    with pytest.raises(InputError, match=r"fc1"):
        graphopt.load(symbol, params, {"data": (1, 9)})
    for shapes in (3, (2, 3)):
        with pytest.raises(InputError, match="shapes are given by the names of inputs, in a dict"):
            graphopt.load(symbol, params, shapes)
    with pytest.raises(InputError, match=r"params of load.* are values by name, and 3 is no name"):
        graphopt.load(symbol, {3: np.ones(3)})
    model = graphopt.load(symbol, params)
    with pytest.raises(InputError, match="no input 'x'"):
        model(x=np.ones((1, 8)))
    with pytest.raises(InputError, match="no input given"):
        model()
    with pytest.raises(InputError, match="inputs given, the model takes"):
        model(1, 2, 3, 4)


def test_an_optimized_symbol_trains() -> None:
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    model = graphopt.optimize(symbol)
    weight = mx.nd.ones((2, 3))
    weight.attach_grad()
    model.params.update(fc_weight=weight, fc_bias=mx.nd.zeros((2,)))
    x = mx.nd.array([[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(model(x).asnumpy(), [[6.0, 6.0]])
    with mx.autograd.record():
        loss = model(x).sum()
    loss.backward()
    np.testing.assert_array_equal(weight.grad.asnumpy(), [[1, 2, 3], [1, 2, 3]])
    weight[:] = 2
    np.testing.assert_array_equal(model(x).asnumpy(), [[12.0, 12.0]])


def test_missing_inputs_are_named(saved: Path) -> None:
    one, two, x = mx.sym.var("one"), mx.sym.var("two"), mx.nd.ones((2, 3))
    for symbol in (one + two, mx.sym.broadcast_mul(one, two)):
        model = graphopt.optimize(symbol)
        with pytest.raises(InputError, match=r"no input 'two' given; the model takes \['one', 't"):
            model(x)
        with pytest.raises(InputError, match="no input 'one' given"), mx.autograd.record():
            model(two=x)
        np.testing.assert_array_equal(model(x, x).asnumpy(), symbol.eval(one=x, two=x)[0].asnumpy())
    params = mx.nd.load(str(saved / "m-0000.params"))
    del params["arg:fc1_bias"]
    model = graphopt.load(saved / "m-symbol.json", params)
    with pytest.raises(InputError, match="no value for parameter fc1_bias"):
        model(np.ones((2, 8), np.float32))


@pytest.mark.parametrize(
    ("value", "kind"), [(None, "NoneType"), ("x", "str"), ([mx.nd.ones((2, 8))], "list")]
)
def test_inputs_that_are_no_arrays(saved: Path, value: object, kind: str) -> None:
    model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params")
    with pytest.raises(InputError, match=f"input 'data' is a {kind}: give one NDArray"):
        model(value)
    with pytest.raises(InputError, match="input 'data' is given twice"):
        model(np.ones((2, 8)), data=np.ones((2, 8)))


def test_parameters_given_by_name_are_those_of_each_call(saved: Path) -> None:
    model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params")
    x, bias = np.ones((2, 8), np.float32), model.params["fc1_bias"].asnumpy()
    stored = model.params["fc1_weight"].asnumpy()
    plain = {name: array.copy() for name, array in model.params.items()}
    for weight in (stored * 0, stored * 2, stored * -3):
        found = model(x, fc1_weight=mx.nd.array(weight), fc1_bias=bias)
        want = model.symbol.bind(
            mx.cpu(),
            plain
            | {"fc1_weight": mx.nd.array(weight), "data": mx.nd.array(x)}
            | {"s_label": mx.nd.zeros((2,))},
        ).forward()[0]
        np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-5)
    np.testing.assert_allclose(model(x).asnumpy(), expected(saved, x), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"memory": "10MB"}])
def test_an_optimized_symbol_takes_every_input_by_name(options: dict[str, str]) -> None:
    dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    symbol = mx.sym.relu(mx.sym.BatchNorm(dense, name="bn", fix_gamma=False, momentum=0.5))
    shapes, _, states = symbol.infer_shape(data=(5, 4))
    names, state_names = symbol.list_arguments(), symbol.list_auxiliary_states()
    model, in_params = graphopt.optimize(symbol, **options), {"fc_bias", "bn_moving_var"}
    rng = np.random.default_rng(0)
    for _ in range(2):
        given = {n: mx.nd.array(rng.uniform(0.5, 1, s)) for n, s in zip(names, shapes, strict=True)}
        aux = {n: mx.nd.ones(s) * 0.5 for n, s in zip(state_names, states, strict=True)}
        gradients = {name: mx.nd.zeros(array.shape) for name, array in given.items()}
        own = {name: array.copy() for name, array in (given | aux).items()}
        for name in names:
            own[name].attach_grad()
        if not model.params:
            model.params.update({name: own[name] for name in in_params})
        else:
            for name in in_params:
                model.params[name][:] = own[name]
                own[name] = model.params[name]
        with mx.autograd.record():
            found = model(**{name: array for name, array in own.items() if name not in in_params})
        found.backward()
        plain = symbol.bind(mx.cpu(), given, args_grad=gradients, aux_states=aux)
        want = plain.forward(is_train=True)[0]
        plain.backward(mx.nd.ones(want.shape))
        np.testing.assert_allclose(found.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(
                own[name].grad.asnumpy(), gradient.asnumpy(), rtol=1e-4, atol=1e-5, err_msg=name
            )
        for name, state in aux.items():
            np.testing.assert_allclose(own[name].asnumpy(), state.asnumpy(), rtol=1e-5)
        want = plain.forward(is_train=False)[0]
        np.testing.assert_allclose(model(**own).asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)


def test_a_model_is_no_symbol() -> None:
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="dense")
    model = graphopt.optimize(symbol)
    assert repr(model) == "Model('dense', mode='auto', compiled=0)"
    with pytest.raises(AttributeError, match=r"its Symbol has: \.symbol\.list_arguments.*Module"):
        mx.mod.Module(model)
    with pytest.raises(AttributeError, match=r"graphopt\.optimize\(symbol\.simple_bind"):
        model.simple_bind(mx.cpu(), data=(2, 4))
    with pytest.raises(AttributeError, match=r"^'Model' object has no attribute 'nothing'$"):
        model.nothing  # noqa: B018
    assert not hasattr(model, "save")
    assert pickle.loads(pickle.dumps(model)).symbol.list_arguments() == symbol.list_arguments()


def test_copies_of_a_model_compile_anew():
    x = mx.nd.array([[0.5, -1.0]])
    model = graphopt.optimize(mx.sym.tanh(mx.sym.var("data")))
    want = model(x).asnumpy()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.explain().startswith("nothing compiled yet")
        np.testing.assert_array_equal(twin(x).asnumpy(), want)


def test_threads_compile_a_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = graphopt.optimize(mx.sym.tanh(mx.sym.var("data")))
    compiled = []
    compile_ = type(model)._compile

    def slowly(self, *args):
        compiled.append(args)
        time.sleep(0.1)  # let the others come, too
        return compile_(self, *args)

    monkeypatch.setattr(type(model), "_compile", slowly)
    begin, x = threading.Barrier(4), np.array([[0.5, -1.0]], "float32")

    def call(_: int) -> np.ndarray:
        begin.wait()
        return model(mx.nd.array(x)).asnumpy()

    with ThreadPoolExecutor(4) as executor:
        for found in executor.map(call, range(4)):
            np.testing.assert_allclose(found, np.tanh(x), rtol=1e-6)
    assert len(compiled) == 1


def test_nets_of_numpy_return_arrays_of_numpy(tmp_path: Path) -> None:
    mx.npx.set_np()
    try:
        x = mx.np.ones((2, 3))
        files = str(tmp_path / "m-symbol.json"), str(tmp_path / "m-0000.params")
        net = mx.gluon.nn.Dense(4, activation="relu", in_units=3)
        net.initialize()
        net.hybridize()
        expected = net(x).asnumpy()
        net.export(str(tmp_path / "m"))
        model = graphopt.load(*files)
        for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(one(x)) is mx.np.ndarray
            np.testing.assert_allclose(one(x).asnumpy(), expected, rtol=1e-5)
        assert {type(model(mx.np.ones((n, 3)))) for n in range(3, 9)} == {mx.np.ndarray}
        with mx.autograd.record():
            assert type(model(x)) is mx.np.ndarray
    finally:
        mx.npx.reset_np()


def test_an_epoch_that_is_no_int(saved: Path) -> None:
    model = graphopt.load(saved / "m-symbol.json", saved / "m-0000.params")
    x = np.random.default_rng(2).standard_normal((5, 8)).astype("float32")
    model(x)
    model.export(saved / "out", 3.0)
    again = graphopt.load(saved / "out-symbol.json", saved / "out-0003.params")
    np.testing.assert_allclose(again(x).asnumpy(), expected(saved, x), rtol=1e-4, atol=1e-5)
