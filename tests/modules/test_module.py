"""Optimized views of modules against MXNet's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError

mx = import_mxnet()
sym = mx.sym


def mlp(dropout: float = 0.0) -> Any:
    x = sym.FullyConnected(sym.var("data"), num_hidden=12, no_bias=True, name="fc1")
    x = sym.Activation(sym.BatchNorm(x, fix_gamma=False, name="bn"), act_type="tanh")
    x = sym.Dropout(x, p=dropout) if dropout else x
    return sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=4, name="fc2"), name="softmax")


def samples(count: int = 22, columns: int = 7, batch: int = 8) -> Any:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((count, columns)).astype("f")
    return mx.io.NDArrayIter(
        x, rng.integers(0, 4, count).astype("f"), batch, label_name="softmax_label"
    )


def trained(module: Any, data: Any, **options: Any) -> tuple[dict[str, np.ndarray], list[float]]:
    """Parameters and states after two epochs, and the metric of each batch."""
    mx.random.seed(5)
    np.random.seed(5)
    seen: list[float] = []

    def note(now: Any) -> None:
        mx.nd.waitall()  # nobody waits for what MXNet's executors write into states
        seen.append(now.eval_metric.get()[1])

    module.fit(
        data,
        num_epoch=2,
        initializer=mx.init.Xavier(),
        optimizer_params={"learning_rate": 0.1},
        eval_metric="ce",
        batch_end_callback=note,
        **options,
    )
    arguments, states = module.get_params()
    return {name: a.asnumpy() for name, a in (arguments | states).items()}, seen


def assert_alike(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    assert one[0].keys() == other[0].keys()
    for name, array in one[0].items():
        np.testing.assert_allclose(array, other[0][name], rtol=2e-4, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "lamb", "dcasgd"])
def test_fit(optimizer: str) -> None:
    make = lambda: mx.mod.Module(mlp())  # noqa: E731
    fast = graphopt.optimize(make())
    assert isinstance(fast, mx.mod.Module)
    found = trained(fast, samples(), optimizer=optimizer)
    assert_alike(found, trained(make(), samples(), optimizer=optimizer))
    told = fast.explain()
    assert "training (data: float32[8, 7], softmax_label: float32[8])" in told
    by_kernel = "one kernel updates 5 of 5 weights" in told
    assert by_kernel == (optimizer != "dcasgd")
    assert by_kernel or "MXNet updates the weights: optimizer DCASGD has no kernel" in told


def test_predict_in_batches_of_other_sizes() -> None:
    """The parameters are computed in, and anew when they are set."""
    plain = mx.mod.Module(mlp())
    trained(plain, samples(24))
    fast = graphopt.optimize(mx.mod.Module(mlp()))
    fast.bind(*_shapes(), for_training=False)
    fast.set_params(*plain.get_params())
    first = fast.predict(samples(19)).asnumpy()
    np.testing.assert_allclose(first, plain.predict(samples(19)).asnumpy(), rtol=1e-4, atol=1e-6)
    assert "computed in, and anew when they are written to" in fast.explain()
    arguments, states = plain.get_params()
    fast.set_params({n: a * 0.5 for n, a in arguments.items()}, states)
    plain.set_params({n: a * 0.5 for n, a in arguments.items()}, states)
    other = fast.predict(samples(19)).asnumpy()
    assert abs(other - first).max() > 1e-3
    np.testing.assert_allclose(other, plain.predict(samples(19)).asnumpy(), rtol=1e-4, atol=1e-6)


def test_validation_between_epochs() -> None:
    make = lambda: mx.mod.Module(mlp())  # noqa: E731
    fast, plain = graphopt.optimize(make()), make()
    found = trained(fast, samples(), eval_data=samples(17))
    assert_alike(found, trained(plain, samples(), eval_data=samples(17)))
    score = dict(fast.score(samples(17), "acc"))["accuracy"]
    assert score == dict(plain.score(samples(17), "acc"))["accuracy"]


def test_dropout_trains() -> None:
    fast = graphopt.optimize(mx.mod.Module(mlp(0.5)))
    parameters, _ = trained(fast, samples())
    assert all(np.isfinite(array).all() for array in parameters.values())
    assert np.array_equal(fast.predict(samples()).asnumpy(), fast.predict(samples()).asnumpy())


def test_bound_modules_go_on_with_their_arrays() -> None:
    """Of weights, gradients and what the optimizer keeps; the user's module stays as it is."""
    plain, other = mx.mod.Module(mlp()), mx.mod.Module(mlp())
    for module in (plain, other):
        trained(module, samples(24), optimizer="adam")
    executor = plain._exec_group.execs[0]
    fast = graphopt.optimize(plain)
    assert type(plain) is mx.mod.Module
    assert plain._exec_group.execs[0] is executor
    batch = next(samples(24))
    for module in (fast, other):
        module.forward_backward(batch)
        module.update()
    for name, array in other.get_params()[0].items():
        got = fast.get_params()[0][name].asnumpy()
        np.testing.assert_allclose(got, array.asnumpy(), rtol=1e-4, atol=1e-5)
        assert np.array_equal(executor.arg_dict[name].asnumpy(), got)
    assert "Adam: one kernel updates 5 of 5 weights" in fast.explain()


