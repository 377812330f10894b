"""Operators as kernel instructions: values and gradients are MXNet's own."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.attrs import Attrs, to_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.types import TensorType
from graphopt.kernels.gradient import differentiate, is_differentiable
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse
from graphopt.passes.fusion.operators import Span
from graphopt.passes.fusion.pointwise import POINTWISE
from graphopt.passes.fusion.rows import ROWS
from graphopt.passes.fusion.translate import broadcast_axes, output_axes, region_spec

# Kinks, ties, halves, signed zero, both signs.
POINTS = np.array(
    [-3, -2.5, -2, -1.5, -1, -0.75, -0.5, -0.3, -0.0, 0, 0.3, 0.5, 0.75, 1, 1.5, 2, 2.5, 3.7],
    np.float32,
)
OTHERS = np.array(
    [-3, 1.5, 2, -1, -1, 0.5, -0.5, 2, 1, -2, 0.3, 0.7, 0.75, -1, 0.25, 2, -1.5, 3.7], np.float32
)


@dataclass(frozen=True)
class Case:
    """One call of an operator."""

    op: str
    attrs: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Any, ...] = (POINTS,)
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op}{Attrs(self.attrs).text}{self.note}"


def _grid(*shape: int, seed: int = 0) -> np.ndarray:
    """Multiples of a half, so that there are ties and zeros."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-6, 7, shape) / 2).astype(np.float32)


