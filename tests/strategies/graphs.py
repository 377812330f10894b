"""A hypothesis strategy for random typed graphs of MXNet operators.

Graphs are small, valid for MXNet, and tame: every operator is smooth enough that another order of
rounding stays within the tolerances. Operators that jump (sign, floor, comparisons, argmax) only
read inputs, which no pass rounds. There is no Deconvolution: in graphs as odd as these its gradient
corrupts the memory of MXNet 1.9.1.
"""

from __future__ import annotations

from hypothesis import strategies as st

from graphopt.backend.infer import with_types
from graphopt.ir.graph import Graph
from graphopt.ir.types import TensorType
from tests.strategies.arrays import LAYOUT, concat, creation, flatten, split
from tests.strategies.builder import SHAPES, Builder, Draw
from tests.strategies.layers import LAYERS, layer_and_affine, loss, siblings
from tests.strategies.pointwise import POINTWISE, activation, there_and_back, unary

# Each function adds one operator, or nothing where no value fits.
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
