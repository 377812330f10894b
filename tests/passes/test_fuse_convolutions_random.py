"""fuse-convolutions: random networks compute what they did."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.ir.graph import Graph
from graphopt.ir.node import DATA, PARAM, Value
from graphopt.ir.types import TensorType
from graphopt.kernels.convolutions.spec import ALGORITHMS
from graphopt.testing import assert_equivalent
from tests.passes.fuse_convolutions_support import TOLERANCE, fused, regions


@st.composite
def networks(draw) -> Graph:
    """A random network of what regions can hold, and of an operator that they cannot."""
    graph = Graph("g")
    channels = draw(st.sampled_from([1, 3, 16, 20]))
    size = (draw(st.integers(1, 2)), channels, *draw(st.tuples(*[st.integers(3, 12)] * 2)))
    x = graph.add_input("x", DATA, TensorType("float32", size))
    values: list[Value] = [x.out()]
    shape = {x.out(): tuple(x.type.shape or ())}

    def add(op: str, inputs: Sequence[Value], attrs: dict[str, object], made: tuple) -> None:
        node = graph.add(op, inputs, attrs, [TensorType("float32", made)], f"n{len(values)}")
        shape[node.out()] = made
        values.append(node.out())

    def convolve(source: Value) -> None:
        n, c, h, w = shape[source]
        ky, kx = (draw(st.integers(1, min(3, extent))) for extent in (h, w))
        sy, sx = draw(st.integers(1, 2)), draw(st.integers(1, 2))
        py, px = draw(st.integers(0, ky - 1)), draw(st.integers(0, kx - 1))
        grouped = draw(st.integers(0, 3)) == 0
        filters = c if grouped else draw(st.sampled_from([5, 16, 32, 40]))
        width = draw(st.sampled_from([w for w in (1, 2, 4, 8, 16, 20) if c % w == 0]))
        name = f"w{len(values)}"
        weights = (filters, width if grouped else c, ky, kx)
        inputs = [source, graph.add_input(name, PARAM, TensorType("float32", weights)).out()]
        no_bias = draw(st.booleans())
        if not no_bias:
            bias = TensorType("float32", (filters,))
            inputs.append(graph.add_input(f"b{len(values)}", PARAM, bias).out())
        attrs = {"kernel": (ky, kx), "stride": (sy, sx), "pad": (py, px), "num_filter": filters,
                 "num_group": c // width if grouped else 1, "no_bias": no_bias}  # fmt: skip
        add("Convolution", inputs, attrs,
            (n, filters, (h + 2 * py - ky) // sy + 1, (w + 2 * px - kx) // sx + 1))  # fmt: skip

    def deconvolve(source: Value) -> None:
        n, c, *size = shape[source]
        made, attrs = [], {"num_filter": draw(st.sampled_from([8, 16, 21])), "no_bias": True}
        attrs |= {"kernel": (), "stride": (), "pad": ()}
        for extent in size:
            k = draw(st.integers(1, 4))
            s, p = draw(st.integers(1, min(2, k))), draw(st.integers(0, min(1, k - 1)))
            for name, number in (("kernel", k), ("stride", s), ("pad", p)):
                attrs[name] = (*attrs[name], number)
            made.append(s * (extent - 1) + k - 2 * p)
        if min(made) < 1:
            return
        weights = TensorType("float32", (c, attrs["num_filter"], *attrs["kernel"]))
        w = graph.add_input(f"w{len(values)}", PARAM, weights).out()
        add("Deconvolution", [source, w], attrs, (n, attrs["num_filter"], *made))

    def swish(source: Value) -> None:
        """Or some of it, read by others as well."""
        add("_plus_scalar", [source], {"scalar": 3.0}, shape[source])
        add("clip", [values[-1]], {"a_min": 0.0, "a_max": 6.0}, shape[source])
        add("_div_scalar", [values[-1]], {"scalar": 6.0}, shape[source])
        add("elemwise_mul", [source, values[-1]], {}, shape[source])

    def gate(source: Value) -> None:
        n, c, *_ = shape[source]
        attrs = {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"}
        add("Pooling", [source], attrs, (n, c, 1, 1))
        add("sigmoid", [values[-1]], {}, (n, c, 1, 1))
        if draw(st.booleans()):
            add("Flatten", [values[-1]], {}, (n, c))
            add("Reshape", [values[-1]], {"shape": (-1, c, 1, 1)}, (n, c, 1, 1))
        add("broadcast_mul", [source, values[-1]], {}, shape[source])

    def multiply(source: Value) -> None:
        n, *extents = shape[source]
        hidden = draw(st.sampled_from([3, 16, 48]))
        weights = TensorType("float32", (hidden, math.prod(extents)))
        w = graph.add_input(f"w{len(values)}", PARAM, weights).out()
        attrs = {"num_hidden": hidden, "no_bias": True}
        add("FullyConnected", [source, w], attrs, (n, hidden))

    convolve(x.out())
    for _ in range(draw(st.integers(1, 7))):
        source = draw(st.sampled_from(values[-3:]))
        n, c, *size = shape[source]
        kinds = ["conv", "conv", "relu", "add", "concat", "pool", "sin", "tanh", "dense"]
        kinds += ["sigmoid", "prelu", "swish", "gate", "deconv", "negative", "mish", "gelu", "elu"]
        kind = draw(st.sampled_from(kinds))
        alike = [value for value in values if shape[value] == shape[source]]
        if not size and kind in ("conv", "pool", "gate", "deconv"):
            kind = "dense"
        if kind == "conv":
            convolve(source)
        elif kind == "dense":
            multiply(source)
        elif kind == "deconv":
            deconvolve(source)
        elif kind == "gate":
            gate(source)
        elif kind == "swish":
            swish(source)
        elif kind == "prelu":
            slopes = TensorType("float32", (c,))
            g = graph.add_input(f"g{len(values)}", PARAM, slopes).out()
            add("LeakyReLU", [source, g], {"act_type": "prelu"}, shape[source])
        elif kind == "mish":
            add("Activation", [source], {"act_type": "softrelu"}, shape[source])
            add("tanh", [values[-1]], {}, shape[source])
            add("elemwise_mul", [source, values[-1]], {}, shape[source])
        elif kind in ("gelu", "elu"):
            add("LeakyReLU", [source], {"act_type": kind}, shape[source])
        elif kind in ("relu", "sin", "tanh", "sigmoid", "negative"):
            add(kind, [source], {}, shape[source])
        elif kind == "add":
            add("elemwise_add", [source, draw(st.sampled_from(alike))], {}, shape[source])
        elif kind == "concat":
            joined = [v for v in values if shape[v][2:] == tuple(size)]
            others = [source, *draw(st.lists(st.sampled_from(joined), min_size=1, max_size=2))]
            channels = sum(shape[v][1] for v in others)
            add("Concat", others, {"dim": 1, "num_args": len(others)}, (n, channels, *size))
        else:
            h, w = size
            k = draw(st.integers(1, min(2, h, w)))
            kind = draw(st.sampled_from(["max", "avg"]))
            attrs = {"kernel": (k, k), "stride": (k, k), "pool_type": kind}
            add("Pooling", [source], attrs, (n, c, (h - k) // k + 1, (w - k) // k + 1))
    outputs = draw(st.lists(st.sampled_from(values[1:]), min_size=1, max_size=2, unique=True))
    graph.set_outputs([values[1], *outputs, values[-1]])
    return graph


@settings(max_examples=60)
@given(networks(), st.sampled_from(ALGORITHMS))
def test_random_networks(graph: Graph, favourite: str) -> None:
    after = fused(graph, favourite)
    assert regions(after)
    assert_equivalent(graph, after, seeds=(0,), **TOLERANCE)