def test_gradients_of_inputs_and_fixed_parameters() -> None:
    found = []
    for optimize in (graphopt.optimize, lambda module: module):
        module = optimize(mx.mod.Module(mlp(), fixed_param_names=["fc1_weight"]))
        module.bind(*_shapes(), inputs_need_grad=True)
        mx.random.seed(1)
        np.random.seed(1)
        module.init_params(mx.init.Xavier())
        module.init_optimizer()
        module.forward_backward(next(samples()))
        module.update()
        arrays = {"input": module.get_input_grads()[0]} | module.get_params()[0]
        found.append({name: array.asnumpy() for name, array in arrays.items()})
    for name, array in found[0].items():
        np.testing.assert_allclose(array, found[1][name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert abs(found[0]["input"]).max() > 0


def test_several_contexts() -> None:
    contexts = [mx.cpu(0), mx.cpu(1)]
    make = lambda: mx.mod.Module(mlp(), context=contexts)  # noqa: E731
    fast = graphopt.optimize(make())
    assert_alike(trained(fast, samples(24)), trained(make(), samples(24)))
    assert len(fast.executors()) == 2
    assert "MXNet updates the weights: " in fast.explain()


@pytest.mark.filterwarnings("ignore:unclosed file")  # which is MXNet's
def test_checkpoints(tmp_path: Any) -> None:
    fast = graphopt.optimize(mx.mod.Module(mlp()))
    trained(fast, samples(), optimizer="adam")
    fast.save_checkpoint(str(tmp_path / "net"), 2, save_optimizer_states=True)
    plain = mx.mod.Module.load(str(tmp_path / "net"), 2, load_optimizer_states=True)
    again = graphopt.optimize(mx.mod.Module.load(str(tmp_path / "net"), 2, True))
    batch = next(samples())
    for module in (again, plain):
        module.bind(*_shapes())
        module.init_optimizer(optimizer="adam", optimizer_params={"learning_rate": 0.1})
        module.forward_backward(batch)
        module.update()
    found = [({n: a.asnumpy() for n, a in m.get_params()[0].items()}, []) for m in (again, plain)]
    assert_alike(*found)


def test_monitors_see_what_is_inside() -> None:
    fast = graphopt.optimize(mx.mod.Module(mlp()))
    monitor = mx.mon.Monitor(1, pattern=".*fc1_output")
    found = trained(fast, samples(24), monitor=monitor)
    assert_alike(found, trained(mx.mod.Module(mlp()), samples(24)))
    assert "MXNet's executor runs it: a monitor looks at it" in fast.explain()
    monitor.tic()
    fast.forward(next(samples(24)))
    assert [name for _, name, _ in monitor.toc()] == ["fc1_output"]


def test_sparse_parameters_are_left_to_mxnet() -> None:
    def make() -> Any:
        weight = sym.var("weight", stype="row_sparse", shape=(7, 2))
        found = sym.dot(sym.var("data", stype="csr"), weight)
        return mx.mod.Module(
            sym.LinearRegressionOutput(found, name="lin"), label_names=["lin_label"]
        )

    fast = graphopt.optimize(make())
    fast.bind([("data", (8, 7))], [("lin_label", (8, 2))])
    assert "MXNet's executor runs it: argument 'data' is sparse" in fast.explain()


@pytest.mark.parametrize("kind", ["gradient", "embedding", "cast"])
def test_sparse_results_are_left_to_mxnet(kind: str) -> None:
    """Though all arguments are dense."""

    def make() -> Any:
        data, weight = sym.var("data"), sym.var("rows_weight", shape=(20, 5))
        if kind == "gradient":
            found = sym.mean(sym.Embedding(data, weight, 20, 5, sparse_grad=True), axis=1)
        elif kind == "embedding":
            found = sym.mean(sym.contrib.SparseEmbedding(data, weight, 20, 5), axis=1)
        else:
            found = sym.dot(sym.cast_storage(data, "csr"), weight)
        return mx.mod.Module(
            sym.LinearRegressionOutput(found, name="lin"), label_names=["lin_label"]
        )

    rng = np.random.default_rng(0)
    batch = mx.io.DataBatch(
        [mx.nd.array(rng.integers(0, 20, (4, 20)))], [mx.nd.array(rng.normal(size=(4, 5)))]
    )
    found = []
    for module in (make(), graphopt.optimize(make())):
        module.bind([("data", (4, 20))], [("lin_label", (4, 5))])
        module.init_params(mx.init.One())
        module.init_optimizer(kvstore=None, optimizer_params={"learning_rate": 0.1})
        for _ in range(3):
            module.forward_backward(batch)
            module.update()
        found.append(module.get_params()[0]["rows_weight"].asnumpy())
    assert "asks for sparse arrays" in module.explain()
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_weights_of_half_precision_are_updated_by_mxnet() -> None:
    found = []
    for optimize in (graphopt.optimize, lambda module: module):
        half = sym.Cast(sym.var("half_weight", dtype="float16", shape=(7,)), dtype="float32")
        x = sym.broadcast_mul(sym.var("data"), half)
        loss = sym.SoftmaxOutput(sym.FullyConnected(x, num_hidden=4, name="fc"), name="softmax")
        module = optimize(mx.mod.Module(loss))
        module.bind(*_shapes())
        mx.random.seed(1)
        module.init_params(mx.init.Constant(0.25))
        options = {"learning_rate": 0.5, "multi_precision": True}
        module.init_optimizer(optimizer_params=options)
        for _ in range(3):
            module.forward_backward(next(samples()))
            module.update()
        found.append({name: a.asnumpy() for name, a in module.get_params()[0].items()})
        if optimize is graphopt.optimize:
            told = module.explain()
            assert "one kernel updates 2 of 3 weights" in told
            assert "half_weight by MXNet: it is float16" in told
    for name, array in found[0].items():
        np.testing.assert_allclose(array, found[1][name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_modules_with_updates_of_their_own() -> None:
    class Frozen(mx.mod.Module):
        def update(self) -> None:
            self.calls = getattr(self, "calls", 0) + 1

    fast = graphopt.optimize(Frozen(mlp()))
    assert isinstance(fast, Frozen)
    trained(fast, samples())
    assert fast.calls == 6


def test_states_and_reports(tmp_path: Any) -> None:
    """States are arguments that nobody gives."""
    found = sym.FullyConnected(sym.var("data"), num_hidden=3, name="fc") + sym.var("h")
    plain = mx.mod.Module(found, label_names=None, state_names=["h"])
    fast = graphopt.optimize(mx.mod.Module(found, label_names=None, state_names=["h"]))
    for module in (plain, fast):
        module.bind([("data", (2, 5)), ("h", (2, 3))][:1], for_training=False)
        module.init_params(mx.init.One())
        module.set_states(value=2)
        module.forward(mx.io.DataBatch([mx.nd.ones((2, 5))]))
        assert (module.get_outputs()[0].asnumpy() == 7).all()
        assert dict(module.output_shapes) == {found.list_outputs()[0]: (2, 3)}
    assert fast.graph().name
    assert fast.receipts()
    assert fast.report(tmp_path / "report.html").stat().st_size > 1000


def test_sequences() -> None:
    found = []
    for optimize in (graphopt.optimize, lambda module: module):
        with mx.name.NameManager():
            first = sym.Activation(
                sym.FullyConnected(sym.var("data"), num_hidden=6, name="first"), act_type="tanh"
            )
            parts = mx.mod.SequentialModule()
            parts.add(mx.mod.Module(first, label_names=None))
            parts.add(mx.mod.Module(mlp()), take_labels=True, auto_wiring=True)
        found.append(trained(optimize(parts), samples(24)))
        found[-1] = (dict(sorted(found[-1][0].items())), found[-1][1])
    assert_alike(*found)


def test_losses_in_python_stay_as_they_are() -> None:
    def gradient(scores: Any, labels: Any) -> Any:
        return scores - mx.nd.one_hot(labels, 4)

    def make() -> Any:
        inner, outer = mx.mod.SequentialModule(), mx.mod.SequentialModule()
        scores = sym.FullyConnected(sym.var("data"), num_hidden=4, name="fc")
        inner.add(mx.mod.Module(sym.softmax(scores, name="scores"), label_names=None))
        inner.add(mx.mod.PythonLossModule(grad_func=gradient), take_labels=True, auto_wiring=True)
        return outer.add(inner, take_labels=True)

    given = make()
    fast = graphopt.optimize(given)
    assert_alike(trained(fast, samples(24)), trained(make(), samples(24)))
    assert "kernel" in fast.explain()
    assert "PythonLossModule is left as it is" in fast.explain()
    assert fast.graph().name
    assert not given.binded
    assert not any(module.binded for module in given._modules[0]._modules)
    with pytest.raises(InputError, match="cannot optimize a PythonLossModule"):
        graphopt.optimize(make(), strict=True)


def test_limits_and_budgets() -> None:
    fast = graphopt.optimize(
        mx.mod.Module(mlp()), memory="4MB", max_shapes={"data": (16, 7), "softmax_label": (16,)}
    )
    found = trained(fast, samples(24))
    assert_alike(found, trained(mx.mod.Module(mlp()), samples(24)))
    assert "memory: a step takes" in fast.explain()
    with pytest.raises(InputError, match="max_shapes allows"):
        fast.forward(next(samples(40, batch=32)), is_train=True)


def test_symbols_of_views_are_pickled_as_symbols() -> None:
    import pickle

    fast = graphopt.optimize(mx.mod.Module(mlp()))
    again = pickle.loads(pickle.dumps(fast.symbol))
    assert type(again) is sym.Symbol
    assert again.tojson() == fast.symbol.tojson()


def test_refusals() -> None:
    with pytest.raises(InputError, match="mode= is for Blocks"):
        graphopt.optimize(mx.mod.Module(mlp()), mode="inference")
    with pytest.raises(InputError, match="cannot optimize a PythonLossModule: of modules give"):
        graphopt.optimize(mx.mod.PythonLossModule())
    with pytest.raises(InputError, match="record= is for Blocks"):
        graphopt.optimize(mx.mod.Module(mlp()), record=True)
    with pytest.raises(InputError, match="no compiled graph yet"):
        graphopt.optimize(mx.mod.Module(mlp())).graph()
    fast = graphopt.optimize(mx.mod.Module(mlp()), strict=True)
    fast.bind(*_shapes())
    fast.init_params()
    fast.init_optimizer(optimizer="dcasgd")
    fast.forward_backward(next(samples()))
    with pytest.raises(UnsupportedError, match="DCASGD has no kernel"):
        fast.update()
    with pytest.raises(RuntimeError, match="simple_bind error"):
        graphopt.optimize(mx.mod.Module(mlp())).bind(_shapes()[0], [("softmax_label", (8, 3))])


def _shapes() -> tuple[Any, Any]:
    return samples().provide_data, samples().provide_label


@pytest.mark.filterwarnings("ignore:Data provided by label_shapes")
@pytest.mark.parametrize("is_tester_optimized", [False, True])
def test_a_module_tests_with_the_parameters_that_another_one_trains(
    is_tester_optimized: bool,
) -> None:
    trainer, tester = graphopt.optimize(mx.mod.Module(mlp())), mx.mod.Module(mlp())
    if is_tester_optimized:
        tester = graphopt.optimize(tester)
    trainer.bind(*_shapes())
    trainer.init_params(mx.init.Uniform(0.5))
    trainer.init_optimizer(optimizer_params={"learning_rate": 0.5})
    inputs = [("data", (3, 7))]
    tester.bind(inputs, None, for_training=False, shared_module=trainer)
    for batch in samples(24):
        trainer.forward_backward(batch)
        trainer.update()
        few = mx.io.DataBatch([batch.data[0][:3]])
        # Not kept: executors of MXNet's that share arrays may read them as they once were.
        plain = mx.mod.Module(mlp())
        plain.bind(inputs, None, for_training=False)
        plain.set_params(*trainer.get_params())
        if not is_tester_optimized:
            tester = mx.mod.Module(mlp())
            tester.bind(inputs, None, for_training=False, shared_module=trainer)
        for module in (plain, tester):
            module.forward(few, is_train=False)
        found, want = (module.get_outputs()[0].asnumpy() for module in (tester, plain))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)
