"""Graphs made callable: on every engine, with sentences for whatever does not fit."""

import copy
import pickle

import numpy as np
import pytest

from graphopt.backend import choosing, reference
from graphopt.backend.choice import (
    CACHED_OP,
    CACHED_OP_ONEDNN,
    CONVOLUTION_KERNELS,
    EXECUTOR_ONEDNN,
    PRODUCT_KERNELS,
)
from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.freeze import freeze
from graphopt.backend.infer import with_types
from graphopt.backend.lower import lower
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.ir.parser import parse
from graphopt.testing import run_pass

mx = import_mxnet()
ENGINES = (CACHED_OP, CACHED_OP_ONEDNN, EXECUTOR_ONEDNN)

NET = """
graph net(%x: f32[2,3,8,8], param %w: f32[4,3,3,3], param %g: f32[4], param %b: f32[4],
          aux %m: f32[4], aux %v: f32[4], %unused: f32[7]) {
  %w2 = _mul_scalar(%w) {scalar=0.5} : f32[4,3,3,3]
  %conv = Convolution(%x, %w2) {kernel=(3, 3), no_bias=True, num_filter=4} : f32[2,4,6,6]
  %bn = BatchNorm(%conv, %g, %b, %m, %v) {fix_gamma=False} : f32[2,4,6,6]
  %y = Activation(%bn) {act_type="relu"} : f32[2,4,6,6]
  %flat = Flatten(%y) : f32[2,144]
  return %flat, %bn
}"""

MUL = """
graph mul(%x: f32[2], param %w: f32[2]) {
  %y = elemwise_mul(%x, %w) : f32[2]
  return %y
}"""


@pytest.fixture
def mul():
    return parse(MUL)


def arrays(graph, seed=0):
    feeds = random_feeds(graph, seed)
    data = {node.name: feeds[node.name] for node in graph.role("data") if node.name in feeds}
    return data, {name: value for name, value in feeds.items() if name not in data}