def _smooth(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


MATRIX, CONDITION = POINTS.reshape(3, 6), (_grid(3, 6) > 0).astype(np.float32)
CUBE = _grid(2, 3, 4)
WITH_SCALARS = (2.0, -1.5, 0.5, 3.0)
SPECIAL: dict[str, list[Case]] = {
    "Activation": [
        Case("Activation", {"act_type": kind})
        for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign")
    ],
    "LeakyReLU": [
        *[Case("LeakyReLU", {"act_type": kind}) for kind in ("leaky", "elu", "selu", "gelu")],
        Case("LeakyReLU", {"act_type": "elu", "slope": 1.0}, (POINTS * 20,)),
        Case("LeakyReLU", {"act_type": "selu"}, (POINTS * 20,), " far"),
        Case("LeakyReLU", {"slope": 0.0}),
        Case("LeakyReLU", {"act_type": "prelu"}, (CUBE, _smooth(3))),
        Case("LeakyReLU", {"act_type": "prelu"}, (MATRIX, _smooth(6)), " matrix"),
        Case("LeakyReLU", {"act_type": "prelu"}, (CUBE, _smooth(1)), " single"),
    ],
    "Cast": [
        Case("Cast", {"dtype": "float16"}),
        Case("Cast", {"dtype": "float32"}, (POINTS.astype(np.float16),)),
        Case("Cast", {"dtype": "float32"}, (np.arange(-3, 5, dtype=np.int32),), " int"),
    ],
    "amp_cast": [
        Case("amp_cast", {"dtype": "float16"}),
        Case("amp_cast", {"dtype": "float32"}, (POINTS.astype(np.float16),)),
    ],
    "clip": [Case("clip", {"a_min": -0.5, "a_max": 0.75})],
    "smooth_l1": [Case("smooth_l1"), Case("smooth_l1", {"scalar": 2.0})],
    "hard_sigmoid": [
        Case("hard_sigmoid"),
        Case("hard_sigmoid", {"alpha": 0.5}),
        Case("hard_sigmoid", {"alpha": 1.0, "beta": 0.25}),
    ],
    "_contrib_quadratic": [Case("_contrib_quadratic", {"a": 2.0, "b": -1.0, "c": 0.5})],
    "_contrib_div_sqrt_dim": [Case("_contrib_div_sqrt_dim", {}, (MATRIX,))],
    "_contrib_gradientmultiplier": [Case("_contrib_gradientmultiplier", {"scalar": -0.3})],
    "add_n": [
        Case("add_n", {"num_args": n}, tuple(_smooth(4, seed=s) for s in range(n)))
        for n in (1, 2, 5)
    ],
    "where": [
        Case("where", {}, (CONDITION, MATRIX, _smooth(3, 6))),
        Case("where", {}, (CONDITION.astype(np.int32), MATRIX, _smooth(3, 6)), " int"),
    ],
    "_npi_where": [Case("_npi_where", {}, (CONDITION, MATRIX, _smooth(6)))],
    "broadcast_to": [Case("broadcast_to", {"shape": (3, 6)}, (_smooth(3, 1),))],
    "_npi_broadcast_to": [Case("_npi_broadcast_to", {"shape": (3, 6)}, (_smooth(6),))],
    "broadcast_axis": [Case("broadcast_axis", {"axis": (1,), "size": (6,)}, (_smooth(3, 1),))],
    "broadcast_like": [Case("broadcast_like", {}, (_smooth(3, 1), MATRIX))],
    "_identity_with_attr_like_rhs": [
        Case("_identity_with_attr_like_rhs", {}, (MATRIX, _smooth(3, 6)))
    ],
}
ROW_CASES: dict[str, list[Case]] = {
    "norm": [
        Case("norm", {"axis": -1}, (CUBE,)),
        Case("norm", {"axis": (1, 2), "ord": 1, "keepdims": True}, (CUBE,)),
        Case("norm", {}, (CUBE,)),
    ],
    "softmin": [Case("softmin", {}, (CUBE,)), Case("softmin", {"temperature": 2.0}, (CUBE,))],
    "SoftmaxActivation": [
        Case("SoftmaxActivation", {}, (MATRIX,)),
        Case("SoftmaxActivation", {"mode": "channel"}, (_grid(2, 3, 24),)),
        Case("SoftmaxActivation", {"mode": "channel"}, (_grid(2, 3, 5, 4),)),
    ],
    "LayerNorm": [
        Case("LayerNorm", {}, (CUBE, _smooth(4), _smooth(4, seed=1))),
        Case("LayerNorm", {"axis": 2, "eps": 0.5}, (CUBE, _smooth(4), _smooth(4, seed=1))),
    ],
    "InstanceNorm": [
        Case("InstanceNorm", {}, (CUBE, _smooth(3), _smooth(3, seed=1))),
        Case("InstanceNorm", {"eps": 0.5}, (_smooth(2, 3, 4, 2), _smooth(3), _smooth(3, seed=1))),
    ],
    "L2Normalization": [
        Case("L2Normalization", {}, (CUBE,)),
        Case("L2Normalization", {"eps": 0.5}, (CUBE,)),
    ],
    **{
        name: [Case(name, {}, (CUBE,)), Case(name, {"axis": 2, "temperature": 0.5}, (CUBE,))]
        for name in ("softmax", "log_softmax")
    },
}


#: In the other floating dtypes; scalars are rounded to float16 there.
OTHER_DTYPES = [
    Case(case.op, case.attrs, tuple(x.astype(dtype) for x in case.inputs), f" {dtype}")
    for dtype in ("float16", "float64")
    for case in (
        Case("_plus_scalar", {"scalar": 0.1}),
        Case("_maximum_scalar", {"scalar": 0.1}),
        Case("_equal_scalar", {"scalar": 0.3}),
        Case("clip", {"a_min": -0.3, "a_max": 0.3}),
        Case("hard_sigmoid"),
        Case("smooth_l1", {"scalar": 0.7}),
        Case("LeakyReLU", {"slope": 0.3}),
        Case("LeakyReLU", {"act_type": "elu", "slope": 0.3}),
        Case("LeakyReLU", {"act_type": "selu"}),
        Case("degrees"),
        Case("_contrib_quadratic", {"a": 0.1, "b": 0.3, "c": 0.7}),
        Case("softmax", {"axis": -1}, (_smooth(3, 5),)),
        Case("LayerNorm", {}, (_smooth(3, 5), _smooth(5, seed=1), _smooth(5, seed=2))),
        Case("L2Normalization", {}, (_smooth(3, 5),)),
        Case("sum", {"axis": 1}, (_smooth(3, 5),)),
    )
]

#: Where one of two is no number, or both.
HOLES = np.array([np.nan, 1, np.nan, 3, 3], np.float32), np.array([0, np.nan, np.nan, 1, 3], "f")
ENDS = np.array([np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf], np.float32)
WITH_HOLES = [
    *(
        Case(f"{kind}_{name}", {}, HOLES, " NaN")
        for kind in ("", "broadcast")
        for name in ("maximum", "minimum")
    ),
    *(
        Case(f"_{name}_scalar", {"scalar": 3.0}, HOLES[:1], " NaN")
        for name in ("maximum", "minimum")
    ),
    *(
        Case("LeakyReLU", {}, (HOLES[0].astype(dtype),), f" NaN {dtype}")
        for dtype in ("float16", "float32", "float64")
    ),
    *(
        Case("LeakyReLU", {"act_type": kind}, (ENDS.astype(dtype),), f" ends {dtype}")
        for kind in ("elu", "selu")
        for dtype in ("float16", "float32", "float64")
    ),
    Case("LeakyReLU", {"act_type": "prelu"}, (HOLES[0][:, None], _smooth(1)), " NaN"),
]


def cases() -> list[Case]:
    found: list[Case] = [*OTHER_DTYPES, *WITH_HOLES]
    for name in POINTWISE:
        if name in ("_full", "_ones", "_zeros"):
            continue  # no inputs: only ever part of a region
        if name in SPECIAL:
            found += SPECIAL[name]
        elif name.endswith("_scalar"):
            found += [Case(name, {"scalar": number}) for number in WITH_SCALARS]
        elif name.startswith("broadcast_"):
            found.append(Case(name, {}, (MATRIX, OTHERS.reshape(3, 6))))
            found.append(Case(name, {}, (POINTS[None, :5], OTHERS[:3, None]), " stretched"))
            found.append(Case(name, {}, (OTHERS[:3, None], POINTS[None, :5]), " other way"))
        elif name in BINARIES:
            found.append(Case(name, {}, (POINTS, OTHERS)))
        else:
            found.append(Case(name))
    for name in ROWS:
        if name in ROW_CASES:
            found += ROW_CASES[name]
        else:
            found.append(Case(name, {}, (CUBE,)))
            found.append(Case(name, {"axis": -1}, (_smooth(3, 5),)))
            found.append(Case(name, {"axis": (1, 2), "keepdims": True}, (_smooth(2, 3, 4),)))
    return found


BINARIES = {
    *(f"elemwise_{name}" for name in ("add", "sub", "mul", "div")),
    *(f"_npi_{name}" for name in "add subtract multiply true_divide mod power hypot".split()),  # noqa: SIM905
    *(name.replace("broadcast", "", 1) for name in POINTWISE if name.startswith("broadcast_")),
}


def _invoke(mx: Any, op: str, arrays: list[Any], attrs: dict[str, Any]) -> Any:
    from mxnet._ctypes.ndarray import _imperative_invoke
    from mxnet.base import _LIB, c_str, check_call

    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    values = [to_mxnet(value) for value in attrs.values()]
    is_np = op.startswith(("_np_", "_npi_", "_npx_"))
    with mx.util.np_shape(is_np):
        found = _imperative_invoke(handle.value, arrays, list(attrs), values, None, is_np, False)
    return found[0] if isinstance(found, (list, tuple)) else found


def by_mxnet(case: Case, head: np.random.Generator) -> tuple[Any, Any, list[Any]]:
    """Value, head gradient, and gradients of the inputs."""
    mx = import_mxnet()
    is_np = case.op.startswith(("_np_", "_npi_", "_npx_"))
    make = mx.np.array if is_np else mx.nd.array
    arrays = [make(x, dtype=x.dtype) for x in case.inputs]
    for array in arrays:
        array.attach_grad()
    with mx.autograd.record():
        out = _invoke(mx, case.op, arrays, case.attrs)
    heads = head.normal(size=out.shape).astype(out.dtype)
    try:
        out.backward(make(heads, dtype=heads.dtype))
    except mx.MXNetError:
        return out.asnumpy(), heads, []
    return out.asnumpy(), heads, [array.grad.asnumpy() for array in arrays]


def graph_of(case: Case, out: Any) -> Graph:
    graph = Graph()
    inputs = [
        graph.add_input(f"x{i}", type=TensorType(str(x.dtype), x.shape))
        for i, x in enumerate(case.inputs)
    ]
    node = graph.add(case.op, inputs, case.attrs, (TensorType(str(out.dtype), out.shape),), "node")
    graph.set_outputs([node])
    return graph


def spec_of(graph: Graph) -> KernelSpec:
    nodes = [node for node in graph if not node.is_input]
    return region_spec(graph, nodes, [node.out() for node in graph.inputs], graph.outputs)


def gradients_of(spec: KernelSpec, heads: list[Any], inputs: Any, **options: Any) -> list[Any]:
    """The gradient of every input by the derived kernel."""
    found: list[Any] = [np.zeros_like(x) for x in inputs]
    gradient = differentiate(spec)
    if gradient.spec is None:
        return found
    assert parse(str(gradient.spec)) == gradient.spec
    outputs = evaluate(spec, inputs, **options)
    operands = [
        *(heads[i] for i in gradient.heads),
        *(inputs[i] for i in gradient.inputs),
        *(outputs[i] for i in gradient.outputs),
    ]
    for place, array in zip(
        gradient.wrt, evaluate(gradient.spec, operands, **options), strict=True
    ):
        found[place] = array
    return found


def assert_close(got: Any, want: Any, message: str) -> None:
    # In float16 MXNet rounds after every step. In float64 some of its constants are float32.
    tolerance = {
        "float16": {"rtol": 5e-3, "atol": 5e-3},
        "float32": {"rtol": 1e-4, "atol": 1e-5},
        "float64": {"rtol": 1e-7, "atol": 1e-9},
    }[str(want.dtype)]
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, want, **tolerance, err_msg=message)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_values_and_gradients_are_mxnets(case: Case) -> None:
    want, head, slopes = by_mxnet(case, np.random.default_rng(1))
    graph = graph_of(case, want)
    spec = spec_of(graph)
    assert parse(str(spec)) == spec
    extents = max((want, *case.inputs), key=np.size).shape
    (got,) = evaluate(spec, case.inputs, extents)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert_close(got, want, "value")
    if not slopes or not is_differentiable(spec):
        return
    gradients = gradients_of(spec, [head], case.inputs, extents=extents)
    for number, (found, slope) in enumerate(zip(gradients, slopes, strict=True)):
        if case.inputs[number].dtype.kind == "f":
            assert_close(found, slope, f"gradient of input {number} of {spec}")


