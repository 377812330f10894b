"""Every operator that is said to leave rows apart does so in MXNet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.batching.rules import _RULES, NotRowwiseError, roles
from graphopt.compat import import_mxnet
from graphopt.ir.ops import Kind, info, names
from tests.batching.comparing import Fn, check, initialized, rand

mx = import_mxnet()
nd = mx.nd

_POINTWISE = [
    name
    for name in names()
    if info(name).kind in (Kind.ELEMENTWISE, Kind.BROADCAST)
    and len(info(name).arguments) in (1, 2)
    and not name.startswith(("_np", "_contrib", "_image", "_scatter"))
    and not info(name).random
    and name not in ("broadcast_to", "broadcast_axis")
    and hasattr(nd._internal if name.startswith("_") else nd, name)
]
_ATTRS: dict[str, dict[str, Any]] = {
    "Activation": {"act_type": "softrelu"},
    "Cast": {"dtype": "float64"},
    "amp_cast": {"dtype": "float16"},
    "clip": {"a_min": 0.6, "a_max": 0.8},
}


def positive(rows: int, *tail: int) -> Any:
    return mx.nd.array(np.random.uniform(0.5, 0.95, (rows, *tail)))


@pytest.mark.parametrize("name", _POINTWISE)
def test_pointwise_operators(name: str) -> None:
    call = getattr(nd._internal if name.startswith("_") else nd, name)
    attrs = _ATTRS.get(name, {"scalar": 0.7} if name.endswith("_scalar") else {})
    count = len(info(name).arguments)
    net = initialized(Fn(lambda net, *xs: call(*xs, **attrs)))
    samples = [tuple(positive(rows, 3) for _ in range(count)) for rows in (1, 1, 2)]
    check(net, samples, grads=False)


CASES: list[tuple[str, Any, list[tuple[int, ...]]]] = [
    ("FullyConnected", lambda x, w: nd.FullyConnected(x, w, no_bias=True, num_hidden=4),
     [(3, 2), (4, 6)]),
    ("FullyConnected", lambda x, w: nd.FullyConnected(
        x, w, no_bias=True, num_hidden=4, flatten=False), [(3, 2), (4, 2)]),
    ("Embedding", lambda x, w: nd.Embedding(x * 3, w, input_dim=5, output_dim=2), [(), (5, 2)]),
    ("take", lambda x, w: nd.take(w, x * 3), [(2,), (5, 2)]),
    ("pick", lambda x: nd.pick(x, nd.ones((x.shape[0],)), axis=-1), [(3,)]),
    ("one_hot", lambda x: nd.one_hot(x * 3, 4), [(2,)]),
    ("batch_take", lambda x: nd.batch_take(x, nd.ones((x.shape[0],), dtype="int32")), [(3,)]),
    ("where", lambda x: nd.where(x > 0.7, x, x * 2), [(3,)]),
    ("dot", lambda x, w: nd.dot(x, w), [(2, 3), (3, 4)]),
    ("dot", lambda x, w: nd.dot(x, w, transpose_b=True), [(2, 3), (4, 3)]),
    ("batch_dot", lambda x: nd.batch_dot(x, x, transpose_b=True), [(2, 3)]),
    ("_linalg_gemm2", lambda x: nd.linalg_gemm2(x, x, transpose_b=True), [(2, 3)]),
    ("Concat", lambda x: nd.concat(x, x * 2, dim=-1), [(2, 3)]),
    ("stack", lambda x: nd.stack(x, x * 2, axis=-1), [(2, 3)]),
    ("SliceChannel", lambda x: nd.SliceChannel(x, num_outputs=3, axis=2, squeeze_axis=True),
     [(2, 3)]),
    ("_split_v2", lambda x: nd.split_v2(x, (1,), axis=1), [(3,)]),
    ("slice_axis", lambda x: nd.slice_axis(x, axis=-1, begin=1, end=None), [(3,)]),
    ("slice", lambda x: nd.slice(x, begin=(None, 1), end=(None, 3)), [(4,)]),
    ("SwapAxis", lambda x: nd.SwapAxis(x, 1, 2), [(2, 3)]),
    ("transpose", lambda x: nd.transpose(x, axes=(0, 2, 1)), [(2, 3)]),
    ("repeat", lambda x: nd.repeat(x, 2, axis=1), [(2, 3)]),
    ("reverse", lambda x: nd.reverse(x, axis=(1,)), [(2, 3)]),
    ("Pad", lambda x: nd.pad(x, mode="edge", pad_width=(0, 0, 0, 0, 1, 1, 2, 2)), [(1, 2, 3)]),
    ("Dropout", lambda x: nd.Dropout(x, p=0.5), [(3,)]),
    ("LeakyReLU", lambda x: nd.LeakyReLU(x - 0.7, act_type="gelu"), [(3,)]),
    ("LeakyReLU", lambda x, w: nd.LeakyReLU(x - 0.7, w, act_type="prelu"), [(3, 2), (3,)]),
    ("LeakyReLU", lambda x, w: nd.LeakyReLU(x - 0.7, w, act_type="prelu"), [(3,), (1, 3)]),
    ("LeakyReLU", lambda x, w: nd.LeakyReLU(x - 0.7, w, act_type="prelu"), [(), (1,)]),
    ("LayerNorm", lambda x, w: nd.LayerNorm(x, w, w), [(2, 3), (3,)]),
    ("LayerNorm", lambda x, w: nd.LayerNorm(x, w, w, axis=1), [(2, 3), (2,)]),
    ("InstanceNorm", lambda x, w: nd.InstanceNorm(x, w, w), [(2, 3), (2,)]),
    ("GroupNorm", lambda x, w: nd.GroupNorm(x, w, w, num_groups=2), [(4, 3), (2,)]),
    *[("L2Normalization", lambda x, m=m: nd.L2Normalization(x, mode=m), [(2, 3)])
      for m in ("instance", "channel", "spatial")],
    ("_contrib_div_sqrt_dim", lambda x: nd.contrib.div_sqrt_dim(x), [(3,)]),
    ("LRN", lambda x: nd.LRN(x, nsize=3), [(4, 2, 2)]),
    ("SoftmaxActivation", lambda x: nd.SoftmaxActivation(x), [(3,)]),
    ("SoftmaxActivation", lambda x: nd.SoftmaxActivation(x, mode="channel"), [(3, 2)]),
    ("softmax", lambda x: nd.softmax(x, axis=1), [(2, 3)]),
    ("log_softmax", lambda x: nd.log_softmax(x), [(2, 3)]),
    ("softmin", lambda x: nd.softmin(x), [(2, 3)]),
    ("sort", lambda x: nd.sort(x, is_ascend=False), [(2, 3)]),
    ("argsort", lambda x: nd.argsort(x), [(2, 3)]),
    ("topk", lambda x: nd.topk(x, k=2, ret_typ="value"), [(2, 3)]),
    ("topk", lambda x: nd.topk(x, k=2, axis=1), [(4, 3)]),
    *[(m, lambda x, m=m: getattr(nd, m)(x, axis=1), [(2, 3)])
      for m in ("sum", "mean", "max", "min", "prod", "nansum", "nanprod", "norm")],
    *[(m, lambda x, m=m: getattr(nd, m)(x, axis=0, exclude=True), [(2, 3)])
      for m in ("sum", "mean", "max", "min", "prod")],
    *[(m, lambda x, m=m: getattr(nd, m)(x, axis=-1), [(2, 3)]) for m in ("argmax", "argmin")],
    ("Convolution", lambda x, w: nd.Convolution(
        x, w, no_bias=True, kernel=(2, 2), num_filter=3), [(2, 4, 4), (3, 2, 2, 2)]),
    ("Convolution", lambda x, w: nd.Convolution(
        x, w, no_bias=True, kernel=(2,), num_filter=3), [(2, 4), (3, 2, 2)]),
    ("Deconvolution", lambda x, w: nd.Deconvolution(
        x, w, no_bias=True, kernel=(2, 2), num_filter=3), [(2, 4, 4), (2, 3, 2, 2)]),
    ("Pooling", lambda x: nd.Pooling(x, kernel=(2, 2), pool_type="max"), [(2, 4, 4)]),
    ("Pooling", lambda x: nd.Pooling(x, global_pool=True, pool_type="avg"), [(2, 4, 4)]),
    ("BatchNorm", lambda x, w: nd.BatchNorm(
        x, w, w, w, w, use_global_stats=True, fix_gamma=False), [(3, 2), (3,)]),
    ("amp_cast", lambda x: nd.amp_cast(x, dtype="float16"), [(3,)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "tails"), CASES)
def test_rules(name: str, call: Any, tails: Any) -> None:
    weights = [positive(*tail) for tail in tails[1:]]
    net = initialized(Fn(lambda net, x: call(x, *weights)))
    samples = [(positive(rows, *tails[0]),) for rows in (1, 1, 3)]
    batched = check(net, samples, grads=False, tol=1e-4)
    assert "not batched" not in batched.explain(), batched.explain()
    for rows in (1, 2):  # as many rows as there are samples
        check(net, [(positive(rows, *tails[0]),)] * 2, grads=False, tol=1e-4)


def test_every_rule_is_tested_or_refuses() -> None:
    refusing = {"broadcast_to", "broadcast_axis", "broadcast_like", "MakeLoss"}
    alike = {"CuDNNBatchNorm", "_contrib_BatchNormWithReLU"}  # not on this device, or as BatchNorm
    special = {"add_n"}  # test_forward.py
    assert set(_RULES) == {name for name, _, _ in CASES} | refusing | alike | special


@pytest.mark.parametrize(
    ("op", "attrs", "shapes", "why"),
    [
        ("LeakyReLU", {"act_type": "prelu"}, [(3,), (3,)], "its slopes lie along axis 0"),
        ("LeakyReLU", {"act_type": "prelu"}, [(2, 3), (2,)], "its slopes lie along axis 0"),
        ("LeakyReLU", {"act_type": "prelu"}, [(2, 3), (2, 3)], "its slopes lie along axis 0, too"),
        ("softmax", {"axis": 0}, [(2, 3)], "it works along axis 0"),
        ("softmax", {"axis": "-2"}, [(2, 3)], "it works along axis 0"),
        ("softmax", {}, [(3,)], "it works along axis 0"),
        ("stack", {"axis": -3}, [(2, 3), (2, 3)], "it stacks along axis 0"),
        ("transpose", {}, [(2, 3)], "it moves axis 0"),
        ("sum", {}, [(2, 3)], "it reduces axis 0"),
        ("sum", {"axis": (1,), "exclude": True}, [(2, 3)], "it reduces axis 0"),
        ("sum", {"axis": -2}, [(2, 3)], "it reduces axis 0"),
        ("argmax", {}, [(2, 3)], "it searches all axes"),
        ("sort", {"axis": None}, [(2, 3)], "it searches all axes"),
        ("topk", {"axis": "None"}, [(2, 3)], "it searches all axes"),
        ("slice", {"begin": (1,), "end": (2,)}, [(2, 3)], "it slices axis 0"),
        ("reverse", {"axis": (-2,)}, [(2, 3)], "it reverses axis 0"),
        ("Convolution", {"layout": "TNC"}, [(2, 3, 4), (2, 3, 4)], "layout TNC has its batch"),
        ("BatchNorm", {}, [(2, 3)] + [(3,)] * 4, "it takes statistics over the batch"),
        ("RNN", {}, [(2, 3, 4)], "no rule says that its rows are independent"),
        ("SoftmaxOutput", {}, [(2, 3), (2,)], "a loss head may divide by the batch size"),
        ("_contrib_div_sqrt_dim", {}, [(2,)], "an input has under 2 axes"),
        ("FullyConnected", {}, [(3,), (2, 3), (2,)], "its input has fewer than 2 axes"),
        ("relu", {}, [()], "an input has no axis"),
        ("made_up", {}, [(2, 3)], "no rule says that its rows are independent"),
    ],
)
def test_refusals(op: str, attrs: Any, shapes: Any, why: str) -> None:
    with pytest.raises(NotRowwiseError, match=why):
        roles(op, attrs, shapes, training=True)


@pytest.mark.parametrize("normalization", ["batch", "valid", "null"])
@pytest.mark.parametrize("hybridized", [False, True])
def test_a_loss_head_in_a_child_divides_by_its_own_sample(
    normalization: str, *, hybridized: bool
) -> None:
    class Loss(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.MakeLoss(F.square(x), normalization=normalization)

    dense = mx.gluon.nn.Dense(3, in_units=2)
    net = initialized(Fn(lambda net, x: net.loss(net.dense(x)), dense=dense, loss=Loss()))
    if hybridized:
        net.loss.hybridize()
    check(net, [(positive(rows, 2),) for rows in (1, 1, 2)])


@pytest.mark.parametrize("shape", [(4,), (2, 4)], ids=str)
def test_slopes_for_each_row_of_a_sample(shape: tuple[int, ...]) -> None:
    class Sloped(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.slopes = self.params.get("slopes", shape=shape)

        def hybrid_forward(self, F: Any, x: Any, slopes: Any) -> Any:
            return F.LeakyReLU(x * 2, slopes, act_type="prelu")

    net = initialized(Fn(lambda net, x: net.child(x) + x, child=Sloped()))
    check(net, [(rand(*shape),) for _ in range(3)])


def test_zero_and_minus_zero_are_two_numbers() -> None:
    net = initialized(Fn(lambda net, x, zero: 1 / (x * zero)))
    one = mx.nd.ones((1, 1))
    found = graphopt.batch(net)([(one, 0.0), (one, -0.0), (one, 0.0)])
    assert found.asnumpy().ravel().tolist() == [np.inf, -np.inf, np.inf]
    assert rand(1, 1).shape == (1, 1)


def test_what_only_has_a_shape_gets_no_gradient() -> None:
    def call(net: Any, x: Any) -> Any:
        hidden = nd.tanh(net.dense(x))
        return nd.broadcast_like(hidden.sum(axis=1, keepdims=True), nd.tanh(hidden)) * hidden

    net = initialized(Fn(call, dense=mx.gluon.nn.Dense(4, in_units=3)))
    check(net, [(rand(1, 3),) for _ in range(3)])