def values(outputs):
    return [output.asnumpy() for output in outputs]


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_every_engine_computes_what_the_reference_does(engine):
    graph = parse(NET)
    # The fused operators of oneDNN overwrite what BatchNorm returns; see the next test.
    graph.set_outputs(graph.outputs[:1])
    data, params = arrays(graph)
    function = lower(graph, params, engine=engine)
    for seed in (0, 1):
        data = arrays(graph, seed)[0]
        expected = reference.run(graph, data | params)
        for want, got in zip(expected, values(function(**data)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert function.choice.engine in (ENGINES if engine == "auto" else (engine,))


def test_an_engine_that_is_wrong_is_not_chosen():
    graph = parse(NET)
    data, params = arrays(graph)
    function = lower(graph, params)
    for want, got in zip(
        reference.run(graph, data | params), values(function(**data)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert "beyond rtol" in function.choice.failed[EXECUTOR_ONEDNN]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("between", ["", "%same = _copy(%conv) : f32[2,4,3,5]"])
def test_norms_over_other_axes_than_the_channels(engine, between):
    graph = parse(f"""
        graph net(%x: f32[2,3,5,7], param %w: f32[4,3,3,3], param %g: f32[5], param %b: f32[5],
                  aux %m: f32[5], aux %moving_var: f32[5]) {{
          %conv = Convolution(%x, %w) {{kernel=(3, 3), no_bias=True, num_filter=4}} : f32[2,4,3,5]
          {between}
          %bn = BatchNorm({"%same" if between else "%conv"}, %g, %b, %m, %moving_var)
                {{axis=-1, fix_gamma=False}} : f32[2,4,3,5]
          return %bn
        }}""")
    data, params = arrays(graph)
    found = lower(graph, params, engine=engine)(**data)
    for want, got in zip(reference.run(graph, data | params), values(found), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


LAYERS = {
    "FullyConnected": ("f32[4,6]", "f32[5,6]", "f32[4,5]", "num_hidden=5"),
    "Convolution": ("f32[2,8,5,5]", "f32[8,8,3,3]", "f32[2,8,3,3]", "kernel=(3, 3), num_filter=8"),
}


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("weight", ["%w", "%tanh"])
def test_weights_that_follow_from_data(op, weight):
    x, w, y, attrs = LAYERS[op]
    bias = w.partition(",")[0] + "]"
    graph = parse(f"""
graph g(%x: {x}, %w: {w}, %b: {bias}) {{
  %tanh = tanh(%w) : {w}
  %layer = {op}(%x, {weight}, %b) {{{attrs}}} : {y}
  %y = Activation(%layer) {{act_type="relu"}} : {y}
  return %y
}}""")
    lowered = lower(graph)
    for seed in range(3):  # oneDNN's rewrites go on with the first
        feeds = random_feeds(graph, seed)
        expected = reference.run(graph, feeds)[0]
        np.testing.assert_allclose(lowered(**feeds)[0].asnumpy(), expected, rtol=1e-4, atol=1e-5)
    for engine in (CACHED_OP_ONEDNN, EXECUTOR_ONEDNN):
        with pytest.raises(InputError, match="is none of auto, CachedOp"):
            lower(graph, engine=engine)(**feeds)


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_of_earlier_calls_stay(mul, engine):
    function = lower(mul, {"w": np.ones(2)}, engine=engine)
    first = function(x=[1.0, 2.0])
    second = function(x=[3.0, 4.0])
    np.testing.assert_array_equal(first[0].asnumpy(), [1, 2])
    np.testing.assert_array_equal(second[0].asnumpy(), [3, 4])


@pytest.mark.parametrize("engine", ENGINES)
def test_outputs_are_numpy_arrays_where_they_are_to_be(mul, engine):
    function = lower(mul, {"w": np.ones(2)}, engine=engine, numpy=True)
    (found,) = function(x=np.array([1, 2], np.float32))
    assert isinstance(found, mx.np.ndarray)
    np.testing.assert_array_equal(found.asnumpy(), [1, 2])


def test_the_measured_engines_are_told():
    graph = parse(NET)
    data, params = arrays(graph)
    function = lower(graph, params)
    assert function.choice.engine == ""
    function(**data)
    assert set(function.choice.measured_ms) | set(function.choice.failed) == set(ENGINES)


def test_what_was_packed_for_slower_engines_is_freed(monkeypatch):
    graph = with_types(
        parse(
            "graph g(%x: f32[1,16,8,8], param %w: ?) {"
            "%y = Convolution(%x, %w) {kernel=(3, 3), num_filter=16, no_bias=True} return %y }"
        )
    )
    times = {CACHED_OP: 1.0, CONVOLUTION_KERNELS: 2.0}
    monkeypatch.setattr(
        choosing, "race", lambda engines, *_: {n: times.get(n, 3.0) for n in engines}
    )
    data, params = arrays(graph)
    region = run_pass(graph, "fuse-convolutions", target=MXNetTarget(), frozen=True).graph
    function = lower(region, params)
    function(**data)
    assert function.choice.engine == CACHED_OP
    assert CONVOLUTION_KERNELS in function.choice.measured_ms
    assert function._fixed.names == {"w"}


@pytest.mark.parametrize("follows", [True, False])
def test_what_is_read_packed_only_is_let_go_of_and_computed_again(follows):
    graph = with_types(
        parse(
            """
            graph g(%x: f32[1,16,8,8], param %w: f32[16,16,3,3]) {
              %half = _mul_scalar(%w) {scalar=0.5}
              %w2 = _plus_scalar(%half) {scalar=1.0}
              %y = Convolution(%x, %w2) {kernel=(3, 3), num_filter=16, no_bias=True}
              return %y
            }"""
        )
    )
    data, params = arrays(graph)
    region = run_pass(graph, "fuse-convolutions", target=MXNetTarget(), frozen=True).graph
    function = lower(region, params, engine=CONVOLUTION_KERNELS, follows=follows)
    want = values(lower(graph, params, engine=CACHED_OP)(**data))
    for _ in range(2):  # the second call gives back memory
        np.testing.assert_allclose(values(function(**data)), want, rtol=1e-4, atol=1e-4)
    assert ("w2_frozen_weight" in function._fixed.made) is not follows
    assert "w2_frozen_weight" in function._fixed.names
    found = function.parameters()["w2_frozen_weight"].asnumpy()
    np.testing.assert_allclose(found, params["w"] * 0.5 + 1, rtol=1e-6)


@pytest.mark.parametrize("is_fast", [True, False])
def test_products_run_where_they_are_faster(monkeypatch, is_fast):
    graph = with_types(
        parse(
            "graph g(%x: f32[6,4], param %w: ?, param %b: ?) {"
            "%c = FullyConnected(%x, %w, %b) {num_hidden=5} %y = relu(%c) return %y }"
        )
    )
    times = {CACHED_OP: 2.0, PRODUCT_KERNELS: 1.0 if is_fast else 9.0}
    monkeypatch.setattr(
        choosing, "race", lambda engines, *_: {n: times.get(n, 3.0) for n in engines}
    )
    data, params = arrays(graph)
    packed = run_pass(graph, "pack-products", frozen=True).graph
    function = lower(packed, params, tune=False)
    (found,) = function(**data)
    assert function.choice.engine == (PRODUCT_KERNELS if is_fast else CACHED_OP)
    assert function._fixed.names == {"w", "b"} | ({"w_packed", "b_packed"} if is_fast else set())
    expected = np.maximum(data["x"] @ params["w"].T + params["b"], 0)
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-5, atol=1e-5)
    for kernels in (True, False):
        assert "graphopt" not in function.exported(kernels=kernels).tojson()


def test_unknown_engines_are_refused(mul):
    function = lower(mul, {"w": np.ones(2)}, engine="turbo")
    with pytest.raises(InputError, match=r"^engine 'turbo' is none of auto, CachedOp, CachedOp"):
        function(x=[1, 2])


def test_inputs_by_position_and_from_numpy(mul):
    function = lower(mul, {"w": np.array([2, 3])})
    assert function.data == ("x",)
    for x in ([1, 1], np.ones(2), np.ones(2, "int64"), mx.nd.ones(2)):
        np.testing.assert_array_equal(function(x)[0].asnumpy(), [2, 3])


def test_copying_is_refused_and_says_what_to_copy(mul):
    function = lower(mul, {"w": np.ones(2)})
    for again in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"neither copied nor pickled: copy its \.graph"):
            again(function)


def test_parameters_are_shared_in_training(mul):
    w = mx.nd.ones(2)
    function = lower(mul, {"w": w}, training=True)
    assert function(x=[1, 2])[0].asnumpy().tolist() == [1, 2]
    w[:] = 10
    assert function(x=[1, 2])[0].asnumpy().tolist() == [10, 20]
    function.rebind({"w": mx.nd.zeros(2)})
    assert function(x=[1, 2])[0].asnumpy().tolist() == [0, 0]


def test_training_records_gradients(mul):
    w, x = mx.nd.array([2, 3]), mx.nd.array([5, 7])
    w.attach_grad()
    function = lower(mul, {"w": w}, training=True)
    with mx.autograd.record():
        y = function(x=x)[0]
    y.backward()
    assert w.grad.asnumpy().tolist() == [5, 7]


def test_frozen_parts_are_computed_once_from_the_original_parameters():
    graph = parse(NET)
    params = arrays(graph)[1]
    function = lower(graph, params)
    assert "w" not in function.symbol.list_inputs()
    assert "w2_frozen_weight" in function.parameters()
    np.testing.assert_allclose(
        function.parameters()["w2_frozen_weight"].asnumpy(), params["w"] * 0.5, rtol=1e-6
    )


def test_constants_and_outputs_without_any_input():
    graph = parse(
        """
        graph g() {
          %k = constant() {data="AACAPwAAAEA=", dtype="float32", shape=(2,)} : f32[2]
          %z = _full() {shape=(2,), value=3.0} : f32[2]
          %y = elemwise_add(%k, %z) : f32[2]
          return %y, %z
        }"""
    )
    assert [v.tolist() for v in values(lower(graph)())] == [[4, 5], [3, 3]]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op", ["", "_copy"])
def test_inputs_and_parameters_that_are_returned(engine, op):
    line = f"%a = {op}(%x) : f32[2] %b = {op}(%w) : f32[2]" if op else ""
    names = "%a, %b" if op else "%x, %w"
    graph = parse(
        f"""
        graph g(%x: f32[2], param %w: f32[2]) {{
          {line}
          %y = elemwise_add(%x, %w) : f32[2]
          return {names}, %y, %y
        }}"""
    )
    function = lower(graph, {"w": np.array([5, 6])}, engine=engine)
    first = function(x=[1, 2])
    function(x=[7, 8])
    assert [v.tolist() for v in values(first)] == [[1, 2], [5, 6], [6, 8], [6, 8]]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "no value for parameter w"),
        ({"w": np.ones(3)}, "parameter 'w' has shape (3,), the graph needs (2,)"),
        (
            {"w": mx.nd.ones(2, dtype="float64")},
            "parameter 'w' is float64, the graph needs float32",
        ),
    ],
)
def test_parameters_that_do_not_fit(mul, params, message):
    with pytest.raises(InputError) as caught:
        lower(mul, params)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"w": None}, "no value for parameter w"),
        (
            {"w": np.ones((4, 3, 3, 2))},
            "parameter 'w' has shape (4, 3, 3, 2), the graph needs (4, 3, 3, 3)",
        ),
        ({"m": None, "g": None, "b": None, "v": None}, "no value for parameter b, g, m and 1 more"),
    ],
)
def test_parameters_of_the_frozen_part_that_do_not_fit(wrong, message):
    graph = parse(NET)
    params = {**arrays(graph)[1], **wrong}
    with pytest.raises(InputError) as caught:
        lower(graph, {name: value for name, value in params.items() if value is not None})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("args", "inputs", "message"),
    [
        ((), {}, "data input 'x' is missing"),
        ((), {"y": [1, 2]}, "the graph has no data input 'y'; it has ['x']"),
        ((), {"x": [1, 2], "w": [1, 2]}, "the graph has no data input 'w'; it has ['x']"),
        (([1, 2], [3, 4]), {}, "2 inputs given, the graph has 1: ['x']"),
        (([1, 2, 3],), {}, "input 'x' has shape (3,), the graph was lowered for (2,)"),
        (
            (mx.nd.ones(2, dtype="float64"),),
            {},
            "input 'x' is float64, the graph was lowered for float32",
        ),
    ],
)
def test_inputs_that_do_not_fit(mul, args, inputs, message):
    function = lower(mul, {"w": np.ones(2)})
    with pytest.raises(InputError) as caught:
        function(*args, **inputs)
    assert str(caught.value) == message