SPACE = (2, 3, 4)
INPUT_SHAPES = [SPACE, (4,), (3, 1), (1, 3, 4), (2, 1, 1), (1,), (2, 3, 1)]
SMOOTH = [
    ("tanh", {}),
    ("sigmoid", {}),
    ("sin", {}),
    ("softsign", {}),
    ("erf", {}),
    ("arctan", {}),
    ("smooth_l1", {"scalar": 0.8}),
    ("_mul_scalar", {"scalar": -0.7}),
    ("_rminus_scalar", {"scalar": 0.3}),
    ("_rpower_scalar", {"scalar": 1.3}),
    ("_hypot_scalar", {"scalar": 0.5}),
    ("hard_sigmoid", {}),
    ("clip", {"a_min": -0.9, "a_max": 1.1}),
    ("LeakyReLU", {"act_type": "gelu"}),
    ("LeakyReLU", {"act_type": "elu"}),
    ("Activation", {"act_type": "softrelu"}),
]
PAIRS = ["add", "sub", "mul", "maximum", "minimum"]
REDUCING = ["sum", "mean", "max", "min"]


class RandomRegion:
    """A random region: values of all the space, and one per row."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.graph = Graph()
        self.reduced = self.draw(st.sampled_from([(), (2,), (1, 2), (1,), (0,), (0, 1)]))
        self.row = tuple(1 if axis in self.reduced else e for axis, e in enumerate(SPACE))
        first = self.input(SPACE)
        self.whole, self.rows, self.small = [first], [], []
        self.inputs = [self.input(self.draw(st.sampled_from(INPUT_SHAPES))) for _ in range(3)]
        self.nodes = []
        for _ in range(self.draw(st.integers(2, 12))):
            self.step()

    def input(self, shape: tuple[int, ...]) -> Any:
        name = f"x{len(self.graph.inputs)}"
        return self.graph.add_input(name, type=TensorType("float64", shape))

    def add(self, op: str, inputs: list[Any], shape: tuple[int, ...], attrs: Any = None) -> Any:
        type_ = TensorType("float64", shape)
        node = self.graph.add(op, inputs, attrs or {}, (type_,), f"n{len(self.nodes)}")
        self.nodes.append(node)
        return node

    def pick(self, values: list[Any]) -> Any:
        return values[self.draw(st.integers(0, len(values) - 1))]

    def step(self) -> None:
        kinds = ["unary", "binary", "binary"] + (["reduce", "row"] if self.reduced else [])
        kind = self.draw(st.sampled_from(kinds))
        level = self.pick([level for level in (self.whole, self.rows, self.small) if level])
        shape = level[0].type.shape
        if kind == "reduce":
            attrs = {"axis": self.reduced, "keepdims": self.draw(st.booleans())}
            kept = tuple(e for axis, e in enumerate(SPACE) if axis not in self.reduced)
            out = self.row if attrs["keepdims"] else kept
            op = self.pick(REDUCING)
            # MXNet gives the whole gradient to every maximum: ties, which values may have, are out.
            values = self.whole[:1] if op in ("max", "min") else self.whole
            node = self.add(op, [self.pick(values)], out, attrs)
            (self.rows if attrs["keepdims"] else self.small).append(node)
        elif kind == "row" and len(self.reduced) == 1:
            op = self.draw(st.sampled_from(["softmax", "log_softmax"]))
            attrs = {"axis": self.reduced[0]}
            self.whole.append(self.add(op, [self.pick(self.whole)], SPACE, attrs))
        elif kind == "unary":
            op, attrs = self.pick(SMOOTH)
            level.append(self.add(op, [self.pick(level)], shape, attrs))
        else:
            others = [*level]
            if level is self.whole:
                others += [*self.rows, *self.inputs]
            pair = [self.pick(level), self.pick(others)]
            if self.draw(st.booleans()):
                pair.reverse()
            level.append(self.add(f"broadcast_{self.pick(PAIRS)}", pair, shape))

    def spec(self) -> KernelSpec:
        outputs = {self.nodes[-1].out(), self.pick(self.nodes).out()}
        self.graph.set_outputs(sorted(outputs))
        made = {node.id for node in self.nodes}
        read = [v for node in self.nodes for v in node.inputs if v.node not in made]
        return region_spec(self.graph, self.nodes, list(dict.fromkeys(read)), self.graph.outputs)


@settings(max_examples=100)
@given(st.data())
def test_gradients_are_the_slopes_of_the_values(data: st.DataObject) -> None:
    region = RandomRegion(data)
    # Elements of one row must not exceed the space, or the region would not be in it.
    if not any(node.type.shape == SPACE for node in region.nodes):
        region.whole.append(region.add("tanh", [region.whole[0]], SPACE))
    spec = region.spec()
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    shapes = [tuple(1 if a is None else SPACE[a] for a in x.axes) for x in spec.inputs]
    inputs = [rng.normal(size=shape) for shape in shapes]
    ways = [rng.normal(size=shape) for shape in shapes]
    outputs = evaluate(spec, inputs, SPACE)
    heads = [rng.normal(size=out.shape) for out in outputs]

    def loss(step: float) -> float:
        moved = [x + step * way for x, way in zip(inputs, ways, strict=True)]
        found = evaluate(spec, moved, SPACE)
        return sum(float((h * y).sum()) for h, y in zip(heads, found, strict=True))

    want = (loss(1e-6) - loss(-1e-6)) / 2e-6
    gradients = gradients_of(spec, heads, inputs, extents=SPACE)
    got = sum(float((g * way).sum()) for g, way in zip(gradients, ways, strict=True))
    scale = 1 + sum(float(np.abs(g * way).sum()) for g, way in zip(gradients, ways, strict=True))
    assert abs(got - want) < 1e-6 * scale, spec


def _one(op: str, *types: TensorType, out: TensorType, **attrs: Any) -> tuple[Graph, Any]:
    graph = Graph()
    inputs = [graph.add_input(f"x{i}", type=type_) for i, type_ in enumerate(types)]
    node = graph.add(op, inputs, attrs, (out,), "node")
    graph.set_outputs([node])
    return graph, node


def _f32(*shape: int) -> TensorType:
    return TensorType("float32", shape)


I32, F64, F16 = (TensorType(d, (2, 3)) for d in ("int32", "float64", "float16"))
REFUSED = [
    ("tanh", [I32], I32, {}, "floating"),
    ("elemwise_add", [_f32(2, 3), F64], F64, {}, "one floating dtype"),
    ("Cast", [_f32(2, 3)], I32, {"dtype": "int32"}, "casts"),
    ("Cast", [_f32(2, 3)], F64, {"dtype": "float64"}, "casts"),
    ("where", [_f32(2), _f32(2, 3), _f32(2, 3)], _f32(2, 3), {}, "chooses rows"),
    ("LeakyReLU", [_f32(2, 3)], _f32(2, 3), {"act_type": "rrelu"}, "rrelu"),
    ("LeakyReLU", [_f32(2, 3)], _f32(2, 3), {"slope": -1.0}, "negative slope"),
    ("LeakyReLU", [_f32(2, 3), _f32(2)], _f32(2, 3), {"act_type": "prelu"}, "channels"),
    ("clip", [_f32(2, 3)], _f32(2, 3), {"a_min": 1.0, "a_max": 0.0}, "bounds"),
    ("smooth_l1", [_f32(2, 3)], _f32(2, 3), {"scalar": 0.0}, "scalar"),
    ("sum", [_f32(2, 3, 4)], _f32(3), {"axis": (0, 2)}, "reduces axes"),
    ("sum", [_f32(2, 3, 4)], _f32(3), {"axis": 1, "exclude": True}, "reduces axes"),
    ("sum", [_f32(2, 3)], _f32(2, 3), {"axis": ()}, "does not lie"),
    ("softmax", [_f32(2, 3)], _f32(2, 3), {"temperature": 0.0}, "temperature"),
    ("softmax", [_f32(2, 3)], _f32(2, 3), {"dtype": "float64"}, "dtype"),
    ("norm", [_f32(2, 3)], _f32(1), {"ord": 3}, "order 3"),
    ("L2Normalization", [_f32(2, 3)], _f32(2, 3), {"mode": "none"}, "mode"),
    ("L2Normalization", [_f32(2, 3)], _f32(2, 3), {"mode": "spatial"}, "reduces no axes"),
    ("SoftmaxActivation", [_f32(2, 3, 4)], _f32(2, 3, 4), {}, "3 axes"),
    ("SoftmaxActivation", [_f32(2, 3, 4)], _f32(2, 3, 4), {"mode": "none"}, "mode"),
    ("Convolution", [_f32(2, 3)], _f32(2, 3), {}, "no such operator"),
    ("tanh", [TensorType("float32", (None, 3))], _f32(2, 3), {}, "type"),
]


@pytest.mark.parametrize(("op", "types", "out", "attrs", "reason"), REFUSED)
def test_refuses_what_kernels_cannot_do(op, types, out, attrs, reason) -> None:
    graph, node = _one(op, *types, out=out, **attrs)
    with pytest.raises(GraphoptError, match=reason) as caught:
        region_spec(graph, [node], [n.out() for n in graph.inputs], graph.outputs)
    assert "'node'" in str(caught.value)


def test_layer_norm_with_its_mean_in_use_is_refused() -> None:
    graph, node = _one("LayerNorm", _f32(2, 3), _f32(3), _f32(3), out=_f32(2, 3))
    node = graph.update(node.but(types=(_f32(2, 3), _f32(2, 1), _f32(2, 1))))
    assert ROWS["LayerNorm"].check(node, graph) is None
    graph.set_outputs([node.out(), node.out(1)])
    assert ROWS["LayerNorm"].check(node, graph) == "output 1 is used"


def test_where_inputs_and_outputs_run() -> None:
    graph, node = _one("LeakyReLU", _f32(2, 3, 4), _f32(3), out=_f32(2, 3, 4), act_type="prelu")
    assert broadcast_axes(node, 1, graph, (2, 3, 4)) == (1,)
    graph, node = _one("broadcast_add", _f32(2, 3, 4), _f32(3, 1), out=_f32(2, 3, 4))
    assert broadcast_axes(node, 0, graph, (2, 3, 4)) == (0, 1, 2)
    assert broadcast_axes(node, 1, graph, (2, 3, 4)) == (1, None)
    assert broadcast_axes(node, 0, graph, (5, 3, 4)) is None
    _, node = _one("sum", _f32(2, 3, 4), out=_f32(2), axis=(1, 2))
    assert output_axes(node, (2, 3, 4)) == (0,)
    _, node = _one("sum", _f32(2, 3, 4), out=_f32(2, 1, 1), axis=(1, 2), keepdims=True)
    assert output_axes(node, (2, 3, 4)) == (0, None, None)
    _, node = _one("sum", _f32(2, 3), out=_f32(1))
    assert output_axes(node, (2, 3)) == (None,)
    _, node = _one("sum", _f32(2, 3, 4), out=_f32(2, 4), axis=1)
    assert output_axes(node, (2, 3, 4)) == (0, 2)
    _, node = _one("sum", _f32(2, 3, 4), out=_f32(1, 1, 4), axis=(0, 1), keepdims=True)
    assert output_axes(node, (2, 3, 4)) == (None, None, 2)
    graph, node = _one("LayerNorm", _f32(2, 3, 3), _f32(3), _f32(3), out=_f32(2, 3, 3), axis=1)
    assert broadcast_axes(node, 1, graph, (2, 3, 3)) == (1,)


def test_a_row_of_a_square_is_not_read_as_a_column() -> None:
    """Without keepdims, sums over rows of a square stretch along the wrong axis."""
    graph = Graph()
    x = graph.add_input("x", type=_f32(3, 3))
    total = graph.add("sum", [x], {"axis": 1}, (_f32(3),), "total")
    out = graph.add("broadcast_sub", [x, total], {}, (_f32(3, 3),), "out")
    with pytest.raises(GraphoptError, match=r"'out'.*other axes"):
        region_spec(graph, [total, out], [x.out()], [out.out()])


def test_where_a_value_without_reduced_axes_runs() -> None:
    """Its shape tells nothing where extents are alike."""
    _, node = _one("tanh", _f32(3, 3), out=_f32(3, 3))
    assert output_axes(node, (3, 3, 3)) == (0, 1)
    assert output_axes(node, (3, 3, 3), Span(1, 1)) == (0, 2)
    assert output_axes(node, (3, 3, 3), Span(1, 2)) == (1, 2)
    with pytest.raises(GraphoptError, match="does not lie"):
        output_axes(node, (3, 3, 4), Span(1, 1))


def test_rows_of_different_length_are_refused() -> None:
    graph = Graph()
    x = graph.add_input("x", type=_f32(2, 3, 4))
    soft = graph.add("softmax", [x], {}, (_f32(2, 3, 4),), "soft")
    total = graph.add("sum", [soft], {"axis": (1, 2)}, (_f32(2),), "total")
    with pytest.raises(GraphoptError, match="run over"):
        region_spec(graph, [soft, total], [x.out()], [total.out()])


def test_the_text_of_a_region() -> None:
    graph = Graph()
    x = graph.add_input("x", type=TensorType("float16", (2, 3)))
    bias = graph.add_input("bias", type=TensorType("float16", (3,)))
    moved = graph.add("broadcast_add", [x, bias], {}, (TensorType("float16", (2, 3)),), "moved")
    soft = graph.add("softmax", [moved], {}, (TensorType("float16", (2, 3)),), "soft")
    spec = region_spec(graph, [moved, soft], [x.out(), bias.out()], [soft.out()])
    assert str(spec) == (
        "f32[a|b] (f16[a,b], f16[b]) { %2 = add %0 %1; %3 = softmax %2; return %3:f16[a,b] }"
    )


def test_literals_are_not_values() -> None:
    """Python holds 1 and 1.0, 0.0 and -0.0 for equal; instructions must not."""
    from graphopt.kernels.spec import Operand
    from graphopt.kernels.spec_builder import Builder

    emit = Builder("float32", 1, 0)
    x, y = (emit.input(Operand("float32", (0,))) for _ in range(2))
    outputs = [emit("add", x, y), emit("add", x, 1.0), emit("mul", x, 0.0), emit("mul", x, -0.0)]
    assert len(set(outputs)) == 4
