"""What fold-batch-norm folds into the layers beside it, and that values stay."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from graphopt.backend import reference
from graphopt.backend.infer import with_types
from graphopt.backend.random_feeds import random_feeds
from graphopt.ir.parser import parse
from graphopt.passes.fold_batch_norm import FoldBatchNorm
from graphopt.testing import assert_equivalent, assert_ir
from tests.passes.fold_batch_norm_support import BN, CONV, fold, live, net
from tests.tiers import one_of

# -- golden ----------------------------------------------------------------------------------


def test_example(example):
    before, after = example(FoldBatchNorm)
    result = fold(before)
    assert result.graph == after
    assert_equivalent(before, result.graph)
    (remark,) = result.remarks
    assert remark.message == "folded into the weights of the layer behind which it stands"
    assert remark.nodes[1:] == ("conv",)
    assert result.receipts[0].stats == {"folded": 1}


def test_two_in_a_row_fold_into_one_layer():
    result = fold(
        """
        graph g(%x: f32[2,3], param %w: f32[4,3], param %b: f32[4]) {
          %fc = FullyConnected(%x, %w, %b) {num_hidden=4} : f32[2,4]
          %y = _mul_scalar(%fc) {scalar=2.0} : f32[2,4]
          %z = _minus_scalar(%y) {scalar=1.0} : f32[2,4]
          return %z
        }
        """
    )
    assert_ir(
        result,
        """
        graph g(%x: f32[2,3], param %w: f32[4,3], param %b: f32[4]) {
          %y_weight = _mul_scalar(%w) {scalar=2.0} : f32[4,3]
          %y_scaled_bias = _mul_scalar(%b) {scalar=2.0} : f32[4]
          %z_bias = _plus_scalar(%y_scaled_bias) {scalar=-1.0} : f32[4]
          %z = FullyConnected(%x, %y_weight, %z_bias) {no_bias=False, num_hidden=4} : f32[2,4]
          return %z
        }
        """,
    )
    assert result.graph.find("z").origin == ("fc", "y", "z")
    assert result.receipts[0].stats == {"folded": 2}


def test_in_front_of_a_layer():
    result = fold(
        """
        graph g(%x: f32[2,3], param %w: f32[4,3], param %c: f32[1,3]) {
          %r = relu(%x) : f32[2,3]
          %y = broadcast_add(%r, %c) : f32[2,3]
          %fc = FullyConnected(%y, %w) {no_bias=True, num_hidden=4} : f32[2,4]
          return %fc
        }
        """
    )
    assert_ir(
        result,
        """
        graph g(%x: f32[2,3], param %w: f32[4,3], param %c: f32[1,3]) {
          %r = relu(%x) : f32[2,3]
          %y_shaped = Reshape(%c) {shape=(3,)} : f32[3]
          %y_shaped_1 = Reshape(%y_shaped) {shape=(1, 3)} : f32[1,3]
          %y_moved = broadcast_mul(%w, %y_shaped_1) : f32[4,3]
          %y_shift = sum(%y_moved) {axis=(1,)} : f32[4]
          %fc = FullyConnected(%r, %w, %y_shift) {no_bias=False, num_hidden=4} : f32[2,4]
          return %fc
        }
        """,
    )


# -- equivalence -----------------------------------------------------------------------------

BEHIND = {
    "bias": ("%l = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=6}", {}),
    "padding": (
        "%l = Convolution(%x, %w) {kernel=(3, 3), num_filter=6, pad=(1, 1), no_bias=True}",
        {},
    ),
    "groups": (
        "%l = Convolution(%x, %w) {kernel=(3, 3), num_filter=6, num_group=2, no_bias=True}",
        {"w": "f32[6,2,3,3]"},
    ),
    "1d": (
        "%l = Convolution(%x, %w, %b) {kernel=(3,), num_filter=6}",
        {"x": "f32[2,4,9]", "w": "f32[6,4,3]"},
    ),
    "3d": (
        '%l = Convolution(%x, %w, %b) {kernel=(2, 2, 2), layout="NCDHW", num_filter=6}',
        {"x": "f32[1,4,3,3,3]", "w": "f32[6,4,2,2,2]"},
    ),
    "deconvolution": (
        "%l = Deconvolution(%x, %w) {kernel=(3, 3), num_filter=6}",
        {"w": "f32[4,6,3,3]"},
    ),
    "deconvolution with bias and groups": (
        "%l = Deconvolution(%x, %w, %b) {kernel=(3, 3), num_filter=6, num_group=2, no_bias=False,"
        " stride=(2, 2), pad=(1, 1)}",
        {"w": "f32[4,3,3,3]"},
    ),
    "fully connected": (
        "%l = FullyConnected(%x, %w, %b) {num_hidden=6}",
        {"x": "f32[2,3,4]", "w": "f32[6,12]"},
    ),
    "fully connected, without flatten": (
        "%l = FullyConnected(%x, %w) {num_hidden=6, flatten=False, no_bias=True}",
        {"x": "f32[2,3,4]", "w": "f32[6,4]", "axis": -1},
    ),
}


@pytest.mark.parametrize("case", BEHIND)
@pytest.mark.parametrize("fix_gamma", [True, False, None])
def test_batch_norm_behind(case, fix_gamma):
    layer, types = BEHIND[case]
    types = dict(types)
    axis = types.pop("axis", 1)
    fixed = "" if fix_gamma is None else f", fix_gamma={fix_gamma}"
    graph = net(
        f"{layer} %y = BatchNorm(%l, %gamma, %beta, %mean, %var) {{axis={axis}{fixed}}} return %y",
        **types,
    )
    result = fold(graph)
    assert live(result) == [graph.find("l").op]
    assert_equivalent(graph, result.graph)


@pytest.mark.parametrize("op", ["BatchNorm_v1", "_contrib_SyncBatchNorm"])
def test_other_batch_norms(op):
    attrs = '{fix_gamma=False, key="k"}' if "Sync" in op else "{fix_gamma=False}"
    graph = net(f"{CONV} %y = {op}(%conv, %gamma, %beta, %mean, %var) {attrs} return %y")
    result = fold(graph)
    assert live(result) == ["Convolution"]
    assert_equivalent(graph, result.graph)


FRONT = {
    "convolution": ("%l = Convolution(%y, %w) {kernel=(3, 3), num_filter=6, no_bias=True}", {}),
    "convolution with bias": ("%l = Convolution(%y, %w, %b) {kernel=(3, 3), num_filter=6}", {}),
    "groups": (
        "%l = Convolution(%y, %w) {kernel=(3, 3), num_filter=6, num_group=2, no_bias=True}",
        {"w": "f32[6,2,3,3]"},
    ),
    "depthwise, 1d": (
        "%l = Convolution(%y, %w, %b) {kernel=(3,), num_filter=8, num_group=4}",
        {"x": "f32[2,4,9]", "w": "f32[8,1,3]"},
    ),
    "3d": (
        "%l = Convolution(%y, %w, %b) {kernel=(2, 2, 2), num_filter=6}",
        {"x": "f32[1,4,3,3,3]", "w": "f32[6,4,2,2,2]"},
    ),
    "fully connected": (
        "%l = FullyConnected(%y, %w, %b) {num_hidden=6}",
        {"x": "f32[2,4]", "w": "f32[6,4]"},
    ),
    "fully connected, flattened by it": (
        "%l = FullyConnected(%y, %w, %b) {num_hidden=6}",
        {"x": "f32[2,4,3,2]", "w": "f32[6,24]"},
    ),
    "fully connected, flattened before": (
        "%f = Flatten(%y) %l = FullyConnected(%f, %w) {num_hidden=6, no_bias=True}",
        {"x": "f32[2,4,3,2]", "w": "f32[6,24]"},
    ),
    "fully connected, axis in the middle": (
        "%l = FullyConnected(%y, %w) {num_hidden=6, no_bias=True}",
        {"x": "f32[2,3,4,2]", "w": "f32[6,24]", "axis": 2},
    ),
    "fully connected, without flatten": (
        "%l = FullyConnected(%y, %w) {num_hidden=6, flatten=False, no_bias=True}",
        {"x": "f32[2,3,4]", "w": "f32[6,4]", "axis": -1},
    ),
}


@pytest.mark.parametrize("case", FRONT)
def test_batch_norm_in_front(case):
    layer, types = FRONT[case]
    types = dict(types)
    axis = types.pop("axis", 1)
    attrs = f"{{axis={axis}, fix_gamma=False}}"
    graph = net(
        f"%r = relu(%x) %y = BatchNorm(%r, %gamma, %beta, %mean, %var) {attrs} {layer} return %l",
        **types,
    )
    result = fold(graph)
    assert live(result) == [n.op for n in graph if n.name in ("r", "f", "l")]
    assert result.remarks[0].message == (
        "folded into the weights of the layer in front of which it stands"
    )
    assert result.remarks[0].nodes[1:] == ("l",)
    assert_equivalent(graph, result.graph)


ARITHMETIC = {
    "_mul_scalar": "_mul_scalar({0}) {{scalar=0.5}}",
    "_div_scalar": "_div_scalar({0}) {{scalar=4}}",
    "_plus_scalar": "_plus_scalar({0}) {{scalar=0.5}}",
    "_minus_scalar": "_minus_scalar({0}) {{scalar=0.5}}",
    "_rminus_scalar": "_rminus_scalar({0}) {{scalar=0.5}}",
    "negative": "negative({0})",
    "_contrib_div_sqrt_dim": "_contrib_div_sqrt_dim({0})",
    "broadcast_mul": "broadcast_mul({0}, %k)",
    "broadcast_mul, swapped": "broadcast_mul(%k, {0})",
    "broadcast_add": "broadcast_add({0}, %k)",
    "broadcast_sub": "broadcast_sub({0}, %k)",
    "broadcast_sub, swapped": "broadcast_sub(%k, {0})",
    "broadcast_div": "broadcast_div({0}, %kvar)",
}


@pytest.mark.parametrize(
    ("case", "where", "shape"),
    one_of(
        5,
        itertools.product(
            ARITHMETIC, ["behind", "behind, without bias", "in front"], ["1,4,1,1", "1,1,1,1"]
        ),
    ),
)
def test_arithmetic(case, where, shape):
    bias = "" if "without" in where else ", %b"
    layer = f"{{kernel=(3, 3), num_filter=4, no_bias={not bias}}}"
    if where == "in front":
        step = ARITHMETIC[case].format("%r")
        body = f"%r = relu(%x) %y = {step} %z = Convolution(%y, %w{bias}) {layer}"
    else:
        body = f"%y = Convolution(%x, %w{bias}) {layer} %z = {ARITHMETIC[case].format('%y')}"
    given = f"param %b: f32[4], param %k: f32[{shape}], param %kvar: f32[{shape}]"
    graph = with_types(
        parse(f"graph g(%x: f32[2,4,6,6], param %w: f32[4,4,3,3], {given}) {{ {body} return %z }}")
    )
    result = fold(graph)
    assert live(result) == [*(["relu"] if where == "in front" else []), "Convolution"]
    assert_equivalent(graph, result.graph)


def test_a_number_folds_in_front_of_rows():
    graph = net(
        "%y = _plus_scalar(%x) {scalar=2.0}"
        " %l = FullyConnected(%y, %w) {num_hidden=6, flatten=False, no_bias=True} return %l",
        x="f32[2,3,4]",
        w="f32[6,4]",
    )
    result = fold(graph)
    assert live(result) == ["FullyConnected"]
    assert_equivalent(graph, result.graph)


def test_half_precision_folds_in_single():
    graph = net(
        f"%l = Convolution(%x, %w, %b) {{kernel=(3, 3), num_filter=6}} %y = BatchNorm(%l, {BN}"
        " return %y",
        x="f16[2,4,6,6]",
        w="f16[6,4,3,3]",
    )
    result = fold(graph)
    assert live(result) == ["Convolution"]
    _, *types = (str(result.graph.type_of(value)) for value in result.graph.find("y").inputs)
    assert types == ["f16[6,4,3,3]", "f16[6]"]
    feeds = random_feeds(graph)  # MXNet has no such convolution on the CPU
    want, got = (reference.run(g, feeds)[0] for g in (graph, result.graph))
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-3)


def test_double_precision_stays_double():
    graph = net(
        f"%l = Convolution(%x, %w, %b) {{kernel=(3, 3), num_filter=6}} %y = BatchNorm(%l, {BN}"
        " return %y",
        x="f64[2,4,6,6]",
        w="f64[6,4,3,3]",
    )
    result = fold(graph)
    assert "Cast" not in str(result.graph)
    assert_equivalent(graph, result.graph)


def test_a_layer_takes_up_what_stands_on_both_sides():
    graph = net(
        f"%a = _mul_scalar(%x) {{scalar=0.5}} %p = _minus_scalar(%a) {{scalar=0.25}}"
        " %l = Convolution(%p, %w) {kernel=(3, 3), num_filter=6, no_bias=True}"
        f" %m = _mul_scalar(%l) {{scalar=3.0}} %y = BatchNorm(%m, {BN} return %y"
    )
    result = fold(graph)
    assert live(result) == ["Convolution"]
    assert result.receipts[0].stats == {"folded": 4}
    assert_equivalent(graph, result.graph)


def test_a_scale_folds_in_front_of_padding_where_a_shift_cannot():
    graph = net(
        "%s = _minus_scalar(%x) {scalar=127.5} %m = _mul_scalar(%s) {scalar=0.0078125}"
        " %l = Convolution(%m, %w) {kernel=(3, 3), num_filter=6, pad=(1, 1), no_bias=True}"
        " return %l"
    )
    result = fold(graph)
    assert live(result) == ["_minus_scalar", "Convolution"]
    assert [r.message for r in result.remarks] == [
        "folded into the weights of the layer in front of which it stands",
        "not folded: it stands behind 'x' (data); its shift would be missing at the border of 'l'",
    ]
    assert_equivalent(graph, result.graph)


def test_a_scale_folds_in_front_of_a_deconvolution():
    graph = net(
        "%m = _mul_scalar(%x) {scalar=0.5}"
        " %l = Deconvolution(%m, %w) {kernel=(3, 3), num_filter=6, pad=(1, 1)} return %l",
        w="f32[4,6,3,3]",
    )
    result = fold(graph)
    assert live(result) == ["Deconvolution"]
    assert_equivalent(graph, result.graph)


def test_channels_last_behind_a_convolution():
    """MXNet runs that layout on GPUs only, so the weight's text has to do."""
    result = fold(
        """
        graph g(%x: f32[1,8,8,2], param %w: f32[4,3,3,2], param %c: f32[4]) {
          %l = Convolution(%x, %w) {kernel=(3, 3), layout="NHWC", no_bias=True, num_filter=4}
             : f32[1,6,6,4]
          %y = broadcast_mul(%l, %c) : f32[1,6,6,4]
          return %y
        }
        """
    )
    assert live(result) == ["Convolution"]
    assert "Reshape(%c) {shape=(4, 1, 1, 1)} : f32[4,1,1,1]" in str(result.graph)


def test_a_shared_weight_is_scaled_for_each_reader():
    graph = net(
        f"{CONV} %y = BatchNorm(%conv, {BN}"
        " %other = Convolution(%x, %w) {kernel=(3, 3), num_filter=6, no_bias=True}"
        " %z = _mul_scalar(%other) {scalar=2.0} return %y, %z"
    )
    result = fold(graph)
    assert live(result) == ["Convolution", "Convolution"]
    assert_equivalent(graph, result.graph)