def test_unused_inputs_may_be_left_out_or_given():
    graph = parse(NET)
    data, params = arrays(graph)
    function = lower(graph, params, engine=CACHED_OP)
    assert function.data == ("x", "unused")
    without = values(function(**data))
    given = values(function(**data, unused=np.zeros(7)))
    for first, second in zip(without, given, strict=True):
        np.testing.assert_array_equal(first, second)


# -- the parts ----------------------------------------------------------------------------------


def test_freeze_splits_off_what_parameters_alone_determine():
    graph = parse(NET)
    split = freeze(graph)
    assert split.names == ("w2_frozen_weight",)
    assert [graph[v.node].name for v in split.once.outputs] == ["w2"]
    weight = split.per_call.find_input("w2_frozen_weight")
    assert split.per_call.find("conv").inputs[1].node == weight.id
    nothing = freeze(parse(MUL))
    assert nothing.once is None
    assert str(nothing.per_call) == MUL.strip()


def test_what_is_frozen_is_called_by_what_layers_read_it_as():
    graph = parse(
        """
        graph g(%x: f32[1,2], param %w: f32[3,2], param %b: f32[3]) {
          %fc_weight = _mul_scalar(%w) {scalar=2.0} : f32[3,2]
          %c = _mul_scalar(%b) {scalar=2.0} : f32[3]
          %d = _mul_scalar(%b) {scalar=3.0} : f32[3]
          %y = FullyConnected(%x, %fc_weight, %c) {num_hidden=3} : f32[1,3]
          %z = broadcast_add(%y, %d) : f32[1,3]
          return %z
        }"""
    )
    assert freeze(graph).names == ("fc_frozen_weight", "c_frozen_bias", "d_frozen")
    taken = {"fc_frozen_weight", "fc_frozen_2_weight", "d_frozen"}
    assert freeze(graph, taken).names == ("fc_frozen_3_weight", "c_frozen_bias", "d_frozen_2")


