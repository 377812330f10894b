"""What is measured for one size, and gone by for others."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from graphopt.backend import choosing, measured
from graphopt.backend.findings import Findings, active
from graphopt.backend.infer import with_types
from graphopt.backend.lower import Lowered, lower
from graphopt.backend.measured import once
from graphopt.errors import GraphError
from graphopt.ir.parser import parse

PLACE = ("node",)


def numbers(findings: Findings, key: str, found: int) -> int:
    """What ``once`` gives there; ``found`` is what measuring would give."""
    with findings.active():
        given: int = once((key, str(findings)), lambda: found, PLACE)
    return given


def test_the_nearest_is_gone_by() -> None:
    small, large = Findings([(2, 8)]), Findings([(32, 8)])
    assert (numbers(small, "a", 1), numbers(large, "a", 2)) == (1, 2)
    one = Findings([(20, 8)], [small, large])
    assert one.like is large
    assert numbers(one, "a", 3) == 2
    assert not one.is_makeshift
    far = Findings([(8, 8)], [small, large])
    assert numbers(far, "a", 3) in (1, 2)
    assert far.is_makeshift


def test_quite_other_sizes_may_not_do() -> None:
    known = Findings([(32, 8)])
    assert Findings([(16, 8)], [known], of_any_size=False).like is known
    assert Findings([(15, 8)], [known], of_any_size=False).like is None
    assert Findings([(15, 8)], [known]).like is known


def test_what_went_by_another_is_no_measure() -> None:
    first = Findings([(32, 8)])
    second = Findings([(20, 8)], [first])
    third = Findings([(12, 8)], [second, first])
    assert third.like is first
    assert Findings([(12, 8)], [second]).like is None


def test_arrays_of_other_ranks_are_not_alike() -> None:
    known = Findings([(32, 8)])
    assert Findings([(32, 8, 1)], [known]).like is None
    assert Findings([(32, 8), (1,)], [known]).like is None
    assert Findings([()], [Findings([()])]).like is not None


def test_an_empty_batch_is_as_far_as_its_sizes() -> None:
    known = Findings([(4, 8)])
    empty = Findings([(0, 8)], [known])
    numbers(known, "a", 1)
    assert numbers(empty, "a", 2) == 1
    assert empty.is_makeshift


def test_other_places_and_other_questions_are_measured() -> None:
    known = Findings([(4,)])
    numbers(known, "a", 1)
    other = Findings([(3,)], [known])
    assert numbers(other, "b", 2) == 2
    with other.active():
        assert once(("a", "x"), lambda: 5, ("another node",)) == 5
        assert once(("a", "y"), lambda: 6) == 6
        assert once(("a", "z"), lambda: 7, ("",)) == 7


def test_what_is_known_of_a_graph_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "ENABLED", True)
    numbers(Findings([(3,)]), "a", 9)
    known = Findings([(4,)])
    numbers(known, "a", 1)
    assert numbers(Findings([(3,)], [known]), "a", 5) == 9
    assert numbers(Findings([(2,)], [known]), "a", 5) == 1  # and it is not kept
    assert numbers(Findings([(2,)]), "a", 5) == 5


def test_threads_have_their_own() -> None:
    found = []
    mine = Findings([(1,)])
    with mine.active():
        thread = threading.Thread(target=lambda: found.append(active()))
        thread.start()
        thread.join()
        assert active() is mine
    assert found[0] is not mine
    assert active() is not mine


def of_rows(rows: int) -> Lowered:
    text = f"graph g(%x: f32[{rows},4]) {{ %a = tanh(%x) %b = dot(%a, %x) {{transpose_b=True}}"
    return lower(with_types(parse(text + " return %b }")))


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 4)).astype("float32")


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many engines were timed, for each race."""
    found: list[int] = []
    race = choosing.race

    def counted(engines, *rest):
        found.append(len(engines))
        return race(engines, *rest)

    monkeypatch.setattr(choosing, "race", counted)
    return found


@pytest.mark.parametrize("at", [0, -1])
def test_engines_are_those_of_the_other(races: list[int], at: int) -> None:
    known = Findings([(8, 4)])
    with known.active():
        first = of_rows(8)
    first(rows(8))
    assert len(races) == 1
    names = [*first.choice.measured_ms]
    known.note(("engine", "frozen", *names), names[at])
    with Findings([(6, 4)], [known]).active():
        second = of_rows(6)
    x = rows(6)
    np.testing.assert_allclose(second(x)[0].asnumpy(), np.tanh(x) @ x.T, rtol=1e-5, atol=1e-6)
    assert len(races) == 1
    assert second.choice.engine == names[at]
    assert second.choice.like == "8x4"
    assert not second.choice.measured_ms


def test_one_that_is_wrong_for_these_sizes_is_not_taken(
    races: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Findings([(8, 4)])
    with known.active():
        first = of_rows(8)
    first(rows(8))
    names = [*first.choice.measured_ms]
    known.note(("engine", "frozen", *names), names[-1])
    check = choosing._Agreement.check

    def wrong(agreement, name, found):
        if name == names[-1]:
            raise GraphError(f"{name} is off")
        return check(agreement, name, found)

    monkeypatch.setattr(choosing._Agreement, "check", wrong)
    with Findings([(6, 4)], [known]).active():
        second = of_rows(6)
    second(rows(6))
    assert len(races) == 2
    assert second.choice.engine != names[-1]
    assert not second.choice.like
    assert names[-1] in second.choice.failed
