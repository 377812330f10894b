"""fuse-convolutions: functions, slopes and gates behind convolutions, computed as MXNet does."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.kernels.convolutions.plan import plan
from graphopt.kernels.convolutions.spec import spec_of
from graphopt.kernels.convolutions.steps import Kind
from graphopt.testing import assert_equivalent
from tests.passes.fuse_convolutions_support import CONV, TOLERANCE, fused, net, regions
from tests.tiers import one_of

FUNCTIONS = [
    ("%s = sigmoid(%c) return %s", 0),
    ('%s = Activation(%c) {act_type="sigmoid"} return %s', 0),
    ("%s = hard_sigmoid(%c) {alpha=0.3, beta=0.4} return %s", 0),
    ("%s = sigmoid(%c) %m = elemwise_mul(%c, %s) return %m", 0),
    ("%h = hard_sigmoid(%c) %m = broadcast_mul(%h, %c) return %m", 0),
    (
        "%p = _plus_scalar(%c) {scalar=3.0} %k = clip(%p) {a_min=0.0, a_max=6.0}"
        "%d = _div_scalar(%k) {scalar=6.0} %m = elemwise_mul(%c, %d) return %m",
        0,
    ),
    ("%p = _mul_scalar(%c) {scalar=-2.0} %k = clip(%p) {a_min=-1.0, a_max=3.0} return %k", 0),
    ("%n = _rminus_scalar(%c) {scalar=1.0} %r = relu(%n) return %r", 0),
    (
        "%q = _mul_scalar(%c) {scalar=1.7} %s = sigmoid(%q)%m = elemwise_mul(%c, %s) return %m",
        0,
    ),
    ("%s = tanh(%c) return %s", 0),
    ('%s = Activation(%c) {act_type="tanh"} return %s', 0),
    ('%s = Activation(%c) {act_type="softrelu"} return %s', 0),
    ('%s = LeakyReLU(%c) {act_type="gelu"} return %s', 0),
    ('%s = LeakyReLU(%c) {act_type="elu", slope=0.7} return %s', 0),
    ('%s = LeakyReLU(%c) {act_type="selu"} return %s', 0),
    ('%s = Activation(%c) {act_type="softrelu"} %t = tanh(%s) return %t', 0),
    # Mish, also of what was scaled
    (
        '%s = Activation(%c) {act_type="softrelu"} %t = tanh(%s)'
        "%m = elemwise_mul(%c, %t) return %m",
        0,
    ),
    (
        '%q = _mul_scalar(%c) {scalar=-1.3} %s = Activation(%q) {act_type="softrelu"}'
        '%t = Activation(%s) {act_type="tanh"} %m = broadcast_mul(%t, %c) return %m',
        0,
    ),
    (
        "%q = _mul_scalar(%c) {scalar=0.5} %p = _plus_scalar(%q) {scalar=0.3}"
        "%t = tanh(%p) return %t",
        0,
    ),
    # What comes behind is no one function with what is before it.
    ("%t = tanh(%c) %p = _mul_scalar(%t) {scalar=2.0} return %p", 1),
    ('%g = LeakyReLU(%c) {act_type="gelu"} %m = elemwise_mul(%c, %g) return %m', 2),
    (
        '%s = Activation(%c) {act_type="softrelu"} %m = elemwise_mul(%c, %s)'
        "%t = tanh(%m) return %t",
        1,
    ),
    ("%s = sigmoid(%c) %p = _plus_scalar(%s) {scalar=1.0} return %p", 1),
    ("%s = sigmoid(%c) %r = relu(%s) return %r", 1),
    ('%r = LeakyReLU(%c) {act_type="leaky"} %s = sigmoid(%r) return %s', 1),
    # What rounds is not left out.
    (
        "%r = relu(%c) %p = _plus_scalar(%r) {scalar=12582912.0}"
        "%m = _minus_scalar(%p) {scalar=12582912.0} return %m",
        1,
    ),
    # A product of two functions is neither.
    ("%s = sigmoid(%c) %r = relu(%c) %m = elemwise_mul(%r, %s) return %m", 3),
    ("%s = sigmoid(%c) %m = elemwise_mul(%c, %s) return %m, %s", 2),
    ("%m = elemwise_mul(%c, %c) return %m", 1),
]


@pytest.mark.parametrize(
    ("body", "steps", "favourite"),
    one_of(
        2,
        [
            (*case, favourite)
            for case in FUNCTIONS
            for favourite in ("direct", "winograd2", "paired")
        ],
    ),
)
def test_functions_of_each_number(body: str, steps: int, favourite: str) -> None:
    """Steps take along what is one function behind them; the others are steps of their own."""
    before = net(f"{CONV} {body}")
    after = fused(before, favourite)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert [s.kind for s in plan(spec_of(region)).steps].count(Kind.COMBINE) == steps
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize("slopes", [36, 1])
@pytest.mark.parametrize("favourite", ["direct", "winograd4", "paired"])
@pytest.mark.parametrize("given", ["%c", "%p", "%s"])
def test_slopes_of_channels(slopes: int, favourite: str, given: str) -> None:
    """Behind a convolution, pooling, and by itself."""
    before = net(
        f"{CONV} %p = Pooling(%c) {{kernel=(2, 2)}} %s = sigmoid(%c)"
        f'%r = LeakyReLU({given}, %g) {{act_type="prelu"}} return %r, %p, %s',
        params=f"param %w: ?, param %b: ?, param %g: f32[{slopes}]",
    )
    after = fused(before, favourite)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize("order", ["%c, %g", "%g, %c"])
def test_gates(order: str) -> None:
    """A number for each channel, as in squeeze and excitation."""
    before = net(
        f'{CONV} %p = Pooling(%c) {{global_pool=True, pool_type="avg", kernel=(1, 1)}}'
        "%e = Convolution(%p, %v) {kernel=(1, 1), num_filter=36, no_bias=True}"
        f"%g = sigmoid(%e) %m = broadcast_mul({order}) %r = relu(%m)"
        "%k = Convolution(%r, %u) {kernel=(1, 1), num_filter=36, no_bias=True} return %k, %m",
        params="param %w: ?, param %b: ?, param %v: ?, param %u: ?",
    )
    after = fused(before)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert_equivalent(before, after, **TOLERANCE)


@pytest.mark.parametrize(
    "pool",
    [
        '%p = Pooling(%c) {global_pool=True, pool_type="avg", kernel=(1, 1)}',
        "%p = _contrib_AdaptiveAvgPooling2D(%c) {output_size=(1,)}",
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_gates_through_rows(pool: str, batch: int) -> None:
    """Squeezed to rows for FullyConnected, and back."""
    before = net(
        f"{CONV} {pool} %f = Flatten(%p) %e = FullyConnected(%f, %v) {{num_hidden=9, no_bias=True}}"
        "%r = relu(%e) %h = FullyConnected(%r, %u) {num_hidden=36, no_bias=True} %g = sigmoid(%h)"
        "%q = Reshape(%g) {shape=(-1, 36, 1, 1)} %m = broadcast_mul(%c, %q)"
        "%k = Convolution(%m, %t) {kernel=(1, 1), num_filter=7, no_bias=True} return %k",
        x=f"f32[{batch},20,9,11]",
        params="param %w: ?, param %b: ?, param %v: f32[9,36], param %u: ?, param %t: ?",
    )
    after = fused(before)
    (region,) = regions(after)
    assert [node.op for node in after if not node.is_input] == [region.op]
    assert_equivalent(before, after, **TOLERANCE)


def test_infinity_and_not_a_number_pass_functions() -> None:
    before = net(
        "%c = Convolution(%x, %w, %b) {kernel=(1, 1), num_filter=20, num_group=20}"
        "%s = sigmoid(%c) %h = hard_sigmoid(%c) %m = elemwise_mul(%c, %s) return %s, %h, %m, %c"
    )
    after = fused(before)
    x = np.zeros((2, 20, 9, 11), np.float32)
    x[0, :, 0, :4] = np.inf, -np.inf, np.nan, 200.0
    values = {"x": x, "w": np.ones((20, 1, 1, 1), np.float32), "b": np.zeros(20, np.float32)}
    want, found = (MXNetTarget().evaluate(graph, values) for graph in (before, after))
    for name, array in want.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-37, err_msg=name)


def test_not_a_number_in_a_window() -> None:
    """MXNet's maximum passes over it."""
    before = net(
        "%c = Convolution(%x, %w, %b) {kernel=(1, 1), num_filter=20, num_group=20}"
        "%p = Pooling(%c) {kernel=(3, 3)} return %p"
    )
    after = fused(before)
    assert [node.op for node in after if not node.is_input] == [regions(after)[0].op]
    x = np.random.default_rng(0).standard_normal((2, 20, 9, 11)).astype(np.float32)
    x[0, :, 4, 4] = np.nan
    values = {"x": x, "w": np.ones((20, 1, 1, 1), np.float32), "b": np.zeros(20, np.float32)}
    want, found = (MXNetTarget().evaluate(graph, values) for graph in (before, after))
    for name, array in want.items():
        np.testing.assert_array_equal(found[name], array)