def test_freeze_of_several_outputs_and_of_what_is_returned():
    graph = parse(
        """
        graph g(%x: f32[2], param %w: f32[4]) {
          %s = SliceChannel(%w) {axis=0, num_outputs=2} : (f32[2], f32[2])
          %y = elemwise_add(%x, %s#1) : f32[2]
          return %y, %s
        }"""
    )
    assert freeze(graph).names == ("s_frozen1", "s_frozen")
    found = values(lower(graph, {"w": np.array([1, 2, 3, 4])})(x=[0, 0]))
    assert [v.tolist() for v in found] == [[3, 4], [1, 2]]


def test_engines_return_fresh_arrays(mul):
    from graphopt.backend.symbol import to_symbol

    engine = CachedOpEngine(to_symbol(mul), {"x"})
    one, two = mx.nd.ones(2), mx.nd.ones(2) * 2
    found = [engine([x, two])[0] for x in (one, two)]
    assert [v.asnumpy().tolist() for v in found] == [[2, 2], [4, 4]]


def test_target_names_what_is_missing(mul):
    with pytest.raises(InputError, match=r"^input 'w' of graph 'mul' has no value$"):
        MXNetTarget().evaluate(mul, {"x": np.ones(2, "float32")})
    with pytest.raises(InputError, match=r"^input 'w' of graph 'mul' has no value$"):
        reference.run(mul, {"x": np.ones(2, "float32")})


