from __future__ import annotations

import itertools

import numpy as np
import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass
from tests.tiers import one_of

TARGET = MXNetTarget()


def graph(text: str) -> Graph:
    return with_types(parse(text))


def run(given: Graph, then: str = "", **settings: object) -> Result:
    return run_pass(given, f"expand-lengths{then}", target=TARGET, **settings)


def ops(found: Graph) -> list[str]:
    return [node.op for node in found if not node.is_input]


def feeds(given: Graph, lengths: list[float]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    made = {}
    for node in given.inputs:
        shape, dtype = node.type.shape, str(node.type.dtype)
        if node.name == "n":
            made["n"] = np.resize(np.array(lengths), shape).astype(dtype)
        else:
            made[node.name] = rng.normal(size=shape).astype(dtype)
    return made


@pytest.mark.parametrize(
    ("mode", "lengths", "axis", "rows", "temperature"),
    one_of(
        5,
        [
            (mode, lengths, *of, temperature)
            for mode in ("inference", "training")
            for lengths in ("i32", "i64")
            for of in ((-1, "3,4"), (1, "3,9"), (2, "3,4"))
            for temperature in ("", ", temperature=2.0")
        ],
    ),
)
def test_softmax(mode: str, lengths: str, axis: int, rows: str, temperature: str) -> None:
    given = graph(
        f"graph g(%x: f32[3,4,9], %n: {lengths}[{rows}]) {{"
        f" %y = softmax(%x, %n) {{use_length=True, axis={axis}{temperature}}} return %y }}"
    )
    values = feeds(given, [0, 1, 2, 4, 3])
    result = run(given, ",fuse-reduction,fuse-pointwise", mode=mode)
    assert "softmax" not in ops(result.graph)
    assert ops(result.graph).count("graphopt_fused") >= 1
    for found in (result.graph, unfuse(result.graph), run(given, mode=mode).graph):
        assert_equivalent(given, found, feeds=values, training=mode == "training")


@pytest.mark.parametrize(
    ("value", "shape", "axis", "dtype", "mode"),
    one_of(
        5,
        itertools.product(
            [0.0, -1.5],
            ["4,4", "4,4,5", "4,4,2,3"],
            [0, 1],
            ["f32", "f64"],
            ["inference", "training"],
        ),
    ),
)
def test_masks(mode: str, dtype: str, axis: int, shape: str, value: float) -> None:
    given = graph(
        f"graph g(%x: {dtype}[{shape}], %n: f32[4]) {{ %y = SequenceMask(%x, %n)"
        f" {{use_sequence_length=True, axis={axis}, value={value}}} return %y }}"
    )
    values = feeds(given, [0, 2.9, 4, 1])
    result = run(given, ",fuse-pointwise", mode=mode)
    assert "SequenceMask" not in ops(result.graph)
    assert ops(result.graph).count("graphopt_fused") >= 1
    for found in (result.graph, run(given, mode=mode).graph):
        assert_equivalent(given, found, feeds=values, training=mode == "training")


def test_what_is_behind_the_end_does_not_matter() -> None:
    given = graph(
        "graph g(%x: f32[2,4], %n: f32[2]) { %y = SequenceMask(%x, %n)"
        " {use_sequence_length=True, axis=1} return %y }"
    )
    x = np.array([[1, np.nan, np.inf, -np.inf], [1, 2, 3, np.nan]], "float32")
    values = {"x": x, "n": np.array([1, 3], "float32")}
    found = TARGET.evaluate(run(given, ",fuse-pointwise").graph, values)["output0"]
    np.testing.assert_array_equal(found, [[1, 0, 0, 0], [1, 2, 3, 0]])


def test_a_row_without_elements_has_no_gradient() -> None:
    given = graph(
        "graph g(%x: f32[2,3], %n: i32[2]) { %y = softmax(%x, %n) {use_length=True} return %y }"
    )
    values = {"x": np.full((2, 3), 80, "float32"), "n": np.array([0, 2], "int32")}
    result = run(given, ",fuse-reduction,fuse-pointwise", mode="training")
    found = TARGET.evaluate(result.graph, values, training=True, gradients=True)
    np.testing.assert_array_equal(found["output0"], [[0, 0, 0], [0.5, 0.5, 0]])
    assert np.isfinite(found["grad:x"]).all()
    assert (found["grad:x"][0] == 0).all()


def test_the_lowest_scores_are_above_what_is_behind_the_end() -> None:
    given = graph(
        "graph g(%x: f32[3,4], %n: i32[3]) { %y = softmax(%x, %n) {use_length=True} return %y }"
    )
    low = np.finfo("float32").min
    x = np.array([[low, low, 0, 0], [low] * 3 + [5], [-np.inf, low, 0, 0]], "float32")
    values = {"x": x, "n": np.array([2, 3, 2], "int32")}
    result = run(given, ",fuse-reduction,fuse-pointwise", mode="training")
    found = TARGET.evaluate(result.graph, values, training=True, gradients=True)
    third = np.float32(1) / 3
    expected = [[0.5, 0.5, 0, 0], [third, third, third, 0], [0, 1, 0, 0]]
    np.testing.assert_allclose(found["output0"], expected, rtol=1e-6)
    assert np.isfinite(found["grad:x"]).all()


def test_lengths_are_made_floats_once_and_kernels_take_all_that_is_around() -> None:
    given = graph("""graph g(%x: f32[8,4,6], %n: i32[8,4]) {
      %a = _mul_scalar(%x) {scalar=0.5}
      %b = softmax(%a, %n) {use_length=True}
      %c = exp(%b)
      %d = softmax(%c, %n) {use_length=True}
      return %d
    }""")
    result = run(given)
    assert ops(result.graph).count("Cast") == ops(result.graph).count("BlockGrad") == 1
    fused = run(given, ",fuse-reduction,fuse-pointwise").graph
    assert ops(fused).count("graphopt_fused") == 1
    assert_equivalent(given, fused, feeds=feeds(given, [0, 3, 6]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("%x: f16[2,3], %n: i32[2]", "it is float16"),
        ("%x: f32[2,2000000], %n: i32[2]", "its rows are too long"),
        ("%x: f32[0,3], %n: i32[0]", "its shape is not known"),
    ],
)
def test_refusals(text: str, why: str) -> None:
    given = graph(f"graph g({text}) {{ %y = softmax(%x, %n) {{use_length=True}} return %y }}")
    result = run(given)
    assert result.graph is given
    assert why in str(result.remarks)


def test_few_rows_side_by_side_stay() -> None:
    given = graph(
        "graph g(%x: f32[2,9,3], %n: i32[2,3]) {"
        " %y = softmax(%x, %n) {use_length=True, axis=1} return %y }"
    )
    result = run(given)
    assert result.graph is given
    assert "too few for a vector" in str(result.remarks)


def test_precise_keeps_them() -> None:
    given = graph(
        "graph g(%x: f32[2,3], %n: i32[2]) { %y = softmax(%x, %n) {use_length=True} return %y }"
    )
    assert run(given, precise=True).graph is given


def test_without_lengths_nothing_changes() -> None:
    given = graph("graph g(%x: f32[2,3]) { %y = softmax(%x) %z = SequenceMask(%y) return %z }")
    assert run(given).graph is given
