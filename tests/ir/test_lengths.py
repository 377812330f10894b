"""Shapes of data for which passes have to make the same graph if it is to serve all."""

from __future__ import annotations

import pytest

from graphopt.ir.lengths import FAR, apart, far_longer, longer, others, single
from graphopt.ir.sizes import Shapes


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((None, None), [(2 + FAR, 6), (2, 6 + FAR)]),
        ((2, None), [(2, 6 + FAR)]),  # an axis that may not be longer tells nothing
        ((None, 64), [(2 + FAR, 6), (2, 64)]),
        ((4, 6), [(4, 6)]),
        ((None, 7), [(2 + FAR, 6), (2, 7)]),
    ],
)
def test_data_that_are_far_longer(
    limits: tuple[int | None, int | None], expected: list[tuple[int, int]]
) -> None:
    def is_open(shapes: Shapes) -> bool:
        pairs = zip(shapes["x"], limits, strict=True)
        return all(limit is None or extent <= limit for extent, limit in pairs)

    assert [each["x"] for each in far_longer({"x": (2, 6)}, is_open)] == expected


def _broadcasts(shapes: Shapes) -> bool:
    return all(1 in pair or len({*pair}) == 1 for pair in zip(*shapes.values(), strict=True))


def _cuts(shapes: Shapes) -> bool:
    return shapes["y"][1] <= shapes["x"][1] and shapes["x"][0] == shapes["y"][0]


def test_arrays_are_longer_together() -> None:
    assert longer({"x": (2, 3), "y": (2, 3)}, _broadcasts) == {"x": (3, 4), "y": (3, 4)}


def test_one_row_for_all_is_no_more() -> None:
    assert longer({"x": (2, 3), "y": (1, 3)}, _broadcasts) == {"x": (4, 4), "y": (1, 4)}
    assert longer({"y": (1, 3), "x": (2, 3)}, _broadcasts) == {"x": (4, 4), "y": (1, 4)}
    found = list(far_longer({"y": (1, 3), "x": (2, 3)}, _broadcasts))
    assert [each["y"] for each in found] == [(1, 3), (1, 3 + FAR)]


def test_arrays_are_longer_where_they_are_equal_on_other_axes() -> None:
    shapes = {"x": (2, 5), "mask": (2, 5, 5)}
    wider = {"x": (3, 6), "mask": (3, 6, 6)}
    assert longer(shapes, lambda each: each["mask"][1:] == each["x"][1:] * 2) == wider


def test_arrays_are_apart_where_they_may_be() -> None:
    assert apart({"x": (2, 4), "y": (2, 4)}, _cuts) == {"x": (2, 5), "y": (2, 4)}
    assert apart({"x": (2, 4)}, lambda _: True) == {"x": (2, 4)}
    assert apart({"x": (2, 4), "y": (3, 5)}, lambda _: True) == {"x": (2, 4), "y": (3, 5)}


def test_one_of_two_arrays_has_a_single_element() -> None:
    found = list(single({"x": (2, 3), "y": (2, 3)}, _broadcasts))
    assert found == [{"x": (1, 1), "y": (2, 3)}, {"x": (2, 3), "y": (1, 1)}]
    assert list(single({"x": (2, 3)}, lambda _: True)) == []


@pytest.mark.parametrize("widens", [False, True])
def test_all_of_them(widens: bool) -> None:
    found = others({"x": (2, 3), "y": (2, 3)}, _broadcasts, lambda _: widens)
    assert len(found) == (3 if widens else 1)
