from __future__ import annotations

import itertools

import numpy as np
import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass
from tests.tiers import one_of

mx = import_mxnet()
TARGET = MXNetTarget()


def graph(text: str) -> Graph:
    return with_types(parse(text))


def run(given: Graph, passes: str = "expand-pick", **settings: object) -> Result:
    return run_pass(given, passes, target=TARGET, **{"mode": "training"} | settings)


def ops(found: Graph) -> list[str]:
    return [node.op for node in found if not node.is_input]


def compared(before: Graph, after: Graph, indices: np.ndarray, *, gradients: bool = True) -> None:
    """Both on noise and on these indices."""
    rng = np.random.default_rng(0)
    feeds = {n.name: rng.normal(size=n.type.shape).astype("float32") for n in before.inputs}
    feeds["i"] = indices
    found, expected = (
        TARGET.evaluate(each, feeds, training=gradients, gradients=gradients)
        for each in (after, before)
    )
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


AXES = [((5, 7), -1), ((3, 4, 6), 2), ((3, 11, 40), 1), ((2, 3, 5, 40), 1), ((9, 20), 0)]


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "keepdims", "op"),
    one_of(
        7,
        [
            (*of, *others)
            for of in AXES
            for others in itertools.product(
                ["f32", "i32", "i64"], [False, True], ["softmax", "log_softmax"]
            )
        ],
    ),
)
def test_values_and_gradients(
    shape: tuple[int, ...], axis: int, dtype: str, keepdims: bool, op: str
) -> None:
    extents = ",".join(map(str, shape))
    at = axis % len(shape)
    rest = (*shape[:at], *shape[at + 1 :])
    given = graph(
        f"graph g(%x: f32[{extents}], %i: {dtype}[{','.join(map(str, rest))}])"
        f" {{ %p = {op}(%x) {{axis={axis}}}"
        f" %y = pick(%p, %i) {{axis={axis}, keepdims={keepdims}}} return %y }}"
    )
    result = run(given)
    assert "pick" not in ops(result.graph)
    assert result.receipts[0].stats["expanded"] == 1
    assert result.graph.type_of(result.graph.outputs[0]) == given.type_of(given.outputs[0])
    kind = {"f32": "float32", "i32": "int32", "i64": "int64"}[dtype]
    indices = np.random.default_rng(1).integers(-2, shape[at] + 2, rest).astype(kind)
    compared(given, result.graph, indices)
    fused = run(given, "expand-pick,fuse-reduction,fuse-pointwise").graph
    assert op not in ops(fused)
    compared(given, fused, indices)


def test_indices_that_are_not_whole_are_cut() -> None:
    given = graph(
        "graph g(%x: f32[6,5], %i: f32[6]) { %p = log_softmax(%x) %y = pick(%p, %i) return %y }"
    )
    indices = np.array([0.9, 1.5, 3.999, -0.7, 7.5, 4.0], "float32")
    compared(given, run(given).graph, indices)


def test_the_cross_entropy_is_one_kernel_over_rows() -> None:
    given = graph(
        """graph g(%x: f32[64,300], %i: f32[64]) {
  %p = log_softmax(%x)
  %y = pick(%p, %i) {axis=-1, keepdims=True}
  %n = negative(%y)
  return %n
}"""
    )
    fused = run(given, "expand-pick,fuse-reduction,fuse-pointwise").graph
    wide = [
        n for n in fused if n.op == FUSED and any("300" in str(fused.type_of(v)) for v in n.inputs)
    ]
    assert len(wide) == 1
    assert wide[0].type.shape == (64, 1)  # nothing else of 300 columns is written
    assert_equivalent(given, fused, training=True)


@pytest.mark.parametrize(
    ("text", "settings", "why"),
    [
        ("%p = log_softmax(%x) %y = pick(%p, %i) {mode='wrap'} return %y", {}, "wrap"),
        ("%p = log_softmax(%x) %y = pick(%p, %i) return %y, %p", {}, "others read the softmax"),
        ("%p = log_softmax(%x) {axis=0} %y = pick(%p, %i) return %y", {}, "along another axis"),
        ("%p = log_softmax(%x) %y = pick(%p, %i) return %y", {"device": "gpu"}, "pick stays"),
        ("%p = log_softmax(%x) %y = pick(%p, %i) return %y", {"precise": True}, "precise"),
    ],
)
def test_refusals(text: str, settings: dict[str, object], why: str) -> None:
    given = graph(f"graph g(%x: f32[6,6], %i: f32[6]) {{ {text} }}".replace("'", '"'))
    result = run(given, **settings)
    assert result.graph.is_unchanged_from(given)
    told = [str(r) for r in result.remarks] + [str(r) for r in result.receipts]
    assert any(why in each for each in told)


def test_picks_of_other_arrays_stay() -> None:
    given = graph("graph g(%x: f32[6,5], %i: f32[6]) { %y = pick(%x, %i) return %y }")
    result = run(given)
    assert result.graph.is_unchanged_from(given)
