"""What two sizes of data say of a third, and constants that follow them."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.sizes import Sized, are_near, covers, distance, sized_of


@pytest.mark.parametrize(
    ("first", "second", "new", "expected"),
    [
        ((4, 8), (4, 6), (4, 7), True),
        ((4, 8), (4, 6), (3, 7), False),  # the first one never changed
        ((4, 8), (3, 6), (9, 2), True),
        ((4, 8), (3, 6), (1, 7), False),  # MXNet broadcasts along axes of 1
        ((1, 8), (3, 6), (1, 7), True),
        ((4, 8), (3, 6), (0, 7), False),
        ((5, 5), (3, 3), (4, 4), True),
        ((5, 5), (3, 3), (4, 6), False),  # it may matter that they are equal
        ((5, 7), (3, 3), (4, 6), True),
    ],
)
def test_what_two_sizes_say_of_a_third(
    first: tuple[int, ...], second: tuple[int, ...], new: tuple[int, ...], expected: bool
) -> None:
    assert covers(first, second, new) is covers(second, first, new) is expected


def test_distance() -> None:
    assert distance((4, 8), (2, 8)) == distance((2, 8), (4, 8)) == 2
    assert distance((4, 0), (4, 8)) == float("inf")
    assert distance((), ()) == 1
    assert are_near((4, 8), (2, 8))
    assert not are_near((5, 8), (2, 8))


def graph(batch: int, steps: int, *, wide: int = 0) -> Graph:
    return parse(
        f"""graph g(%x: f32[{batch},{steps}]) {{
  %p = constant() {{data="range", dtype="float32", shape=(1, {wide or steps})}}
  %z = _full() {{dtype="float32", shape=({batch}, 1), value=2.5}} : f32[{batch},1]
  %a = broadcast_add(%x, %p) : f32[{batch},{steps}]
  %b = broadcast_add(%a, %z) : f32[{batch},{steps}]
  return %b
}}"""
    )


def test_constants_follow_the_axes_that_changed_as_they_did() -> None:
    found = sized_of([graph(2, 5)], [graph(3, 7)], (2, 5), (3, 7))
    assert found is not None
    arrays = {each.name: each.array((4, 6)) for each in found.constants}
    np.testing.assert_array_equal(arrays["p"], [[0, 1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(arrays["z"], np.full((4, 1), 2.5, "float32"))
    assert {array.dtype.name for array in arrays.values()} == {"float32"}
    assert not found.computed


def test_constants_that_follow_nothing() -> None:
    assert sized_of([graph(2, 5)], [graph(2, 5)], (2, 5), (2, 5)) == Sized()
    assert sized_of([graph(2, 5, wide=9)], [graph(2, 7, wide=11)], (2, 5), (2, 7)) is None


def with_table(rows: int) -> Graph:
    return parse(f"graph g(%x: f32[{rows}], param %t: f32[{rows}]) {{ %y = relu(%x) return %y }}")


def test_inputs_that_follow_no_constant() -> None:
    assert sized_of([with_table(3)], [with_table(4)], (3,), (4,)) is None
    assert sized_of([with_table(3)], [with_table(3)], (3,), (3,)) == Sized()
