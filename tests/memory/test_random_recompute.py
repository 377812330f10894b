"""Random graphs: whatever is computed again, in whatever order and memory, comes out the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from graphopt.backend.order import in_order
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.recompute import _work_of, marked, with_distinct_outputs
from graphopt.backend.step import MATCHES, bind, watch_gradient
from graphopt.backend.symbol import constants, to_symbol
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from tests.strategies.graphs import graphs

mx = import_mxnet()


class Step:
    """A training step of a symbol on given values, on an executor."""

    def __init__(self, symbol: Any, feeds: dict[str, Any], shared: Any = None, match: int = 16):
        self.arrays = {name: mx.nd.array(feeds[name]) for name in symbol.list_inputs()}
        arguments = symbol.list_arguments()
        self.gradients = {name: mx.nd.zeros(feeds[name].shape) for name in arguments}
        states = symbol.list_auxiliary_states()
        self.executor = bind(
            symbol,
            mx.cpu(),
            {name: self.arrays[name] for name in arguments},
            self.gradients,
            {name: self.arrays[name] for name in states},
            shared,
            match,
        )
        self.states = [self.arrays[name] for name in states]

    def __call__(self) -> list[Any]:
        outputs = self.executor.forward(is_train=True)
        found = [out.asnumpy() for out in outputs]
        rng = np.random.default_rng(0)
        self.executor.backward([mx.nd.array(rng.normal(size=out.shape)) for out in outputs])
        found += [self.gradients[name].asnumpy() for name in sorted(self.gradients)]
        return found + [state.asnumpy() for state in self.states]


#: For operators that propose regions of images.
REGIONS = {
    "feature_stride": 8,
    "scales": (4.0,),
    "ratios": (1.0,),
    "rpn_pre_nms_top_n": 20,
    "rpn_post_nms_top_n": 5,
    "rpn_min_size": 1,
}


def channels(x: Any, count: int) -> Any:
    return mx.sym.slice_axis(x, axis=1, begin=0, end=count)


def first(x: Any) -> Any:
    return mx.sym.slice_axis(x, axis=0, begin=0, end=1)


#: Made of its data; the gradient of most reads more than the output.
UNREAD = {
    "LayerNorm": lambda x: mx.sym.LayerNorm(x, name="op"),
    "GroupNorm": lambda x: mx.sym.GroupNorm(x, num_groups=2, name="op"),
    "InstanceNorm": lambda x: mx.sym.InstanceNorm(x, name="op"),
    "BatchNorm": lambda x: mx.sym.BatchNorm(x, fix_gamma=False, name="op"),
    "L2Normalization": lambda x: mx.sym.L2Normalization(x, name="op"),
    "LRN": lambda x: mx.sym.LRN(x, nsize=3, name="op"),
    "Pooling": lambda x: mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name="op"),
    "softmax": lambda x: mx.sym.softmax(x, name="op"),
    "hard_sigmoid": lambda x: mx.sym.hard_sigmoid(x, name="op"),
    "tanh": lambda x: mx.sym.tanh(x, name="op"),
    "Embedding": lambda x: mx.sym.Embedding(
        mx.sym.BlockGrad(mx.sym.sign(x) + 1), mx.sym.var("w"), input_dim=3, output_dim=6, name="op"
    ),
    "pick": lambda x: mx.sym.pick(x, mx.sym.BlockGrad(mx.sym.sum(x, axis=-1) * 0), name="op"),
    "diag": lambda x: mx.sym.diag(x, name="op"),
    "Convolution": lambda x: mx.sym.Convolution(x, kernel=(3, 3), num_filter=2, name="op"),
    "FullyConnected": lambda x: mx.sym.FullyConnected(x, num_hidden=3, name="op"),
    "AdaptiveAvgPooling2D": lambda x: mx.sym.contrib.AdaptiveAvgPooling2D(
        x, output_size=2, name="op"
    ),
    "BilinearResize2D": lambda x: mx.sym.contrib.BilinearResize2D(x, height=4, width=9, name="op"),
    "BilinearSampler": lambda x: mx.sym.BilinearSampler(x, channels(x, 2) * 0.3, name="op"),
    "Convolution_v1": lambda x: mx.sym.Convolution_v1(x, kernel=(3, 3), num_filter=2, name="op"),
    "Correlation": lambda x: mx.sym.Correlation(x, x * 2, max_displacement=1, name="op"),
    "Crop": lambda x: mx.sym.Crop(x, num_args=1, offset=(1, 1), h_w=(3, 3), name="op"),
    "DeformableConvolution": lambda x: mx.sym.contrib.DeformableConvolution(
        x, channels(x, 2) * 0.1, kernel=(1, 1), num_filter=2, name="op"
    ),
    "GridGenerator": lambda x: mx.sym.GridGenerator(
        channels(x, 2), transform_type="warp", name="op"
    ),
    "LeakyReLU": lambda x: mx.sym.LeakyReLU(x, act_type="prelu", name="op"),
    "MultiProposal": lambda x: mx.sym.contrib.MultiProposal(
        channels(x, 2), x, mx.sym.ones((4, 3)) * 48, **REGIONS, name="op"
    ),
    "Pad": lambda x: mx.sym.Pad(x, mode="reflect", pad_width=(0, 0, 0, 0, 1, 1, 1, 1), name="op"),
    "Pooling_v1": lambda x: mx.sym.Pooling_v1(x, kernel=(2, 2), pool_type="max", name="op"),
    "Proposal": lambda x: mx.sym.contrib.Proposal(
        first(channels(x, 2)), first(x), mx.sym.ones((1, 3)) * 48, **REGIONS, name="op"
    ),
    "ROIPooling": lambda x: mx.sym.ROIPooling(
        x, mx.sym.ones((2, 5)), pooled_size=(2, 2), spatial_scale=1.0, name="op"
    ),
    "SequenceLast": lambda x: mx.sym.SequenceLast(x, name="op"),
    "SliceChannel": lambda x: mx.sym.SliceChannel(x, num_outputs=2, name="op")[0],
    "SpatialTransformer": lambda x: mx.sym.SpatialTransformer(
        x,
        mx.sym.slice_axis(mx.sym.Flatten(x), axis=1, begin=0, end=6),
        target_shape=(4, 4),
        transform_type="affine",
        sampler_type="bilinear",
        name="op",
    ),
    "UpSampling of neighbours": lambda x: mx.sym.UpSampling(
        x, scale=2, sample_type="nearest", name="op"
    ),
    "UpSampling between": lambda x: mx.sym.UpSampling(
        x, mx.sym.var("w"), scale=2, sample_type="bilinear", num_filter=4, num_args=2, name="op"
    ),
    "det": lambda x: mx.sym.linalg.det(x, name="op"),
    "gather_nd": lambda x: mx.sym.gather_nd(x, mx.sym.ones((2, 3)), name="op"),
    "log_softmax": lambda x: mx.sym.log_softmax(x, name="op"),
    "moments": lambda x: mx.sym.moments(x, axes=(1,), name="op")[1],
    "norm": lambda x: mx.sym.norm(x, axis=1, name="op"),
    "prod": lambda x: mx.sym.prod(x, axis=1, name="op"),
    "smooth_l1": lambda x: mx.sym.smooth_l1(x, name="op"),
    "take": lambda x: mx.sym.take(x, mx.sym.ones((3,)), name="op"),
    "topk": lambda x: mx.sym.topk(x, k=2, ret_typ="value", name="op"),
}
#: Those that MXNet does not compute, or refuses, then.
NEVER = (
    "BilinearSampler",
    "Convolution_v1",
    "Crop",
    "DeformableConvolution",
    "Embedding",
    "GridGenerator",
    "GroupNorm",
    "LayerNorm",
    "MultiProposal",
    "Proposal",
    "UpSampling between",
    "diag",
    "hard_sigmoid",
    "moments",
    "pick",
)


@pytest.mark.parametrize("op", UNREAD)
def test_what_nobody_reads_once_more_has_the_same_gradient(op):
    """A sum's gradient reads nothing, so that of a repetition MXNet wants no output."""
    made = UNREAD[op](mx.sym.var("data"))
    symbol = mx.sym.elemwise_add(made, made, name="sum")
    graph = lift_symbol(symbol, {"data": (4, 4, 6, 6)})
    feeds = random_feeds(graph)
    marks = {one.name for one in _work_of(graph, {}, "cpu") if one.can_repeat}
    assert ("op" in marks) == (op not in NEVER)
    changed = mx.sym.load_json(json.dumps(marked(json.loads(symbol.tojson()), marks, set())))
    for want, got in zip(Step(symbol, feeds)(), Step(changed, feeds)(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("op", ["Convolution", "Deconvolution", "Pooling"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_onednn_runs_is_computed_again_where_it_does(op, dtype):
    """MXNet's own kernels of these refuse to run for nobody."""
    attrs = {} if op == "Pooling" else {"num_filter": 2}
    made = getattr(mx.sym, op)(mx.sym.var("data"), kernel=(3, 3), name="op", **attrs)
    symbol = mx.sym.elemwise_add(made, made, name="sum")
    graph = lift_symbol(symbol, {"data": (4, 4, 6, 6)}, {"data": dtype})
    able = {one.name for one in _work_of(graph, {}, "cpu") if one.can_repeat}
    assert able == ({"op"} if dtype == "float32" else set())


@settings(max_examples=60)
@given(graphs(max_ops=10, dtype="float32"), st.data())
def test_nothing_else_comes_out(graph, data):
    assume(all(type_.is_static for node in graph for type_ in node.types))
    assume(not constants(graph) and not any(node.after for node in graph))
    assume(not any(node.op == "Dropout" for node in graph))  # no two runs have one mask
    note(str(graph))
    symbol = with_distinct_outputs(to_symbol(graph))
    assume(symbol.list_arguments())
    feeds = random_feeds(graph)
    assume(set(symbol.list_inputs()) <= set(feeds))
    try:
        plain = Step(symbol, feeds)
    except mx.MXNetError as error:
        note(str(error))  # MXNet differentiates neither jumps nor some views
        assume(False)
    expected = plain()

    able = sorted(one.name for one in _work_of(graph, {}, "cpu") if one.can_repeat)
    marks = data.draw(st.sets(st.sampled_from(able))) if able else set()
    rest = sorted(set(able) - marks)
    kept = data.draw(st.sets(st.sampled_from(rest))) if marks and rest else set()
    document = marked(json.loads(symbol.tojson()), marks, kept)
    for node in document["nodes"]:
        if "__graphopt_kept__" in node.get("attrs", {}):
            watch_gradient(node["op"])
    if data.draw(st.booleans()):
        names = [node["name"] for node in document["nodes"] if node["op"] != "null"]
        order = data.draw(st.permutations(names))
        document = in_order(document, order, free=marks | kept)
    changed = mx.sym.load_json(json.dumps(document))
    shared = plain.executor if data.draw(st.booleans()) else None
    try:
        other = Step(changed, feeds, shared, data.draw(st.sampled_from(MATCHES)))
    except mx.MXNetError as error:
        note(str(error))  # MXNet merges equal operators, and then they wait for each other
        assume(False)
    for want, got in zip(expected, other(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(1, np.abs(want).max()))
