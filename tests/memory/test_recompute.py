"""Choosing what to keep, on made-up operators: no MXNet."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.memory.recompute import Cost, Search, Work, crossing, cuts, narrows, outside


def chain(*sizes: int, seconds: float = 1.0) -> list[Work]:
    return [
        Work(f"n{at}", size, seconds, True, (at - 1,) if at else ())
        for at, size in enumerate(sizes)
    ]


def model(work: list[Work]):
    """Bytes as on a chain: what is kept, and what lies between two kept values."""

    def evaluate(marks: frozenset[str]) -> Cost:
        kept = sum(one.nbytes for one in work if one.name not in marks)
        longest = run = 0
        for one in work:
            run = run + one.nbytes if one.name in marks else 0
            longest = max(longest, run)
        return Cost(kept + longest, marks)

    return evaluate


def test_what_is_alive_across_each_place_of_a_chain_is_one_value() -> None:
    assert crossing(chain(3, 5, 7)) == [3, 5, 0]


def test_a_value_read_late_is_alive_in_between() -> None:
    work = [*chain(3, 5), Work("sum", 1, 1.0, True, (0, 1)), Work("last", 1, 1.0, True, (2,))]
    assert crossing(work) == [3, 8, 1, 0]


def test_narrow_places_are_ends_of_blocks() -> None:
    block = [
        Work("in", 4, 1, True),
        Work("a", 4, 1, True, (0,)),
        Work("b", 4, 1, True, (1,)),
        Work("add", 4, 1, True, (0, 2)),
        Work("relu", 4, 1, True, (3,)),
        Work("out", 4, 1, True, (4,)),
    ]
    assert narrows(block) == [4]


def test_a_chain_is_cut_at_its_smallest_values() -> None:
    work = chain(9, 1, 9, 9, 1, 9, 9, 1, 9)
    assert cuts(work, 30) == [5]
    assert cuts(work, 22) == [2, 5, 8]


def test_there_are_no_cuts_for_less_than_the_largest_operator() -> None:
    assert cuts(chain(9, 1, 9), 8) is None


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.integers(1, 120))
def test_cuts_keep_the_least_of_all_cuts_that_fit(sizes: list[int], limit: int) -> None:
    work = chain(*sizes)
    alive = crossing(work)

    def kept(places: tuple[int, ...]) -> int | None:
        total = 0
        for first, last in itertools.pairwise((0, *places, len(work))):
            if total + sum(sizes[first:last]) > limit:
                return None
            total += alive[last - 1] if last < len(work) else 0
        return total

    inner = range(1, len(work))
    every = [c for n in range(len(work)) for c in itertools.combinations(inner, n)]
    best = min((k for k in map(kept, every) if k is not None), default=None)
    found = cuts(work, limit)
    assert (None if found is None else kept(tuple(found))) == best


def test_what_crosses_a_cut_and_what_follows_the_last_one_is_kept() -> None:
    work = chain(9, 1, 9, 9, 1, 9)
    assert [one.name for one in outside(work, [2, 5])] == ["n0", "n2", "n3"]


def test_what_cannot_run_again_is_never_marked() -> None:
    work = [Work(f"n{n}", 8, 1.0, n % 2 == 0, (n - 1,) if n else ()) for n in range(12)]
    search = Search(work, model(work))
    search.plan(50)
    marked = set().union(*search.tried)
    assert marked
    assert marked <= {one.name for one in work if one.can_repeat}


def test_nothing_is_computed_again_where_all_fits() -> None:
    work = chain(*[8] * 20)
    plan = Search(work, model(work)).plan(160)
    assert plan is not None
    assert plan.marks == frozenset()
    assert plan.seconds == 0


@pytest.mark.parametrize("budget", [150, 120, 100, 80, 70])
def test_a_plan_fits_and_costs_no_more_than_one_for_less(budget: int) -> None:
    work = chain(*[8] * 20)
    search = Search(work, model(work))
    plan, tighter = search.plan(budget), search.plan(budget - 8)
    assert plan is not None
    assert plan.cost.nbytes <= budget
    assert tighter is None or plan.seconds <= tighter.seconds


def test_what_is_dear_to_compute_is_kept_first() -> None:
    work = [
        Work(f"n{n}", 8, 100.0 if n == 7 else 1.0, True, (n - 1,) if n else ()) for n in range(20)
    ]
    plan = Search(work, model(work)).plan(120)
    assert plan is not None
    assert plan.marks
    assert "n7" not in plan.marks


def test_a_budget_too_small_has_no_plan_but_a_least_one() -> None:
    work = chain(*[8] * 20)
    search = Search(work, model(work))
    assert search.plan(10) is None
    assert search.least().cost.nbytes <= 80


def test_each_set_of_marks_is_tried_once() -> None:
    work = chain(*[8] * 20)
    calls: list[frozenset[str]] = []

    def evaluate(marks: frozenset[str]) -> Cost:
        calls.append(marks)
        return model(work)(marks)

    search = Search(work, evaluate)
    for budget in (150, 100, 70):
        search.plan(budget)
    assert len(calls) == len(set(calls))
