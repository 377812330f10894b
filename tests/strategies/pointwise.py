"""Operators on each element: functions, sums and products, casts, and what does nothing."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from graphopt.ir.node import Value
from tests.strategies.builder import LARGEST, SCALARS, Builder, Shape

UNARY = [
    "relu", "sigmoid", "tanh", "abs", "negative", "square", "sin", "cos", "arctan", "erf",
    "softsign", "_copy", "BlockGrad", "zeros_like", "ones_like",
]  # fmt: skip


def unary(b: Builder) -> None:
    x = b.pick()
    op = b.one_of(UNARY)
    b.op(op, [x], {}, [b.shapes[x]])


def repeated(b: Builder) -> None:
    """The same operator twice on the same input, or on its own result."""
    x = b.pick()
    op = b.one_of(["relu", "tanh", "negative", "_copy", "abs", "sigmoid", "square"])
    first = b.op(op, [x], {}, [b.shapes[x]])
    b.op(op, [b.one_of([x, first])], {}, [b.shapes[x]])


def scalar(b: Builder) -> None:
    x = b.pick()
    op = b.one_of(
        [
            "_plus_scalar",
            "_mul_scalar",
            "_minus_scalar",
            "_rminus_scalar",
            "_maximum_scalar",
            "_minimum_scalar",
            "_div_scalar",
            "_power_scalar",
        ]
    )
    number = b.one_of(SCALARS)
    if op == "_div_scalar":
        number = number or 4.0
    if op == "_power_scalar":
        number = b.one_of([1.0, 2.0, 2, 1])
    b.op(op, [x], {"scalar": number}, [b.shapes[x]])


def scalar_chain(b: Builder) -> None:
    x = b.pick()
    for _ in range(2):
        op = b.one_of(["_plus_scalar", "_mul_scalar", "_minus_scalar", "_rminus_scalar"])
        x = b.op(op, [x], {"scalar": b.one_of(SCALARS)}, [b.shapes[x]])


def jump(b: Builder) -> None:
    """Operators with steps, on inputs only."""
    x = b.one_of(b.exact)
    shape = b.shapes[x]
    op = b.one_of(
        [
            "sign",
            "floor",
            "round",
            "ceil",
            "_greater_scalar",
            "_lesser_equal_scalar",
            "_equal_scalar",
        ]
    )
    b.op(op, [x], {"scalar": b.one_of(SCALARS)} if op.endswith("_scalar") else {}, [shape])


def activation(b: Builder) -> None:
    x = b.pick()
    op, attrs = b.one_of(
        [
            ("Activation", {"act_type": "relu"}),
            ("Activation", {"act_type": "tanh"}),
            ("Activation", {"act_type": "sigmoid"}),
            ("Activation", {"act_type": "softrelu"}),
            ("LeakyReLU", {"act_type": "leaky", "slope": 0.1}),
            ("LeakyReLU", {"act_type": "elu", "slope": 0.5}),
            ("clip", {"a_min": -1.0, "a_max": 1.0}),
            ("clip", {"a_min": 0.0, "a_max": 6.0}),
            ("smooth_l1", {"scalar": 1.0}),
            ("hard_sigmoid", {}),
        ]
    )
    b.op(op, [x], attrs, [b.shapes[x]])


def same_shape(b: Builder) -> None:
    x = b.pick()
    y = b.pick(lambda shape: shape == b.shapes[x])
    op = b.one_of(["elemwise_add", "elemwise_mul", "elemwise_sub", "_maximum", "_minimum"])
    order = [x, y] if b.chance(50) else [y, x]
    b.op(op, order, {}, [b.shapes[x]])


def with_itself(b: Builder) -> None:
    x = b.pick()
    op = b.one_of(["elemwise_sub", "elemwise_add", "elemwise_mul", "_maximum", "broadcast_sub"])
    b.op(op, [x, x], {}, [b.shapes[x]])


def with_nothing(b: Builder) -> None:
    """Zeros and ones, as tensors, on either side."""
    x = b.pick()
    shape = b.shapes[x]
    if b.chance(50):
        fill = b.op(b.one_of(["zeros_like", "ones_like"]), [x], {}, [shape])
    else:
        one = b.one_of([shape, tuple(1 for _ in shape)])
        attrs = {"shape": one, "dtype": b.dtype}
        fill = b.op(b.one_of(["_zeros", "_ones"]), [], attrs, [one])
    exact = b.shapes[fill] == shape and b.chance(50)
    kind = b.one_of(["add", "mul", "sub"])
    op = f"elemwise_{kind}" if exact else f"broadcast_{kind}"
    b.op(op, [x, fill] if b.chance(60) else [fill, x], {}, [shape])


def add_many(b: Builder) -> None:
    x = b.pick()
    count = b.draw(st.integers(1, 3))
    inputs = [x, *(b.pick(lambda shape: shape == b.shapes[x]) for _ in range(count - 1))]
    b.op("add_n", inputs, {"num_args": count}, [b.shapes[x]])


def safe_division(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    y = b.pick(lambda found: found == shape)
    square = b.op("square", [y], {}, [shape])
    below = b.op("_plus_scalar", [square], {"scalar": 1.0}, [shape])
    op = b.one_of(["elemwise_div", "sqrt", "rsqrt", "log", "reciprocal", "log1p"])
    b.op(op, [x, below] if op == "elemwise_div" else [below], {}, [shape])


def broadcast(b: Builder) -> None:
    x = b.pick()
    rank = len(b.shapes[x])

    def fits(shape: Shape) -> bool:
        return len(shape) == rank and all(
            p == q or 1 in (p, q) for p, q in zip(shape, b.shapes[x], strict=True)
        )

    y = b.pick(fits)
    shape = tuple(map(max, b.shapes[x], b.shapes[y]))
    if math.prod(shape) > LARGEST:
        return
    op = b.one_of(["broadcast_add", "broadcast_mul", "broadcast_sub", "broadcast_maximum"])
    b.op(op, [x, y] if b.chance(50) else [y, x], {}, [shape])


def channelwise(b: Builder) -> None:
    channel_scale(b)


def channel_scale(b: Builder, x: Value | None = None) -> None:
    """Scale or shift per channel by a parameter."""
    x = x or b.need(lambda shape: len(shape) >= 2, (2, 3, 4, 4))
    shape = b.shapes[x]
    axis = 1 if b.chance(70) else len(shape) - 1
    one = tuple(extent if at == axis else 1 for at, extent in enumerate(shape))
    factor = b.param(one, "scale")
    op = b.one_of(["broadcast_mul", "broadcast_add", "broadcast_sub"])
    b.op(op, [x, factor] if b.chance(70) else [factor, x], {}, [shape])


def identity_like(b: Builder) -> None:
    """What does nothing, or nothing in inference."""
    x = b.pick()
    shape = b.shapes[x]
    op, attrs = b.one_of(
        [
            ("Dropout", {"p": 0.5}),
            ("Dropout", {"p": 0.0}),
            ("Dropout", {"p": 0.3, "mode": "always"}),
            ("Cast", {"dtype": b.dtype}),
            ("_copy", {}),
            ("Reshape", {"shape": (-2,)}),
            ("slice_axis", {"axis": 0, "begin": 0, "end": None}),
            ("transpose", {"axes": tuple(range(len(shape)))}),
            ("add_n", {"num_args": 1}),
            ("_mul_scalar", {"scalar": 1.0}),
            ("_plus_scalar", {"scalar": 0.0}),
        ]
    )
    b.op(op, [x], attrs, [shape])


def there_and_back(b: Builder) -> None:
    """Two casts, or a cast that loses nothing that was there."""
    x = b.one_of(b.exact)
    shape = b.shapes[x]
    other = "float64" if b.dtype == "float32" else "float32"
    node = b.graph.add(
        "Cast", [x], {"dtype": b.one_of([other, "float16"])}, name=f"n{len(b.graph)}"
    )
    b.op("Cast", [node.out()], {"dtype": b.dtype}, [shape])


def choose(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    y = b.pick(lambda found: found == shape)
    raw = [v for v in b.exact if b.shapes[v] == shape]
    if raw:
        mask = b.op("_greater_scalar", [b.one_of(raw)], {"scalar": 0.0}, [shape])
        b.op("where", [mask, x, y], {}, [shape])


POINTWISE = [
    unary, scalar, scalar_chain, same_shape, broadcast, activation, repeated, safe_division,
    add_many, identity_like, jump, choose, channelwise, with_itself, with_nothing,
]  # fmt: skip