def test_target_gives_gradients_and_states():
    graph = parse(NET)
    found = MXNetTarget().evaluate(graph, random_feeds(graph), gradients=True)
    assert set(found) == {
        "output0", "output1", "grad:x", "grad:w", "grad:g", "grad:b", "aux:m", "aux:v",
    }  # fmt: skip
    again = MXNetTarget().evaluate(graph, random_feeds(graph), gradients=True)
    for name, array in found.items():
        np.testing.assert_array_equal(array, again[name])


def test_target_repeats_random_draws():
    graph = parse("graph g(%x: f32[8,8]) { %y = Dropout(%x) {p=0.5} : f32[8,8] return %y }")
    feeds = random_feeds(graph)
    first, second = (MXNetTarget().evaluate(graph, feeds, training=True) for _ in range(2))
    np.testing.assert_array_equal(first["output0"], second["output0"])
    assert (first["output0"] == 0).any()


def test_feeds_depend_on_seed_and_name_only():
    graph = parse(NET)
    feeds = random_feeds(graph)
    assert "unused" not in feeds
    np.testing.assert_array_equal(feeds["x"], random_feeds(graph)["x"])
    assert (feeds["x"] != random_feeds(graph, 1)["x"]).any()
    assert (feeds["v"] > 0).all() or (feeds["g"] > 0).all()


def test_feeds_need_static_types():
    graph = parse("graph g(%x: f32[?,2]) { %y = relu(%x) return %y }")
    with pytest.raises(InputError, match=r"^input 'x' has type f32\[\?,2\]: give its shape, for"):
        random_feeds(graph)


def test_feeds_of_other_dtypes():
    graph = parse("graph g(%i: i32[9], %b: b1[9], %h: f16[9]) { %y = f(%i, %b, %h) return %y }")
    feeds = random_feeds(graph)
    assert [feeds[name].dtype.name for name in "ibh"] == ["int32", "bool", "float16"]
    assert feeds["i"].min() >= 0
