"""Operators of layers: products, convolutions, normalizations, reductions, lookups and losses."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from graphopt.ir.constant import add_constant
from graphopt.ir.node import AUX, DATA, PARAM, Value
from tests.strategies.builder import LARGEST, Builder, Shape
from tests.strategies.pointwise import channel_scale


def reduction(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    op = b.one_of(["sum", "mean", "max", "min", "norm"])
    axes = b.draw(
        st.none() | st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2, unique=True)
    )
    keep = b.chance(50)
    attrs: dict = {"keepdims": keep}
    if axes is not None:
        attrs["axis"] = axes[0] if len(axes) == 1 and b.chance(50) else tuple(sorted(axes))
    gone = set(range(len(shape))) if axes is None else set(axes)
    if op == "norm":  # smooth only away from 0
        x = b.op("_plus_scalar", [b.op("square", [x], {}, [shape])], {"scalar": 1.0}, [shape])
    result = tuple(1 if at in gone else e for at, e in enumerate(shape) if keep or at not in gone)
    b.op(op, [x], attrs, [result or (1,)])


def softmax(b: Builder) -> None:
    x = b.pick()
    op = b.one_of(["softmax", "log_softmax"])
    axis = b.draw(st.integers(-1, len(b.shapes[x]) - 1))
    b.op(op, [x], {"axis": axis}, [b.shapes[x]])


def fully_connected(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    units = b.one_of([1, 3, 4])
    flat = len(shape) == 1 or b.chance(60)
    if len(shape) == 1:
        return
    size = math.prod(shape[1:]) if flat else shape[-1]
    no_bias = b.chance(50)
    inputs = [x, b.param((units, size), "weight")]
    if not no_bias:
        inputs.append(b.param((units,), "bias"))
    attrs = {"num_hidden": units, "no_bias": no_bias, "flatten": flat}
    y = b.op("FullyConnected", inputs, attrs, [(shape[0], units) if flat else (*shape[:-1], units)])
    if b.chance(30):  # a twin that reads the same
        weight = b.param((units, size), "weight")
        twin = {"num_hidden": units, "no_bias": True, "flatten": flat}
        b.op("FullyConnected", [x, weight], twin, [b.shapes[y]])


def siblings(b: Builder) -> None:
    """Layers that read the same value, perhaps joined again."""
    image = b.chance(40)
    x = b.need(is_image, (2, 4, 5, 5)) if image else b.need(lambda s: len(s) >= 2, (2, 3))
    shape = b.shapes[x]
    flat = b.chance(60)
    made = []
    for _ in range(b.draw(st.integers(2, 4))):
        units, no_bias = b.one_of([1, 3, 4]), b.chance(50)
        if image:
            op, size = "Convolution", (units, shape[1], 1, 1)
            attrs: dict = {"kernel": (1, 1), "num_filter": units}
            result = (shape[0], units, *shape[2:])
        else:
            inner = math.prod(shape[1:]) if flat else shape[-1]
            op, size = "FullyConnected", (units, inner)
            attrs = {"num_hidden": units, "flatten": flat}
            result = (shape[0], units) if flat else (*shape[:-1], units)
        inputs = [x, b.param(size, "weight")] + ([] if no_bias else [b.param((units,), "bias")])
        made.append(b.op(op, inputs, attrs | {"no_bias": no_bias}, [result]))
    if b.chance(40):
        axis = 1 if image else len(b.shapes[made[0]]) - 1
        extent = sum(b.shapes[y][axis] for y in made)
        first = b.shapes[made[0]]
        joined = (*first[:axis], extent, *first[axis + 1 :])
        b.op("Concat", made, {"dim": axis, "num_args": len(made)}, [joined])


def layer_and_affine(b: Builder) -> None:
    """A layer, and scales and shifts in front of it or behind it: what folding passes look for."""
    affine = [batch_norm, channel_scale, scale]
    for _ in range(b.draw(st.integers(0, 1))):
        b.one_of(affine)(b)
    b.one_of([convolution, fully_connected])(b)
    for _ in range(b.draw(st.integers(1, 3))):
        b.one_of(affine)(b, list(b.shapes)[-1])


def scale(b: Builder, x: Value | None = None) -> None:
    x = x or b.pick()
    op = b.one_of(["_mul_scalar", "_plus_scalar", "_rminus_scalar", "_div_scalar"])
    b.op(op, [x], {"scalar": b.one_of([2.0, 0.5, -1.0])}, [b.shapes[x]])


def is_image(shape: Shape) -> bool:
    return len(shape) == 4 and min(shape[2:]) >= 2


def convolution(b: Builder) -> None:
    x = b.need(is_image, (2, 4, 5, 5))
    batch, channels, *space = b.shapes[x]
    kernel = b.one_of([(1, 1), (2, 2), (3, 3)])
    pad = b.one_of([(0, 0), (1, 1)])
    if min(space) + 2 * pad[0] < kernel[0]:
        return
    stride = b.one_of([(1, 1), (2, 2)])
    group = b.one_of([g for g in (1, 2, 4) if channels % g == 0])
    filters = group * b.one_of([1, 2])
    no_bias = b.chance(50)
    result = tuple((s + 2 * pad[0] - kernel[0]) // stride[0] + 1 for s in space)
    inputs = [x, b.param((filters, channels // group, *kernel), "weight")]
    if not no_bias:
        inputs.append(b.param((filters,), "bias"))
    attrs = {"kernel": kernel, "num_filter": filters, "no_bias": no_bias}
    # Absent attributes are as common as explicit ones.
    attrs |= {"pad": pad} if any(pad) or b.chance(50) else {}
    attrs |= {"stride": stride} if stride != (1, 1) or b.chance(50) else {}
    attrs |= {"num_group": group} if group > 1 else {}
    y = b.op("Convolution", inputs, attrs, [(batch, filters, *result)])
    if b.chance(50):
        batch_norm(b, y)


def batch_norm(b: Builder, x: Value | None = None) -> None:
    if x is not None and len(b.shapes[x]) not in (2, 4):
        return
    x = x or b.need(lambda shape: len(shape) in (2, 4) and shape[0] > 1, (2, 3, 4, 4))
    shape = b.shapes[x]
    axis = 1 if b.chance(80) else len(shape) - 1
    size = (shape[axis],)
    inputs = [
        x,
        b.input(size, PARAM, "gamma"),
        b.input(size, PARAM, "beta"),
        b.input(size, AUX, "moving_mean"),
        b.input(size, AUX, "moving_var"),
    ]
    attrs: dict = {"eps": 0.01, "fix_gamma": b.chance(50), "use_global_stats": b.chance(30)}
    attrs |= {"axis": axis} if axis != 1 else {}
    # fix_gamma writes the parameter, so nothing else may read it.
    for written in inputs[1:3]:
        del b.shapes[written]
        b.exact.remove(written)
    b.op("BatchNorm", inputs, attrs, [shape])


def pooling(b: Builder) -> None:
    x = b.need(is_image, (2, 4, 5, 5))
    batch, channels, *space = b.shapes[x]
    kind = b.one_of(["avg", "max"])
    if b.chance(40):
        attrs = {"global_pool": True, "pool_type": kind, "kernel": (1, 1)}
        b.op("Pooling", [x], attrs, [(batch, channels, 1, 1)])
        return
    result = tuple((s - 2) // 2 + 1 for s in space)
    attrs = {"kernel": (2, 2), "stride": (2, 2), "pool_type": kind}
    b.op("Pooling", [x], attrs, [(batch, channels, *result)])


def layer_norm(b: Builder) -> None:
    x = b.pick(lambda shape: shape[-1] > 2)
    if x is None:
        return
    shape = b.shapes[x]
    size = (shape[-1],)
    attrs = {"axis": -1, "eps": 0.01}
    b.op("LayerNorm", [x, b.param(size, "gamma"), b.param(size, "beta")], attrs, [shape])


def dot(b: Builder) -> None:
    x = b.need(lambda shape: len(shape) == 2, (2, 3))
    rows, inner = b.shapes[x]
    y = b.need(lambda shape: len(shape) == 2 and shape[0] == inner, (inner, 2))
    if b.chance(30):
        attrs = {"transpose_a": True}
        z = b.need(lambda shape: len(shape) == 2 and shape[0] == rows, (rows, 2))
        b.op("dot", [x, z], attrs, [(inner, b.shapes[z][1])])
        return
    b.op("dot", [x, y], {}, [(rows, b.shapes[y][1])])


def batch_dot(b: Builder) -> None:
    x = b.need(lambda shape: len(shape) == 3, (2, 3, 4))
    batch, rows, _ = b.shapes[x]
    y = b.need(lambda s: len(s) == 3 and (s[0], s[2]) == (batch, b.shapes[x][2]), b.shapes[x])
    b.op("batch_dot", [x, y], {"transpose_b": True}, [(batch, rows, b.shapes[y][1])])


def lookup(b: Builder) -> None:
    """Embedding and take, by indices that are constants."""
    count = 4
    weight = b.param((count, 3), "weight")
    array = np.array([0, 2, 2], b.dtype)
    index = add_constant(b.graph, array, f"c{len(b.graph)}").out()
    if b.chance(50):
        attrs = {"input_dim": count, "output_dim": 3, "dtype": b.dtype}
        b.op("Embedding", [index, weight], attrs, [(3, 3)])
    else:
        b.op("take", [weight, index], {}, [(3, 3)])


def loss(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    if b.chance(50):
        b.op("make_loss", [x], {}, [shape])
        return
    label = b.input(shape, DATA, "label")
    # MXNet leaves the gradient of a label undefined, so nothing else may read it.
    del b.shapes[label]
    b.exact.remove(label)
    b.op("LinearRegressionOutput", [x, label], {}, [shape])


def upsample(b: Builder) -> None:
    x = b.need(is_image, (2, 3, 4, 4))
    batch, channels, *space = b.shapes[x]
    if math.prod(b.shapes[x]) * 4 > LARGEST:
        return
    attrs = {"scale": 2, "sample_type": "nearest", "num_args": 1}
    b.op("UpSampling", [x], attrs, [(batch, channels, *(2 * s for s in space))])


def pad(b: Builder) -> None:
    x = b.need(is_image, (2, 3, 4, 4))
    batch, channels, *space = b.shapes[x]
    if math.prod(b.shapes[x]) * 3 > LARGEST:
        return
    attrs = {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1), "constant_value": 0.0}
    b.op("Pad", [x], attrs, [(batch, channels, *(2 + s for s in space))])


LAYERS = [
    fully_connected, convolution, batch_norm, pooling, layer_norm, dot, batch_dot, lookup, softmax,
    reduction, upsample, pad, siblings, layer_and_affine,
]  # fmt: skip
