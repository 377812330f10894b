"""Hypothesis strategies for random typed graphs of MXNet operators.

Graphs are small, valid for MXNet, and tame: every operator is smooth enough that another order of
rounding stays within the tolerances. Operators that jump (sign, floor, comparisons, argmax) only
read inputs, which no pass rounds. There is no Deconvolution: in graphs as odd as these its gradient
corrupts the memory of MXNet 1.9.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from graphopt.backend.infer import with_types
from graphopt.ir.constant import add_constant
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA, PARAM, Value
from graphopt.ir.ops import info
from graphopt.ir.types import TensorType

Shape = tuple[int, ...]
Draw = Callable[[st.SearchStrategy], object]

SHAPES: tuple[Shape, ...] = (
    (2, 3),
    (3,),
    (2, 3, 4, 4),
    (2, 3, 4),
    (4, 3),
    (1, 3),
    (2, 1),
    (1, 3, 1, 1),
    (2, 4, 3),
    (1,),
    (2, 4, 5, 5),
)
SCALARS = (0.0, 1.0, -1.0, 2.0, 0.5, -0.0, 3.0, -2.5, 1, 0, 2)
_LARGEST = 512


@dataclass
class Builder:
    """A graph under construction, with the shape of every float value in it."""

    draw: Draw
    dtype: str = "float32"
    graph: Graph = field(default_factory=lambda: Graph("g"))
    shapes: dict[Value, Shape] = field(default_factory=dict)
    #: Values that no rounding has touched.
    exact: list[Value] = field(default_factory=list)
    #: Values that some operator reads.
    read: set[Value] = field(default_factory=set)

    def chance(self, percent: int) -> bool:
        """True for about ``percent`` of the examples; shrinks to False."""
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def one_of(self, options):
        return self.draw(st.sampled_from(options))

    def input(self, shape: Shape, role: str = DATA, name: str = "") -> Value:
        prefix = {DATA: "x", PARAM: "w", AUX: "a"}[role]
        name = f"{prefix}{len(self.graph.inputs)}{name and '_'}{name}"
        value = self.graph.add_input(name, role, TensorType(self.dtype, shape)).out()
        if role != AUX:
            self.shapes[value] = shape
            self.exact.append(value)
        return value

    def param(self, shape: Shape, name: str) -> Value:
        """A parameter: new, of a similar layer (shared), or computed from one."""
        old = [v for v, s in self.shapes.items() if s == shape and self.graph[v.node].op == PARAM]
        if old and self.chance(30):
            return self.one_of(old)
        value = self.input(shape, PARAM, name)
        if self.chance(10):
            return self.op("_mul_scalar", [value], {"scalar": 0.5}, [shape])
        return value

    def op(self, op: str, inputs: list[Value], attrs: dict, shapes: list[Shape]) -> Value:
        """Add an operator with these output shapes; returns its first value."""
        name = f"n{len(self.graph)}"
        if self.chance(3):
            attrs = attrs | {"__ctx_group__": self.one_of(["dev1", "dev2"])}
        if info(op).aliases and self.chance(5):
            op = self.one_of(info(op).aliases)
        earlier = [value.node for value in self.shapes if not self.graph[value.node].is_input]
        after = [self.one_of(earlier)] if earlier and self.chance(2) else []
        types = [TensorType()] * len(shapes)
        node = self.graph.add(op, inputs, attrs, types, name, after=after)
        self.read.update(inputs)
        for value, shape in zip(node.values, shapes, strict=True):
            self.shapes[value] = shape
        return node.out()

    def pick(self, fits: Callable[[Shape], bool] = lambda shape: True) -> Value | None:
        """A value whose shape fits, mostly one that nothing reads yet; None if there is none."""
        found = [value for value, shape in self.shapes.items() if fits(shape)]
        if not found:
            return None
        unread = [value for value in found if value not in self.read] or found
        return self.one_of(found if self.chance(30) else unread[-3:][::-1])

    def need(self, fits: Callable[[Shape], bool], shape: Shape) -> Value:
        """Like ``pick``, with a new input of ``shape`` where nothing fits."""
        found = self.pick(fits)
        return self.input(shape) if found is None else found


# -- operators: each function adds one, or nothing where no value fits -----------------------------


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
    if math.prod(shape) > _LARGEST:
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


def reshape(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    size = math.prod(shape)
    options: list[tuple[object, Shape]] = [
        ((-1,), (size,)),
        ((0, -1), (shape[0], size // shape[0])),
        ((1, -1), (1, size)),
        (shape, shape),
        ((-1, 1), (size, 1)),
        ((-1, shape[-1]), (size // shape[-1], shape[-1])),
    ]
    if len(shape) >= 2:
        options += [((-3, -2), (shape[0] * shape[1], *shape[2:])), ((0, 0, -2), shape)]
    if shape[0] % 2 == 0:
        options.append(((-4, 2, -1, -2), (2, shape[0] // 2, *shape[1:])))
    attr, result = b.one_of(options)
    b.op("Reshape", [x], {"shape": attr}, [result])


def flatten(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    b.op("Flatten", [x], {}, [(shape[0], math.prod(shape[1:]))])


def transpose(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    times = 2 if b.chance(40) else 1
    for _ in range(times):
        if b.chance(25):
            x = b.op("transpose", [x], {}, [shape[::-1]])
            shape = shape[::-1]
            continue
        axes = tuple(b.draw(st.permutations(range(len(shape)))))
        shape = tuple(shape[a] for a in axes)
        x = b.op("transpose", [x], {"axes": axes}, [shape])


def swap_axes(b: Builder) -> None:
    x = b.need(lambda shape: len(shape) >= 2, (2, 3))
    shape = list(b.shapes[x])
    first, second = b.draw(st.permutations(range(len(shape))))[:2]
    shape[first], shape[second] = shape[second], shape[first]
    b.op("SwapAxis", [x], {"dim1": first, "dim2": second}, [tuple(shape)])


def axes_in_out(b: Builder) -> None:
    """Add an axis of one element, or take one away."""
    x = b.pick()
    shape = b.shapes[x]
    ones = [at for at, extent in enumerate(shape) if extent == 1]
    if ones and len(shape) > 1 and b.chance(50):
        at = b.one_of(ones)
        b.op("squeeze", [x], {"axis": at}, [shape[:at] + shape[at + 1 :]])
    elif len(shape) < 4:
        at = b.draw(st.integers(0, len(shape)))
        b.op("expand_dims", [x], {"axis": at}, [(*shape[:at], 1, *shape[at:])])


def piece(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    begin = b.draw(st.integers(0, shape[axis] - 1))
    end = b.draw(st.integers(begin + 1, shape[axis]))
    result = (*shape[:axis], end - begin, *shape[axis + 1 :])
    if b.chance(50):
        stop = None if end == shape[axis] and b.chance(50) else end
        b.op("slice_axis", [x], {"axis": axis, "begin": begin, "end": stop}, [result])
        return
    starts: list[int | None] = [None] * len(shape)
    stops: list[int | None] = [None] * len(shape)
    starts[axis], stops[axis] = begin, end
    b.op("slice", [x], {"begin": tuple(starts), "end": tuple(stops)}, [result])


def turn(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    op = b.one_of(["reverse", "repeat", "tile"])
    if op == "reverse":
        b.op(op, [x], {"axis": axis}, [shape])
    elif math.prod(shape) * 2 > _LARGEST:
        return
    elif op == "repeat":
        b.op(
            op,
            [x],
            {"repeats": 2, "axis": axis},
            [(*shape[:axis], shape[axis] * 2, *shape[axis + 1 :])],
        )
    else:
        reps = tuple(2 if at == axis else 1 for at in range(len(shape)))
        b.op(op, [x], {"reps": reps}, [tuple(e * r for e, r in zip(shape, reps, strict=True))])


def concat(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    count = b.draw(st.integers(1, 3))
    inputs = [x]
    for _ in range(count - 1):
        inputs.append(  # noqa: PERF401 - a draw each
            b.pick(
                lambda s: (
                    s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
                    and len(s) == len(shape)
                )
            )
        )
    extent = sum(b.shapes[i][axis] for i in inputs)
    if math.prod(shape) * count <= _LARGEST:
        result = (*shape[:axis], extent, *shape[axis + 1 :])
        b.op("Concat", inputs, {"dim": axis, "num_args": count}, [result])


def stack(b: Builder) -> None:
    x = b.pick(lambda shape: len(shape) < 4)
    if x is None:
        return
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape)))
    y = b.pick(lambda found: found == shape)
    b.op("stack", [x, y], {"axis": axis, "num_args": 2}, [(*shape[:axis], 2, *shape[axis:])])


def split(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    extent = shape[axis]
    parts = b.one_of([n for n in (1, 2, 3, 4) if extent % n == 0])
    squeeze = parts == extent and len(shape) > 1 and b.chance(40)
    one = shape[:axis] + (() if squeeze else (extent // parts,)) + shape[axis + 1 :]
    attrs = {"num_outputs": parts, "axis": axis, "squeeze_axis": squeeze}
    first = b.op("SliceChannel", [x], attrs, [one] * parts)
    if parts > 1 and not squeeze and b.chance(40):
        pieces = [Value(first.node, at) for at in range(parts)]
        if b.chance(30):
            pieces.reverse()
        b.op("Concat", pieces, {"dim": axis, "num_args": parts}, [shape])


def grow(b: Builder) -> None:
    x = b.pick(lambda shape: 1 in shape)
    if x is None:
        return
    shape = b.shapes[x]
    result = tuple(3 if extent == 1 else extent for extent in shape)
    if math.prod(result) > _LARGEST:
        return
    if b.chance(50):
        b.op("broadcast_to", [x], {"shape": result}, [result])
        return
    like = b.pick(
        lambda s: len(s) == len(shape) and all(p in (q, 1) for p, q in zip(shape, s, strict=True))
    )
    b.op("broadcast_like", [x, like], {}, [b.shapes[like]])


def creation(b: Builder) -> None:
    shape = b.one_of(SHAPES)
    op = b.one_of(["_zeros", "_ones", "_full", "_arange", "constant"])
    dtype = b.dtype
    if op == "_arange":
        b.op(op, [], {"start": 0.0, "stop": 3.0, "dtype": dtype}, [(3,)])
    elif op == "constant":
        count = math.prod(shape)
        array = (np.arange(count, dtype=dtype).reshape(shape) - 2) / 4
        node = add_constant(b.graph, array, f"c{len(b.graph)}")
        b.shapes[node.out()] = shape
    else:
        attrs = {"shape": shape, "dtype": dtype}
        b.op(
            op, [], attrs | ({"value": b.one_of([0.0, 1.0, 2.5])} if op == "_full" else {}), [shape]
        )


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
    if math.prod(b.shapes[x]) * 4 > _LARGEST:
        return
    attrs = {"scale": 2, "sample_type": "nearest", "num_args": 1}
    b.op("UpSampling", [x], attrs, [(batch, channels, *(2 * s for s in space))])


def pad(b: Builder) -> None:
    x = b.need(is_image, (2, 3, 4, 4))
    batch, channels, *space = b.shapes[x]
    if math.prod(b.shapes[x]) * 3 > _LARGEST:
        return
    attrs = {"mode": "constant", "pad_width": (0, 0, 0, 0, 1, 1, 1, 1), "constant_value": 0.0}
    b.op("Pad", [x], attrs, [(batch, channels, *(2 + s for s in space))])


POINTWISE = [
    unary, scalar, scalar_chain, same_shape, broadcast, activation, repeated, safe_division,
    add_many, identity_like, jump, choose, channelwise, with_itself, with_nothing,
]  # fmt: skip
LAYOUT = [
    reshape, flatten, transpose, swap_axes, axes_in_out, piece, turn, concat, stack, split, grow,
]  # fmt: skip
LAYERS = [
    fully_connected, convolution, batch_norm, pooling, layer_norm, dot, batch_dot, lookup, softmax,
    reduction, upsample, pad, siblings, layer_and_affine,
]  # fmt: skip
OTHERS = [creation, there_and_back, loss]
EVERYTHING = [*POINTWISE, *LAYOUT, *LAYERS, *OTHERS]
THEMES = (
    EVERYTHING,
    [*POINTWISE, creation],
    [*LAYOUT, *POINTWISE[:4]],
    [*LAYERS, *POINTWISE],
    LAYERS,
    [layer_and_affine, flatten, activation],
    [siblings, concat, activation, split],
)


@st.composite
def graphs(draw: Draw, *, max_ops: int = 8, dtype: str | None = None) -> Graph:
    """Typed graphs: values shared, operands repeated, nodes dead, outputs several or the same."""
    b = Builder(draw, dtype or draw(st.sampled_from(["float32"] * 4 + ["float64"])))
    theme = b.one_of(THEMES)
    for _ in range(b.draw(st.integers(1, 2))):
        b.input(b.one_of(SHAPES))
    for _ in range(b.draw(st.integers(1, max_ops))):
        b.one_of(theme)(b)
    operators = [v for v in b.shapes if not b.graph[v.node].is_input]
    if not operators:
        unary(b)
        operators = list(b.shapes)[-1:]
    # Mostly all that nothing reads, so that most of the graph is alive.
    unread = [value for value in operators if value not in b.read][-4:]
    outputs = unread if unread and b.chance(70) else [b.one_of(operators)]
    if b.chance(20):
        outputs = [*outputs, b.one_of(operators)]  # perhaps one that is there already
    if b.chance(5):
        outputs = [*outputs, b.one_of(list(b.shapes))]  # perhaps an input itself
    b.graph.set_outputs(outputs)
    typed = with_types(b.graph)
    for value, shape in b.shapes.items():
        found = typed.type_of(value)
        assert found in (TensorType(b.dtype, shape), TensorType()), (typed[value.node], found)
    return typed
