"""Graphs for inputs of other shapes: types are those that MXNet infers from the start."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.backend.choice import CACHED_OP
from graphopt.backend.convolutions import as_packed, with_packed
from graphopt.backend.infer import with_types
from graphopt.backend.lower import lower
from graphopt.backend.resized import Resized
from graphopt.backend.symbol import to_symbol
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError, UnsupportedError
from graphopt.ir.node import CONVOLUTIONS
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.kernels.convolutions.spec import spec_of
from graphopt.testing import run_pass

mx = import_mxnet()

NET = """
graph net(%x: f32[1,3,20,24], param %w: f32[16,3,3,3], param %v: f32[16,16,3,3]) {
  %a = Convolution(%x, %w) {kernel=(3, 3), num_filter=16, no_bias=True, pad=(1, 1)}
  %b = relu(%a)
  %s = softmax(%b) {axis=3}
  %c = Convolution(%s, %v) {kernel=(3, 3), num_filter=16, no_bias=True}
  %y = relu(%c)
  %flat = Flatten(%y)
  return %y, %flat
}"""


def regions():
    graph, target = with_types(parse(NET)), MXNetTarget()
    return run_pass(graph, "fuse-convolutions", target=target, frozen=True).graph


@pytest.mark.parametrize("shape", [(1, 3, 20, 24), (4, 3, 31, 9), (2, 3, 64, 64)])
def test_types_are_those_of_a_graph_that_is_made_anew(shape):
    graph = parse(NET)
    graph.update(graph.find("x").but(types=(TensorType("float32", shape),)))
    want = with_types(graph)
    resized = Resized(regions())
    for _ in range(2):  # what was made leaves no trace
        found = resized.graph({"x": shape})
        assert [found.type_of(v) for v in found.outputs] == [want.type_of(v) for v in want.outputs]
        bodies = [node.graphs[0] for node in found if node.op == CONVOLUTIONS]
        assert len(bodies) == 2
        for body in bodies:
            for node in body:
                if not node.is_input:
                    assert node.types == want.find(node.name).types
        resized.graph({"x": (1, 3, 8, 8)})


def test_shapes_that_do_not_fit_are_refused():
    resized = Resized(regions())
    with pytest.raises(InputError, match=r"node 'a'.*do not fit"):
        resized.graph({"x": (1, 4, 20, 24)})
    assert resized.graph({"x": (1, 3, 30, 20)})


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (
            '%y = Pooling(%b) {kernel=(1, 1), pool_type="avg", pooling_convention="full",'
            " stride=(2, 2)}",
            "a window of it lies outside the image",
        ),
        (
            "%y = Deconvolution(%b, %v) {kernel=(2, 2), num_filter=16, pad=(1, 1)}",
            "it does not work on float32 images of known size",
        ),
    ],
)
def test_sizes_that_a_region_is_not_for_are_refused(last, reason):
    graph = with_types(
        parse(
            "graph net(%x: f32[1,3,21,25], param %w: f32[16,3,3,3], param %v: f32[16,16,2,2]) {"
            "%a = Convolution(%x, %w) {kernel=(3, 3), num_filter=16, no_bias=True, pad=(1, 1)}"
            f"%b = relu(%a) {last} return %y }}"
        )
    )
    resized = Resized(run_pass(graph, "fuse-convolutions", target=MXNetTarget(), frozen=True).graph)
    with pytest.raises(UnsupportedError, match=rf"node 'y': {reason}"):
        resized.graph({"x": (1, 3, 1, 24)})
    assert resized.graph({"x": (1, 3, 31, 9)})


def arrays(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {node.name: rng.normal(size=node.type.shape).astype("float32") for node in graph.inputs}


def test_parameters_packed_for_one_size_serve_another():
    before = regions()
    known = {name: mx.nd.array(array) for name, array in arrays(before).items()}
    _, packed, _ = with_packed(before, known, mx.cpu())
    for shape in ((2, 3, 33, 90), (1, 3, 8, 200)):
        after = Resized(before).graph({"x": shape})
        likes = [node.attrs.get("like") for node in after if node.op == CONVOLUTIONS]
        assert likes == [str(spec_of(node)) for node in before if node.op == CONVOLUTIONS]
        feeds = packed | {"x": mx.nd.array(arrays(after, 1)["x"])}
        want = lower(unfuse(after), known, engine=CACHED_OP)(x=feeds["x"])
        symbol = to_symbol(as_packed(after, packed.__getitem__))
        made = symbol.bind(mx.cpu(), {n: feeds[n] for n in symbol.list_inputs()}, grad_req="null")
        for mine, theirs in zip(made.forward(), want, strict=True):
            np.testing.assert_allclose(mine.asnumpy(), theirs.asnumpy(), rtol=1e-4, atol=1e-4)


def test_programs_of_more_sizes_than_are_kept():
    before = regions()
    known = {name: mx.nd.array(array) for name, array in arrays(before).items()}
    _, packed, _ = with_packed(before, known, mx.cpu())
    resized = Resized(before)

    def symbol_for(height):
        return to_symbol(as_packed(resized.graph({"x": (1, 3, height, 9)}), packed.__getitem__))

    first, x = symbol_for(10), mx.nd.random.normal(shape=(1, 3, 10, 9))
    feeds = {name: packed.get(name, x) for name in first.list_inputs()}
    made = first.bind(mx.cpu(), feeds, grad_req="null")
    want = made.forward()[0].asnumpy()
    for height in range(11, 311):  # 256 for each of two regions would do
        _, shapes, _ = symbol_for(height).infer_shape(x=(1, 3, height, 9))
        assert shapes[0] == (1, 16, height - 2, 7)
    np.testing.assert_array_equal(made.forward()[0].asnumpy(), want)


def test_other_regions_are_not_like_it():
    graph = regions()
    first, second = (node for node in graph if node.op == CONVOLUTIONS)
    other = graph.copy()
    other.update(first.but(attrs=first.attrs.set(like=str(spec_of(second)))))
    with pytest.raises((mx.MXNetError, GraphoptError), match="not like that for other sizes"):
        to_symbol(other).infer_shape(x=(1, 3, 20, 24))
